#include "engine/state_slices.h"

#include <cstring>

#include "ops/device.h"
#include "ops/elementwise.h"
#include "ops/split_values.h"

namespace mw {
namespace {

// Stored elements, which lie anywhere, as values of a type.
template <class Stored, class Value, class Convert>
std::vector<Value> converted(const std::byte* from, int64_t count, Convert convert) {
  std::vector<Value> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    Stored element;
    std::memcpy(&element, from + i * sizeof element, sizeof element);
    values[i] = convert(element);
  }
  return values;
}

// Elements [at, at + count) of a view that may be empty.
TensorView part_of(const TensorView& view, int64_t at, int64_t count) {
  return view.data == nullptr ? view : view.flat().slice(at, count);
}

}  // namespace

std::vector<LocalSlice> cut_slice(const LocalSlice& slice, int64_t most) {
  std::vector<LocalSlice> parts;
  for (const TensorSlice& part : cut_slice(slice.part, most)) {
    const int64_t at = part.first - slice.part.first;
    parts.push_back(slice);
    parts.back().part = part;
    parts.back().values = part_of(slice.values, at, part.size);
    parts.back().near = part_of(slice.near, at, part.size);
    parts.back().place += at;
  }
  return parts;
}

std::vector<LocalSlice> local_slices(ParamStore& params, bool with_optimizer) {
  std::vector<LocalSlice> slices;
  for (Parameter& p : params.all()) {
    const auto add = [&](StateKind kind, TensorView view, TensorView near, ElementRange range, bool is_cut) {
      for (const HeldSlice& held : held_slices(p.row.shape, p.pieces, range))
        slices.push_back({state_name(kind, p.row), p.row.shape, held.slice, part_of(view, held.at, held.slice.size),
                          part_of(near, held.at, held.slice.size), p.replicas, range.begin + held.at,
                          p.row.expert ? p.matrix_elements() : p.numel(), p.row.expert, is_cut, p.is_copy});
    };
    if (p.is_split()) add(StateKind::param, p.rest, p.held_near(), p.held, p.holds_cut);
    else add(StateKind::param, p.master, {}, p.held, p.holds_cut);
    if (!with_optimizer) continue;
    const bool is_cut = params.block(p.replicas).is_cut();
    for (const auto& [kind, view] : {std::pair(StateKind::adam_m, p.adam_m), {StateKind::adam_v, p.adam_v}})
      if (has_state(kind, p.row)) add(kind, view, {}, p.owned, is_cut);
  }
  return slices;
}

EngineStates::EngineStates(Engine& engine) : map(engine.plan) {
  for (LocalSlice& slice : local_slices(engine.params, true)) by_tensor_[slice.tensor].push_back(std::move(slice));
}

const LocalSlice& EngineStates::at(const StateMove& move, size_t index, const TensorSlice& part) const {
  const std::string name = state_name(move.kind, map.rows()[move.row]);
  const auto found = by_tensor_.find(name);
  MW_CHECK(found != by_tensor_.end() && index < found->second.size() && found->second[index].part == part,
           "slice {} of {} in memory is not the planned one", index, name);
  return found->second[index];
}

DType stored_dtype(const LocalSlice& slice) {
  return slice.values.dtype == DType::u16 ? DType::f32 : slice.values.dtype;
}

SliceReader::SliceReader(Device device) {
  if (device.kind != DeviceKind::cpu) queue_ = open_queue(device);
}

std::span<const std::byte> SliceReader::read(const LocalSlice& slice, int64_t begin, int64_t count) {
  const std::span values = fetch(slice.values.slice(begin, count), values_);
  if (slice.near.data == nullptr) return values;
  const auto* near = reinterpret_cast<const bf16*>(fetch(slice.near.slice(begin, count), near_).data());
  const auto* rests = reinterpret_cast<const uint16_t*>(values.data());
  joined_.resize(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) joined_[static_cast<size_t>(i)] = join_float(near[i], rests[i]);
  return std::as_bytes(std::span(joined_));
}

std::span<const std::byte> SliceReader::fetch(const TensorView& view, std::vector<std::byte>& staging) {
  const std::span<const std::byte> bytes = bytes_of(view);
  if (queue_ == nullptr) return bytes;
  staging.resize(bytes.size());
  queue_->copy(staging.data(), bytes.data(), bytes.size());
  queue_->wait();
  return staging;
}

void write_stored(Device device, const std::byte* from, DType dtype, TensorView to, TensorView near) {
  const auto write = [&](const TensorView& view, const auto& values) {
    write_to(device, view.data, values.data(), static_cast<size_t>(view.bytes()));
  };
  if (dtype == to.dtype) {
    write_to(device, to.data, from, static_cast<size_t>(to.bytes()));
  } else if (dtype == DType::bf16) {
    write(to, converted<bf16, float>(from, to.numel(), [](bf16 x) { return to_float(x); }));
  } else if (to.dtype == DType::bf16) {
    write(to, converted<float, bf16>(from, to.numel(), [](float x) { return to_bf16(x); }));
  } else {
    const SplitValues halves(converted<float, float>(from, to.numel(), [](float x) { return x; }));
    write(near, halves.near);
    write(to, halves.rest);
  }
}

}  // namespace mw
