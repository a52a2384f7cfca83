// Rotary position embedding: a block rotates all heads of a token, a thread several pairs of a head at a time. It reads
// its pairs before it writes them: y may be x.
#include "ops/rope.h"

#include <limits>

#include "ops/gpu/launch.h"
#include "ops/gpu/operators.h"
#include "ops/gpu/rotation.h"

namespace mw::gpu {
namespace {

constexpr int kTokenThreads = 128;

// Heads of one token: each has `width` elements; 2 * pairs of them are rotated, from `begin` on. sign = -1 rotates
// backwards. first: as in ops/rope.h, or null.
struct Heads {
  int heads, width, pairs, begin;
  int64_t positions;
  const int32_t* first;
  float sign;
};

// N pairs with the angles of their positions; N = 1 where packs are not allowed.
template <class T, int N>
struct Halves {
  __device__ static void rotate(const T* x, const float* cosine, const float* sine, const Heads& at, int j, T* y) {
    Pack<float, N> a = widen(load<N>(x + j)), b = widen(load<N>(x + j + at.pairs));
    turn(a, b, load_angles<N>(cosine + j, sine + j, at.sign));
    store(y + j, round_pack<T>(a));
    store(y + j + at.pairs, round_pack<T>(b));
  }
};

template <class T, int N>
struct Neighbours {
  static constexpr bool kAligned = N > 1;
  __device__ static void rotate(const T* x, const float* cosine, const float* sine, const Heads& at, int j, T* y) {
    const Pack<T, 2 * N> both = load<2 * N, kAligned>(x + 2 * j);
    Pack<float, N> a, b;
#pragma unroll
    for (int k = 0; k < N; ++k) a.at[k] = to_float(both.at[2 * k]), b.at[k] = to_float(both.at[2 * k + 1]);
    turn(a, b, load_angles<N>(cosine + j, sine + j, at.sign));
    Pack<float, 2 * N> turned;
#pragma unroll
    for (int k = 0; k < N; ++k) turned.at[2 * k] = a.at[k], turned.at[2 * k + 1] = b.at[k];
    store<kAligned>(y + 2 * j, round_pack<T>(turned));
  }
};

template <class T, int N, class Pairs>
__global__ void rope_kernel(const T* x, const float* cosine, const float* sine, Heads at, T* y) {
  const int64_t token = blockIdx.x, first = at.first == nullptr ? 0 : at.first[token],
                angles = (token % at.positions - first) * at.pairs;
  const int packs = at.pairs / N;
  for (int i = static_cast<int>(threadIdx.x); i < at.heads * packs; i += static_cast<int>(blockDim.x)) {
    const int head = i / packs, j = (i - head * packs) * N;
    const int64_t begin = (token * at.heads + head) * at.width + at.begin;
    Pairs::rotate(x + begin, cosine + angles, sine + angles, at, j, y + begin);
  }
}

}  // namespace

void rope(Stream& stream, TensorView x_THh, TensorView cos_Sp, TensorView sin_Sp, RopeDirection direction,
          TensorView y_THh, RopePairs pairing, TensorView first_T, int64_t begin) {
  const int64_t T = x_THh.dim(0), H = x_THh.dim(1), h = x_THh.dim(2), pairs = cos_Sp.dim(1);
  if (T == 0) return;
  // Inside a token 32-bit indices do, and divide faster.
  MW_CHECK(H * h < std::numeric_limits<int>::max() / 2, "tokens of {} heads of {}", H, h);
  const Heads at{static_cast<int>(H),
                 static_cast<int>(h),
                 static_cast<int>(pairs),
                 static_cast<int>(begin),
                 cos_Sp.dim(0),
                 first_T.data == nullptr ? nullptr : first_T.as<int32_t>(),
                 direction == RopeDirection::forward ? 1.0f : -1.0f};
  const float *cosine = cos_Sp.as<float>(), *sine = sin_Sp.as<float>();
  with_float_type(x_THh.dtype, [&](auto type) {
    using E = decltype(type);
    const E* x = x_THh.as<E>();
    E* y = y_THh.as<E>();
    constexpr int kWide = kWidePack<E>, kPairs = kWide / 2;
    const bool aligned =
        allow_packs<kWide>(x, y) && allow_packs<kWidePack<float>>(cosine, sine) && h % kWide == 0 && begin % kWide == 0;
    if (pairing == RopePairs::halves)
      with_pack<kWide>(aligned && pairs % kWide == 0, [&](auto width) {
        constexpr int N = decltype(width)::value;
        launch(stream, rope_kernel<E, N, Halves<E, N>>, T, kTokenThreads, 0, x, cosine, sine, at, y);
      });
    else
      with_pack<kPairs>(aligned && pairs % kPairs == 0, [&](auto width) {
        constexpr int N = decltype(width)::value;
        launch(stream, rope_kernel<E, N, Neighbours<E, N>>, T, kTokenThreads, 0, x, cosine, sine, at, y);
      });
  });
}

}  // namespace mw::gpu
