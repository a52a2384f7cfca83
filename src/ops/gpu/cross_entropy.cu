// Softmax cross-entropy: one block per row. A first pass over the row finds the maximum and the sum of exponentials
// together, a second writes the gradient; a thread reads a pack of logits before it writes the gradient there. The
// first pass keeps the beginning of the row in shared memory, and the second goes backwards, because the L2 cache still
// holds some of the end. Where the row lies in parts on several ranks, the passes are kernels of their own.
#include "ops/cross_entropy.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <type_traits>

#include "ops/gpu/launch.h"
#include "ops/gpu/operators.h"
#include "ops/gpu/pack.h"
#include "ops/gpu/reduce.h"

namespace mw::gpu {
namespace {

constexpr int kRowThreads = 1024, kRowsOfProcessor = 2;
constexpr int64_t kOtherSharedBytes = 2048;  // of a block: sums of waves, and what the system reserves
// What a kernel gets without asking: 48 KiB, its own arrays included.
constexpr size_t kFreeSharedBytes = static_cast<size_t>((48 << 10) - kOtherSharedBytes);

// Finite, even in powers of two, so that a logit of -inf adds e^-inf = 0.
constexpr float kLeastTop = -FLT_MAX / 2;

// e^(logit - top), for logits of type L.
template <class L>
class Exponential {
 public:
  __device__ explicit Exponential(float top) : top_(std::is_same_v<L, bf16> ? top * kLog2OfE : top) {}
  __device__ float operator()(L logit) const {
    const float x = to_float(logit);
    // One instruction less; what it loses of large logits, bf16 does not have.
    if constexpr (std::is_same_v<L, bf16>) return exp2_quickly(fmaf(x, kLog2OfE, -top_));
    else return exp2_quickly((x - top_) * kLog2OfE);
  }

 private:
  float top_;
};

// The largest logit seen, and the sum of e^(logit - top). A NaN never becomes the top but does reach the sum.
struct Running {
  float top = kLeastTop, sum = 0.0f;
};

template <class L, int N>
__device__ void include(Running& running, const Pack<L, N>& x) {
  float top = running.top;
#pragma unroll
  for (int k = 0; k < N; ++k) top = fmaxf(top, to_float(x.at[k]));
  if (top > running.top) running.sum *= exp2_quickly((running.top - top) * kLog2OfE);
  running.top = top;
  const Exponential<L> exponential(top);
#pragma unroll
  for (int k = 0; k < N; ++k) running.sum += exponential(x.at[k]);
}

// The first `count` logits of a row, whole packs of them, in shared memory.
template <class L, int N>
struct Kept {
  Pack<L, N>* packs = nullptr;
  int64_t count = 0;
};

// Of one row, over one part of the vocabulary or all parts.
struct Statistics {
  float top, sum;  // largest logit, sum of e^(logit - top)
  float own;       // logit of the label
};

// Every thread gets the result, and finds the packs that it read in `kept`. own: the label's logit, as this thread sees
// it.
template <class L, int N>
__device__ Statistics statistics_of(const L* x, int64_t columns, float own, Kept<L, N> kept) {
  Running running;
#pragma unroll 2
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * N; i < columns; i += static_cast<int64_t>(blockDim.x) * N) {
    const bool keeps = i < kept.count;
    const Pack<L, N> logits = keeps ? load_once<N>(x + i) : load<N>(x + i);
    if (keeps) kept.packs[i / N] = logits;
    include(running, logits);
  }
  const float top = reduce_block(running.top, Maximum());
  return {top, reduce_block(running.sum * expf(running.top - top), Sum()), own};
}

__device__ float loss_of(const Statistics& s) { return logf(s.sum) - (s.own - s.top); }

// label: a column, or none of [0, columns) where it lies in another part. NaN without a valid label. kept: as
// statistics_of left it.
template <class L, class T, int N>
__device__ void write_gradient(const L* x, const Statistics& s, int64_t label, bool valid, float scale, T* d,
                               int64_t columns, Kept<L, N> kept) {
  const float factor = valid ? scale / s.sum : NAN, d_own = scale * (expf(s.own - s.top) / s.sum - 1.0f);
  const Exponential<L> exponential(s.top);
  const int64_t first = static_cast<int64_t>(threadIdx.x) * N, step = static_cast<int64_t>(blockDim.x) * N;
  if (first >= columns) return;
#pragma unroll 2
  for (int64_t i = first + (columns - 1 - first) / step * step; i >= 0; i -= step) {
    const Pack<L, N> logits = i < kept.count ? kept.packs[i / N] : load_once<N>(x + i);
    Pack<float, N> out;
#pragma unroll
    for (int k = 0; k < N; ++k) out.at[k] = factor * exponential(logits.at[k]);
    if (label >= i && label < i + N) {
#pragma unroll
      for (int k = 0; k < N; ++k) out.at[k] = i + k == label ? d_own : out.at[k];
    }
    store_once(d + i, round_pack<T>(out));
  }
}

// d may be null.
template <class T, int N>
__device__ void ignore_row(float* loss, T* d, int64_t columns) {
  if (threadIdx.x == 0) *loss = 0.0f;
  if (d == nullptr) return;
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * N; i < columns; i += static_cast<int64_t>(blockDim.x) * N)
    store(d + i, Pack<T, N>{});
}

