// RMS normalisation. A group of neighbouring threads takes a row, in packs of 16 bytes where the width allows it, and
// keeps what it read of it in registers: part of a wave for a narrow row, a block for a wide one. In backward, a fixed
// number of blocks take rows in turns; each keeps its share of d_gain to itself until all are summed in order. There a
// thread keeps one pack alone: more warps on a processor hide more of the memory's latency than loads ahead of time do.
//
// The width alone decides which elements a thread sums, and in which order: the address of a tensor changes no bits.
#include "ops/norm.h"

#include "ops/gpu/launch.h"
#include "ops/gpu/operators.h"
#include "ops/gpu/pack.h"
#include "ops/gpu/reduce.h"
#include "ops/gpu/row_sums.h"

namespace mw::gpu {
namespace {

constexpr int kHeld = 2;            // packs of a row that a thread keeps in forward; a wider row's are read again
constexpr int kGroupThreads = 256;  // of a block that takes several rows at once
constexpr int kMaxLanes = 512;
constexpr int kMaxWholeLanes = 1024, kLanesStep = 64;  // of a row with a pack for each thread; see reduce_block
constexpr int64_t kMaxRowBlocks = 512;
constexpr int64_t kFullBlocks = 2048;  // that fill a device; what goes beyond makes blocks longer instead
constexpr int64_t kMaxRounds = 4;

// Threads of a row, and of a block.
struct Groups {
  int lanes, threads;
  int rows() const { return threads / lanes; }
};

Groups group_threads(int64_t packs, int held) {
  int lanes = 8;
  while (lanes < kMaxLanes && lanes * held < packs) lanes *= 2;
  return {lanes, lanes > kWave ? lanes : kGroupThreads};
}

// Calls body with the elements of a pack and whether packs are aligned, as values of types.
template <class T, class Body>
void with_row_packs(int64_t width, bool aligned, Body&& body) {
  with_pack<kWidePack<T>>(width % kWidePack<T> == 0, [&](auto pack) {
    if (aligned) body(pack, std::true_type{});
    else body(pack, std::false_type{});
  });
}

template <class T>
struct Norm {
  const T *a, *b;  // without b: a is normalised; with it: sum = a + b, which is stored
  const float* gain;
  const float* given;  // the rstd to apply; null: it is found
  T *sum, *y;
  float* rstd;  // may be null
  float eps;
  int64_t rows, width;
  const float* squares;  // of rows of `whole` elements, of which these are a part; null: they are found
  float whole;
};

template <bool kAligned, class T, int N>
__device__ Pack<T, N> add_packs(const Pack<T, N>& a, const Pack<T, N>& b, T* sum) {
  Pack<float, N> exact;
#pragma unroll
  for (int k = 0; k < N; ++k) exact.at[k] = to_float(a.at[k]) + to_float(b.at[k]);
  const Pack<T, N> x = round_pack<T>(exact);
  store<kAligned>(sum, x);
  return x;
}

template <class T, int N>
__device__ float squares_of(const Pack<T, N>& x) {
  float squares = 0;
#pragma unroll
  for (int k = 0; k < N; ++k) squares += to_float(x.at[k]) * to_float(x.at[k]);
  return squares;
}

template <bool kAligned, class T, int N>
__device__ void normalise(const Pack<T, N>& x, const float* gain, float inverse, T* y) {
  const Pack<float, N> gains = load<N, kAligned>(gain);
  Pack<float, N> out;
#pragma unroll
  for (int k = 0; k < N; ++k) out.at[k] = gains.at[k] * (to_float(x.at[k]) * inverse);
  store<kAligned>(y, round_pack<T>(out));
}

// What a thread keeps of the operands of a row.
template <class T, int N>
struct HeldTerms {
  Pack<T, N> a[kHeld], b[kHeld];
};

template <int N, bool kAligned, bool kAdding, class T>
__device__ HeldTerms<T, N> load_terms(const Norm<T>& task, int64_t row, int64_t first, int64_t step) {
  HeldTerms<T, N> held{};
  if (row >= task.rows) return held;
#pragma unroll
  for (int p = 0; p < kHeld; ++p) {
    const int64_t i = first + p * step;
    if (i >= task.width) continue;
    held.a[p] = load<N, kAligned>(task.a + row * task.width + i);
    if constexpr (kAdding) held.b[p] = load<N, kAligned>(task.b + row * task.width + i);
  }
  return held;
}

// A block takes `rounds` times as many rows as it has groups.
template <class T, int N, bool kAligned, bool kAdding>
__global__ void __launch_bounds__(kMaxLanes) norm_kernel(Norm<T> task, int lanes, int rounds) {
  const int groups = static_cast<int>(blockDim.x) / lanes, group = static_cast<int>(threadIdx.x) / lanes;
  const int64_t step = int64_t{N} * lanes, first = threadIdx.x % lanes * N;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * rounds * groups, last = begin + int64_t{rounds} * groups;
  const int64_t end = last < task.rows ? last : task.rows;

  HeldTerms<T, N> next = load_terms<N, kAligned, kAdding>(task, begin + group, first, step);
  for (int64_t r = begin; r < end; r += groups) {
    const int64_t row = r + group, base = row * task.width;
    const int64_t width = row < task.rows ? task.width : 0;  // threads without a row take part in the sums alone
    const HeldTerms<T, N> current = next;
    if (r + groups < end)
      next = load_terms<N, kAligned, kAdding>(task, row + groups, first, step);  // while this one is summed
    Pack<T, N> x[kHeld];
#pragma unroll
    for (int p = 0; p < kHeld; ++p) x[p] = current.a[p];
    float squares = 0;
#pragma unroll
    for (int p = 0; p < kHeld; ++p) {
      const int64_t i = first + p * step;
      if (i >= width) continue;
      if constexpr (kAdding) x[p] = add_packs<kAligned>(x[p], current.b[p], task.sum + base + i);
      squares += squares_of(x[p]);
    }
    for (int64_t i = first + kHeld * step; i < width; i += step) {
      Pack<T, N> more = load<N, kAligned>(task.a + base + i);
      if constexpr (kAdding)
        more = add_packs<kAligned>(more, load<N, kAligned>(task.b + base + i), task.sum + base + i);
      squares += squares_of(more);
    }

    squares = reduce_lanes(squares, lanes, Sum());
    if (row >= task.rows) continue;
    if (task.squares != nullptr) squares = task.squares[row];
    float inverse = 1.0f / sqrtf(squares / task.whole + task.eps);
    if (task.given != nullptr) inverse = task.given[row];
    if (task.rstd != nullptr && first == 0) task.rstd[row] = inverse;
#pragma unroll
    for (int p = 0; p < kHeld; ++p) {
      const int64_t i = first + p * step;
      if (i < width) normalise<kAligned>(x[p], task.gain + i, inverse, task.y + base + i);
    }
    const T* again = kAdding ? task.sum : task.a;
    for (int64_t i = first + kHeld * step; i < width; i += step)
      normalise<kAligned>(load<N, kAligned>(again + base + i), task.gain + i, inverse, task.y + base + i);
  }
}

template <bool kAdding, class T>
void run_norm(Stream& stream, const Norm<T>& task) {
  with_row_packs<T>(task.width, allow_packs<kWidePack<T>>(task.a, task.b, task.gain, task.sum, task.y),
                    [&](auto pack, auto aligned) {
                      constexpr int N = decltype(pack)::value;
                      const Groups groups = group_threads(ceil_div(task.width, N), kHeld);
                      const int64_t runs = ceil_div(task.rows, groups.rows());
                      const int rounds = static_cast<int>(std::clamp<int64_t>(runs / kFullBlocks, 1, kMaxRounds));
                      launch(stream, norm_kernel<T, N, decltype(aligned)::value, kAdding>, ceil_div(runs, rounds),
                             groups.threads, 0, task, groups.lanes, rounds);
                    });
}

// With n = x * rstd and g = gain * d_y: d_x = rstd * (g - n * mean(g * n)) + d_residual, d_gain += d_y * n.
template <class T>
struct NormBackward {
  const T *x, *d_y, *d_residual;  // d_residual may be null
  const float *gain, *rstd;
  T* d_x;
  float* d_gains;  // [blocks, width]
  int64_t rows, width;
  const float* products;  // as Norm's squares
  float whole;
};

template <class T, int N>
struct Operands {
  Pack<T, N> x, d_y, d_residual;
};

template <int N, bool kAligned, class T>
__device__ Operands<T, N> load_operands(const NormBackward<T>& task, int64_t at) {
  Operands<T, N> o{load<N, kAligned>(task.x + at), load<N, kAligned>(task.d_y + at), {}};
  if (task.d_residual != nullptr) o.d_residual = load<N, kAligned>(task.d_residual + at);
  return o;
}

template <class T, int N>
__device__ float product_of(const Operands<T, N>& o, const Pack<float, N>& gains, float inverse) {
  float product = 0;
#pragma unroll
  for (int k = 0; k < N; ++k) product += gains.at[k] * to_float(o.d_y.at[k]) * (to_float(o.x.at[k]) * inverse);
  return product;
}

// Stores d_x, and adds to the sums of d_gain.
template <bool kAligned, class T, int N>
__device__ void differentiate(const Operands<T, N>& o, const Pack<float, N>& gains, float inverse, float mean,
                              bool residual, Pack<float, N>& sums, T* d_x) {
  Pack<float, N> out;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const float normal = to_float(o.x.at[k]) * inverse, d = to_float(o.d_y.at[k]);
    float value = inverse * (gains.at[k] * d - normal * mean);
    if (residual) value += to_float(o.d_residual.at[k]);
    sums.at[k] += d * normal;
    out.at[k] = value;
  }
  store<kAligned>(d_x, round_pack<T>(out));
}

// kWhole: a block takes one row at a time, and each of its threads has one pack of it. Otherwise threads may have none
// or several, and a block several rows.
template <class T, int N, bool kAligned, bool kWhole>
__global__ void __launch_bounds__(kWhole ? kMaxWholeLanes : kMaxLanes, kWhole ? 1 : 2)
    norm_backward_kernel(NormBackward<T> task, int lanes) {
  float* const of_group = dynamic_shared_memory<float>();  // [groups, width], where a block has several groups
  const int groups = kWhole ? 1 : static_cast<int>(blockDim.x) / lanes;
  const int group = kWhole ? 0 : static_cast<int>(threadIdx.x) / lanes;
  const int64_t step = int64_t{N} * lanes, first = (static_cast<int64_t>(threadIdx.x) - group * lanes) * N;
  const int64_t beyond = kWhole ? task.width : first + step;
  const bool has_pack = kWhole || first < task.width, residual = task.d_residual != nullptr;
  float* d_gain = task.d_gains + static_cast<int64_t>(blockIdx.x) * task.width;

  Pack<float, N> sums{}, gains{};
  if (has_pack) gains = load<N, kAligned>(task.gain + first);
  for (int64_t i = beyond; i < task.width; i += step) store(d_gain + i, Pack<float, N>{});
  for (int64_t begin = static_cast<int64_t>(blockIdx.x) * groups; begin < task.rows;
       begin += static_cast<int64_t>(gridDim.x) * groups) {
    const int64_t row = begin + group, base = row * task.width;
    const bool has_row = kWhole || row < task.rows;  // threads without a row take part in the sums alone
    const int64_t width = has_row ? task.width : 0;
    float inverse = 0, product = 0;
    Operands<T, N> held{};
    if (has_row) {
      inverse = task.rstd[row];
      if (has_pack) held = load_operands<N, kAligned>(task, base + first);
    }
    if (has_row && has_pack) product = product_of(held, gains, inverse);
    for (int64_t i = beyond; i < width; i += step)
      product += product_of(load_operands<N, kAligned>(task, base + i), load<N, kAligned>(task.gain + i), inverse);
    product = reduce_lanes(product, lanes, Sum());
    if (task.products != nullptr && has_row) product = inverse * task.products[row];
    const float mean = product / task.whole;
    if (has_row && has_pack)
      differentiate<kAligned>(held, gains, inverse, mean, residual, sums, task.d_x + base + first);
    for (int64_t i = beyond; i < width; i += step) {
      Pack<float, N> sum = load<N>(d_gain + i);
      differentiate<kAligned>(load_operands<N, kAligned>(task, base + i), load<N, kAligned>(task.gain + i), inverse,
                              mean, residual, sum, task.d_x + base + i);
      store(d_gain + i, sum);
    }
  }

  float* to = groups == 1 ? d_gain : of_group + group * task.width;
  if (has_pack) store<false>(to + first, sums);
  if (groups == 1) return;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < task.width; i += blockDim.x) {
    float sum = 0;
    for (int g = 0; g < groups; ++g) sum += of_group[g * task.width + i];
    d_gain[i] = sum;
  }
}

