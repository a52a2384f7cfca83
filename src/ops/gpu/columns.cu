// Columns of rows: a thread moves 16 bytes at a time where all rows allow it, or sums one column.
#include "ops/columns.h"

#include "ops/gpu/launch.h"
#include "ops/gpu/operators.h"
#include "ops/gpu/pack.h"

namespace mw::gpu {
namespace {

template <class T, int N>
struct Copy {
  const T* from;
  T* to;
  int64_t from_width, to_width, packs, copies;  // packs of a row's columns
  __device__ void operator()(int64_t i) const {
    const int64_t row = i / packs, column = (i - row * packs) * N;
    store(to + row * to_width + column, load<N>(from + row / copies * from_width + column));
  }
};

template <class T>
struct Sum {
  const T* from;
  T* to;
  int64_t from_width, to_width, count, parts;
  __device__ void operator()(int64_t i) const {
    const int64_t row = i / count, column = i - row * count;
    float sum = 0;
    for (int64_t part = 0; part < parts; ++part) sum += to_float(from[(row * parts + part) * from_width + column]);
    to[row * to_width + column] = from_float<T>(sum);
  }
};

}  // namespace

void copy_columns(Stream& stream, Columns x, Columns y, int64_t count) {
  const int64_t rows = y.matrix.rows(), x_width = x.matrix.cols(), y_width = y.matrix.cols();
  if (rows == 0) return;
  const int64_t copies = rows / x.matrix.rows();
  with_float_type(x.matrix.dtype, [&](auto type) {
    using T = decltype(type);
    const T* from = x.matrix.as<T>() + x.begin;
    T* to = y.matrix.as<T>() + y.begin;
    constexpr int kWide = kWidePack<T>;
    const bool wide =
        allow_packs<kWide>(from, to) && x_width % kWide == 0 && y_width % kWide == 0 && count % kWide == 0;
    with_pack<kWide>(wide, [&](auto width) {
      constexpr int N = decltype(width)::value;
      for_each(stream, rows * (count / N), Copy<T, N>{from, to, x_width, y_width, count / N, copies});
    });
  });
}

void sum_columns(Stream& stream, Columns x, Columns y, int64_t count) {
  const int64_t rows = y.matrix.rows();
  if (rows == 0) return;
  with_float_type(x.matrix.dtype, [&](auto type) {
    using T = decltype(type);
    for_each(stream, rows * count,
             Sum<T>{x.matrix.as<T>() + x.begin, y.matrix.as<T>() + y.begin, x.matrix.cols(), y.matrix.cols(), count,
                    x.matrix.rows() / rows});
  });
}

}  // namespace mw::gpu
