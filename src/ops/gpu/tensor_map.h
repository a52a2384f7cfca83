// Boxes of the experts' matrices, fetched from memory by the copy engine of compute capability 9.0 (TMA).
#pragma once

#include <cuda.h>

#include "ops/gpu/wgmma.h"

namespace mw::gpu {

// Matrices [rows, columns] of bf16 at even distances in memory, and the box of 64 columns that one copy takes.
struct TensorMap {
  CUtensorMap map;
};

struct Matrices {
  const bf16* first;
  int64_t count, rows, columns, spacing;  // spacing: in elements
};

// The driver has a function for it.
bool can_describe_matrices();
// False where the engine cannot read them.
bool describe_matrices(const Matrices& matrices, int box_rows, TensorMap* out);

// Copies the box that begins at (row, column) of a matrix; zeros stand for what lies outside. Its bytes count towards
// the phase of `barrier`.
__device__ inline void copy_box(unsigned to, const TensorMap& map, int matrix, int row, int column, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
          "r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(matrix), "r"(barrier)
      : "memory");
}

// The same to that place of both blocks of a pair, and to the barrier of each.
__device__ inline void copy_box_to_pair(unsigned to, const TensorMap& map, int matrix, int row, int column,
                                        unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(matrix), "r"(barrier), "h"(static_cast<uint16_t>(3))
      : "memory");
}

}  // namespace mw::gpu
