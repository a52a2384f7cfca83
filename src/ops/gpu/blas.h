// Dense products by the vendor's library (cuBLASLt, hipBLASLt), if available.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"
#include "ops/matmul.h"

namespace mw::gpu {

// The library requires scratch aligned to 256 bytes.
constexpr int64_t kBlasAlignment = 256, kBlasScratchBytes = int64_t{32} << 20;
constexpr int64_t kBlasWorkspaceBytes = kBlasScratchBytes + kBlasAlignment;

// c[m, n] (=|+=) op(a) op(b), all row-major and contiguous: a is [m, k], or [k, m] when transposed; b is [k, n], or [n,
// k] when transposed. a and b: both f32 (true fp32, no TF32) or both bf16. c: f32 or bf16. Sums are fp32; when
// accumulating into a bf16 c, the sum is rounded once.
struct BlasProduct {
  TensorView a, b, c;
  bool transpose_a = false, transpose_b = false;
  Store store = Store::overwrite;
  // The number of rows of a varies from call to call, as with the rows of an expert: for small products the library
  // then selects algorithms for ranges of row counts instead of each count.
  bool rows_vary = false;
};

bool has_library();

// Returns false and does nothing where the library is missing or has no algorithm for the case. Deterministic.
bool multiply_by_library(Stream& stream, const BlasProduct& product);

}  // namespace mw::gpu
