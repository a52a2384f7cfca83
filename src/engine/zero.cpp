#include "engine/zero.h"

#include <algorithm>
#include <utility>

#include "ops/elementwise.h"

namespace mw {
namespace {

// The owners' parts of `view`, which holds local elements of a parameter from `begin` on, in bytes.
std::vector<int64_t> part_bytes(const GradientBlock& block, const Parameter& p, int64_t begin, const TensorView& view) {
  std::vector<int64_t> counts = block.counts(p.block_begin + begin, view.numel());
  for (int64_t& count : counts) count *= size_of(view.dtype);
  return counts;
}

}  // namespace

void WeightGathers::add(Parameter& p) {
  const GradientBlock& block = params_.block(p.replicas);
  if (!p.row.trained || !block.is_cut()) return;
  if (p.holds_cut && p.copy_bf16.data == nullptr) {
    to_pack_.push_back(&p);
    return;
  }
  const TensorView weights = p.holds_cut ? p.copy_bf16 : p.master;
  pending_.push_back(replicas(p).all_gather(stream_, bytes_of(weights), part_bytes(block, p, 0, weights)));
}

void WeightGathers::finish() {
  for (auto& pending : pending_) pending->wait();
  pending_.clear();
  for (const Parameter* p : std::exchange(to_pack_, {})) pack_gathered(*p);
}

// One matrix at a time, so that the room for it is small.
void WeightGathers::pack_gathered(const Parameter& p) {
  if (p.weights.empty()) return;  // neither this rank nor its replicas hold experts of the layer
  const int64_t size = p.matrix_elements();
  for (size_t i = 0; i < p.weights.size(); ++i) {
    const auto begin = static_cast<int64_t>(i) * size;
    Weight matrix = p.weights[i];
    matrix.values = take_front(params_.gathered(), {matrix.n, matrix.k});
    const int64_t first = std::clamp(p.owned.begin, begin, begin + size),
                  last = std::clamp(p.owned.end(), begin, begin + size);
    if (first < last) {
      const TensorView own(p.master.as<float>() + (first - p.held.begin), DType::f32, {last - first});
      convert(stream_, own, TensorView(matrix.values.as<float>() + (first - begin), DType::f32, {last - first}));
    }
    replicas(p)
        .all_gather(stream_, bytes_of(matrix.values), part_bytes(params_.block(p.replicas), p, begin, matrix.values))
        ->wait();
    pack_weight(stream_, matrix);
  }
}

void refresh_weights(ParamStore& params, MeshComms& comms, Stream& stream) {
  std::vector<Parameter*> all;
  for (Parameter& p : params.all()) all.push_back(&p);
  refresh_weights(params, comms, stream, all);
}

void refresh_weights(ParamStore& params, MeshComms& comms, Stream& stream, std::span<Parameter* const> which) {
  WeightGathers gathers(params, comms, stream);
  for (Parameter* p : which) {
    if (!p->holds_cut) continue;
    if (p->copy_bf16.data != nullptr && !p->is_split() && p->owned.count > 0)
      convert(stream, p->owned_master(), p->owned_copy());
    gathers.add(*p);
  }
  gathers.finish();
  for (const Parameter* p : which) repack(stream, *p);
}

}  // namespace mw
