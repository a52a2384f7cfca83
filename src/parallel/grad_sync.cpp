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
      overlap_(!comms.gpu_library.empty()),
      skip_router_(skip_router),
      feed_forward_(plan.model.layers.size()),
      collected_(params.all().size()) {
  for (const Replicas replicas : {Replicas::dp, Replicas::stage, Replicas::edp})
    groups_.push_back({comms.of(replicas), &params.block(replicas), {}});
  for (size_t i = collected_; i-- > 0;) {
    const ParamRow& row = params.all()[i].row;
    if (is_summed(params.all()[i])) total_ += widest_size(params.all()[i]);
    if (row.layer >= 0 && row.name == fmt::format("layers.{}.ffn_norm", row.layer)) {
      feed_forward_[static_cast<size_t>(row.layer)] = i;
      layers_.insert(layers_.begin(), row.layer);
      early_ = total_;
    }
  }
}

bool GradientSums::is_summed(const Parameter& p) {
  if (!p.row.trained || (skip_router_ && p.row.role == ParamRole::router)) return false;
  return group_of(p).comm.size() > 1;
}

int64_t GradientSums::widest_size(const Parameter& p) const {
  if (p.row.expert) {
    const ExpertPlacement& placement = plan_.placements[static_cast<size_t>(p.row.layer)];
    std::vector<int64_t> held(static_cast<size_t>(placement.ep));
    for (const std::vector<ExpertHome>& homes : placement.homes)
      for (const ExpertHome& home : homes) ++held[static_cast<size_t>(home.ep_rank)];
    return padded_gradient(*std::max_element(held.begin(), held.end()) * widest_entry(p.row, plan_.model, plan_.mesh));
  }
  MeshCoords first = plan_.coords;  // the first of TP has the most
  first.tp = 0;
  return padded_gradient(local_param(p.row, plan_.model, plan_.placements, plan_.mesh, first).numel());
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
    if (is_summed(p)) add(p);
  }
}

// The table of bytes lays gradients of the same replicas back to back, in the order of the rows: each goes right below
// the one before, but for an alignment gap, which holds zeros.
void GradientSums::add(const Parameter& p) {
  std::vector<Range>& waiting = group_of(p).waiting;
  float* begin = p.grad.as<float>();
  const int64_t size = p.grad.numel();
  if (!waiting.empty()) {
    Range& above = waiting.back();
    const int64_t with_gap = above.begin - begin;
    if (with_gap == padded_gradient(size)) {
      above = {begin, p.block_begin, above.size + with_gap, above.widest + widest_size(p)};
      return;
    }
  }
  waiting.push_back({begin, p.block_begin, size, widest_size(p)});
}

void GradientSums::start(int64_t elements) {
  for (Group& group : groups_) {
    while (elements > 0 && !group.waiting.empty()) {
      Range& range = group.waiting.front();
      const int64_t share = std::min(range.widest, round_up(elements, kShareElements));
      const int64_t own = std::min(range.size, share);
      range.size -= own;
      range.widest -= share;
      if (own > 0) pending_.push_back(sum(group, range, own));
      started_ += share;
      elements -= share;
      if (range.widest == 0) group.waiting.erase(group.waiting.begin());
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

void copy_tied_weights(Stream& stream, ParamStore& params, Comm& ends) {
  if (ends.size() == 1) return;
  const TraceScope scope(stream.trace(), Work::reduce, "copy_tied_weights");
  const Parameter& embed = params.find("embed");
  if (ends.rank() == 0) {
    ends.send(stream, bytes_of(embed.master), 1)->wait();
    return;
  }
  ends.receive(stream, bytes_of(embed.master), 0)->wait();
  for (const Weight& weight : embed.weights)
    if (weight.packed_forward.data != nullptr) pack_weight(stream, weight);
}

double global_gradient_norm(Stream& stream, ParamStore& params, MeshComms& comms) {
  const auto squares_of = [&](Replicas replicas) {
    std::vector<TensorView> owned;
    for (const Parameter& p : params.all())
      if (p.row.trained && p.replicas == replicas && !p.is_copy && p.owned.count > 0) owned.push_back(p.owned_grad());
    double squares = sum_squares(stream, owned);
    if (params.block(replicas).is_cut()) comms.of(replicas).all_reduce_sum(std::span(&squares, 1));
    return squares;
  };
  double slices = squares_of(Replicas::dp), experts = squares_of(Replicas::edp);
  comms.ep->all_reduce_sum(std::span(&experts, 1));
  if (comms.cuts_experts) slices += std::exchange(experts, 0.0);
  comms.tp->all_reduce_sum(std::span(&slices, 1));
  double squares = slices + squares_of(Replicas::stage) + experts;
  comms.pp->all_reduce_sum(std::span(&squares, 1));
  return std::sqrt(squares);
}

}  // namespace mw
