// Which kernels compute attention of a shape on a stream. The forward pass and what reads lse follow the same choice.
// So does the backward pass, but own kernels may take it where the library leaves lse.
#pragma once

#include <initializer_list>

#include "ops/attention.h"
#include "ops/gpu/launch.h"

namespace mw::gpu {

enum class AttentionKernels {
  library,       // lse [B, H, S]
  tensor_cores,  // lse [H, B, S], as below
  plain,
};

AttentionKernels choose_attention(Stream& stream, const AttentionShape& shape, DType dtype);

// Scratch bytes that own kernels may take for gradients of scores: what is reserved for the library's passes, but for
// delta. Below 1 where nothing is left.
int64_t score_scratch_bytes(const AttentionShape& shape);

// Where lse and delta of a head and sequence begin; its tokens follow.
struct LsePlace {
  int64_t of_head, of_sequence;
  __device__ int64_t operator()(int64_t head, int64_t sequence) const {
    return head * of_head + sequence * of_sequence;
  }
};
LsePlace place_lse(AttentionKernels kernels, const AttentionShape& shape);

// Fails (internal) unless all tensors begin at multiples of 16 bytes: the library and tensor cores read as much at
// once.
void check_borders(std::initializer_list<TensorView> tensors);

}  // namespace mw::gpu