int64_t count_row_blocks(int64_t rows) { return std::min(rows, kMaxRowBlocks); }

template <class T>
void run_backward(Stream& stream, const NormBackward<T>& task) {
  with_row_packs<T>(task.width, allow_packs<kWidePack<T>>(task.x, task.d_y, task.d_residual, task.gain, task.d_x),
                    [&](auto pack, auto aligned) {
                      constexpr int N = decltype(pack)::value;
                      constexpr bool kAligned = decltype(aligned)::value;
                      const int64_t packs = ceil_div(task.width, N), blocks = count_row_blocks(task.rows);
                      if (const Groups groups = group_threads(packs, 1);
                          groups.lanes > kWave && task.width % (kLanesStep * N) == 0 && packs <= kMaxWholeLanes) {
                        const int lanes = static_cast<int>(packs);
                        launch(stream, norm_backward_kernel<T, N, kAligned, true>, blocks, lanes, 0, task, lanes);
                      } else {
                        const int64_t shared = groups.rows() > 1 ? groups.rows() * task.width : 0;
                        launch(stream, norm_backward_kernel<T, N, kAligned, false>, blocks, groups.threads,
                               static_cast<size_t>(shared) * sizeof(float), task, groups.lanes);
                      }
                    });
}

template <class T>
struct RowProducts {
  const T *a, *b;
  const float* gain;  // may be null
  float* sums;
  int64_t rows, width;
};

