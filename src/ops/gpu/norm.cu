// RMS normalisation: one block per row forward; backward gives each block a fixed run of rows, whose share of d_gain it
// keeps to itself until all are summed in order.
#include "ops/norm.h"

#include "ops/gpu/launch.h"
#include "ops/gpu/operators.h"
#include "ops/gpu/reduce.h"

namespace mw::gpu {
namespace {

constexpr int kNormThreads = 128;
constexpr int64_t kMaxRowBlocks = 512;

struct RowBlocks {
  int64_t rows_per_block, count;
};

RowBlocks cut_rows(int64_t rows) {
  const int64_t per_block = std::max<int64_t>(1, ceil_div(rows, kMaxRowBlocks));
  return {per_block, ceil_div(rows, per_block)};
}

// With b: sum = a + b is stored and normalised. Without: a is.
template <class T>
__global__ void norm_kernel(const T* a, const T* b, const float* gain, float eps, T* sum, T* y, float* rstd,
                            int64_t width) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * width;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    float value = to_float(a[row + i]);
    if (b != nullptr) {
      sum[row + i] = from_float<T>(value + to_float(b[row + i]));
      value = to_float(sum[row + i]);
    }
    squares += value * value;
  }
  const float inverse = 1.0f / sqrtf(reduce_block(squares, Sum()) / static_cast<float>(width) + eps);
  const T* x = b != nullptr ? sum : a;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x)
    y[row + i] = from_float<T>(gain[i] * (to_float(x[row + i]) * inverse));
  if (threadIdx.x == 0 && rstd != nullptr) rstd[blockIdx.x] = inverse;
}

template <class T>
struct Apply {
  const T* x;
  const float *gain, *rstd;
  T* y;
  int64_t width;
  __device__ void operator()(int64_t i) const {
    y[i] = from_float<T>(gain[i % width] * (to_float(x[i]) * rstd[i / width]));
  }
};

// With n = x * rstd and g = gain * d_y: d_x = rstd * (g - n * mean(g * n)), d_gain += d_y * n.
template <class T>
__global__ void norm_backward_kernel(const T* x, const float* gain, const float* rstd, const T* d_y,
                                     const T* d_residual, T* d_x, float* d_gains, int64_t rows, int64_t rows_per_block,
                                     int64_t width) {
  float* d_gain = d_gains + static_cast<int64_t>(blockIdx.x) * width;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) d_gain[i] = 0.0f;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * rows_per_block;
  const int64_t end = begin + rows_per_block < rows ? begin + rows_per_block : rows;
  for (int64_t r = begin; r < end; ++r) {
    const int64_t at = r * width;
    const float inverse = rstd[r];
    float product = 0;
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x)
      product += gain[i] * to_float(d_y[at + i]) * (to_float(x[at + i]) * inverse);
    const float mean = reduce_block(product, Sum()) / static_cast<float>(width);
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
      const float normal = to_float(x[at + i]) * inverse, d = to_float(d_y[at + i]);
      float value = inverse * (gain[i] * d - normal * mean);
      if (d_residual != nullptr) value += to_float(d_residual[at + i]);
      d_gain[i] += d * normal;
      d_x[at + i] = from_float<T>(value);
    }
  }
}

struct SumBlocks {
  const float* sums;
  float* total;
  int64_t blocks, width;
  __device__ void operator()(int64_t i) const {
    float sum = 0;
    for (int64_t b = 0; b < blocks; ++b) sum += sums[b * width + i];
    total[i] += sum;
  }
};

}  // namespace

void rms_norm(Stream& stream, TensorView x, TensorView gain, float eps, TensorView y, TensorView rstd) {
  const int64_t width = x.cols(), rows = x.rows();
  float* rstds = rstd.data == nullptr ? nullptr : rstd.as<float>();
  with_float_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    launch(stream, norm_kernel<T>, rows, kNormThreads, 0, x.as<T>(), nullptr, gain.as<float>(), eps, nullptr, y.as<T>(),
           rstds, width);
  });
}

void add_rms_norm(Stream& stream, TensorView a, TensorView b, TensorView gain, float eps, TensorView sum, TensorView y,
                  TensorView rstd) {
  const int64_t width = sum.cols(), rows = sum.rows();
  with_float_type(sum.dtype, [&](auto type) {
    using T = decltype(type);
    launch(stream, norm_kernel<T>, rows, kNormThreads, 0, a.as<T>(), b.as<T>(), gain.as<float>(), eps, sum.as<T>(),
           y.as<T>(), rstd.as<float>(), width);
  });
}

void rms_norm_apply(Stream& stream, TensorView x, TensorView gain, TensorView rstd, TensorView y) {
  const int64_t width = x.cols();
  with_float_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    for_each(stream, x.numel(), Apply<T>{x.as<T>(), gain.as<float>(), rstd.as<float>(), y.as<T>(), width});
  });
}

int64_t norm_workspace_bytes(int64_t rows, int64_t width) {
  return ceil_div(cut_rows(rows).count * width * static_cast<int64_t>(sizeof(float)), 64) * 64;
}

void rms_norm_backward(Stream& stream, TensorView x, TensorView gain, TensorView rstd, TensorView d_y,
                       TensorView d_residual, TensorView d_x, TensorView d_gain) {
  const int64_t width = x.cols(), rows = x.rows();
  const bool with_residual = d_residual.data != nullptr;
  const RowBlocks blocks = cut_rows(rows);
  WorkspaceFrame frame(stream.workspace());
  auto* sums = frame.take<float>(static_cast<size_t>(blocks.count * width));
  with_float_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    launch(stream, norm_backward_kernel<T>, blocks.count, kNormThreads, 0, x.as<T>(), gain.as<float>(),
           rstd.as<float>(), d_y.as<T>(), with_residual ? d_residual.as<T>() : nullptr, d_x.as<T>(), sums, rows,
           blocks.rows_per_block, width);
  });
  if (blocks.count > 0) for_each(stream, width, SumBlocks{sums, d_gain.as<float>(), blocks.count, width});
}

}  // namespace mw::gpu
