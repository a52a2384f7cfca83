// Wrappers of NVIDIA's tensor core instructions for one warp (mma.sync, from compute capability 8.0 on), and of the
// copies and loads that feed them.
#pragma once

#include "base/dtype.h"
#include "ops/gpu/capability.h"

namespace mw::gpu {

// Addresses of shared memory are 32 bits wide.
__device__ inline unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// Copies 16 bytes to shared memory, or writes zeros. The copy is complete when wait_for_copies says so.
__device__ inline void copy_chunk(unsigned to, const bf16* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}

// The same for 4 bytes.
__device__ inline void copy_word(unsigned to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid ? 4 : 0) : "memory");
}

// Makes a group of the thread's copies since the last call.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for all groups of the thread but the last kPending ones.
template <int kPending>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Four 8 x 8 matrices, one address of a row in shared memory from each lane: lane l gives row l % 8 of matrix l / 8.
// Lane l gets the values 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of each matrix; transposed: of column l / 4.
template <bool kTransposed>
__device__ void load_matrices(unsigned (&out)[4], unsigned row) {
  if constexpr (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(row)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(row)
                 : "memory");
}

// c += a b^T of a: [16, 16] and b: [8, 16]. Lane l has in c the columns 2 (l % 4) and 2 (l % 4) + 1 of rows l / 4 and
// l / 4 + 8; in a its pairs of summands of rows l / 4 and l / 4 + 8, first those of summands 0 to 7; in b those of row
// l / 4.
__device__ inline void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace mw::gpu
