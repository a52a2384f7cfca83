// Units: the parts of leading choices are keys of a counting sort; one thread finds those of an item.
#include "ops/units.h"

#include "ops/gpu/counting_sort.h"
#include "ops/gpu/operators.h"

namespace mw::gpu {
namespace {

struct Units {
  const int32_t* experts;
  const int32_t* part_of_expert;
  int64_t expert_count, choices;
  bool merge;

  // Experts are valid unless a caller is broken: then memory stays whole.
  __device__ int32_t part_of(int64_t choice) const {
    const int32_t expert = experts[choice];
    return expert < 0 || expert >= expert_count ? -1 : part_of_expert[expert];
  }
  // The part of the unit that the k-th choice of a row leads, -1: it leads none.
  __device__ int32_t led_part(int64_t row, int64_t k) const {
    const int64_t first = row * choices;
    const int32_t part = part_of(first + k);
    if (!merge || part < 0) return part;
    for (int64_t before = 0; before < k; ++before)
      if (part_of(first + before) == part) return -1;
    return part;
  }
};

struct LedPart {
  Units units;
  const int32_t* order;
  __device__ int32_t operator()(int64_t i) const {
    const int64_t item = i / units.choices;
    return units.led_part(order == nullptr ? item : order[item], i % units.choices);
  }
};

struct PlaceUnit {
  LedPart led;
  int32_t *items, *leads, *units;
  __device__ void operator()(int64_t i, int32_t part, int32_t unit) const {
    const int64_t item = i / led.units.choices, row = led.order == nullptr ? item : led.order[item];
    const int64_t choice = row * led.units.choices + i % led.units.choices;
    units[choice] = part < 0 ? -1 : unit;
    if (part < 0) return;
    items[unit] = static_cast<int32_t>(row);
    leads[unit] = static_cast<int32_t>(choice);
  }
};

struct UnitCounts {
  Units divisions[kMostUnitParts];
  int64_t first[kMostUnitParts];  // count of each division
  int64_t division_count, all, choice_count;
  unsigned long long* counts;
};

// Atomics only add integers: the result is deterministic.
__global__ void __launch_bounds__(kSortThreads) count_units_kernel(UnitCounts of) {
  __shared__ int32_t shared[kSharedKeys];
  const bool fits = of.all <= kSharedKeys;
  if (fits)
    for (int64_t i = threadIdx.x; i < of.all; i += kSortThreads) shared[i] = 0;
  __syncthreads();
  const int64_t step = static_cast<int64_t>(gridDim.x) * kSortThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kSortThreads + threadIdx.x; i < of.choice_count; i += step)
    for (int64_t d = 0; d < of.division_count; ++d) {
      const Units& units = of.divisions[d];
      const int32_t part = units.led_part(i / units.choices, i % units.choices);
      if (part < 0) continue;
      if (fits) atomicAdd(shared + of.first[d] + part, 1);
      else atomicAdd(of.counts + of.first[d] + part, 1ull);
    }
  if (!fits) return;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < of.all; i += kSortThreads)
    if (shared[i] > 0) atomicAdd(of.counts + i, static_cast<unsigned long long>(shared[i]));
}

struct Zero {
  unsigned long long* values;
  __device__ void operator()(int64_t i) const { values[i] = 0; }
};

struct UnitChoices {
  Units units;
  const float* weights;
  const int32_t* leads;
  int64_t width;
  int32_t* out;
  float* out_weights;
  __device__ void operator()(int64_t i) const {
    const int64_t lead = leads[i / width], k = i % width;
    const int64_t choice = units.merge ? lead / units.choices * units.choices + k : lead;
    const bool travels = units.part_of(choice) == units.part_of(lead);
    out[i] = travels ? units.experts[choice] : -1;
    if (out_weights != nullptr) out_weights[i] = travels ? weights[choice] : 0.0f;
  }
};

Units units_of(Stream& stream, WorkspaceFrame& frame, const TensorView& experts_Ic,
               std::span<const int32_t> part_of_expert, bool merge) {
  auto* parts = frame.take<int32_t>(part_of_expert.size());
  stream.queue().write(parts, part_of_expert.data(), part_of_expert.size_bytes());
  return {experts_Ic.as<int32_t>(), parts, std::ssize(part_of_expert), experts_Ic.cols(), merge};
}

}  // namespace

void sort_units(Stream& stream, TensorView experts_Ic, TensorView order_I, std::span<const int32_t> part_of_expert,
                int64_t parts, bool merge, const UnitTable& out) {
  const int64_t items = order_I.data == nullptr ? experts_Ic.rows() : order_I.numel();
  const int64_t choices = items * experts_Ic.cols();
  WorkspaceFrame frame(stream.workspace());
  const LedPart led{units_of(stream, frame, experts_Ic, part_of_expert, merge),
                    order_I.data == nullptr ? nullptr : order_I.as<int32_t>()};
  const CountingSort sort = take_counting_sort(frame, choices, parts);
  sort_items(stream, sort, led,
             PlaceUnit{led, out.items_U.as<int32_t>(), out.leads_U.as<int32_t>(), out.units_Ic.as<int32_t>()}, nullptr,
             nullptr);
}

void count_units(Stream& stream, TensorView experts_Ic, std::span<const UnitParts> divisions, TensorView counts) {
  WorkspaceFrame frame(stream.workspace());
  UnitCounts of{{}, {}, std::ssize(divisions), 0, experts_Ic.numel(), static_cast<unsigned long long*>(counts.data)};
  for (size_t d = 0; d < divisions.size(); ++d) {
    of.divisions[d] = units_of(stream, frame, experts_Ic, divisions[d].part_of_expert, divisions[d].merge);
    of.first[d] = of.all;
    of.all += divisions[d].parts;
  }
  for_each(stream, of.all, Zero{of.counts});
  launch(stream, count_units_kernel, std::min(kMaxSortChunks, ceil_div(of.choice_count, kSortThreads)), kSortThreads, 0,
         of);
}

void unit_choices(Stream& stream, TensorView experts_Ic, TensorView weights_Ic, TensorView leads_U,
                  std::span<const int32_t> part_of_expert, bool merge, TensorView out_experts, TensorView out_weights) {
  WorkspaceFrame frame(stream.workspace());
  const bool weighs = weights_Ic.data != nullptr;
  for_each(stream, out_experts.numel(),
           UnitChoices{units_of(stream, frame, experts_Ic, part_of_expert, merge),
                       weighs ? weights_Ic.as<float>() : nullptr, leads_U.as<int32_t>(), out_experts.cols(),
                       out_experts.as<int32_t>(), weighs ? out_weights.as<float>() : nullptr});
}

int64_t unit_workspace_bytes(int64_t items, int64_t choices, int64_t experts) {
  const int64_t parts = ceil_div(4 * experts, 64) * 64;
  return std::max(parts + counting_sort_bytes(items * choices, experts), kMostUnitParts * parts);
}

}  // namespace mw::gpu
