// Stands in for src/ops/gpu/launch.h in a build without a GPU: kernels run on the CPU, block after block.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/stream.h"
#include "core/tensor.h"
#include "emulated/block.h"

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)
#define __grid_constant__
#define __cluster_dims__(...)

inline void __syncthreads() { mw::emulated::wait_for_block(); }
inline void __syncwarp() { mw::emulated::wait_for_wave(); }
template <class T>
T atomicAdd(T* sum, std::type_identity_t<T> value) {
  return std::exchange(*sum, *sum + value);
}
inline int atomicMax(int* to, int value) { return std::exchange(*to, std::max(*to, value)); }
inline unsigned atomicMin(unsigned* to, unsigned value) { return std::exchange(*to, std::min(*to, value)); }
inline int __float_as_int(float value) { return std::bit_cast<int>(value); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }

// v_mfma_f32_32x32x8_bf16_1k as AMD describes it for CDNA2. Lane l of a wave gives row l % 32 of a and column l % 32 of
// b, both for the summands 4 (l / 32) to 4 (l / 32) + 3; its sum v is that of column l % 32 and row 8 (v / 4) +
// 4 (l / 32) + v % 4.
using MfmaSummands = short __attribute__((vector_size(8)));
using MfmaSums32 = float __attribute__((vector_size(64)));
inline MfmaSums32 __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(MfmaSummands a, MfmaSummands b, MfmaSums32 sums, int, int,
                                                           int) {
  struct Given {
    MfmaSummands a[mw::emulated::kWaveLanes], b[mw::emulated::kWaveLanes];
  };
  constexpr int kWaves = mw::emulated::kMaxThreads / mw::emulated::kWaveLanes;
  static Given given[kWaves][2];  // a lane may come back with the next before the last one has read the first
  static unsigned calls[mw::emulated::kMaxThreads];
  const unsigned lane = threadIdx.x % 64, wave = threadIdx.x / 64;
  Given& wave_given = given[wave][calls[threadIdx.x]++ % 2];
  wave_given.a[lane] = a;
  wave_given.b[lane] = b;
  mw::emulated::wait_for_wave();
  const auto value = [](short bits) { return mw::to_float(mw::bf16{static_cast<uint16_t>(bits)}); };
  for (unsigned v = 0; v < 16; ++v) {
    const unsigned row = 8 * (v / 4) + 4 * (lane / 32) + v % 4, column = lane % 32;
    for (unsigned k = 0; k < 8; ++k)
      sums[v] += value(wave_given.a[row + k / 4 * 32][k % 4]) * value(wave_given.b[column + k / 4 * 32][k % 4]);
  }
  return sums;
}

namespace mw::gpu {

using std::max, std::min;
template <class T>
using DeviceMemory = T;

enum class Status { success };
inline void check(Status, const char*) {}
// What a kernel gets without asking: 48 KiB less its own arrays, whose size is not known here.
constexpr size_t kUnaskedSharedBytes = (48 << 10) - (1 << 10);
inline std::map<const void*, size_t> allowed_shared_bytes;
inline Status allow_shared_bytes(const void* kernel, size_t bytes) {
  allowed_shared_bytes[kernel] = bytes;
  return Status::success;
}
inline int shared_bytes_of_processor = 64 << 10;
inline Status read_shared_bytes(int* bytes, int) {
  *bytes = shared_bytes_of_processor;
  return Status::success;
}
using NativeStream = void*;
inline NativeStream native(Stream&) { return nullptr; }
inline Status fill_async(void* memory, int byte, size_t bytes, NativeStream) {
  std::memset(memory, byte, bytes);
  return Status::success;
}
constexpr int kThreads = 256;
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline std::vector<double> dynamic_memory[2];  // of the blocks of a cluster
template <class T>
T* dynamic_shared_memory(unsigned block = emulated::this_block()) {
  return reinterpret_cast<T*>(dynamic_memory[block].data());
}

// Blocks of a kernel that run together: two where the product that it takes says so.
template <class First, class... Others>
constexpr int blocks_of_cluster(void (*)(First, Others...)) {
  if constexpr (requires { First::kPaired; }) return First::kPaired ? 2 : 1;
  return 1;
}

template <class... Parameters, class... Arguments>
Status launch_beside(NativeStream, void (*kernel)(Parameters...), int64_t blocks, int threads, size_t shared_bytes,
                     const Arguments&... arguments) {
  const auto allowed = allowed_shared_bytes.find(reinterpret_cast<const void*>(kernel));
  if (shared_bytes > (allowed == allowed_shared_bytes.end() ? kUnaskedSharedBytes : allowed->second))
    throw std::logic_error("a kernel has not asked for so much shared memory");
  const int together = blocks_of_cluster(kernel);
  for (std::vector<double>& memory : dynamic_memory) memory.resize(shared_bytes / sizeof(double) + 1);
  for (int64_t block = 0; block < blocks; block += together) {
    gridDim.x = static_cast<unsigned>(blocks);
    blockDim.x = static_cast<unsigned>(threads);
    blockIdx.x = static_cast<unsigned>(block);
    emulated::run_cluster(together, threads, [&] { kernel(Parameters(arguments)...); });
  }
  return Status::success;
}
template <class... Parameters, class... Arguments>
void launch(Stream& stream, void (*kernel)(Parameters...), int64_t blocks, int threads, size_t shared_bytes,
            const Arguments&... arguments) {
  launch_beside(native(stream), kernel, blocks, threads, shared_bytes, arguments...);
}

}  // namespace mw::gpu
