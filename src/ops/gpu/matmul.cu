// Dense products go to the vendor's library where it takes them, else to the grouped kernels; per-expert products go to
// the grouped kernels.
#include "ops/matmul.h"

#include <array>

#include "ops/elementwise.h"
#include "ops/gpu/blas.h"
#include "ops/gpu/grouped.h"
#include "ops/gpu/launch.h"
#include "ops/gpu/operators.h"

namespace mw::gpu {
namespace {

// The weight as products of this dtype read it: [N, K], f32 or the bf16 copy. Errors: internal, where that is missing.
TensorView matrix_of(const Weight& weight, DType dtype) {
  const TensorView& source = dtype == DType::f32 ? weight.values : weight.packed_forward;
  MW_CHECK(source.data != nullptr && source.bytes() >= weight.n * weight.k * size_of(dtype), "weight [{}, {}] has {}",
           weight.n, weight.k, source.describe());
  return {source.data, dtype, {weight.n, weight.k}};
}

void multiply_dense(Stream& stream, ProductKind kind, TensorView x, const Weight& weight, TensorView y, Store store) {
  if (x.rows() == 0) return;
  BlasProduct product{x, matrix_of(weight, x.dtype), y};
  product.transpose_b = kind == ProductKind::forward;
  product.store = store;
  if (multiply_by_library(stream, product)) return;
  const std::array<int64_t, 2> offsets = {0, x.rows()};
  multiply_grouped(stream, kind, {x}, offsets, {&weight, 1}, {y}, store);
}

constexpr int kSumThreads = 128;

// One thread sums one column of one expert, in the order of the rows.
template <class T>
__global__ void sum_rows_kernel(const T* dy, const int32_t* index, const int64_t* offsets, int64_t width, float* db) {
  const int64_t strips = (width + kSumThreads - 1) / kSumThreads, expert = blockIdx.x / strips;
  const int64_t column = static_cast<int64_t>(blockIdx.x % strips) * kSumThreads + threadIdx.x;
  if (column >= width) return;
  float sum = 0;
  for (int64_t r = offsets[expert]; r < offsets[expert + 1]; ++r)
    sum += to_float(dy[(index == nullptr ? r : static_cast<int64_t>(index[r])) * width + column]);
  db[expert * width + column] += sum;
}

}  // namespace

int64_t matmul_workspace_bytes(int64_t, int64_t) { return kBlasWorkspaceBytes + kGroupedWorkspaceBytes; }

// Products of both directions read one bf16 copy.
void pack_weight(Stream& stream, const Weight& weight) {
  gpu::convert(stream, weight.values, matrix_of(weight, DType::bf16));
}

void matmul(Stream& stream, TensorView x_MK, const Weight& weight, TensorView y_MN, Store store) {
  multiply_dense(stream, ProductKind::forward, x_MK, weight, y_MN, store);
}

void matmul_d_input(Stream& stream, TensorView dy_MN, const Weight& weight, TensorView dx_MK, Store store) {
  multiply_dense(stream, ProductKind::d_input, dy_MN, weight, dx_MK, store);
}

void matmul_d_weight(Stream& stream, TensorView dy_MN, TensorView x_MK, TensorView dw_NK) {
  const int64_t rows = x_MK.rows();
  if (rows == 0) return;
  BlasProduct product{dy_MN, x_MK, dw_NK};
  product.transpose_a = true;
  product.store = Store::accumulate;
  if (multiply_by_library(stream, product)) return;
  const std::array<int64_t, 2> offsets = {0, rows};
  multiply_weights_grouped(stream, {dy_MN}, {x_MK}, offsets, dw_NK.reshape({1, dw_NK.dim(0), dw_NK.dim(1)}),
                           Store::accumulate);
}

void esmm(Stream& stream, SortedRows x_RK, std::span<const int64_t> offsets, std::span<const Weight> weights,
          SortedRows y_RN) {
  for (const Weight& weight : weights) matrix_of(weight, x_RK.data.dtype);
  multiply_grouped(stream, ProductKind::forward, x_RK, offsets, weights, y_RN, Store::overwrite);
}

void esmm_d_input(Stream& stream, SortedRows dy_RN, std::span<const int64_t> offsets, std::span<const Weight> weights,
                  SortedRows dx_RK) {
  for (const Weight& weight : weights) matrix_of(weight, dy_RN.data.dtype);
  multiply_grouped(stream, ProductKind::d_input, dy_RN, offsets, weights, dx_RK, Store::overwrite);
}

void estmm(Stream& stream, SortedRows dy_RN, SortedRows x_RK, std::span<const int64_t> offsets, TensorView dw_eNK,
           Store store) {
  multiply_weights_grouped(stream, dy_RN, x_RK, offsets, dw_eNK, store);
}

void ess(Stream& stream, SortedRows dy_RN, std::span<const int64_t> offsets, TensorView db_eN) {
  const int64_t experts = db_eN.dim(0), width = dy_RN.data.cols();
  if (experts == 0 || width == 0) return;
  WorkspaceFrame frame(stream.workspace());
  auto* device_offsets = frame.take<int64_t>(offsets.size());
  stream.queue().copy(device_offsets, offsets.data(), offsets.size_bytes());
  with_float_type(dy_RN.data.dtype, [&](auto type) {
    using T = decltype(type);
    launch(stream, sum_rows_kernel<T>, experts * ceil_div(width, kSumThreads), kSumThreads, 0, dy_RN.data.as<T>(),
           dy_RN.index, device_offsets, width, db_eN.as<float>());
  });
}

}  // namespace mw::gpu