template <class T, int N, bool kAligned>
__global__ void __launch_bounds__(kMaxLanes) row_products_kernel(RowProducts<T> task, int lanes) {
  const int groups = static_cast<int>(blockDim.x) / lanes, group = static_cast<int>(threadIdx.x) / lanes;
  const int64_t step = int64_t{N} * lanes, first = threadIdx.x % lanes * N;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * groups + group, base = row * task.width;
  const int64_t width = row < task.rows ? task.width : 0;  // threads without a row take part in the sums alone
  float sum = 0;
  for (int64_t i = first; i < width; i += step) {
    const Pack<T, N> a = load<N, kAligned>(task.a + base + i), b = load<N, kAligned>(task.b + base + i);
    Pack<float, N> gain;
#pragma unroll
    for (int k = 0; k < N; ++k) gain.at[k] = 1;
    if (task.gain != nullptr) gain = load<N, kAligned>(task.gain + i);
#pragma unroll
    for (int k = 0; k < N; ++k) sum += gain.at[k] * to_float(a.at[k]) * to_float(b.at[k]);
  }
  sum = reduce_lanes(sum, lanes, Sum());
  if (first == 0 && row < task.rows) task.sums[row] = sum;
}

const float* values_of(const RowSums& whole) { return whole.sums.data == nullptr ? nullptr : whole.sums.as<float>(); }

