// Rotary embedding: one block per token, whose threads take 16 bytes of each half of a head where the width and the
// addresses allow it, and single pairs otherwise. A thread reads its pairs before it writes them: y may be x.
#include "ops/rope.h"

#include <limits>

#include "ops/gpu/launch.h"
#include "ops/gpu/operators.h"
#include "ops/gpu/pack.h"

namespace mw::gpu {
namespace {

constexpr int kTokenThreads = 128;

// packs: of half a head; token_packs: of the halves of all heads of a token. sign = -1 rotates backwards.
template <class T, int N>
__global__ void rope_kernel(const Pack<T, N>* x, const Pack<float, N>* cosine, const Pack<float, N>* sine, float sign,
                            int64_t positions, int packs, int token_packs, Pack<T, N>* y) {
  const int64_t token = blockIdx.x;
  const int64_t angles = token % positions * packs, begin = token * token_packs * 2;
  for (int i = static_cast<int>(threadIdx.x); i < token_packs; i += static_cast<int>(blockDim.x)) {
    const int head = i / packs, j = i - head * packs;
    const int64_t at = begin + static_cast<int64_t>(head) * packs * 2 + j;
    const Pack<T, N> left = x[at], right = x[at + packs];
    const Pack<float, N> c = cosine[angles + j], s = sine[angles + j];
    Pack<float, N> y_left, y_right;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float a = to_float(left.at[k]), b = to_float(right.at[k]), turn = sign * s.at[k];
      y_left.at[k] = a * c.at[k] - b * turn;
      y_right.at[k] = b * c.at[k] + a * turn;
    }
    y[at] = round_pack<T>(y_left);
    y[at + packs] = round_pack<T>(y_right);
  }
}

}  // namespace

void rope(Stream& stream, TensorView x_THh, TensorView cos_Sh, TensorView sin_Sh, RopeDirection direction,
          TensorView y_THh) {
  const int64_t T = x_THh.dim(0), H = x_THh.dim(1), pairs = x_THh.dim(2) / 2, S = cos_Sh.dim(0);
  if (T == 0) return;
  // Inside a token 32-bit indices do, and divide faster.
  MW_CHECK(H * pairs < std::numeric_limits<int>::max() / 2, "tokens of {} heads of {} pairs", H, pairs);
  const float sign = direction == RopeDirection::forward ? 1.0f : -1.0f;
  with_float_type(x_THh.dtype, [&](auto type) {
    using E = decltype(type);
    constexpr int kWide = kWidePack<E>;
    const bool wide =
        pairs % kWide == 0 && allow_packs<kWide>(x_THh.as<E>(), y_THh.as<E>(), cos_Sh.as<float>(), sin_Sh.as<float>());
    with_pack<kWide>(wide, [&](auto width) {
      constexpr int N = decltype(width)::value;
      launch(stream, rope_kernel<E, N>, T, kTokenThreads, 0, packs_of<N>(x_THh.as<E>()),
             packs_of<N>(cos_Sh.as<float>()), packs_of<N>(sin_Sh.as<float>()), sign, S, pairs / N, H * pairs / N,
             packs_of<N>(y_THh.as<E>()));
    });
  });
}

}  // namespace mw::gpu
