// RMS normalisation of heads with a rotation, in one pass, for bf16 heads of 64 or 128 elements whose halves form
// pairs; others take the two operators. A group of neighbouring threads takes heads of one token, so that it loads the
// token's angles once. Each of its threads has a pack of either half: the pairs of its packs are its own.
#include "ops/norm_rope.h"

#include "ops/composed_norm_rope.h"
#include "ops/gpu/launch.h"
#include "ops/gpu/operators.h"
#include "ops/gpu/reduce.h"
#include "ops/gpu/rotation.h"
#include "ops/gpu/row_sums.h"

namespace mw::gpu {
namespace {

constexpr int kBlock = 256, kPerPack = kWidePack<bf16>;
constexpr int64_t kGroups = 16384;  // that fill a device: as many tokens' heads are taken at a time

using HeadPack = Pack<bf16, kPerPack>;
using WidePack = Pack<float, kPerPack>;

// A unit is `heads_of_unit` heads of a token.
struct Heads {
  int64_t tokens, positions;
  int heads, heads_of_unit;
  const float *gain, *cosine, *sine;
  const int32_t* first;  // as in ops/rope.h, or null

  __host__ __device__ int parts() const { return (heads + heads_of_unit - 1) / heads_of_unit; }
  __host__ __device__ int64_t units() const { return tokens * parts(); }
};

// What a thread has of a head with kLanes threads: packs of both halves.
struct Halves {
  WidePack left, right;
};
template <int kLanes>
__device__ int lane_of_head() {
  return static_cast<int>(threadIdx.x) % kLanes;
}
template <int kLanes>
constexpr int kHalf = kLanes* kPerPack;  // elements

// Of a head's elements, or of as many gains.
template <int kLanes, class T>
__device__ Halves load_halves(const T* from) {
  const T* const own = from + lane_of_head<kLanes>() * kPerPack;
  return {widen(load<kPerPack>(own)), widen(load<kPerPack>(own + kHalf<kLanes>))};
}
template <int kLanes>
__device__ void store_halves(bf16* to, const Halves& x) {
  bf16* const own = to + lane_of_head<kLanes>() * kPerPack;
  store(own, round_pack<bf16>(x.left));
  store(own + kHalf<kLanes>, round_pack<bf16>(x.right));
}
template <int kLanes>
__device__ Angles<kPerPack> angles_of(const Heads& task, int64_t token, float sign) {
  const int64_t position = token % task.positions - (task.first == nullptr ? 0 : task.first[token]);
  const int64_t at = position * kHalf<kLanes> + lane_of_head<kLanes>() * kPerPack;
  return load_angles<kPerPack>(task.cosine + at, task.sine + at, sign);
}

__device__ inline WidePack round_to_bf16(const WidePack& x) { return widen(round_pack<bf16>(x)); }
__device__ inline float sum_of_squares(const WidePack& x) {
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kPerPack; ++k) sum += x.at[k] * x.at[k];
  return sum;
}

struct Forward {
  Heads all;
  const bf16* x;
  bf16* y;
  float* rstd;         // written, or null
  const float* given;  // the rstd to apply; null: it is found
  float eps;
};

template <int kLanes>
__global__ void __launch_bounds__(kBlock) norm_rope_kernel(Forward task) {
  constexpr int kWidth = 2 * kHalf<kLanes>;
  const int64_t unit = (static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x) / kLanes;
  const int parts = task.all.parts(), first = static_cast<int>(unit % parts) * task.all.heads_of_unit;
  const int64_t token = unit / parts;
  // Threads beyond the last unit take part in the sums alone.
  const int count = token < task.all.tokens ? min(task.all.heads_of_unit, task.all.heads - first) : 0;
  const int64_t row = token * task.all.heads + first;
  Angles<kPerPack> angles{};
  if (count > 0) angles = angles_of<kLanes>(task.all, token, 1.0f);
  const Halves gain = load_halves<kLanes>(task.all.gain);

  Halves next{};
  if (count > 0) next = load_halves<kLanes>(task.x + row * kWidth);
  for (int i = 0; i < task.all.heads_of_unit; ++i) {
    Halves x = next;
    if (i + 1 < count) next = load_halves<kLanes>(task.x + (row + i + 1) * kWidth);
    float inverse = 0;
    if (task.given == nullptr) {
      const float squares = reduce_lanes(sum_of_squares(x.left) + sum_of_squares(x.right), kLanes, Sum());
      inverse = 1.0f / sqrtf(squares / static_cast<float>(kWidth) + task.eps);
    }
    if (i >= count) continue;
    if (task.given != nullptr) inverse = task.given[row + i];
    else if (lane_of_head<kLanes>() == 0) task.rstd[row + i] = inverse;
#pragma unroll
    for (int k = 0; k < kPerPack; ++k) {
      x.left.at[k] = gain.left.at[k] * (x.left.at[k] * inverse);
      x.right.at[k] = gain.right.at[k] * (x.right.at[k] * inverse);
    }
    x = {round_to_bf16(x.left), round_to_bf16(x.right)};
    turn(x.left, x.right, angles);
    store_halves<kLanes>(task.y + (row + i) * kWidth, x);
  }
}

// With n = x * rstd and g = gain * d, where d is the gradient rotated back: d_x = rstd * (g - n * mean(g * n)), and
// d_gain += d * n.
struct Backward {
  Heads all;
  const bf16* x;
  const float* rstd;
  bf16* d;
  float* d_gains;  // [blocks, width]
};

// g in the place of d. Adds d * n to the sums, and returns the sum of g * n.
__device__ inline float weigh(WidePack& d, const WidePack& n, const WidePack& gain, WidePack& sums) {
  float products = 0;
#pragma unroll
  for (int k = 0; k < kPerPack; ++k) {
    sums.at[k] += d.at[k] * n.at[k];
    d.at[k] *= gain.at[k];
    products += d.at[k] * n.at[k];
  }
  return products;
}
__device__ inline void project(WidePack& g, const WidePack& n, float mean, float inverse) {
#pragma unroll
  for (int k = 0; k < kPerPack; ++k) g.at[k] = inverse * (g.at[k] - n.at[k] * mean);
}
__device__ inline void scale(WidePack& x, float by) {
#pragma unroll
  for (int k = 0; k < kPerPack; ++k) x.at[k] *= by;
}

template <int kLanes>
__global__ void __launch_bounds__(kBlock, 2) norm_rope_backward_kernel(Backward task) {
  constexpr int kWidth = 2 * kHalf<kLanes>, kGroupsOfBlock = kBlock / kLanes;
  __shared__ float of_group[kGroupsOfBlock][kWidth];
  const int group = static_cast<int>(threadIdx.x) / kLanes, parts = task.all.parts();
  const int64_t units = task.all.units(), step = static_cast<int64_t>(gridDim.x) * kGroupsOfBlock;
  const Halves gain = load_halves<kLanes>(task.all.gain);
  Halves sums{};
  for (int64_t begin = static_cast<int64_t>(blockIdx.x) * kGroupsOfBlock; begin < units; begin += step) {
    const int64_t unit = begin + group, token = unit / parts;
    const int first = static_cast<int>(unit % parts) * task.all.heads_of_unit;
    const int count = unit < units ? min(task.all.heads_of_unit, task.all.heads - first) : 0;
    const int64_t row = token * task.all.heads + first;
    Angles<kPerPack> angles{};
    if (count > 0) angles = angles_of<kLanes>(task.all, token, -1.0f);
    Halves next_x{}, next_d{};
    if (count > 0) {
      next_x = load_halves<kLanes>(task.x + row * kWidth);
      next_d = load_halves<kLanes>(task.d + row * kWidth);
    }
    for (int i = 0; i < task.all.heads_of_unit; ++i) {
      Halves n = next_x, d = next_d;
      if (i + 1 < count) {
        next_x = load_halves<kLanes>(task.x + (row + i + 1) * kWidth);
        next_d = load_halves<kLanes>(task.d + (row + i + 1) * kWidth);
      }
      const float inverse = i < count ? task.rstd[row + i] : 0.0f;
      scale(n.left, inverse);
      scale(n.right, inverse);
      turn(d.left, d.right, angles);
      float products = weigh(d.left, n.left, gain.left, sums.left);
      products += weigh(d.right, n.right, gain.right, sums.right);
      const float mean = reduce_lanes(products, kLanes, Sum()) / static_cast<float>(kWidth);
      if (i >= count) continue;
      project(d.left, n.left, mean, inverse);
      project(d.right, n.right, mean, inverse);
      store_halves<kLanes>(task.d + (row + i) * kWidth, d);
    }
  }

  float* const own = of_group[group] + lane_of_head<kLanes>() * kPerPack;
  store<false>(own, sums.left);
  store<false>(own + kHalf<kLanes>, sums.right);
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < kWidth; c += kBlock) {
    float sum = 0;
    for (int g = 0; g < kGroupsOfBlock; ++g) sum += of_group[g][c];
    task.d_gains[static_cast<int64_t>(blockIdx.x) * kWidth + c] = sum;
  }
}

