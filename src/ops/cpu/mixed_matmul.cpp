#include "ops/mixed_matmul.h"

#include "ops/converted_matmul.h"
#include "ops/cpu/operators.h"

namespace mw::cpu {
namespace {

constexpr int64_t kChunkRows = 512;

}  // namespace

void mixed_matmul(Stream& stream, TensorView x_MK, const Weight& weight, TensorView y_MN) {
  converted_matmul(stream, x_MK, weight, y_MN, kChunkRows);
}

void mixed_matmul_d_input(Stream& stream, TensorView dy_MN, const Weight& weight, TensorView dx_MK) {
  converted_matmul_d_input(stream, dy_MN, weight, dx_MK, kChunkRows);
}

void mixed_matmul_d_weight(Stream& stream, TensorView dy_MN, TensorView x_MK, TensorView dw_NK) {
  converted_matmul_d_weight(stream, dy_MN, x_MK, dw_NK, kChunkRows);
}

int64_t mixed_matmul_workspace_bytes(int64_t rows, int64_t n, int64_t k) {
  return converted_matmul_bytes(rows, k, kChunkRows) + matmul_workspace_bytes(n, k);
}

}  // namespace mw::cpu
