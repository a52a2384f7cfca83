#include "ops/norm.h"

#include <algorithm>
#include <cmath>

#include "ops/cpu/loops.h"

namespace mw::cpu {
namespace {

// Blocks of rows whose sums of d_gain are kept apart: fixed by the shape alone, so that threads do not change the sums.
struct RowBlocks {
  int64_t rows_per_block, count;
};

RowBlocks cut_rows(int64_t rows) {
  constexpr int64_t kMaxBlocks = 128, kMinRows = 16;
  const int64_t per_block = std::max(kMinRows, (rows + kMaxBlocks - 1) / kMaxBlocks);
  return {per_block, (rows + per_block - 1) / per_block};
}

template <class T>
void add_rows(const T* a, const T* b, T* sum, int64_t width) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) sum[i] = from_float<T>(to_float(a[i]) + to_float(b[i]));
}

template <class T>
float product_of(const T* a, const T* b, int64_t width) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < width; ++i) sum += to_float(a[i]) * to_float(b[i]);
  return sum;
}

template <class T>
float product_of(const T* a, const T* b, const float* gain, int64_t width) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < width; ++i) sum += gain[i] * to_float(a[i]) * to_float(b[i]);
  return sum;
}

float inverse_rms(float squares, int64_t width, float eps) {
  return 1.0f / std::sqrt(squares / static_cast<float>(width) + eps);
}

template <class T>
void normalise_row(const T* x, const float* gain, float rstd, T* y, int64_t width) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) y[i] = from_float<T>(gain[i] * (to_float(x[i]) * rstd));
}

// With n = x * rstd and g = gain * d_y: mean(g * n).
template <class T>
float mean_product(const T* x, const float* gain, float rstd, const T* d_y, int64_t width) {
  float product = 0.0f;
#pragma omp simd reduction(+ : product)
  for (int64_t i = 0; i < width; ++i) product += gain[i] * to_float(d_y[i]) * (to_float(x[i]) * rstd);
  return product / static_cast<float>(width);
}

// d_x = rstd * (g - n * mean), d_gain += d_y * n.
template <class T, bool kResidual>
void differentiate_row(const T* x, const float* gain, float rstd, const T* d_y, float mean, const T* d_residual, T* d_x,
                       float* d_gain, int64_t width) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    const float normal = to_float(x[i]) * rstd;
    const float d = to_float(d_y[i]);
    float sum = rstd * (gain[i] * d - normal * mean);
    if constexpr (kResidual) sum += to_float(d_residual[i]);
    d_gain[i] += d * normal;
    d_x[i] = from_float<T>(sum);
  }
}

const float* values_of(const RowSums& whole) { return whole.sums.data == nullptr ? nullptr : whole.sums.as<float>(); }

}  // namespace

void rms_norm(Stream& stream, TensorView x, TensorView gain, float eps, TensorView y, TensorView rstd,
              RowSums squares) {
  const int64_t width = x.cols(), rows = x.rows(), whole = squares.width;
  float* rstds = rstd.data == nullptr ? nullptr : rstd.as<float>();
  const float* given = values_of(squares);
  with_float_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    const T* in = x.as<T>();
    const float* gains = gain.as<float>();
    T* out = y.as<T>();
    for_blocks(stream, rows, rows_per_block(width), [=](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* row = in + r * width;
        const float inverse =
            given == nullptr ? inverse_rms(product_of(row, row, width), width, eps) : inverse_rms(given[r], whole, eps);
        normalise_row(row, gains, inverse, out + r * width, width);
        if (rstds != nullptr) rstds[r] = inverse;
      }
    });
  });
}

