#include "ops/row_gate.h"

#include <cmath>

#include "ops/cpu/loops.h"

namespace mw::cpu {

void gate_rows(Stream& stream, TensorView gate_R, TensorView x_RN) {
  const int64_t rows = x_RN.rows(), width = x_RN.cols();
  float* gates = gate_R.as<float>();
  with_float_type(x_RN.dtype, [&](auto type) {
    using T = decltype(type);
    T* x = x_RN.as<T>();
    for_blocks(stream, rows, rows_per_block(width), [=](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float gate = 1.0f / (1.0f + std::exp(-gates[r]));
        gates[r] = gate;
        T* row = x + r * width;
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) row[i] = from_float<T>(gate * to_float(row[i]));
      }
    });
  });
}

void gate_backward(Stream& stream, TensorView gate_R, TensorView d_gate_R) {
  const float* gates = gate_R.as<float>();
  float* d = d_gate_R.as<float>();
  for_blocks(stream, gate_R.numel(), 4096, [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t r = begin; r < end; ++r) d[r] *= gates[r] * (1.0f - gates[r]);
  });
}

}  // namespace mw::cpu
