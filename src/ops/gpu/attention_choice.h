// Which kernels compute attention of a shape on a stream. Both passes, and what reads lse, follow the same choice.
#pragma once

#include <initializer_list>

#include "ops/attention.h"

namespace mw::gpu {

enum class AttentionKernels {
  library,       // lse [B, H, S]
  tensor_cores,  // lse [H, B, S], as below
  plain,
};

AttentionKernels choose_attention(Stream& stream, const AttentionShape& shape, DType dtype);

// Fails (internal) unless all tensors begin at multiples of 16 bytes: the library and tensor cores read as much at
// once.
void check_borders(std::initializer_list<TensorView> tensors);

}  // namespace mw::gpu