// Calls body(lanes) with the threads of a head, as the value of a type, where the kernels above support the heads.
template <class Body>
bool with_lanes(const TensorView& x_THh, const TensorView& gain, const Rotation& rotation, const void* y,
                const Body& body) {
  const int64_t h = x_THh.dim(2);
  const auto is_aligned = [](const void* data) { return allow_packs<kPerPack>(static_cast<const bf16*>(data)); };
  if (x_THh.dtype != DType::bf16 || rotation.pairs != RopePairs::halves || 2 * rotation.cos_Sp.dim(1) != h ||
      !is_aligned(x_THh.data) || !is_aligned(y) || !is_aligned(gain.data) || !is_aligned(rotation.cos_Sp.data) ||
      !is_aligned(rotation.sin_Sp.data))
    return false;
  if (h == 64) body(std::integral_constant<int, 4>());
  else if (h == 128) body(std::integral_constant<int, 8>());
  else return false;
  return true;
}

Heads heads_of(const TensorView& x_THh, const TensorView& gain, const Rotation& rotation) {
  const int64_t tokens = x_THh.dim(0), heads = x_THh.dim(1);
  const int64_t of_unit = std::clamp<int64_t>(tokens * heads / kGroups, 1, std::max<int64_t>(heads, 1));
  return {tokens,
          rotation.cos_Sp.dim(0),
          static_cast<int>(heads),
          static_cast<int>(of_unit),
          gain.as<float>(),
          rotation.cos_Sp.as<float>(),
          rotation.sin_Sp.as<float>(),
          rotation.first_T.data == nullptr ? nullptr : rotation.first_T.as<int32_t>()};
}

