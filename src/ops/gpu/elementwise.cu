// Elementwise operators: a thread takes 16 bytes at a time where the addresses allow it. It reads what it overwrites
// before it does: outputs may alias inputs.
#include "ops/elementwise.h"

#include <array>
#include <numeric>

#include "ops/gpu/launch.h"
#include "ops/gpu/operators.h"
#include "ops/gpu/pack.h"
#include "ops/gpu/reduce.h"

namespace mw::gpu {
namespace {

template <class From, class To>
struct Convert {
  const From* from;
  To* to;
  template <int N>
  __device__ void apply(int64_t i) const {
    const Pack<From, N> x = load<N>(from + i);
    Pack<To, N> y;
#pragma unroll
    for (int k = 0; k < N; ++k) y.at[k] = from_float<To>(to_float(x.at[k]));
    store(to + i, y);
  }
};

template <class T>
struct Add {
  const T *left, *right;
  T* sum;
  template <int N>
  __device__ void apply(int64_t i) const {
    const Pack<T, N> a = load<N>(left + i), b = load<N>(right + i);
    Pack<T, N> out;
#pragma unroll
    for (int k = 0; k < N; ++k) out.at[k] = from_float<T>(to_float(a.at[k]) + to_float(b.at[k]));
    store(sum + i, out);
  }
};

template <class T>
struct Clamp {
  const T* from;
  T* to;
  float limit;
  template <int N>
  __device__ void apply(int64_t i) const {
    const Pack<T, N> x = load<N>(from + i);
    Pack<T, N> y;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float value = to_float(x.at[k]);
      const float below = value > limit ? limit : value;  // written so that a NaN passes
      y.at[k] = from_float<T>(below < -limit ? -limit : below);
    }
    store(to + i, y);
  }
};

template <class T>
struct ClampBackward {
  const T* values;
  T* gradient;
  float limit;
  __device__ bool is_outside(T x) const { return to_float(x) > limit || to_float(x) < -limit; }
  template <int N>
  __device__ void apply(int64_t i) const {
    const Pack<T, N> x = load<N>(values + i);
    bool any = false;
#pragma unroll
    for (int k = 0; k < N; ++k) any = any || is_outside(x.at[k]);
    if (!any) return;  // the common case moves no gradient
    Pack<T, N> d = load<N>(gradient + i);
#pragma unroll
    for (int k = 0; k < N; ++k)
      if (is_outside(x.at[k])) d.at[k] = T{};
    store(gradient + i, d);
  }
};

constexpr int kPartials = 1024;    // blocks of a sum
constexpr int kListTensors = 128;  // of one launch, which takes the list as an argument
constexpr int kSumPack = kWidePack<float>;

struct ValueList {
  const float* values[kListTensors];
  int64_t counts[kListTensors];
  int size = 0;
};

struct SquaresOf {
  __device__ double operator()(float value) const { return static_cast<double>(value) * static_cast<double>(value); }
};
struct IsBad {
  __device__ double operator()(float value) const { return isfinite(value) ? 0.0 : 1.0; }
};

// What this thread has to add of a tensor that all threads of the grid share.
template <int N, class Map>
__device__ double sum_share(const float* values, int64_t count, Map map) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x, packs = count / N, rest = packs * N + thread;
  double sum = 0;
#pragma unroll 4
  for (int64_t i = thread; i < packs; i += threads) {
    const Pack<float, N> pack = load<N>(values + i * N);
#pragma unroll
    for (int k = 0; k < N; ++k) sum += map(pack.at[k]);
  }
  if (rest < count) sum += map(values[rest]);
  return sum;
}

// Each block adds a fixed share of every tensor to its own partial sum.
template <class Map>
__global__ void sum_kernel(ValueList list, Map map, double* partials) {
  double sum = 0;
  for (int t = 0; t < list.size; ++t) {
    const float* values = list.values[t];
    if (allow_packs<kSumPack>(values)) sum += sum_share<kSumPack>(values, list.counts[t], map);
    else sum += sum_share<1>(values, list.counts[t], map);
  }
  sum = reduce_block(sum, Sum());
  if (threadIdx.x == 0) partials[blockIdx.x] += sum;
}

// The sum over all elements of all tensors, with one wait.
template <class Map>
double sum_over(Stream& stream, std::span<const TensorView> tensors, Map map) {
  int64_t longest = 0;
  for (const TensorView& tensor : tensors) longest = std::max(longest, tensor.numel());
  if (longest == 0) return 0;
  const int64_t blocks = std::min<int64_t>(kPartials, ceil_div(longest, int64_t{kThreads} * kSumPack));
  const size_t bytes = static_cast<size_t>(blocks) * sizeof(double);
  WorkspaceFrame frame(stream.workspace());
  auto* partials = frame.take<double>(static_cast<size_t>(blocks));
  check(fill_async(partials, 0, bytes, native(stream)), "filling memory");
  for (size_t first = 0; first < tensors.size(); first += kListTensors) {
    ValueList list;
    for (const TensorView& tensor : tensors.subspan(first, std::min<size_t>(kListTensors, tensors.size() - first))) {
      list.values[list.size] = tensor.as<float>();
      list.counts[list.size++] = tensor.numel();
    }
    launch(stream, sum_kernel<Map>, blocks, kThreads, 0, list, map, partials);
  }
  std::array<double, kPartials> host;
  stream.queue().copy(host.data(), partials, bytes);
  stream.queue().wait();
  return std::accumulate(host.begin(), host.begin() + blocks, 0.0);
}

}  // namespace

void fill_zero(Stream& stream, TensorView x) {
  if (x.numel() > 0) check(fill_async(x.data, 0, static_cast<size_t>(x.bytes()), native(stream)), "filling memory");
}

void convert(Stream& stream, TensorView x, TensorView y) {
  with_float_type(x.dtype, [&](auto from) {
    with_float_type(y.dtype, [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      constexpr int kPack = std::min(kWidePack<From>, kWidePack<To>);
      const Convert<From, To> body{x.as<From>(), y.as<To>()};
      for_each_pack<kPack>(stream, x.numel(), allow_packs<kPack>(body.from, body.to), body);
    });
  });
}

void add(Stream& stream, TensorView a, TensorView b, TensorView out) {
  with_float_type(a.dtype, [&](auto type) {
    using T = decltype(type);
    const Add<T> body{a.as<T>(), b.as<T>(), out.as<T>()};
    const bool allowed = allow_packs<kWidePack<T>>(body.left, body.right, body.sum);
    for_each_pack<kWidePack<T>>(stream, a.numel(), allowed, body);
  });
}

void clamp(Stream& stream, TensorView x, float limit, TensorView y) {
  with_float_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    const Clamp<T> body{x.as<T>(), y.as<T>(), limit};
    for_each_pack<kWidePack<T>>(stream, x.numel(), allow_packs<kWidePack<T>>(body.from, body.to), body);
  });
}

void clamp_backward(Stream& stream, TensorView x, float limit, TensorView d) {
  with_float_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    const ClampBackward<T> body{x.as<T>(), d.as<T>(), limit};
    for_each_pack<kWidePack<T>>(stream, x.numel(), allow_packs<kWidePack<T>>(body.values, body.gradient), body);
  });
}

double sum_squares(Stream& stream, std::span<const TensorView> tensors) {
  return sum_over(stream, tensors, SquaresOf());
}
bool all_finite(Stream& stream, TensorView x) { return sum_over(stream, {&x, 1}, IsBad()) == 0.0; }

}  // namespace mw::gpu
