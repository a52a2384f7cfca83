#include "train/checkpoint/checkpoint_slices.h"

namespace mw {

std::vector<LocalSlice> local_slices(Engine& engine, bool with_optimizer) {
  std::vector<LocalSlice> slices;
  for (Parameter& p : engine.params.all()) {
    const SliceWriter of_whole = p.row.expert ? SliceWriter::first_replica : SliceWriter::dealt;
    const auto add = [&](const char* kind, TensorView view, TensorView near, ElementRange range, bool is_cut) {
      const auto part_of = [](const TensorView& x, const HeldSlice& held) {
        return x.data == nullptr ? x : x.reshape({x.numel()}).slice(held.at, held.slice.size);
      };
      for (const HeldSlice& held : held_slices(p.row.shape, p.pieces, range))
        slices.push_back({kind + p.row.name, p.row.shape, held.slice, part_of(view, held), part_of(near, held),
                          p.replicas,
                          p.is_copy ? SliceWriter::nobody
                          : is_cut  ? SliceWriter::owner
                                    : of_whole});
    };
    if (p.is_split()) add("param.", p.rest, p.held_near(), p.held, p.holds_cut);
    else add("param.", p.master, {}, p.held, p.holds_cut);
    if (!p.row.trained || !with_optimizer) continue;
    const bool is_cut = engine.params.block(p.replicas).is_cut();
    add("adam_m.", p.adam_m, {}, p.owned, is_cut);
    add("adam_v.", p.adam_v, {}, p.owned, is_cut);
  }
  return slices;
}

DType stored_dtype(const LocalSlice& slice) {
  return slice.values.dtype == DType::u16 ? DType::f32 : slice.values.dtype;
}

std::string slice_key(const std::string& tensor, const TensorSlice& part) {
  return fmt::format("{}@{}+{}", tensor, part.begin, part.first);
}

std::vector<int64_t> stored_shape(std::vector<int64_t> global_shape, const TensorSlice& part) {
  if (part.size != box_elements(global_shape, part)) return {part.size};
  global_shape[static_cast<size_t>(part.axis)] = part.count;
  return global_shape;
}

}  // namespace mw
