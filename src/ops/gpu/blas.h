// Dense products by the vendor's library (cuBLASLt, hipBLASLt), where there is one.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"
#include "ops/matmul.h"

namespace mw::gpu {

// The library wants its scratch on a border of 256 bytes.
constexpr int64_t kBlasAlignment = 256, kBlasScratchBytes = int64_t{32} << 20;
constexpr int64_t kBlasWorkspaceBytes = kBlasScratchBytes + kBlasAlignment;

// c[m, n] (=|+=) op(a) op(b), all row-major and contiguous: a is [m, k], or [k, m] when transposed; b is [k, n], or
// [n, k] when transposed. a and b: both f32 (true fp32, no TF32) or both bf16. c: f32 or bf16; fp32 sums, of which
// those added to a bf16 c are rounded once.
struct BlasProduct {
  TensorView a, b, c;
  bool transpose_a = false, transpose_b = false;
  Store store = Store::overwrite;
  // The rows of a are as many as chance has it, as those of an expert: the library then chooses for ranges of them.
  bool rows_vary = false;
};

bool has_library();

// False, with nothing done, where the library is missing or has no algorithm for the case. Deterministic.
bool multiply_by_library(Stream& stream, const BlasProduct& product);

}  // namespace mw::gpu
