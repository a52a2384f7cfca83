// Units: what travels when a token's row goes to each part of a group - a rank, a node, an expert - at most once. Used
// by exchanges by way of the node, at the tokens' rank, at gateways and at the experts' rank.
//
// Items are rows with c choices of experts each, experts [I, c], i32: global experts, -1 for none. part_of_expert says
// which part an expert belongs to, -1 for none. Merged, an item is one unit of each part that its experts belong to;
// else each choice is a unit of its own. A unit is led by its first choice.
#pragma once

#include <cstdint>
#include <span>

#include "core/stream.h"
#include "core/tensor.h"

namespace mw {

struct UnitTable {
  TensorView items_U;   // i32, with room for all units (I * c at most): row of experts_Ic that each unit is of
  TensorView leads_U;   // i32, as large: its first choice, as an index into experts_Ic
  TensorView units_Ic;  // i32 [rows of experts_Ic, c]: unit that the choice leads, -1 where it leads none
};

// Sorts units by part, stably in the order of items, then of choices. order: i32 [I], the rows of experts_Ic to take,
// in this order; empty: all rows in theirs. Entries of units_Ic for rows that are not taken keep their values.
// Deterministic.
void sort_units(Stream& stream, TensorView experts_Ic, TensorView order_I, std::span<const int32_t> part_of_expert,
                int64_t parts, bool merge, const UnitTable& out);

// counts (i64 [parts]): units of each part, as sort_units finds them. Overwrites.
void count_units(Stream& stream, TensorView experts_Ic, std::span<const int32_t> part_of_expert, bool merge,
                 TensorView counts);

// The choices that travel with each unit: its item's choices of the same part with their weights (f32), in the same
// columns, -1 and 0 in the others; not merged, its one choice. leads: those of UnitTable::leads_U. out: [U, c],
// or [U, 1] where not merged; weights and out_weights may be empty. Overwrites.
void unit_choices(Stream& stream, TensorView experts_Ic, TensorView weights_Ic, TensorView leads_U,
                  std::span<const int32_t> part_of_expert, bool merge, TensorView out_experts, TensorView out_weights);

// Scratch of the three.
int64_t unit_workspace_bytes(int64_t items, int64_t choices, int64_t experts, DeviceKind device = DeviceKind::cpu);

}  // namespace mw