void add_rms_norm(Stream& stream, TensorView a, TensorView b, TensorView gain, float eps, TensorView sum, TensorView y,
                  TensorView rstd) {
  const int64_t width = sum.cols(), rows = sum.rows();
  with_float_type(sum.dtype, [&](auto type) {
    using T = decltype(type);
    const T* left = a.as<T>();
    const T* right = b.as<T>();
    const float* gains = gain.as<float>();
    float* rstds = rstd.as<float>();
    T* total = sum.as<T>();
    T* out = y.as<T>();
    for_blocks(stream, rows, rows_per_block(width), [=](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        T* row = total + r * width;
        add_rows(left + r * width, right + r * width, row, width);
        rstds[r] = inverse_rms(product_of(row, row, width), width, eps);
        normalise_row(row, gains, rstds[r], out + r * width, width);
      }
    });
  });
}

void rms_norm_apply(Stream& stream, TensorView x, TensorView gain, TensorView rstd, TensorView y) {
  const int64_t width = x.cols(), rows = x.rows();
  with_float_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    const T* in = x.as<T>();
    const float* gains = gain.as<float>();
    const float* rstds = rstd.as<float>();
    T* out = y.as<T>();
    for_blocks(stream, rows, rows_per_block(width), [=](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) normalise_row(in + r * width, gains, rstds[r], out + r * width, width);
    });
  });
}

int64_t norm_workspace_bytes(int64_t rows, int64_t width) {
  return (cut_rows(rows).count * width * static_cast<int64_t>(sizeof(float)) + 63) / 64 * 64;
}

void rms_norm_backward(Stream& stream, TensorView x, TensorView gain, TensorView rstd, TensorView d_y,
                       TensorView d_residual, TensorView d_x, TensorView d_gain, RowSums products) {
  const int64_t width = x.cols(), rows = x.rows();
  const float* given = values_of(products);
  const auto whole = static_cast<float>(products.width);
  const bool with_residual = d_residual.data != nullptr;
  const RowBlocks blocks = cut_rows(rows);
  WorkspaceFrame frame(stream.workspace());
  float* sums = frame.take<float>(static_cast<size_t>(blocks.count * width));

  with_float_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    const T* in = x.as<T>();
    const float* gains = gain.as<float>();
    const float* rstds = rstd.as<float>();
    const T* d_out = d_y.as<T>();
    const T* residual = with_residual ? d_residual.as<T>() : nullptr;
    T* d_in = d_x.as<T>();
    for_blocks(stream, rows, blocks.rows_per_block, [=](int64_t begin, int64_t end) {
      float* sum = sums + begin / blocks.rows_per_block * width;
      std::fill(sum, sum + width, 0.0f);
      for (int64_t r = begin; r < end; ++r) {
        const int64_t at = r * width;
        const float mean =
            given == nullptr ? mean_product(in + at, gains, rstds[r], d_out + at, width) : rstds[r] * given[r] / whole;
        if (residual == nullptr)
          differentiate_row<T, false>(in + at, gains, rstds[r], d_out + at, mean, nullptr, d_in + at, sum, width);
        else
          differentiate_row<T, true>(in + at, gains, rstds[r], d_out + at, mean, residual + at, d_in + at, sum, width);
      }
    });
  });

  float* d_gains = d_gain.as<float>();
  for_blocks(stream, width, 1024, [=](int64_t begin, int64_t end) {
    for (int64_t b = 0; b < blocks.count; ++b) {
      const float* sum = sums + b * width;
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) d_gains[i] += sum[i];
    }
  });
}

void row_products(Stream& stream, TensorView a, TensorView b, TensorView gain, TensorView sums) {
  const int64_t width = a.cols(), rows = a.rows();
  const float* gains = gain.data == nullptr ? nullptr : gain.as<float>();
  float* out = sums.as<float>();
  with_float_type(a.dtype, [&](auto type) {
    using T = decltype(type);
    const T* left = a.as<T>();
    const T* right = b.as<T>();
    for_blocks(stream, rows, rows_per_block(width), [=](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        out[r] = gains == nullptr ? product_of(left + r * width, right + r * width, width)
                                  : product_of(left + r * width, right + r * width, gains, width);
    });
  });
}

}  // namespace mw::cpu
