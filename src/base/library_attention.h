// Arithmetic on sizes for causal attention by a GPU library (cuDNN): which sizes the library gets, and how much scratch
// it needs. The attention operator follows these rules, and the planner, which does not link the operators, counts
// memory with them.
#pragma once

#include <cstdint>

namespace mw::library_attention {

constexpr int64_t kScoreRows = 128;  // sequence lengths in scratch are rounded up to a multiple of this
constexpr int64_t kBorder = 256;     // alignment of scratch, in bytes

struct Sizes {
  int64_t sequences = 0, seq_len = 0, heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
};

// The work of one launch of the backward pass: all heads of several sequences, or some heads of one sequence.
struct Part {
  int64_t sequences = 0, kv_heads = 0;
};
Part part_of(const Sizes& sizes, bool deterministic);

// Why these sizes cannot go to the library, whatever its version; null where they can.
const char* reason_against(const Sizes& sizes, bool deterministic);

// Whether our own kernels for tensor cores take heads of these widths. Layers with documents or a window go to them
// then: they skip hidden keys, which the library computes.
bool tensor_cores_take(int64_t head_dim, int64_t value_dim);

// Upper bound of the scratch bytes of either pass.
int64_t scratch_bound(const Sizes& sizes, bool deterministic);

// Scratch bytes to reserve for both passes, deterministic or not; 0 where the library serves neither.
int64_t scratch_bytes(const Sizes& sizes);

}  // namespace mw::library_attention
