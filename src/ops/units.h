// Units: the rows that travel in the exchanges of halo and bypass. An item is a token or, at a gateway and at the
// experts' rank, a unit that arrived; it has chosen experts. A part is a destination: a rank, a node or an expert.
// Merged, an item is one unit for each part that has one of its experts; not merged, one unit for each choice.
//
// Example: a token with experts 0, 1 and 9, and ranks of 8 experts as parts: 2 units if merged, else 3.
//
// Input: experts_Ic, i32 [I, c]: the c chosen experts of each item, global ids, -1: none. part_of_expert: the part that
// an expert belongs to, -1: none. merge: whether units are merged. The first choice of a unit is its lead: it stands
// for the unit.
#pragma once

#include <cstdint>
#include <span>

#include "core/stream.h"
#include "core/tensor.h"

namespace mw {

struct UnitTable {
  TensorView items_U;   // i32, with room for all units (I * c at most): the item (row of experts_Ic) of each unit
  TensorView leads_U;   // i32, as large: the lead of each unit: row * c + column in experts_Ic
  TensorView units_Ic;  // i32 [rows of experts_Ic, c]: unit whose lead this choice is; -1: none
};

// Sorts units by part, stably in the order of items, then of choices. order: i32 [I], the rows of experts_Ic to use as
// items, in this order, perhaps fewer than there are; empty: all rows in their order. Entries of units_Ic for
// rows that are not taken keep their values. Deterministic.
void sort_units(Stream& stream, TensorView experts_Ic, TensorView order_I, std::span<const int32_t> part_of_expert,
                int64_t parts, bool merge, const UnitTable& out);

struct UnitParts {
  std::span<const int32_t> part_of_expert;  // entries below `parts`
  int64_t parts = 0;
  bool merge = false;
};
constexpr int64_t kMostUnitParts = 4;

// counts (i64): for one to kMostUnitParts divisions in turn, the units of each of their parts, as sort_units finds
// them. Overwrites. Deterministic.
void count_units(Stream& stream, TensorView experts_Ic, std::span<const UnitParts> divisions, TensorView counts);

// The choices that travel with each unit, and their weights (f32); weights_Ic and out_weights may be empty. Merged: out
// [U, c] has the item's choices of the unit's part in their columns; other columns have expert -1 and weight 0. Not
// merged: out [U, 1] has the unit's one choice. leads_U: as in UnitTable. Overwrites.
void unit_choices(Stream& stream, TensorView experts_Ic, TensorView weights_Ic, TensorView leads_U,
                  std::span<const int32_t> part_of_expert, bool merge, TensorView out_experts, TensorView out_weights);

// Scratch of the three.
int64_t unit_workspace_bytes(int64_t items, int64_t choices, int64_t experts, DeviceKind device = DeviceKind::cpu);

}  // namespace mw