// The host cannot see a wrong label without waiting: it makes loss and gradient NaN. d_logits may be null.
template <class L, class T, int N>
__global__ void __launch_bounds__(kRowThreads, kRowsOfProcessor)
    cross_entropy_kernel(const L* logits, const int32_t* labels, float scale, float* loss, T* d_logits, int64_t classes,
                         int64_t kept_count) {
  const int64_t row = blockIdx.x;
  const int32_t label = labels[row];
  const L* x = logits + row * classes;
  T* d = d_logits == nullptr ? nullptr : d_logits + row * classes;
  if (label == kIgnoreLabel) {
    ignore_row<T, N>(loss + row, d, classes);
    return;
  }
  const bool valid = label >= 0 && label < classes;
  // The label's logit is read before the second pass may overwrite it.
  const Kept<L, N> kept{dynamic_shared_memory<Pack<L, N>>(), kept_count};
  const Statistics s = statistics_of(x, classes, valid ? to_float(x[label]) : NAN, kept);
  if (threadIdx.x == 0) loss[row] = loss_of(s);
  if (d != nullptr) write_gradient(x, s, label, valid, scale, d, classes, kept);
}

template <class L, int N>
__global__ void __launch_bounds__(kRowThreads)
    statistics_kernel(const L* logits, int64_t columns, VocabPart part, const int32_t* labels, float* statistics) {
  const int64_t row = blockIdx.x, at = labels[row] - part.begin;
  const L* x = logits + row * columns;
  const float own = at >= 0 && at < columns ? to_float(x[at]) : 0.0f;
  const Statistics s = statistics_of(x, columns, own, Kept<L, N>());
  if (threadIdx.x != 0) return;
  float* out = statistics + row * kSoftmaxStatistics;
  out[0] = s.top;
  out[1] = s.sum;
  out[2] = s.own;
}

// statistics: of this row, part by part `stride` apart.
__device__ Statistics unite(const float* statistics, int64_t stride, int64_t parts) {
  Statistics all{kLeastTop, 0.0f, 0.0f};
  for (int64_t p = 0; p < parts; ++p) all.top = Maximum()(statistics[p * stride], all.top);
  for (int64_t p = 0; p < parts; ++p) {
    const float* part = statistics + p * stride;
    all.sum += part[1] * expf(part[0] - all.top);
    all.own += part[2];
  }
  return all;
}

template <class L, class T, int N>
__global__ void __launch_bounds__(kRowThreads)
    part_kernel(const L* logits, int64_t columns, VocabPart part, const int32_t* labels, const float* statistics,
                int64_t parts, float scale, float* loss, T* d_logits) {
  const int64_t row = blockIdx.x, stride = static_cast<int64_t>(gridDim.x) * kSoftmaxStatistics;
  const int32_t label = labels[row];
  const L* x = logits + row * columns;
  T* d = d_logits == nullptr ? nullptr : d_logits + row * columns;
  if (label == kIgnoreLabel) {
    ignore_row<T, N>(loss + row, d, columns);
    return;
  }
  const bool valid = label >= 0 && label < part.vocab;
  const Statistics s = unite(statistics + row * kSoftmaxStatistics, stride, parts);
  if (threadIdx.x == 0) loss[row] = valid ? loss_of(s) : NAN;
  if (d != nullptr) write_gradient(x, s, label - part.begin, valid, scale, d, columns, Kept<L, N>());
}

