// Tensor maps of the experts' matrices, for box copies by the copy engine of compute capability 9.0 (TMA).
#pragma once

#include <cuda.h>

#include "ops/gpu/wgmma.h"

namespace mw::gpu {

// A tensor map: describes bf16 matrices [rows, columns] at equal distances to the copy engine, and the box of 64
// columns that one copy loads.
struct TensorMap {
  CUtensorMap map;
};

struct Matrices {
  const bf16* first;
  int64_t count, rows, columns, spacing;  // spacing: in elements
};

// Whether the driver has the function that creates tensor maps.
bool can_describe_matrices();
// Returns false where the engine cannot read the matrices.
bool describe_matrices(const Matrices& matrices, int box_rows, TensorMap* out);

// Copies the box that begins at (row, column) of a matrix; elements outside the matrix are zeros. Its bytes count
// towards the phase of `barrier`.
__device__ inline void copy_box(unsigned to, const TensorMap& map, int matrix, int row, int column, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
          "r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(matrix), "r"(barrier)
      : "memory");
}

// The same to this place in both blocks of a pair, and to the barrier of each.
__device__ inline void copy_box_to_pair(unsigned to, const TensorMap& map, int matrix, int row, int column,
                                        unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(matrix), "r"(barrier), "h"(static_cast<uint16_t>(3))
      : "memory");
}

}  // namespace mw::gpu
