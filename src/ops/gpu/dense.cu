#include "ops/gpu/dense.h"

#include <array>

#include "ops/gpu/blas.h"
#include "ops/gpu/operators.h"

namespace mw::gpu {

TensorView matrix_of(const Weight& weight, DType dtype) {
  const TensorView& source = dtype == DType::f32 ? weight.values : weight.packed_forward;
  MW_CHECK(source.data != nullptr && source.bytes() >= weight.n * weight.k * size_of(dtype), "weight [{}, {}] has {}",
           weight.n, weight.k, source.describe());
  return {source.data, dtype, {weight.n, weight.k}};
}

void multiply_dense(Stream& stream, ProductKind kind, TensorView x, const Weight& weight, TensorView y, Store store,
                    bool rows_vary) {
  if (x.rows() == 0) return;
  BlasProduct product{x, matrix_of(weight, x.dtype), y};
  product.transpose_b = kind == ProductKind::forward;
  product.store = store;
  product.rows_vary = rows_vary;
  if (multiply_by_library(stream, product)) return;
  const std::array<int64_t, 2> offsets = {0, x.rows()};
  multiply_grouped(stream, kind, {x}, offsets, {&weight, 1}, {y}, store);
}

void multiply_dense_weight(Stream& stream, TensorView dy, TensorView x, TensorView dw_NK, Store store, bool rows_vary) {
  if (x.rows() == 0 && store == Store::accumulate) return;
  if (x.rows() == 0) return gpu::fill_zero(stream, dw_NK);
  BlasProduct product{dy, x, dw_NK};
  product.transpose_a = true;
  product.store = store;
  product.rows_vary = rows_vary;
  if (multiply_by_library(stream, product)) return;
  const std::array<int64_t, 2> offsets = {0, x.rows()};
  multiply_weights_grouped(stream, {dy}, {x}, offsets, dw_NK.reshape({1, dw_NK.dim(0), dw_NK.dim(1)}), store);
}

}  // namespace mw::gpu
