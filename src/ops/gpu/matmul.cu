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

bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

// The weight as products of this dtype read it: [N, K], f32 or the bf16 copy.
TensorView matrix_of(const Weight& weight, DType dtype) {
  const TensorView& source = dtype == DType::f32 ? weight.values : weight.packed_forward;
  MW_CHECK(source.data != nullptr && source.bytes() >= weight.n * weight.k * size_of(dtype), "weight [{}, {}] has {}",
           weight.n, weight.k, source.describe());
  return {source.data, dtype, {weight.n, weight.k}};
}

void check_product(ProductKind kind, const TensorView& x, const Weight& weight, const TensorView& y, Store store) {
  const bool forward = kind == ProductKind::forward;
  MW_CHECK(x.cols() == (forward ? weight.k : weight.n) && y.cols() == (forward ? weight.n : weight.k),
           "{} = product of {} with a weight [{}, {}]", y.describe(), x.describe(), weight.n, weight.k);
  MW_CHECK(is_float(x.dtype) && is_float(y.dtype) && (store == Store::overwrite || y.dtype == DType::f32),
           "product of {} stored in {}", x.describe(), y.describe());
}

void multiply_dense(Stream& stream, ProductKind kind, TensorView x, const Weight& weight, TensorView y, Store store) {
  MW_CHECK(x.rows() == y.rows(), "{} = product of {}", y.describe(), x.describe());
  check_product(kind, x, weight, y, store);
  if (x.rows() == 0) return;
  BlasProduct product{x, matrix_of(weight, x.dtype), y};
  product.transpose_b = kind == ProductKind::forward;
  product.store = store;
  if (multiply_by_library(stream, product)) return;
  const std::array<int64_t, 2> offsets = {0, x.rows()};
  multiply_grouped(stream, kind, {x}, offsets, {&weight, 1}, {y}, store);
}

void check_offsets(std::span<const int64_t> offsets, int64_t experts, const SortedRows& a, const SortedRows& b) {
  MW_CHECK(static_cast<int64_t>(offsets.size()) == experts + 1, "{} offsets for {} experts", offsets.size(), experts);
  MW_CHECK(offsets.front() >= 0 && std::is_sorted(offsets.begin(), offsets.end()),
           "offsets of {} experts from {} to {}", experts, offsets.front(), offsets.back());
  for (const SortedRows* rows : {&a, &b})
    MW_CHECK(rows->index || offsets.back() <= rows->data.rows(), "{} sorted rows of {}", offsets.back(),
             rows->data.describe());
}

void multiply_experts(Stream& stream, ProductKind kind, const SortedRows& x, std::span<const int64_t> offsets,
                      std::span<const Weight> weights, const SortedRows& y) {
  check_offsets(offsets, static_cast<int64_t>(weights.size()), x, y);
  for (const Weight& weight : weights) check_product(kind, x.data, weight, y.data, Store::overwrite);
  multiply_grouped(stream, kind, x, offsets, weights, y, Store::overwrite);
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
  MW_CHECK(weight.values.numel() == weight.n * weight.k, "weight [{}, {}] has values {}", weight.n, weight.k,
           weight.values.describe());
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
  MW_CHECK(dy_MN.rows() == rows, "weight gradient of {} and {}", dy_MN.describe(), x_MK.describe());
  MW_CHECK(is_float(x_MK.dtype) && x_MK.dtype == dy_MN.dtype && dw_NK.dtype == DType::f32 && dw_NK.rank == 2 &&
               dw_NK.dim(0) == dy_MN.cols() && dw_NK.dim(1) == x_MK.cols(),
           "{} += {}^T {}", dw_NK.describe(), dy_MN.describe(), x_MK.describe());
  if (rows == 0) return;
  BlasProduct product{dy_MN, x_MK, dw_NK};
  product.transpose_a = true;
  product.store = Store::accumulate;
  if (multiply_by_library(stream, product)) return;
  const std::array<int64_t, 2> offsets = {0, rows};
  accumulate_grouped(stream, {dy_MN}, {x_MK}, offsets, dw_NK.reshape({1, dw_NK.dim(0), dw_NK.dim(1)}));
}

void esmm(Stream& stream, SortedRows x_RK, std::span<const int64_t> offsets, std::span<const Weight> weights,
          SortedRows y_RN) {
  multiply_experts(stream, ProductKind::forward, x_RK, offsets, weights, y_RN);
}

void esmm_d_input(Stream& stream, SortedRows dy_RN, std::span<const int64_t> offsets, std::span<const Weight> weights,
                  SortedRows dx_RK) {
  multiply_experts(stream, ProductKind::d_input, dy_RN, offsets, weights, dx_RK);
}

void estmm(Stream& stream, SortedRows dy_RN, SortedRows x_RK, std::span<const int64_t> offsets, TensorView dw_eNK) {
  check_offsets(offsets, dw_eNK.dim(0), dy_RN, x_RK);
  MW_CHECK(is_float(x_RK.data.dtype) && x_RK.data.dtype == dy_RN.data.dtype && dw_eNK.rank == 3 &&
               dw_eNK.dim(1) == dy_RN.data.cols() && dw_eNK.dim(2) == x_RK.data.cols(),
           "{} += {}^T {}", dw_eNK.describe(), dy_RN.data.describe(), x_RK.data.describe());
  accumulate_grouped(stream, dy_RN, x_RK, offsets, dw_eNK);
}

void ess(Stream& stream, SortedRows dy_RN, std::span<const int64_t> offsets, TensorView db_eN) {
  const int64_t experts = db_eN.dim(0), width = dy_RN.data.cols();
  check_offsets(offsets, experts, dy_RN, dy_RN);
  MW_CHECK(db_eN.rank == 2 && db_eN.cols() == width, "{} += sums of {}", db_eN.describe(), dy_RN.data.describe());
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
