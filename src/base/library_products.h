// Which products of experts a GPU's matrix library computes, one per expert, and which the grouped kernels do. The
// operators follow this rule, and the planner, which does not link them, predicts times with it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/kinds.h"

namespace mw {

// FLOP of an average expert's product from which on it is the library's. Measured on an H200: with 4096 rows an expert
// of 4096 x 14336 cuBLASLt reaches 650 to 740 TFLOP/s and the grouped kernels 560 to 650; with 1536 rows of 2048 x 1408
// 465 to 655 and 400 to 700; with 1024 rows of 2048 x 768 290 to 520 and 370 to 650.
constexpr double kLibraryFlops = 1e11;

// Of a build that has such a library. rows: of the average expert; n, k: of its matrix.
inline bool library_multiplies(ExpertProducts by, double rows, int64_t n, int64_t k) {
  const double flops = 2 * rows * static_cast<double>(n) * static_cast<double>(k);
  return by == ExpertProducts::per_expert || (by == ExpertProducts::automatic && flops >= kLibraryFlops);
}

// Rows of the average expert that has any. offsets: as in ops/matmul.h.
inline double average_rows(std::span<const int64_t> offsets) {
  int64_t experts = 0;
  for (size_t e = 1; e < offsets.size(); ++e) experts += offsets[e] > offsets[e - 1] ? 1 : 0;
  return static_cast<double>(offsets.back() - offsets.front()) / static_cast<double>(std::max<int64_t>(experts, 1));
}

}  // namespace mw
