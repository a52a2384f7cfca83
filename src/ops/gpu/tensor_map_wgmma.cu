#include "ops/gpu/tensor_map.h"

namespace mw::gpu {

namespace {

auto find_encoder() {
  static const auto encode =
      reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(find_driver_function("cuTensorMapEncodeTiled"));
  return encode;
}

}  // namespace

bool can_describe_matrices() { return find_encoder() != nullptr; }

bool describe_matrices(const Matrices& m, int box_rows, TensorMap* out) {
  const auto encode = find_encoder();
  if (encode == nullptr) return false;
  const auto element = static_cast<cuuint64_t>(size_of(m.dtype));
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(m.columns), static_cast<cuuint64_t>(m.rows),
                              static_cast<cuuint64_t>(m.count)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(m.columns) * element,
                                static_cast<cuuint64_t>(m.spacing) * element};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(kRowBytes / element), static_cast<cuuint32_t>(box_rows), 1};
  const cuuint32_t steps[] = {1, 1, 1};
  const auto type = m.dtype == DType::f32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return encode(&out->map, type, 3, const_cast<void*>(m.first), sizes, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace mw::gpu
