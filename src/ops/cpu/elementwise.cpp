#include "ops/elementwise.h"

#include <array>
#include <bit>
#include <cstring>
#include <numeric>

#include "ops/cpu/loops.h"
#include "ops/square_sums.h"

namespace mw::cpu {
namespace {

constexpr int64_t kBlock = 16384;  // elements

// The number of blocks of a sum is bounded, so that their partial results fit on the stack; the borders depend on the
// element count alone.
constexpr int64_t kMaxPartials = 512;

int64_t partial_block(int64_t count) { return std::max(kBlock, (count + kMaxPartials - 1) / kMaxPartials); }

template <class From, class To>
void convert_as(Stream& stream, const TensorView& x, const TensorView& y) {
  const From* from = x.as<From>();
  To* to = y.as<To>();
  for_blocks(stream, x.numel(), kBlock, [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) to[i] = from_float<To>(to_float(from[i]));
  });
}

template <class T>
double sum_squares_of(const T* values, int64_t count) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<double>(to_float(values[i]));
    sum += value * value;
  }
  return sum;
}

// Always in the same lanes, wherever the values begin.
template <class T>
double sum_squares_of_piece(const T* values, int64_t count) {
  constexpr int64_t kLanes = 8;
  std::array<double, kLanes> lanes{};
  const auto add = [&](int64_t begin, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const auto value = static_cast<double>(to_float(values[begin + i]));
      lanes[static_cast<size_t>(i)] += value * value;  // the product is exact
    }
  };
  int64_t begin = 0;
  for (; begin + kLanes <= count; begin += kLanes) add(begin, kLanes);
  add(begin, count - begin);
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

// The bits of the largest absolute value.
template <class T>
uint32_t largest_magnitude_of(const T* values, int64_t count) {
  uint32_t bits = 0;
#pragma omp simd reduction(max : bits)
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(to_float(values[i])) & 0x7fffffffu;
    bits = magnitude > bits ? magnitude : bits;
  }
  return bits;
}

}  // namespace

void fill_zero(Stream& stream, TensorView x) {
  auto* memory = static_cast<std::byte*>(x.data);
  for_blocks(stream, x.bytes(), 4 * kBlock,
             [=](int64_t begin, int64_t end) { std::memset(memory + begin, 0, static_cast<size_t>(end - begin)); });
}

void fill_zeros(Stream& stream, std::span<const TensorView> tensors) {
  for (const TensorView& x : tensors) cpu::fill_zero(stream, x);
}

void convert(Stream& stream, TensorView x, TensorView y) {
  with_float_type(x.dtype, [&](auto from) {
    with_float_type(y.dtype, [&](auto to) { convert_as<decltype(from), decltype(to)>(stream, x, y); });
  });
}

void add(Stream& stream, TensorView a, TensorView b, TensorView out) {
  with_float_type(a.dtype, [&](auto type) {
    using T = decltype(type);
    const T* left = a.as<T>();
    const T* right = b.as<T>();
    T* sum = out.as<T>();
    for_blocks(stream, a.numel(), kBlock, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) sum[i] = from_float<T>(to_float(left[i]) + to_float(right[i]));
    });
  });
}

void scaled_sum(Stream& stream, float a, TensorView x, float b, TensorView y, TensorView out) {
  with_float_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    const T *left = x.as<T>(), *right = y.as<T>();
    T* sum = out.as<T>();
    for_blocks(stream, x.numel(), kBlock, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) sum[i] = from_float<T>(a * to_float(left[i]) + b * to_float(right[i]));
    });
  });
}

void clamp(Stream& stream, TensorView x, float limit, TensorView y) {
  with_float_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    const T* values = x.as<T>();
    T* clamped = y.as<T>();
    for_blocks(stream, x.numel(), kBlock, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        const float value = to_float(values[i]);
        const float below = value > limit ? limit : value;  // written so that a NaN passes
        clamped[i] = from_float<T>(below < -limit ? -limit : below);
      }
    });
  });
}

