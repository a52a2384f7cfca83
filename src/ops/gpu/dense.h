// Dense products: by the vendor's library if it supports the operands, otherwise by the grouped kernels.
#pragma once

#include "core/stream.h"
#include "ops/gpu/grouped.h"
#include "ops/matmul.h"

namespace mw::gpu {

// The form of the weight that products of this dtype read: [N, K], f32 or the bf16 copy. Errors: internal, where it is
// missing.
TensorView matrix_of(const Weight& weight, DType dtype);

// Contracts as matmul, matmul_d_input and matmul_d_weight. rows_vary: as in BlasProduct.
void multiply_dense(Stream& stream, ProductKind kind, TensorView x, const Weight& weight, TensorView y, Store store,
                    bool rows_vary = false);
// dw (=|+=) dy^T x.
void multiply_dense_weight(Stream& stream, TensorView dy, TensorView x, TensorView dw_NK, Store store,
                           bool rows_vary = false);

}  // namespace mw::gpu
