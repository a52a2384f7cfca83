#include "ops/gpu/tensor_map.h"

#include <algorithm>
#include <iterator>

namespace mw::gpu {

namespace {

auto find_encoder() {
  static const auto encode =
      reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(find_driver_function("cuTensorMapEncodeTiled"));
  return encode;
}

cuuint64_t to_size(int64_t n) { return static_cast<cuuint64_t>(n); }

// Sizes and the box from the innermost dimension on; strides, in bytes, from the second one on.
template <size_t kRank>
bool encode(DType dtype, const void* first, const cuuint64_t (&sizes)[kRank], const cuuint64_t (&strides)[kRank - 1],
            const cuuint32_t (&box)[kRank], TensorMap* out) {
  const auto encoder = find_encoder();
  if (encoder == nullptr) return false;
  cuuint32_t steps[kRank];
  std::fill(std::begin(steps), std::end(steps), 1);
  const auto type = dtype == DType::f32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return encoder(&out->map, type, kRank, const_cast<void*>(first), sizes, strides, box, steps,
                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace

bool can_describe_matrices() { return find_encoder() != nullptr; }

bool describe_matrices(const Matrices& m, int box_rows, TensorMap* out) {
  const auto element = static_cast<cuuint64_t>(size_of(m.dtype));
  return encode(m.dtype, m.first, {to_size(m.columns), to_size(m.rows), to_size(m.count)},
                {to_size(m.columns) * element, to_size(m.spacing) * element},
                {static_cast<cuuint32_t>(kRowBytes / element), static_cast<cuuint32_t>(box_rows), 1}, out);
}

bool describe_heads(const Heads& h, int box_tokens, TensorMap* out) {
  const cuuint64_t row = to_size(h.width) * sizeof(bf16), token = row * to_size(h.heads);
  return encode(DType::bf16, h.first, {to_size(h.width), to_size(h.heads), to_size(h.tokens), to_size(h.sequences)},
                {row, token, token * to_size(h.stride)},
                {kRowBytes / sizeof(bf16), 1, static_cast<cuuint32_t>(box_tokens), 1}, out);
}

}  // namespace mw::gpu