// Calls body(logits, d, pack) with pointers to logits and gradient, null without one, and their pack. Logits in bf16
// have a gradient in bf16.
template <class Body>
void with_logits(const TensorView& logits, const TensorView& d_logits, const Body& body) {
  const bool is_there = d_logits.data != nullptr;
  const auto call = [&](const auto* x, auto type) {
    using T = decltype(type);
    constexpr int kWide = kWidePack<std::remove_cvref_t<decltype(*x)>>;
    T* d = is_there ? d_logits.as<T>() : nullptr;
    with_pack<kWide>(logits.dim(1) % kWide == 0 && allow_packs<kWide>(x, d), [&](auto pack) { body(x, d, pack); });
  };
  if (logits.dtype == DType::bf16) call(logits.as<bf16>(), bf16());
  else with_float_type(is_there ? d_logits.dtype : DType::f32, [&](auto type) { call(logits.as<float>(), type); });
}

// How many of a row's logits a block keeps, so that a processor has room for two blocks.
int64_t count_kept(Stream& stream, int64_t columns, int64_t element_bytes, int64_t pack) {
  int bytes = 0;
  check(read_shared_bytes(&bytes, stream.device().index), "reading the device's shared memory");
  const int64_t room = std::max<int64_t>(0, bytes / kRowsOfProcessor - kOtherSharedBytes) / element_bytes;
  return std::min(columns, room / pack * pack);
}

}  // namespace

void cross_entropy(Stream& stream, TensorView logits_CV, TensorView labels_C, float scale, TensorView loss_C,
                   TensorView d_logits_CV) {
  with_logits(logits_CV, d_logits_CV, [&](const auto* logits, auto* d_logits, auto pack) {
    using L = std::remove_cvref_t<decltype(*logits)>;
    constexpr auto kKernel = cross_entropy_kernel<L, std::remove_pointer_t<decltype(d_logits)>, pack.value>;
    const int64_t kept_count =
        d_logits == nullptr ? 0 : count_kept(stream, logits_CV.dim(1), int64_t{sizeof(L)}, pack.value);
    const auto kept_bytes = static_cast<size_t>(kept_count) * sizeof(L);
    if (kept_bytes > kFreeSharedBytes)
      check(allow_shared_bytes(reinterpret_cast<const void*>(kKernel), kept_bytes), "asking for shared memory");
    launch(stream, kKernel, logits_CV.dim(0), kRowThreads, kept_bytes, logits, labels_C.as<int32_t>(), scale,
           loss_C.as<float>(), d_logits, logits_CV.dim(1), kept_count);
  });
}

void softmax_statistics(Stream& stream, TensorView logits_Cv, VocabPart part, TensorView labels_C,
                        TensorView statistics_C3) {
  with_logits(logits_Cv, {}, [&](const auto* logits, auto*, auto pack) {
    launch(stream, statistics_kernel<std::remove_cvref_t<decltype(*logits)>, pack.value>, logits_Cv.dim(0), kRowThreads,
           0, logits, logits_Cv.dim(1), part, labels_C.as<int32_t>(), statistics_C3.as<float>());
  });
}

void cross_entropy_of_part(Stream& stream, TensorView logits_Cv, VocabPart part, TensorView labels_C,
                           TensorView statistics_PC3, float scale, TensorView loss_C, TensorView d_logits_Cv) {
  with_logits(logits_Cv, d_logits_Cv, [&](const auto* logits, auto* d_logits, auto pack) {
    using L = std::remove_cvref_t<decltype(*logits)>;
    using T = std::remove_pointer_t<decltype(d_logits)>;
    launch(stream, part_kernel<L, T, pack.value>, logits_Cv.dim(0), kRowThreads, 0, logits, logits_Cv.dim(1), part,
           labels_C.as<int32_t>(), statistics_PC3.as<float>(), statistics_PC3.dim(0), scale, loss_C.as<float>(),
           d_logits);
  });
}

}  // namespace mw::gpu
