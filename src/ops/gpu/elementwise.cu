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
    Pack<float, N> y;
#pragma unroll
    for (int k = 0; k < N; ++k) y.at[k] = to_float(x.at[k]);
    store(to + i, round_pack<To>(y));
  }
};

template <class T>
struct Add {
  const T *left, *right;
  T* sum;
  template <int N>
  __device__ void apply(int64_t i) const {
    const Pack<T, N> a = load<N>(left + i), b = load<N>(right + i);
    Pack<float, N> out;
#pragma unroll
    for (int k = 0; k < N; ++k) out.at[k] = to_float(a.at[k]) + to_float(b.at[k]);
    store(sum + i, round_pack<T>(out));
  }
};

template <class T>
struct ScaledSum {
  float a, b;
  const T *left, *right;
  T* sum;
  template <int N>
  __device__ void apply(int64_t i) const {
    const Pack<T, N> x = load<N>(left + i), y = load<N>(right + i);
    Pack<float, N> out;
#pragma unroll
    for (int k = 0; k < N; ++k) out.at[k] = a * to_float(x.at[k]) + b * to_float(y.at[k]);
    store(sum + i, round_pack<T>(out));
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
constexpr int kSumPack = 4;        // elements of an access
constexpr int kSumLoads = 8;       // that a thread has under way
constexpr int64_t kSumPiece = int64_t{kThreads} * kSumPack * kSumLoads;  // elements that a block takes at a time

// Tensors one behind the other, each in pieces.
template <class T>
struct ValueList {
  const T* values[kListTensors];
  int64_t counts[kListTensors];
  int64_t ends[kListTensors];  // pieces up to the end of each
  int size = 0;
  int64_t pieces() const { return size == 0 ? 0 : ends[size - 1]; }
};

struct SquaresOf {
  __device__ double operator()(float value) const { return static_cast<double>(value) * static_cast<double>(value); }
};
struct IsBad {
  __device__ double operator()(float value) const { return isfinite(value) ? 0.0 : 1.0; }
};

// What this thread has to add of a piece: its length alone decides which elements, and in which order.
template <bool kAligned, class T, class Map>
__device__ double sum_share(const T* values, int64_t count, Map map) {
  double sum = 0;
  if (count == kSumPiece) {
    Pack<T, kSumPack> packs[kSumLoads];
#pragma unroll
    for (int p = 0; p < kSumLoads; ++p)
      packs[p] = load<kSumPack, kAligned>(values + (p * kThreads + threadIdx.x) * kSumPack);
#pragma unroll
    for (int p = 0; p < kSumLoads; ++p) {
#pragma unroll
      for (int k = 0; k < kSumPack; ++k) sum += map(to_float(packs[p].at[k]));
    }
    return sum;
  }
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += map(to_float(values[i]));
  return sum;
}

// Block b adds pieces b, b + blocks, .. of the list to its own partial sum.
template <class T, class Map>
__global__ void __launch_bounds__(kThreads) sum_kernel(ValueList<T> list, int64_t pieces, Map map, double* partials) {
  double sum = 0;
  int t = 0;
  for (int64_t piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    while (piece >= list.ends[t]) ++t;
    const int64_t begin = (piece - (t == 0 ? 0 : list.ends[t - 1])) * kSumPiece, rest = list.counts[t] - begin;
    const T* values = list.values[t] + begin;
    const int64_t count = rest < kSumPiece ? rest : kSumPiece;
    sum += allow_packs<kSumPack>(values) ? sum_share<true>(values, count, map) : sum_share<false>(values, count, map);
  }
  sum = reduce_block(sum, Sum());
  if (threadIdx.x == 0) partials[blockIdx.x] += sum;
}

template <class T, class Map>
void add_sums(Stream& stream, std::span<const TensorView> tensors, Map map, double* partials) {
  for (size_t first = 0; first < tensors.size(); first += kListTensors) {
    ValueList<T> list;
    for (const TensorView& tensor : tensors.subspan(first, std::min<size_t>(kListTensors, tensors.size() - first))) {
      const int64_t count = tensor.numel(), end = list.pieces() + ceil_div(count, kSumPiece);
      list.values[list.size] = tensor.as<T>();
      list.counts[list.size] = count;
      list.ends[list.size++] = end;
    }
    const int64_t pieces = list.pieces();
    launch(stream, sum_kernel<T, Map>, std::min<int64_t>(kPartials, pieces), kThreads, 0, list, pieces, map, partials);
  }
}

constexpr int64_t kMostOfSmall = 64 << 10;  // bytes that one block fills

struct SmallTensors {
  std::byte* begins[kListTensors];
  int64_t bytes[kListTensors];
  int size = 0;
};

// A block fills a tensor.
__global__ void __launch_bounds__(kThreads) fill_zeros_kernel(SmallTensors list) {
  std::byte* const begin = list.begins[blockIdx.x];
  const int64_t bytes = list.bytes[blockIdx.x];
  const auto fill = [&](auto word) {
    auto* words = reinterpret_cast<decltype(word)*>(begin);
    for (int64_t i = threadIdx.x; i < bytes / static_cast<int64_t>(sizeof word); i += kThreads) words[i] = word;
  };
  const bool wide = reinterpret_cast<std::uintptr_t>(begin) % sizeof(int4) == 0 && bytes % sizeof(int4) == 0;
  if (wide) fill(int4{});
  else fill(uint8_t{});
}

// The sum over all elements of all tensors, with one wait.
template <class Map>
double sum_over(Stream& stream, std::span<const TensorView> tensors, Map map) {
  if (tensors.empty()) return 0;
  WorkspaceFrame frame(stream.workspace());
  auto* partials = frame.take<double>(kPartials);
  std::array<double, kPartials> host;
  check(fill_async(partials, 0, sizeof host, native(stream)), "filling memory");
  for (const DType dtype : {DType::f32, DType::bf16}) {
    std::vector<TensorView> alike(tensors.begin(), tensors.end());
    std::erase_if(alike, [&](const TensorView& tensor) { return tensor.dtype != dtype; });
    with_float_type(dtype, [&](auto type) { add_sums<decltype(type)>(stream, alike, map, partials); });
  }
  stream.queue().read(host.data(), partials, sizeof host);
  stream.wait();
  return std::accumulate(host.begin(), host.end(), 0.0);
}

}  // namespace

void fill_zero(Stream& stream, TensorView x) {
  if (x.numel() > 0) check(fill_async(x.data, 0, static_cast<size_t>(x.bytes()), native(stream)), "filling memory");
}

void fill_zeros(Stream& stream, std::span<const TensorView> tensors) {
  SmallTensors list;
  const auto finish_list = [&] {
    launch(stream, fill_zeros_kernel, list.size, kThreads, 0, list);
    list.size = 0;
  };
  for (const TensorView& x : tensors) {
    if (x.bytes() > kMostOfSmall) {
      gpu::fill_zero(stream, x);
      continue;
    }
    list.begins[list.size] = static_cast<std::byte*>(x.data);
    list.bytes[list.size++] = x.bytes();
    if (list.size == kListTensors) finish_list();
  }
  finish_list();
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

void scaled_sum(Stream& stream, float a, TensorView x, float b, TensorView y, TensorView out) {
  with_float_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    const ScaledSum<T> body{a, b, x.as<T>(), y.as<T>(), out.as<T>()};
    const bool allowed = allow_packs<kWidePack<T>>(body.left, body.right, body.sum);
    for_each_pack<kWidePack<T>>(stream, x.numel(), allowed, body);
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
