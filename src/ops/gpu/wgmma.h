// Wrappers of Hopper's warpgroup instructions (wgmma, compute capability 9.0a), by which four warps multiply together:
// products of tiles in shared memory, the barriers that pass tiles on, and the copies that fill them. Addresses of
// shared memory are 32 bits wide. Rows of a tile are 128 bytes, swizzled: 16-byte chunk c of row r is stored at c ^ (r
// % 8).
#pragma once

#include "ops/gpu/mma.h"

namespace mw::gpu {

constexpr int kWarpgroup = 128;            // threads
constexpr int kRowBytes = 128;             // of a row of a tile
constexpr int kAtomBytes = 8 * kRowBytes;  // after which the swizzle repeats

// Memory layout of an operand's tile: rows along the depth of the product (the summed dimension), or along its width,
// one row per summand.
enum class Along : int { depth, width };

// The first address in dynamic shared memory where a tile may begin; skips up to kAtomBytes.
__device__ inline unsigned first_tile_address() {
  extern __shared__ uint4 memory[];
  return (shared_address(memory) + kAtomBytes - 1) / kAtomBytes * kAtomBytes;
}

// Prefetches 128 bytes into the L2 cache.
__device__ inline void prefetch(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// Adds four floats with a reduction in memory; the thread does not wait. Subnormal sums become zero.
__device__ inline void add_async(float* to, float4 values) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(values.x), "f"(values.y), "f"(values.z),
               "f"(values.w)
               : "memory");
}

__device__ inline void store_shared(unsigned to, unsigned word) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}
__device__ inline void store_shared(unsigned to, unsigned first, unsigned second) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(first), "r"(second) : "memory");
}
// Stores four matrices [8, 8] of bf16. Lane l gives columns 2 (l % 4) and the next one of row l / 4 of each matrix, and
// in `to` the place of row l % 8 of matrix l / 8. All lanes must call it.
__device__ inline void store_matrices(unsigned to, const unsigned (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}
__device__ inline unsigned load_shared(unsigned from) {
  unsigned word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
  return word;
}
__device__ inline void load_shared(unsigned from, float& first, float& second) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(first), "=f"(second) : "r"(from) : "memory");
}

// Barriers: 8 bytes of shared memory. A phase ends with its last arrival; phases have parities 0, 1, 0, ...
__device__ inline void init_barrier(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and makes the phase also wait for `bytes` bytes of box copies.
__device__ inline void arrive_expecting(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Arrives when all copies that this thread has started are done.
__device__ inline void arrive_after_copies(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// Waits for the end of a phase. The phase before the first one counts as ended.
__device__ inline void wait_for_phase(unsigned barrier, unsigned parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Pairs: clusters of two neighbouring blocks, which run at the same time and reach into each other's shared memory.
constexpr int kPair = 2;
__device__ inline int place_in_pair() { return static_cast<int>(blockIdx.x) % kPair; }
// Where `address` of this block's shared memory lies in that of a block of the pair, for the functions below.
__device__ inline unsigned address_in(int block, unsigned address) {
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
  return there;
}
// Barrier of all threads of both blocks.
__device__ inline void sync_pair() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
__device__ inline void arrive_there(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Stores a word and arrives: the phase also waits for the store.
__device__ inline void send_there(unsigned to, unsigned word, unsigned barrier) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%2], 4;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(to),
      "r"(word), "r"(barrier)
      : "memory");
}

// Makes writes to shared memory visible to products and to box stores: writes of this thread, and writes of others that
// it has waited for.
__device__ inline void fence_writes() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Barrier of the threads of one warpgroup. Barrier 0 is that of the block.
__device__ inline void sync_warpgroup() {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + threadIdx.x / kWarpgroup), "n"(kWarpgroup) : "memory");
}

// Makes this thread's barrier operations visible to box copies.
__device__ inline void fence_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}