bool run_forward(Stream& stream, const TensorView& x_THh, const TensorView& gain, const Rotation& rotation,
                 const TensorView& y_THh, float* rstd, const float* given, float eps) {
  return with_lanes(x_THh, gain, rotation, y_THh.data, [&](auto lanes) {
    const Heads all = heads_of(x_THh, gain, rotation);
    launch(stream, norm_rope_kernel<lanes.value>, ceil_div(all.units() * lanes.value, kBlock), kBlock, 0,
           Forward{all, x_THh.as<bf16>(), y_THh.as<bf16>(), rstd, given, eps});
  });
}

}  // namespace

void norm_rope(Stream& stream, TensorView x_THh, TensorView gain, float eps, const Rotation& rotation, TensorView y_THh,
               TensorView rstd) {
  if (run_forward(stream, x_THh, gain, rotation, y_THh, rstd.as<float>(), nullptr, eps)) return;
  composed_norm_rope(stream, x_THh, gain, eps, rotation, y_THh, rstd);
}

void norm_rope_apply(Stream& stream, TensorView x_THh, TensorView gain, TensorView rstd, const Rotation& rotation,
                     TensorView y_THh) {
  if (run_forward(stream, x_THh, gain, rotation, y_THh, nullptr, rstd.as<float>(), 0.0f)) return;
  composed_norm_rope_apply(stream, x_THh, gain, rstd, rotation, y_THh);
}

void norm_rope_backward(Stream& stream, TensorView x_THh, TensorView gain, TensorView rstd, const Rotation& rotation,
                        TensorView d_THh, TensorView d_gain) {
  const int64_t rows = x_THh.rows(), width = x_THh.cols();
  const bool done = with_lanes(x_THh, gain, rotation, d_THh.data, [&](auto lanes) {
    const Heads all = heads_of(x_THh, gain, rotation);
    const int64_t bytes = gpu::norm_workspace_bytes(rows, width), row_bytes = width * int64_t{sizeof(float)};
    const int64_t blocks = std::min(bytes / row_bytes, ceil_div(all.units() * lanes.value, kBlock));
    WorkspaceFrame frame(stream.workspace());
    auto* sums = frame.take<float>(static_cast<size_t>(blocks * width));
    launch(stream, norm_rope_backward_kernel<lanes.value>, blocks, kBlock, 0,
           Backward{all, x_THh.as<bf16>(), rstd.as<float>(), d_THh.as<bf16>(), sums});
    add_rows(stream, sums, blocks, width, d_gain.as<float>());
  });
  if (!done) composed_norm_rope_backward(stream, x_THh, gain, rstd, rotation, d_THh, d_gain);
}

}  // namespace mw::gpu
