#include "engine/grad_sync.h"

#include <algorithm>
#include <cmath>
#include <numeric>
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
    groups_.push_back({comms.of(replicas), &params.block(replicas), gradient_dtype(replicas, plan.run), {}});
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
  if (&p == left_out_ || !p.row.trained || (skip_router_ && p.row.role == ParamRole::router)) return false;
  return group_of(p).comm.size() > 1;
}

int64_t GradientSums::widest_size(const Parameter& p) const {
  if (p.row.expert) {
    const ExpertPlacement& placement = plan_.placements->layers[static_cast<size_t>(p.row.layer)];
    std::vector<int64_t> held(static_cast<size_t>(placement.ep));
    for (const std::vector<ExpertHome>& homes : placement.homes) ++held[static_cast<size_t>(homes.front().ep_rank)];
    return padded_gradient(*std::max_element(held.begin(), held.end()) *
                               widest_entry(p.row, plan_.model, plan_.placements->layers, plan_.mesh),
                           p.grad.dtype);
  }
  MeshCoords first = plan_.coords;  // the first of TP has the most
  first.tp = 0;
  return padded_gradient(local_param(p.row, plan_.model, plan_.placements->layers, plan_.mesh, first).numel(),
                         p.grad.dtype);
}

// The layer's exchanges are over. A sum that outlasts the next attention delays the next exchange on the same queue;
// equal shares per layer delay least, so the head's is cut over all layers.
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
  for (int slot = 0; slot < std::ssize(pieces_); ++slot) finish_piece(slot);
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
  auto* begin = static_cast<std::byte*>(p.grad.data);
  const int64_t size = p.grad.numel();
  if (!waiting.empty()) {
    Range& above = waiting.back();
    const int64_t with_gap = padded_gradient(size, p.grad.dtype);
    if (above.begin - begin == with_gap * size_of(p.grad.dtype)) {
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
      if (own > 0) sum(group, range, own);
      started_ += share;
      elements -= share;
      if (range.widest == 0) group.waiting.erase(group.waiting.begin());
    }
  }
}

// The elements behind those that are left of the range.
void GradientSums::sum(const Group& group, const Range& range, int64_t elements) {
  const int64_t at = range.at + range.size;
  const TensorView values(range.begin + range.size * size_of(group.dtype), group.dtype, {elements});
  if (group.dtype == DType::bf16) return sum_in_pieces(group, values, at);
  pending_.push_back(
      sum(group, std::span(values.as<float>(), static_cast<size_t>(elements)), group.block->counts(at, elements)));
}

std::unique_ptr<Pending> GradientSums::sum(const Group& group, std::span<float> values,
                                           std::span<const int64_t> counts) {
  if (!group.block->is_cut()) return group.comm.all_reduce_sum(stream_, values);
  return group.comm.reduce_scatter_sum(stream_, values, counts);
}

// `at`: of the values in their block. Two pieces are under way at most: where both are, the older one is waited for.
void GradientSums::sum_in_pieces(const Group& group, const TensorView& values, int64_t at) {
  const int64_t most = params_.sum_pieces().cols();
  for (int64_t begin = 0; begin < values.numel(); begin += most) {
    const int64_t count = std::min(most, values.numel() - begin);
    finish_piece(next_piece_);
    Piece& piece = pieces_[static_cast<size_t>(next_piece_)];
    const TensorView gradients = values.slice(begin, count),
                     sums = params_.sum_pieces().at(next_piece_).slice(0, count);
    convert(stream_, gradients, sums);
    const std::vector<int64_t> counts = group.block->counts(at + begin, count);
    const ElementRange own = group.block->own(at + begin, count);
    piece.pending = sum(group, std::span(sums.as<float>(), static_cast<size_t>(count)), counts);
    piece.sums = sums.slice(own.begin, own.count);
    piece.gradients = gradients.slice(own.begin, own.count);
    next_piece_ = 1 - next_piece_;
  }
}