// Moves registers between warpgroups; the counts are per thread and multiples of 8.
template <int kRegisters>
__device__ void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// A kernel that was launched to begin beside this one may begin when all blocks of this one have called this or ended,
// as soon as processors are free. Other kernels wait for the end of this one.
__device__ inline void let_next_kernel_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
// Waits for the end of the kernel beside which this one began, if there is one.
__device__ inline void wait_for_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// The descriptor of a swizzled tile for products. Along the depth, groups of eight rows follow each other. Along the
// width, so do groups of eight summands, and panels of 64 columns begin `panel_bytes` apart.
__device__ inline uint64_t describe_tile(unsigned address, unsigned panel_bytes) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kStride = uint64_t{kAtomBytes / 16} << 32;
  return kSwizzle128 | kStride | static_cast<uint64_t>(panel_bytes / 16) << 16 | (address & 0x3ffff) / 16;
}

// The descriptor of an operand along its width in blocks of 128 bytes that are not swizzled: eight summands of 16
// bytes, which are eight neighbouring places of the width. Blocks of the next places begin `width_bytes` further, those
// of the next summands `summand_bytes`.
__device__ inline uint64_t describe_blocks(unsigned address, unsigned width_bytes, unsigned summand_bytes) {
  return uint64_t{width_bytes / 16} << 32 | static_cast<uint64_t>(summand_bytes / 16) << 16 | (address & 0x3ffff) / 16;
}

// The same for a tile, or a part of one, that begins `bytes` later.
__device__ inline uint64_t move_tile(uint64_t descriptor, unsigned bytes) {
  return (descriptor & ~uint64_t{0xffffffff}) | (static_cast<unsigned>(descriptor) + bytes / 16);
}

// Products are asynchronous: begin_products() before the first of a batch, commit_products() after its last. Sums may
// not be touched before wait_for_products<0>() and keep_sums().
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most kPending batches are in flight.
template <int kPending>
__device__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving uses of the sums to before this place.
template <int kCount>
__device__ void keep_sums(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Gives the sums any values, without an instruction, for a first product that overwrites them.
template <int kCount>
__device__ void leave_undefined(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "=f"(d[i]));
}

#define MW_SUMS_4(d, i, c) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define MW_SUMS_16(d, i, c) MW_SUMS_4(d, i, c), MW_SUMS_4(d, i + 4, c), MW_SUMS_4(d, i + 8, c), MW_SUMS_4(d, i + 12, c)
#define MW_SUMS_32(d, i, c) MW_SUMS_16(d, i, c), MW_SUMS_16(d, i + 16, c)
#define MW_SUMS_48(d, i, c) MW_SUMS_32(d, i, c), MW_SUMS_16(d, i + 32, c)
#define MW_SUMS_64(d, i, c) MW_SUMS_32(d, i, c), MW_SUMS_32(d, i + 32, c)
#define MW_SUMS_96(d, i, c) MW_SUMS_64(d, i, c), MW_SUMS_32(d, i + 64, c)
#define MW_SUMS_128(d, i, c) MW_SUMS_64(d, i, c), MW_SUMS_64(d, i + 64, c)
// The operands %0 to %31, and so on.
#define MW_NAMES_32                                                        \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MW_NAMES_48 \
  MW_NAMES_32       \
  ", "              \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define MW_NAMES_64                                                                  \
  MW_NAMES_32                                                                        \
  ", "                                                                               \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MW_NAMES_96                                                                  \
  MW_NAMES_64                                                                        \
  ", "                                                                               \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define MW_NAMES_128                                                                             \
  MW_NAMES_96                                                                                    \
  ", "                                                                                           \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// d (+)= a b of tiles [64, 16] and [16, 2 * registers of d]. In d[4 * j + 2 * i + c] a thread holds row 16 * warp +
// lane / 4 + 8 * i, column 8 * j + 2 * (lane % 4) + c.
template <Along kA, Along kB>
__device__ inline void multiply_async(float (&d)[48], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred keep;\nsetp.ne.b32 keep, %50, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {" MW_NAMES_48 "}, %48, %49, keep, 1, 1, %51, %52;\n}"
      : MW_SUMS_48(d, 0, "+f")
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(static_cast<int>(kA)), "n"(static_cast<int>(kB)));
}
template <Along kA, Along kB>
__device__ inline void multiply_async(float (&d)[64], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred keep;\nsetp.ne.b32 keep, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" MW_NAMES_64 "}, %64, %65, keep, 1, 1, %67, %68;\n}"
      : MW_SUMS_64(d, 0, "+f")
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(static_cast<int>(kA)), "n"(static_cast<int>(kB)));
}
template <Along kA, Along kB>
__device__ inline void multiply_async(float (&d)[128], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred keep;\nsetp.ne.b32 keep, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" MW_NAMES_128 "}, %128, %129, keep, 1, 1, %131, %132;\n}"
      : MW_SUMS_128(d, 0, "+f")
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(static_cast<int>(kA)), "n"(static_cast<int>(kB)));
}