float width_of(const RowSums& whole, int64_t width) {
  return static_cast<float>(whole.sums.data == nullptr ? width : whole.width);
}

}  // namespace

void rms_norm(Stream& stream, TensorView x, TensorView gain, float eps, TensorView y, TensorView rstd,
              RowSums squares) {
  const int64_t width = x.cols(), rows = x.rows();
  float* rstds = rstd.data == nullptr ? nullptr : rstd.as<float>();
  with_float_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    run_norm<false, T>(stream, {x.as<T>(), nullptr, gain.as<float>(), nullptr, nullptr, y.as<T>(), rstds, eps, rows,
                                width, values_of(squares), width_of(squares, width)});
  });
}

void add_rms_norm(Stream& stream, TensorView a, TensorView b, TensorView gain, float eps, TensorView sum, TensorView y,
                  TensorView rstd) {
  const int64_t width = sum.cols(), rows = sum.rows();
  with_float_type(sum.dtype, [&](auto type) {
    using T = decltype(type);
    run_norm<true, T>(stream, {a.as<T>(), b.as<T>(), gain.as<float>(), nullptr, sum.as<T>(), y.as<T>(),
                               rstd.as<float>(), eps, rows, width, nullptr, static_cast<float>(width)});
  });
}

void rms_norm_apply(Stream& stream, TensorView x, TensorView gain, TensorView rstd, TensorView y) {
  const int64_t width = x.cols(), rows = x.rows();
  with_float_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    run_norm<false, T>(stream, {x.as<T>(), nullptr, gain.as<float>(), rstd.as<float>(), nullptr, y.as<T>(), nullptr,
                                0.0f, rows, width, nullptr, static_cast<float>(width)});
  });
}