void clamp_backward(Stream& stream, TensorView x, float limit, TensorView d) {
  with_float_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    const T* values = x.as<T>();
    T* gradient = d.as<T>();
    for_blocks(stream, x.numel(), kBlock, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        const float value = to_float(values[i]);
        const bool outside = (value > limit) | (value < -limit);
        gradient[i] = outside ? T{} : gradient[i];
      }
    });
  });
}

double sum_squares(Stream& stream, std::span<const TensorView> tensors) {
  double total = 0;
  for (const TensorView& tensor : tensors) {
    const int64_t count = tensor.numel(), block = partial_block(count);
    std::array<double, kMaxPartials> partials{};
    with_float_type(tensor.dtype, [&]<class T>(T) {
      const T* values = tensor.as<T>();
      for_blocks(stream, count, block, [&, values, block](int64_t begin, int64_t end) {
        partials[static_cast<size_t>(begin / block)] = sum_squares_of(values + begin, end - begin);
      });
    });
    total += std::accumulate(partials.begin(), partials.end(), 0.0);
  }
  return total;
}

ExactSum sum_squares_exactly(Stream& stream, std::span<const TensorView> tensors, int64_t piece) {
  ExactSum total;
  for (const TensorView& tensor : tensors) {
    const int64_t count = tensor.numel(), block = (partial_block(count) + piece - 1) / piece * piece;
    std::vector<ExactSum> partials(static_cast<size_t>((count + block - 1) / block));
    with_float_type(tensor.dtype, [&]<class T>(T) {
      const T* values = tensor.as<T>();
      for_blocks(stream, count, block, [&, values, block](int64_t begin, int64_t end) {
        ExactSum& sum = partials[static_cast<size_t>(begin / block)];
        for (int64_t i = begin; i < end; i += piece)
          sum.add(sum_squares_of_piece(values + i, std::min(piece, end - i)));
      });
    });
    for (const ExactSum& partial : partials) total.add(partial);
  }
  return total;
}

ExactSum sum_squares_by_tile(Stream& stream, std::span<const TensorView> matrices_eNK, const SquareSums& begun) {
  ExactSum total;
  if (const TensorView& sets = begun.limbs; sets.data != nullptr)
    total = total_of({sets.as<int64_t>(), static_cast<size_t>(sets.numel())});
  for (const TensorView& all : matrices_eNK) {
    const int64_t n = all.dim(1), k = all.dim(2), strips = (n + kSquareRows - 1) / kSquareRows,
                  count = all.dim(0) * strips;
    const int64_t block = (count + kMaxPartials - 1) / kMaxPartials;
    if (count == 0) continue;
    std::vector<ExactSum> partials(static_cast<size_t>((count + block - 1) / block));
    with_float_type(all.dtype, [&]<class T>(T) {
      for_blocks(stream, count, block, [&, block](int64_t begin, int64_t end) {
        ExactSum& sum = partials[static_cast<size_t>(begin / block)];
        for (int64_t strip = begin; strip < end; ++strip) {
          const int64_t top = strip % strips * kSquareRows, bottom = std::min<int64_t>(top + kSquareRows, n);
          const T* matrix = all.as<T>() + strip / strips * n * k;
          for (int64_t left = 0; left < k; left += kSquareColumns) {
            double of_tile = 0;
            for (int64_t row = top; row < bottom; ++row)
              of_tile += sum_squares_of_piece(matrix + row * k + left, std::min<int64_t>(kSquareColumns, k - left));
            sum.add(of_tile);
          }
        }
      });
    });
    for (const ExactSum& partial : partials) total.add(partial);
  }
  return total;
}

bool all_finite(Stream& stream, TensorView x) {
  const int64_t count = x.numel(), block = partial_block(count);
  std::array<uint32_t, kMaxPartials> largest{};
  with_float_type(x.dtype, [&]<class T>(T) {
    const T* values = x.as<T>();
    for_blocks(stream, count, block, [&, values, block](int64_t begin, int64_t end) {
      largest[static_cast<size_t>(begin / block)] = largest_magnitude_of(values + begin, end - begin);
    });
  });
  constexpr uint32_t kInfinity = 0x7f800000u;  // NaNs lie above
  return *std::max_element(largest.begin(), largest.end()) < kInfinity;
}

}  // namespace mw::cpu