// The sums d[kFirst] to d[kFirst + 95] of 192 columns.
template <Along kA, Along kB, int kFirst, int kCount>
__device__ inline void multiply_192_async(float (&d)[kCount], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred keep;\nsetp.ne.b32 keep, %98, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {" MW_NAMES_96 "}, %96, %97, keep, 1, 1, %99, %100;\n}"
      : MW_SUMS_96(d, kFirst, "+f")
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(static_cast<int>(kA)), "n"(static_cast<int>(kB)));
}
template <Along kA, Along kB>
__device__ inline void multiply_async(float (&d)[96], uint64_t a, uint64_t b, bool add) {
  multiply_192_async<kA, kB, 0>(d, a, b, add);
}
// Two products beside each other: the second half of b follows the first, for tiles along the depth.
template <Along kA, Along kB>
__device__ inline void multiply_async(float (&d)[192], uint64_t a, uint64_t b, bool add) {
  static_assert(kB == Along::depth);
  multiply_192_async<kA, kB, 0>(d, a, b, add);
  multiply_192_async<kA, kB, 96>(d, a, b + 192 * kRowBytes / 16, add);
}

// d = a b, as the first product of a sum: no value of d before counts.
template <Along kA, Along kB>
__device__ inline void multiply_first_async(float (&d)[48], uint64_t a, uint64_t b) {
  asm volatile(
      "{\n.reg .pred keep;\nsetp.ne.b32 keep, %50, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {" MW_NAMES_48 "}, %48, %49, keep, 1, 1, %51, %52;\n}"
      : MW_SUMS_48(d, 0, "=f")
      : "l"(a), "l"(b), "r"(0), "n"(static_cast<int>(kA)), "n"(static_cast<int>(kB)));
}
template <Along kA, Along kB>
__device__ inline void multiply_first_async(float (&d)[64], uint64_t a, uint64_t b) {
  asm volatile(
      "{\n.reg .pred keep;\nsetp.ne.b32 keep, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" MW_NAMES_64 "}, %64, %65, keep, 1, 1, %67, %68;\n}"
      : MW_SUMS_64(d, 0, "=f")
      : "l"(a), "l"(b), "r"(0), "n"(static_cast<int>(kA)), "n"(static_cast<int>(kB)));
}

// The same with the first operand in registers, which may not change before the product is waited for: lane l has the
// columns 2 (l % 4) and 2 (l % 4) + 1 of rows 16 * warp + l / 4 in a[0] and eight rows further in a[1], and the same of
// columns 8 to 15 in a[2] and a[3].
template <Along kB>
__device__ inline void multiply_async(float (&d)[32], const unsigned (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred keep;\nsetp.ne.b32 keep, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" MW_NAMES_32
      "}, {%32, %33, %34, %35}, %36, keep, 1, 1, %38;\n}"
      : MW_SUMS_32(d, 0, "+f")
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)), "n"(static_cast<int>(kB)));
}
template <Along kB>
__device__ inline void multiply_async(float (&d)[64], const unsigned (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred keep;\nsetp.ne.b32 keep, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" MW_NAMES_64
      "}, {%64, %65, %66, %67}, %68, keep, 1, 1, %70;\n}"
      : MW_SUMS_64(d, 0, "+f")
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)), "n"(static_cast<int>(kB)));
}

#undef MW_SUMS_4
#undef MW_SUMS_16
#undef MW_SUMS_32
#undef MW_SUMS_48
#undef MW_SUMS_64
#undef MW_SUMS_96
#undef MW_SUMS_128
#undef MW_NAMES_32
#undef MW_NAMES_48
#undef MW_NAMES_64
#undef MW_NAMES_96
#undef MW_NAMES_128

}  // namespace mw::gpu
