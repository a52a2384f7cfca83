#include "ops/units.h"

#include <algorithm>

#include "ops/cpu/loops.h"
#include "ops/cpu/operators.h"

namespace mw::cpu {
namespace {

constexpr int64_t kItemsPerBlock = 1024;

// Finds the units of items.
struct Units {
  const int32_t* experts;
  std::span<const int32_t> part_of_expert;
  int64_t choices;
  bool merge;

  int32_t part_of(int64_t choice) const {
    return experts[choice] < 0 ? -1 : part_of_expert[static_cast<size_t>(experts[choice])];
  }
  // The part of the unit that a choice of a row leads, -1: it leads none.
  int32_t led_part(int64_t row, int64_t choice) const {
    const int64_t first = row * choices;
    const int32_t part = part_of(first + choice);
    if (!merge || part < 0) return part;
    for (int64_t k = 0; k < choice; ++k)
      if (part_of(first + k) == part) return -1;
    return part;
  }
};

void check_experts(const Units& units, int64_t row) {
  for (int64_t choice = row * units.choices; choice < (row + 1) * units.choices; ++choice)
    MW_CHECK(units.experts[choice] < std::ssize(units.part_of_expert), "expert {} of {}", units.experts[choice],
             units.part_of_expert.size());
}

}  // namespace

void sort_units(Stream& stream, TensorView experts_Ic, TensorView order_I, std::span<const int32_t> part_of_expert,
                int64_t parts, bool merge, const UnitTable& out) {
  const int64_t choices = experts_Ic.cols(), items = order_I.data == nullptr ? experts_Ic.rows() : order_I.numel();
  const int32_t* order = order_I.data == nullptr ? nullptr : order_I.as<int32_t>();
  const Units units{experts_Ic.as<int32_t>(), part_of_expert, choices, merge};
  int32_t *items_of = out.items_U.as<int32_t>(), *leads = out.leads_U.as<int32_t>(), *led = out.units_Ic.as<int32_t>();
  for (int64_t i = 0; i < items; ++i) check_experts(units, order == nullptr ? i : order[i]);
  // Parts of leaders lie in `led` until their units have numbers.
  for_blocks(stream, items, kItemsPerBlock, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = order == nullptr ? i : order[i];
      for (int64_t k = 0; k < choices; ++k) led[row * choices + k] = units.led_part(row, k);
    }
  });
  WorkspaceFrame frame(stream.workspace());
  auto* next = frame.take<int32_t>(static_cast<size_t>(parts + 1));
  std::fill_n(next, parts + 1, 0);
  const auto for_each_leader = [&](const auto& body) {
    for (int64_t i = 0; i < items; ++i) {
      const int64_t row = order == nullptr ? i : order[i];
      for (int64_t choice = row * choices; choice < (row + 1) * choices; ++choice)
        if (led[choice] >= 0) body(row, choice);
    }
  };
  for_each_leader([&](int64_t, int64_t choice) {
    MW_CHECK(led[choice] < parts, "part {} of {}", led[choice], parts);
    ++next[led[choice] + 1];
  });
  for (int64_t part = 0; part < parts; ++part) next[part + 1] += next[part];
  MW_CHECK(next[parts] <= out.items_U.numel(), "{} units in a table of {}", next[parts], out.items_U.describe());
  for_each_leader([&](int64_t row, int64_t choice) {
    const int32_t unit = next[led[choice]]++;
    items_of[unit] = static_cast<int32_t>(row);
    leads[unit] = static_cast<int32_t>(choice);
    led[choice] = unit;
  });
}

void count_units(Stream& stream, TensorView experts_Ic, std::span<const UnitParts> divisions, TensorView counts) {
  static_cast<void>(stream);
  int64_t* count = counts.as<int64_t>();
  std::fill_n(count, counts.numel(), 0);
  for (const auto& [part_of_expert, parts, merge] : divisions) {
    const Units units{experts_Ic.as<int32_t>(), part_of_expert, experts_Ic.cols(), merge};
    for (int64_t row = 0; row < experts_Ic.rows(); ++row) {
      check_experts(units, row);
      for (int64_t k = 0; k < units.choices; ++k) {
        const int32_t part = units.led_part(row, k);
        MW_CHECK(part < parts, "part {} of {}", part, parts);
        if (part >= 0) ++count[part];
      }
    }
    count += parts;
  }
}

void unit_choices(Stream& stream, TensorView experts_Ic, TensorView weights_Ic, TensorView leads_U,
                  std::span<const int32_t> part_of_expert, bool merge, TensorView out_experts, TensorView out_weights) {
  const int64_t choices = experts_Ic.cols(), width = merge ? choices : 1;
  const Units units{experts_Ic.as<int32_t>(), part_of_expert, choices, merge};
  const float* weights = weights_Ic.data == nullptr ? nullptr : weights_Ic.as<float>();
  const int32_t* leads = leads_U.as<int32_t>();
  int32_t* to = out_experts.as<int32_t>();
  float* to_weights = out_weights.data == nullptr ? nullptr : out_weights.as<float>();
  for_blocks(stream, leads_U.numel(), kItemsPerBlock, [=](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      const int64_t lead = leads[u], first = merge ? lead / choices * choices : lead;
      const int32_t part = units.part_of(lead);
      for (int64_t k = 0; k < width; ++k) {
        const bool travels = units.part_of(first + k) == part;
        to[u * width + k] = travels ? units.experts[first + k] : -1;
        if (weights != nullptr && to_weights != nullptr)
          to_weights[u * width + k] = travels ? weights[first + k] : 0.0f;
      }
    }
  });
}

int64_t unit_workspace_bytes(int64_t, int64_t, int64_t experts) {
  return (experts + 1) * static_cast<int64_t>(sizeof(int32_t)) + 64;
}

}  // namespace mw::cpu
