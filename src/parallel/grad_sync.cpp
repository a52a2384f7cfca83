#include "parallel/grad_sync.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "ops/elementwise.h"

namespace mw {
namespace {

constexpr int64_t kShareElements = 1 << 18;  // cuts are multiples of it: smaller messages cost more than their bytes

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

GradientSums::GradientSums(const Plan& plan, ParamStore& params, MeshComms& comms, Stream& stream, bool skip_router)
    : plan_(plan),
      params_(params),
      stream_(stream),
      dense_{*comms.dp, &params.block(false), {}},
      expert_{*comms.edp, &params.block(true), {}},
      overlap_(!comms.gpu_library.empty()),
      skip_router_(skip_router),
      feed_forward_(plan.model.layers.size()),
      collected_(params.all().size()) {
  for (size_t i = collected_; i-- > 0;) {
    const ParamRow& row = params.all()[i].row;
    if (is_summed(row)) total_ += widest_size(row);
    if (row.layer >= 0 && row.name == fmt::format("layers.{}.ffn_norm", row.layer)) {
      feed_forward_[static_cast<size_t>(row.layer)] = i;
      layers_.insert(layers_.begin(), row.layer);
      early_ = total_;
    }
  }
}

bool GradientSums::is_summed(const ParamRow& row) const {
  if (!row.trained || (skip_router_ && row.role == ParamRole::router)) return false;
  return (row.expert ? expert_ : dense_).comm.size() > 1;
}

int64_t GradientSums::widest_size(const ParamRow& row) const {
  int64_t entries = row.shape[0];
  if (row.expert) {
    const ExpertPlacement& placement = plan_.placements[static_cast<size_t>(row.layer)];
    std::vector<int64_t> held(static_cast<size_t>(placement.ep));
    for (const std::vector<ExpertHome>& homes : placement.homes)
      for (const ExpertHome& home : homes) ++held[static_cast<size_t>(home.ep_rank)];
    entries = *std::max_element(held.begin(), held.end());
  }
  return padded_gradient(entries * elements_per_entry(row));
}

// The layer's exchanges are over, and the next layer's come on the same queue after the attention that follows: a sum
// delays them by what outlasts it. Equal shares outlast it least, so the head's is cut over all layers.
void GradientSums::feed_forward_done(int64_t layer) {
  if (!overlap_) return;
  collect_from(feed_forward_[static_cast<size_t>(layer)]);
  const auto at = std::find(layers_.begin(), layers_.end(), layer);
  start(early_ * (layers_.end() - at) / std::ssize(layers_) - started_);
}

void GradientSums::finish() {
  const TraceScope scope(stream_.trace(), Work::reduce, "sum_gradients");
  collect_from(0);
  start(total_ - started_);
  for (auto& pending : pending_) pending->wait();
  pending_.clear();
}

void GradientSums::collect_from(size_t first) {
  while (collected_ > first) {
    const Parameter& p = params_.all()[--collected_];
    if (is_summed(p.row)) add(p);
  }
}

// The table of bytes lays dense gradients back to back, and expert ones, in the order of the rows: each goes right
// below the one before, but for an alignment gap, which holds zeros.
void GradientSums::add(const Parameter& p) {
  std::vector<Range>& waiting = (p.row.expert ? expert_ : dense_).waiting;
  float* begin = p.grad.as<float>();
  const int64_t size = p.grad.numel();
  if (!waiting.empty()) {
    Range& above = waiting.back();
    const int64_t with_gap = above.begin - begin;
    if (with_gap == padded_gradient(size)) {
      above = {begin, p.block_begin, above.size + with_gap, above.widest + widest_size(p.row)};
      return;
    }
  }
  waiting.push_back({begin, p.block_begin, size, widest_size(p.row)});
}

void GradientSums::start(int64_t elements) {
  for (Group* group : {&dense_, &expert_}) {
    while (elements > 0 && !group->waiting.empty()) {
      Range& range = group->waiting.front();
      const int64_t share = std::min(range.widest, round_up(elements, kShareElements));
      const int64_t own = std::min(range.size, share);
      range.size -= own;
      range.widest -= share;
      if (own > 0) pending_.push_back(sum(*group, range, own));
      started_ += share;
      elements -= share;
      if (range.widest == 0) group->waiting.erase(group->waiting.begin());
    }
  }
}

// The elements behind those that are left of the range.
std::unique_ptr<Pending> GradientSums::sum(const Group& group, const Range& range, int64_t elements) {
  const std::span values(range.begin + range.size, static_cast<size_t>(elements));
  if (!group.block->is_cut()) return group.comm.all_reduce_sum(stream_, values);
  return group.comm.reduce_scatter_sum(stream_, values, group.block->counts(range.at + range.size, elements));
}

void sum_tied_gradients(Stream& stream, ParamStore& params, Comm& ends) {
  if (ends.size() == 1) return;
  const TraceScope scope(stream.trace(), Work::reduce, "sum_tied_gradients");
  const TensorView grad = params.find("embed").grad;
  ends.all_reduce_sum(stream, std::span(grad.as<float>(), static_cast<size_t>(grad.numel())))->wait();
}

double global_gradient_norm(Stream& stream, ParamStore& params, MeshComms& comms) {
  std::vector<TensorView> dense, expert;
  for (const Parameter& p : params.all())
    if (p.row.trained && !p.is_copy && p.owned.count > 0) (p.row.expert ? expert : dense).push_back(p.owned_grad());
  double dense_squares = sum_squares(stream, dense), squares = sum_squares(stream, expert);
  if (params.block(false).is_cut()) comms.dp->all_reduce_sum(std::span(&dense_squares, 1));
  if (params.block(true).is_cut()) comms.edp->all_reduce_sum(std::span(&squares, 1));
  comms.ep->all_reduce_sum(std::span(&squares, 1));
  squares += dense_squares;
  comms.pp->all_reduce_sum(std::span(&squares, 1));
  return std::sqrt(squares);
}

}  // namespace mw
