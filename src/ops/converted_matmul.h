// Mixed-precision products in a form that every backend supports: bf16 rows are converted to fp32, a chunk of rows at a
// time, and multiplied in fp32. Contracts: ops/mixed_matmul.h; `chunk_rows` bounds the scratch.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"
#include "ops/matmul.h"

namespace mw {

void converted_matmul(Stream& stream, TensorView x_MK, const Weight& weight, TensorView y_MN, int64_t chunk_rows);
void converted_matmul_d_input(Stream& stream, TensorView dy_MN, const Weight& weight, TensorView dx_MK,
                              int64_t chunk_rows);
void converted_matmul_d_weight(Stream& stream, TensorView dy_MN, TensorView x_MK, TensorView dw_NK, int64_t chunk_rows);

// Scratch bytes, in addition to those of the fp32 products.
int64_t converted_matmul_bytes(int64_t rows, int64_t k, int64_t chunk_rows);

}  // namespace mw
