#include "ops/bias.h"

#include "ops/gpu/operators.h"
#include "ops/gpu/pack.h"
#include "ops/gpu/row_sums.h"

namespace mw::gpu {
namespace {

template <class T, int N>
struct AddBias {
  T* x;
  const float* bias;
  int64_t packs;  // of a row
  __device__ void operator()(int64_t i) const {
    const Pack<T, N> before = load<N>(x + i * N);
    const Pack<float, N> values = load<N>(bias + i % packs * N);
    Pack<float, N> sum;
#pragma unroll
    for (int k = 0; k < N; ++k) sum.at[k] = to_float(before.at[k]) + values.at[k];
    store(x + i * N, round_pack<T>(sum));
  }
};

}  // namespace

void add_bias(Stream& stream, TensorView x, TensorView bias) {
  const int64_t rows = x.rows(), width = x.cols();
  with_float_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kPack = kWidePack<float>;
    const bool aligned = allow_packs<kPack>(x.as<T>(), bias.as<float>()) && width % kPack == 0;
    with_pack<kPack>(aligned, [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      for_each(stream, rows * (width / N), AddBias<T, N>{x.as<T>(), bias.as<float>(), width / N});
    });
  });
}

void bias_backward(Stream& stream, TensorView d, TensorView d_bias) {
  with_float_type(d.dtype, [&](auto type) {
    using T = decltype(type);
    add_rows(stream, d.as<T>(), d.rows(), d.cols(), d_bias.as<float>());
  });
}

}  // namespace mw::gpu
