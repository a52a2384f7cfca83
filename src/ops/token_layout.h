// TokenLayout: the permutation between choices (token, k) and rows sorted by expert. It corresponds to the ERI arrays
// of X-MoE (section 4.1), built by a stable counting sort in O(T K + E), plus the inverse map by which combine gathers
// and sums in a fixed order.
#pragma once

#include <cstdint>
#include <span>

#include "core/stream.h"
#include "core/tensor.h"

namespace mw {

struct TokenLayout {
  int64_t tokens = 0, top_k = 0, experts = 0;
  int64_t rows = 0;              // R: kept rows
  int64_t dropped = 0;           // T * K - R
  TensorView token_ids_R;        // i32 [T * K], first R valid: token of each sorted row
  TensorView expert_ids_R;       // i32 [T * K], first R valid: global expert of each sorted row
  TensorView weights_R;          // f32 [T * K], first R valid: gate weight of each sorted row
  TensorView row_of_TK;          // i32 [T, K]: sorted row of each choice, -1 when dropped
  TensorView rows_per_expert_E;  // i64 [E], by global expert: kept rows
};

struct CapacityRule {
  int64_t capacity = 0;       // rows that an expert accepts per domain; 0: no limit (dropless)
  int64_t domain_tokens = 0;  // tokens per domain: the sequence length, or T for the whole rank
};

// Sorts the choices by `position_of_expert` (position in the (rank, slot) order of the placement: a permutation of
// 0..E-1), stably in (token, choice) order, so that equal inputs give equal layouts everywhere. With a capacity, each
// expert keeps the rows with the largest weights in each domain (X-MoE's rule; ties to the lower token, choice) and
// drops the others; with ranking (f32 [T, K], or empty), the rows with the largest ranking values instead. The caller
// sets the views of `layout` (with room for T * K rows), tokens, top_k and experts; everything else is an output.
void build_token_layout(Stream& stream, TensorView ids_TK, TensorView weights_TK, TensorView ranking_TK,
                        std::span<const int32_t> position_of_expert, CapacityRule rule, TokenLayout& layout);

// Scratch bytes of build_token_layout.
int64_t token_layout_workspace_bytes(int64_t tokens, int64_t top_k, int64_t experts,
                                     DeviceKind device = DeviceKind::cpu);

// out[r] = x[rows[r]] for r < count. x, out: same dtype, f32 or bf16. A negative row gives zeros. Overwrites.
void gather_rows(Stream& stream, TensorView x_TD, const int32_t* rows, int64_t count, TensorView out_RD);

// out[t] = base[t] + sum over k, in order, of weights[t, k] * y[row_of[t, k]]; choices with row_of = -1 are skipped.
// base: empty view (zero) or [T, D], may alias out. weights: f32 [T, K] or an empty view (all 1: the backward of the
// gather). y, base, out: same dtype, f32 or bf16; fp32 sums. Overwrites.
void combine_rows(Stream& stream, TensorView y_RD, TensorView row_of_TK, TensorView weights_TK, TensorView base_TD,
                  TensorView out_TD);

}  // namespace mw
