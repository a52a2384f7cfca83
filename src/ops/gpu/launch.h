// Kernel launches on a stream, and parallel loops for simple kernels.
#pragma once

#include <algorithm>

#include "core/stream.h"
#include "core/tensor.h"
#include "ops/gpu/capability.h"

namespace mw::gpu {

// Errors: memory; internal, with the vendor's reason.
void check(Status status, const char* what);

inline NativeStream native(Stream& stream) { return static_cast<NativeStream>(stream.queue().native()); }

// Enqueues kernel<<<blocks, threads, shared_bytes>>>(arguments...). Does nothing for zero blocks.
template <class... Parameters, class... Arguments>
void launch(Stream& stream, void (*kernel)(Parameters...), int64_t blocks, int threads, size_t shared_bytes,
            const Arguments&... arguments) {
  if (blocks == 0) return;
  kernel<<<dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(threads)), shared_bytes, native(stream)>>>(
      Parameters(arguments)...);
  check(last_error(), "starting a kernel");
}

// The shared memory of a block whose size the launch tells.
template <class T>
__device__ T* dynamic_shared_memory() {
  extern __shared__ uint4 dynamic_memory[];
  return reinterpret_cast<T*>(dynamic_memory);
}

constexpr int kThreads = 256;
// Of a loop: enough for one element or pack of each thread, with less than 2^32 threads. Fewer blocks that go through
// the elements in turns reach 2.5 % less of the memory's bandwidth (an update of 400 million weights on an H200).
constexpr int64_t kMaxBlocks = (1 << 24) - 1;

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class Body>
__global__ void for_each_kernel(int64_t count, Body body) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) body(i);
}

// Calls body(i) on the device for each i in [0, count), in no particular order. body: a struct with a const __device__
// operator().
template <class Body>
void for_each(Stream& stream, int64_t count, const Body& body) {
  const int64_t blocks = std::min(kMaxBlocks, ceil_div(count, kThreads));
  launch(stream, for_each_kernel<Body>, blocks, kThreads, 0, count, body);
}

template <int N, class Body>
__global__ void for_each_pack_kernel(int64_t count, Body body) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x, packs = count / N, rest = packs * N + thread;
  for (int64_t i = thread; i < packs; i += threads) body.template apply<N>(i * N);
  if (rest < count) body.template apply<1>(rest);
}

// Calls body.apply<N>(i) on the device for each run of N elements in [0, count), starting at i, and apply<1> for the
// remaining ones; only apply<1> where packs are not allowed (see pack.h). In no particular order.
template <int N, class Body>
void for_each_pack(Stream& stream, int64_t count, bool allowed, const Body& body) {
  const int64_t blocks = std::min(kMaxBlocks, ceil_div(count, int64_t{kThreads} * (allowed ? N : 1)));
  launch(stream, allowed ? for_each_pack_kernel<N, Body> : for_each_pack_kernel<1, Body>, blocks, kThreads, 0, count,
         body);
}

}  // namespace mw::gpu
