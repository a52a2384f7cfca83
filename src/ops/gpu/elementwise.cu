#include "ops/elementwise.h"

#include "ops/gpu/launch.h"
#include "ops/gpu/operators.h"
#include "ops/gpu/reduce.h"

namespace mw::gpu {
namespace {

template <class From, class To>
struct Convert {
  const From* from;
  To* to;
  __device__ void operator()(int64_t i) const { to[i] = from_float<To>(to_float(from[i])); }
};

template <class T>
struct Add {
  const T *left, *right;
  T* sum;
  __device__ void operator()(int64_t i) const { sum[i] = from_float<T>(to_float(left[i]) + to_float(right[i])); }
};

template <class T>
struct Clamp {
  const T* x;
  T* y;
  float limit;
  __device__ void operator()(int64_t i) const {
    const float value = to_float(x[i]);
    const float below = value > limit ? limit : value;  // written so that a NaN passes
    y[i] = from_float<T>(below < -limit ? -limit : below);
  }
};

template <class T>
struct ClampBackward {
  const T* x;
  T* gradient;
  float limit;
  __device__ void operator()(int64_t i) const {
    const float value = to_float(x[i]);
    if (value > limit || value < -limit) gradient[i] = T{};
  }
};

constexpr int kPartials = 512;  // blocks of a whole-tensor sum

struct SquaresOf {
  __device__ double operator()(float value) const { return static_cast<double>(value) * static_cast<double>(value); }
};
struct IsBad {
  __device__ double operator()(float value) const { return isfinite(value) ? 0.0 : 1.0; }
};

// Each block sums a fixed share of the elements.
template <class Map>
__global__ void sum_kernel(const float* values, int64_t count, Map map, double* partials) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  double sum = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
    sum += map(values[i]);
  sum = reduce_block(sum, Sum());
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

template <class Map>
double sum_over(Stream& stream, TensorView x, Map map) {
  const int64_t count = x.numel();
  const auto blocks = static_cast<size_t>(std::min<int64_t>(kPartials, ceil_div(count, kThreads)));
  WorkspaceFrame frame(stream.workspace());
  auto* partials = frame.take<double>(kPartials);
  launch(stream, sum_kernel<Map>, static_cast<int64_t>(blocks), kThreads, 0, x.as<float>(), count, map, partials);
  double host[kPartials];
  stream.queue().copy(host, partials, blocks * sizeof(double));
  stream.queue().wait();
  double total = 0;
  for (size_t i = 0; i < blocks; ++i) total += host[i];
  return total;
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
      for_each(stream, x.numel(), Convert<From, To>{x.as<From>(), y.as<To>()});
    });
  });
}

void add(Stream& stream, TensorView a, TensorView b, TensorView out) {
  with_float_type(a.dtype, [&](auto type) {
    using T = decltype(type);
    for_each(stream, a.numel(), Add<T>{a.as<T>(), b.as<T>(), out.as<T>()});
  });
}

void clamp(Stream& stream, TensorView x, float limit, TensorView y) {
  with_float_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    for_each(stream, x.numel(), Clamp<T>{x.as<T>(), y.as<T>(), limit});
  });
}

void clamp_backward(Stream& stream, TensorView x, float limit, TensorView d) {
  with_float_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    for_each(stream, x.numel(), ClampBackward<T>{x.as<T>(), d.as<T>(), limit});
  });
}

double sum_squares(Stream& stream, TensorView x) { return sum_over(stream, x, SquaresOf()); }
bool all_finite(Stream& stream, TensorView x) { return sum_over(stream, x, IsBad()) == 0.0; }

}  // namespace mw::gpu
