// Tensor maps of the experts' matrices and of attention's heads, for box copies and box stores by the copy engine of
// compute capability 9.0 (TMA).
#pragma once

#include <cuda.h>

#include "ops/gpu/wgmma.h"

namespace mw::gpu {

// A tensor map: describes matrices [rows, columns] at equal distances to the copy engine, and the box of 128 bytes of
// columns that one copy loads or one store writes.
struct TensorMap {
  CUtensorMap map;
};

struct Matrices {
  const void* first;
  DType dtype;                            // bf16 or f32
  int64_t count, rows, columns, spacing;  // spacing: in elements
};

// Whether the driver has the function that creates tensor maps.
bool can_describe_matrices();
// Returns false where the engine cannot reach the matrices.
bool describe_matrices(const Matrices& matrices, int box_rows, TensorMap* out);

// Some heads of bf16 [sequences * stride, heads, width]: a sequence uses the first `tokens` of its `stride` rows. A box
// has tokens of one head, and 64 columns.
struct Heads {
  const void* first;
  int64_t sequences, stride, tokens, heads, width;
};
bool describe_heads(const Heads& heads, int box_tokens, TensorMap* out);

// Copies the box that begins at (row, column) of a matrix; elements outside the matrix are zeros. Its bytes count
// towards the phase of `barrier`.
__device__ inline void copy_box(unsigned to, const TensorMap& map, int matrix, int row, int column, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
          "r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(matrix), "r"(barrier)
      : "memory");
}

__device__ inline void copy_box_of_head(unsigned to, const TensorMap& map, int sequence, int token, int head,
                                        int column, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(to),
      "l"(&map), "r"(column), "r"(head), "r"(token), "r"(sequence), "r"(barrier)
      : "memory");
}

// Copies `bytes` consecutive bytes, which count towards the phase of `barrier`; a multiple of 16, as both addresses
// are.
__device__ inline void copy_bytes(unsigned to, const void* from, int bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

// Prefetches the box into the L2 cache.
__device__ inline void prefetch_box(const TensorMap& map, int matrix, int row, int column) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global [%0, {%1, %2, %3}];" ::"l"(&map), "r"(column), "r"(row),
               "r"(matrix)
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

// Stores a box from shared memory at (row, column) of a matrix, or adds it to what is there; elements outside the
// matrix are left out. The engine reads the box after the call returns: commit_boxes() closes a batch of this thread's
// stores. Additions may flush subnormal sums to zero.
__device__ inline void store_box(const TensorMap& map, int matrix, int row, int column, unsigned from) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
               "r"(column), "r"(row), "r"(matrix), "r"(from)
               : "memory");
}
__device__ inline void add_box(const TensorMap& map, int matrix, int row, int column, unsigned from) {
  asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
               "r"(column), "r"(row), "r"(matrix), "r"(from)
               : "memory");
}
__device__ inline void commit_boxes() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until the engine has read all boxes of this thread but those of the last kPending batches.
template <int kPending>
__device__ void wait_for_boxes() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

}  // namespace mw::gpu
