// RMS normalisation of heads with a rotation, in one pass, for bf16 heads of 64 or 128 elements whose halves form
// pairs; others take the two operators. A group of neighbouring threads takes two heads of one token: it loads both
// before it computes, and the token's angles once. Groups that run at the same time take neighbouring heads. Each
// thread has a pack of either half: the pairs of its packs are its own.
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
constexpr int kHeadsOfUnit = 2;  // of one token: what a group takes at a time

using HeadPack = Pack<bf16, kPerPack>;
using WidePack = Pack<float, kPerPack>;

struct Heads {
  int64_t tokens, positions;
  int heads;
  const float *gain, *cosine, *sine;
  const int32_t* first;  // as in ops/rope.h, or null

  __host__ __device__ int64_t parts() const { return (heads + kHeadsOfUnit - 1) / kHeadsOfUnit; }
  __host__ __device__ int64_t units() const { return tokens * parts(); }
};

// The heads of a unit. Those that do not exist are loaded from the place of the last one: loads without a condition all
// begin before the first one ends.
struct Unit {
  int64_t token, rows[kHeadsOfUnit];  // rows: of [tokens * heads]
  int count;                          // of heads that exist

  // A GPU has no room for 2^32 heads. Divisions of 64 bits take longer.
  __device__ Unit(const Heads& all, int64_t unit) {
    const auto parts = static_cast<uint32_t>(all.parts()), at = static_cast<uint32_t>(unit);
    const int first = static_cast<int>(at % parts) * kHeadsOfUnit;
    const bool is_there = unit < all.units();
    token = is_there ? at / parts : all.tokens - 1;
    count = is_there ? min(kHeadsOfUnit, all.heads - first) : 0;
#pragma unroll
    for (int i = 0; i < kHeadsOfUnit; ++i) rows[i] = token * all.heads + min(first + i, all.heads - 1);
  }
};

// What a thread has of a head with kLanes threads: packs of both halves.
template <class Part>
struct Halves {
  Part left, right;
};
using WideHalves = Halves<WidePack>;
__device__ inline WideHalves widen(const Halves<HeadPack>& x) { return {gpu::widen(x.left), gpu::widen(x.right)}; }

template <int kLanes>
__device__ int lane_of_head() {
  return static_cast<int>(threadIdx.x) % kLanes;
}
template <int kLanes>
constexpr int kHalf = kLanes* kPerPack;  // elements

// Of a head's elements, or of as many gains.
template <int kLanes, class T>
__device__ Halves<Pack<T, kPerPack>> load_halves(const T* from) {
  const T* const own = from + lane_of_head<kLanes>() * kPerPack;
  return {load<kPerPack>(own), load<kPerPack>(own + kHalf<kLanes>)};
}
template <int kLanes>
__device__ void load_heads(const bf16* from, const Unit& unit, Halves<HeadPack> (&heads)[kHeadsOfUnit]) {
#pragma unroll
  for (int i = 0; i < kHeadsOfUnit; ++i) heads[i] = load_halves<kLanes>(from + unit.rows[i] * 2 * kHalf<kLanes>);
}
template <int kLanes>
__device__ void store_halves(bf16* to, const WideHalves& x) {
  bf16* const own = to + lane_of_head<kLanes>() * kPerPack;
  store(own, round_pack<bf16>(x.left));
  store(own + kHalf<kLanes>, round_pack<bf16>(x.right));
}
template <int kLanes>
__device__ Angles<kPerPack> angles_of(const Heads& task, int64_t token, float sign) {
  const uint32_t place = static_cast<uint32_t>(token) % static_cast<uint32_t>(task.positions);
  const int64_t position = int64_t{place} - (task.first == nullptr ? 0 : task.first[token]);
  const int64_t at = position * kHalf<kLanes> + lane_of_head<kLanes>() * kPerPack;
  return load_angles<kPerPack>(task.cosine + at, task.sine + at, sign);
}

__device__ inline WidePack round_to_bf16(const WidePack& x) { return gpu::widen(round_pack<bf16>(x)); }
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

// Threads beyond the last unit take part in the sums alone.
template <int kLanes>
__global__ void __launch_bounds__(kBlock, 3) norm_rope_kernel(Forward task) {
  constexpr int kWidth = 2 * kHalf<kLanes>;
  const Unit unit(task.all, (static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x) / kLanes);
  Halves<HeadPack> heads[kHeadsOfUnit];
  load_heads<kLanes>(task.x, unit, heads);
  const Angles<kPerPack> angles = angles_of<kLanes>(task.all, unit.token, 1.0f);
  const WideHalves gain = load_halves<kLanes>(task.all.gain);
#pragma unroll
  for (int i = 0; i < kHeadsOfUnit; ++i) {
    WideHalves x = widen(heads[i]);
    float inverse = 0;
    if (task.given == nullptr) {
      const float squares = reduce_lanes(sum_of_squares(x.left) + sum_of_squares(x.right), kLanes, Sum());
      inverse = 1.0f / sqrtf(squares / static_cast<float>(kWidth) + task.eps);
    }
    if (i >= unit.count) continue;
    const int64_t row = unit.rows[i];
    if (task.given != nullptr) inverse = task.given[row];
    else if (lane_of_head<kLanes>() == 0) task.rstd[row] = inverse;
#pragma unroll
    for (int k = 0; k < kPerPack; ++k) {
      x.left.at[k] = gain.left.at[k] * (x.left.at[k] * inverse);
      x.right.at[k] = gain.right.at[k] * (x.right.at[k] * inverse);
    }
    x = {round_to_bf16(x.left), round_to_bf16(x.right)};
    turn(x.left, x.right, angles);
    store_halves<kLanes>(task.y + row * kWidth, x);
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
  const int group = static_cast<int>(threadIdx.x) / kLanes;
  const int64_t units = task.all.units(), step = static_cast<int64_t>(gridDim.x) * kGroupsOfBlock;
  const WideHalves gain = load_halves<kLanes>(task.all.gain);
  WideHalves sums{};
  for (int64_t begin = static_cast<int64_t>(blockIdx.x) * kGroupsOfBlock; begin < units; begin += step) {
    const Unit unit(task.all, begin + group);
    Halves<HeadPack> x[kHeadsOfUnit], d_y[kHeadsOfUnit];
    load_heads<kLanes>(task.x, unit, x);
    load_heads<kLanes>(task.d, unit, d_y);
    const Angles<kPerPack> angles = angles_of<kLanes>(task.all, unit.token, -1.0f);
#pragma unroll
    for (int i = 0; i < kHeadsOfUnit; ++i) {
      const float inverse = i < unit.count ? task.rstd[unit.rows[i]] : 0.0f;
      WideHalves n = widen(x[i]), d = widen(d_y[i]);
      scale(n.left, inverse);
      scale(n.right, inverse);
      turn(d.left, d.right, angles);
      float products = weigh(d.left, n.left, gain.left, sums.left);
      products += weigh(d.right, n.right, gain.right, sums.right);
      const float mean = reduce_lanes(products, kLanes, Sum()) / static_cast<float>(kWidth);
      if (i >= unit.count) continue;
      project(d.left, n.left, mean, inverse);
      project(d.right, n.right, mean, inverse);
      store_halves<kLanes>(task.d + unit.rows[i] * kWidth, d);
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
  return {x_THh.dim(0),
          rotation.cos_Sp.dim(0),
          static_cast<int>(x_THh.dim(1)),
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
