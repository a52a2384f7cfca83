// Causal attention by a GPU's library (cuDNN), as far as it is arithmetic on sizes: which of them the library gets, and
// the scratch that it is given. The operator obeys it, and a plan, which links no operators, counts with it.
#pragma once

#include <cstdint>

namespace mw::library_attention {

constexpr int64_t kScoreRows = 128;  // sequences are rounded up to it in scratch
constexpr int64_t kBorder = 256;     // that scratch lies on

struct Sizes {
  int64_t sequences = 0, seq_len = 0, heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
};

// What one run of the backward pass covers: all heads of several sequences, or some of the heads of one.
struct Part {
  int64_t sequences = 0, kv_heads = 0;
};
Part part_of(const Sizes& sizes, bool deterministic);

// Why sizes are not for the library, whatever its version; null: they may be.
const char* reason_against(const Sizes& sizes, bool deterministic);

// What either pass of such sizes takes at most.
int64_t scratch_bound(const Sizes& sizes, bool deterministic);

// What is reserved for both, in whichever order gradients are summed; 0 where neither is for the library.
int64_t scratch_bytes(const Sizes& sizes);

}  // namespace mw::library_attention