int64_t norm_workspace_bytes(int64_t rows, int64_t width) {
  return ceil_div(count_row_blocks(rows) * width * static_cast<int64_t>(sizeof(float)), 64) * 64;
}

void rms_norm_backward(Stream& stream, TensorView x, TensorView gain, TensorView rstd, TensorView d_y,
                       TensorView d_residual, TensorView d_x, TensorView d_gain, RowSums products) {
  const int64_t width = x.cols(), rows = x.rows();
  const bool with_residual = d_residual.data != nullptr;
  const int64_t blocks = count_row_blocks(rows);
  WorkspaceFrame frame(stream.workspace());
  auto* sums = frame.take<float>(static_cast<size_t>(blocks * width));
  with_float_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    run_backward<T>(stream,
                    {x.as<T>(), d_y.as<T>(), with_residual ? d_residual.as<T>() : nullptr, gain.as<float>(),
                     rstd.as<float>(), d_x.as<T>(), sums, rows, width, values_of(products), width_of(products, width)});
  });
  add_rows(stream, sums, blocks, width, d_gain.as<float>());
}

void row_products(Stream& stream, TensorView a, TensorView b, TensorView gain, TensorView sums) {
  const int64_t width = a.cols(), rows = a.rows();
  const float* gains = gain.data == nullptr ? nullptr : gain.as<float>();
  with_float_type(a.dtype, [&](auto type) {
    using T = decltype(type);
    const RowProducts<T> task{a.as<T>(), b.as<T>(), gains, sums.as<float>(), rows, width};
    with_row_packs<T>(width, allow_packs<kWidePack<T>>(task.a, task.b, task.gain), [&](auto pack, auto aligned) {
      constexpr int N = decltype(pack)::value;
      const Groups groups = group_threads(ceil_div(width, N), kHeld);
      launch(stream, row_products_kernel<T, N, decltype(aligned)::value>, ceil_div(rows, groups.rows()), groups.threads,
             0, task, groups.lanes);
    });
  });
}

}  // namespace mw::gpu