void GradientSums::finish_piece(int slot) {
  Piece& piece = pieces_[static_cast<size_t>(slot)];
  if (piece.pending == nullptr) return;
  piece.pending->wait();
  piece.pending.reset();
  convert(stream_, piece.sums, piece.gradients);
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

// Of the pieces over which squares of expert gradients are summed where ZeRO cuts them. In every slot and on every rank
// they begin at the same elements of an expert matrix, and no cut divides one: each matrix, and each cut, is a multiple
// of their length.
static int64_t expert_piece(const ParamStore& params, MeshComms& comms) {
  int64_t piece = params.block(Replicas::edp).unit;
  for (const Parameter& p : params.all())
    if (p.row.expert && !p.weights.empty()) piece = std::gcd(piece, p.matrix_elements());
  int64_t least = -piece;  // ranks with unequal numbers of experts may cut in other units
  comms.ep->all_reduce_max(std::span(&least, 1));
  return -least;
}

// Squares of whole gradients of experts, which are read only if products did not add all of them. Uses up what they
// added.
static ExactSum squares_of_experts(Stream& stream, ParamStore& params, std::span<const Parameter* const> experts) {
  std::vector<TensorView> matrices;
  int64_t elements = 0;
  for (const Parameter* p : experts) {
    const TensorView grad = p->grad;
    if (grad.numel() == 0) continue;
    matrices.push_back(grad.reshape({grad.dim(0), p->weights[0].n, p->weights[0].k}));
    elements += grad.numel();
  }
  SquareSums& added = params.squares();
  if (std::exchange(added.elements, 0) == elements) matrices.clear();
  else clear(stream, added);
  return sum_squares_by_tile(stream, matrices, added);
}

double global_gradient_norm(Stream& stream, ParamStore& params, MeshComms& comms, Fault fault) {
  const bool counts_copies = fault == Fault::copies_in_norm;
  const auto counted = [&](Replicas replicas) {
    std::vector<const Parameter*> of_rank;
    for (const Parameter& p : params.all())
      if (p.row.trained && p.replicas == replicas && (!p.is_copy || counts_copies) && p.owned.count > 0)
        of_rank.push_back(&p);
    return of_rank;
  };
  const auto owned = [](std::span<const Parameter* const> of_rank) {
    std::vector<TensorView> gradients;  // of replicas, whose sums are not cut, whole
    for (const Parameter* p : of_rank) gradients.push_back(p->owned.count > 0 ? p->owned_grad() : p->grad);
    return gradients;
  };
  const auto squares_of = [&](Replicas replicas) {
    double squares = sum_squares(stream, owned(counted(replicas)));
    if (params.block(replicas).is_cut()) comms.of(replicas).all_reduce_sum(std::span(&squares, 1));
    return squares;
  };
  std::vector<const Parameter*> experts_of_rank = counted(Replicas::edp);
  if (fault == Fault::norm_counts_replicas)
    for (const Parameter& p : params.replicas()) experts_of_rank.push_back(&p);
  const bool is_cut = params.block(Replicas::edp).is_cut();
  ExactSum of_experts = is_cut ? sum_squares_exactly(stream, owned(experts_of_rank), expert_piece(params, comms))
                               : squares_of_experts(stream, params, experts_of_rank);
  if (is_cut) comms.of(Replicas::edp).all_reduce_sum(of_experts.limbs());
  comms.ep->all_reduce_sum(of_experts.limbs());
  double slices = squares_of(Replicas::dp), experts = of_experts.value();
  if (comms.cuts_experts) slices += std::exchange(experts, 0.0);
  comms.tp->all_reduce_sum(std::span(&slices, 1));
  double whole = squares_of(Replicas::stage);
  if (counts_copies) comms.tp->all_reduce_sum(std::span(&whole, 1));
  double squares = slices + whole + experts;
  comms.pp->all_reduce_sum(std::span(&squares, 1));
  return std::sqrt(squares);
}

}  // namespace mw
