// Products through hipBLASLt: the source of AMD builds, compiled against a stand-in of that library, against plain
// loops.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "core/rng.h"
#include "emulated/stream.h"

#define __HIP__ 1              // NOLINT: chooses AMD's names in vendor_blas.h
#include "ops/gpu/blas_lt.cu"  // with the stand-ins of launch.h and hipBLASLt

namespace mw::gpu {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Matrix {
  Matrix(int64_t rows_in, int64_t cols_in, DType dtype_in, float fill = kNaN)
      : rows(rows_in), cols(cols_in), dtype(dtype_in), memory(static_cast<size_t>(rows * cols) / 8 + 2) {
    for (int64_t i = 0; i < rows * cols; ++i) set(i, fill);
  }
  void randomise(std::string_view name) {
    const RngKey key = make_rng_key(3, name);
    for (int64_t i = 0; i < rows * cols; ++i) set(i, normal_at(key, static_cast<uint64_t>(i)));
  }
  // Moved by so many bytes.
  TensorView view(int64_t by = 0) { return {reinterpret_cast<std::byte*>(memory.data()) + by, dtype, {rows, cols}}; }
  float at(int64_t r, int64_t c) {
    const void* data = view().data;
    const auto i = static_cast<size_t>(r * cols + c);
    return dtype == DType::f32 ? static_cast<const float*>(data)[i] : to_float(static_cast<const bf16*>(data)[i]);
  }
  void set(int64_t i, float value) {
    void* data = view().data;
    if (dtype == DType::f32) static_cast<float*>(data)[i] = value;
    else static_cast<bf16*>(data)[i] = to_bf16(value);
  }
  int64_t rows, cols;
  DType dtype;
  struct alignas(32) Line {
    float values[8];
  };
  std::vector<Line> memory;
};

class Library : public testing::Test {
 protected:
  Library() { stand_in_counts = {}; }
  emulated::EmulatedStream emulated{kBlasWorkspaceBytes};
  Stream& stream = emulated.stream;
};

TEST_F(Library, MultipliesEveryKindOfProduct) {
  ASSERT_TRUE(has_library());
  const int64_t m = 7, n = 5, k = 9;
  for (const bool turn_a : {false, true})
    for (const bool turn_b : {false, true})
      for (const DType from : {DType::f32, DType::bf16})
        for (const DType to : {DType::f32, DType::bf16})
          for (const Store store : {Store::overwrite, Store::accumulate}) {
            if (store == Store::accumulate && to == DType::bf16) continue;
            Matrix a(turn_a ? k : m, turn_a ? m : k, from), b(turn_b ? n : k, turn_b ? k : n, from), c(m, n, to);
            a.randomise("a");
            b.randomise("b");
            if (store == Store::accumulate) c.randomise("c");
            Matrix before = c;
            ASSERT_TRUE(multiply_by_library(stream, {a.view(), b.view(), c.view(), turn_a, turn_b, store}));
            for (int64_t i = 0; i < m; ++i)
              for (int64_t j = 0; j < n; ++j) {
                double sum = store == Store::accumulate ? before.at(i, j) : 0;
                for (int64_t p = 0; p < k; ++p)
                  sum += double{turn_a ? a.at(p, i) : a.at(i, p)} * (turn_b ? b.at(j, p) : b.at(p, j));
                ASSERT_NEAR(c.at(i, j), sum, to == DType::f32 ? 1e-5 : 0.02 * std::abs(sum) + 1e-5)
                    << turn_a << turn_b << ' ' << i << ' ' << j;
              }
          }
  EXPECT_EQ(stand_in_counts.products, 24);
}

TEST_F(Library, LeavesToOwnKernelsWhatItCannotBeTold) {
  Matrix a(4, 8, DType::bf16, 1), b(8, 8, DType::bf16, 1), c(4, 8, DType::bf16, 1);
  EXPECT_FALSE(multiply_by_library(stream, {a.view(), b.view(), c.view(), false, false, Store::accumulate}))
      << "partial sums may be rounded to bf16";
  for (const int64_t by : {2, 8}) {
    EXPECT_FALSE(multiply_by_library(stream, {a.view(by), b.view(), c.view()}));
    EXPECT_FALSE(multiply_by_library(stream, {a.view(), b.view(by), c.view()}));
    EXPECT_FALSE(multiply_by_library(stream, {a.view(), b.view(), c.view(by)}));
  }
  Matrix none(0, 8, DType::bf16), nothing(0, 8, DType::bf16);
  EXPECT_FALSE(multiply_by_library(stream, {none.view(), b.view(), nothing.view()}));
  EXPECT_EQ(stand_in_counts.questions, 0);
  EXPECT_EQ(stand_in_counts.products, 0);
  EXPECT_EQ(c.at(3, 7), 1.0f);
}

// Rows up to 256 share the choice that 256 rows get, unless that does not serve them.
TEST_F(Library, ChoosesOnceForARangeOfRows) {
  Matrix b(8, 8, DType::bf16, 1);
  const auto multiply = [&](int64_t rows) {
    Matrix a(rows, 8, DType::bf16, 1), c(rows, 8, DType::f32);
    BlasProduct product{a.view(), b.view(), c.view()};
    product.rows_vary = true;
    EXPECT_TRUE(multiply_by_library(stream, product));
    EXPECT_EQ(c.at(rows - 1, 7), 8.0f);
  };
  multiply(256);
  EXPECT_EQ(stand_in_counts.questions, 1);
  multiply(201);
  multiply(250);
  EXPECT_EQ(stand_in_counts.questions, 1);
  multiply(120);  // the algorithm of 256 rows does not serve 120
  EXPECT_EQ(stand_in_counts.questions, 2);
  multiply(120);
  multiply(201);
  EXPECT_EQ(stand_in_counts.questions, 2);
  EXPECT_EQ(stand_in_counts.products, 6);
}

TEST(LibraryState, FreesAllThatItMade) {
  stand_in_counts = {};
  {
    emulated::EmulatedStream emulated(kBlasWorkspaceBytes);
    Matrix a(3, 8, DType::f32, 1), b(8, 8, DType::f32, 1), c(3, 8, DType::f32);
    EXPECT_TRUE(multiply_by_library(emulated.stream, {a.view(), b.view(), c.view()}));
    EXPECT_EQ(stand_in_counts.alive, 1) << "the library's handle";
  }
  EXPECT_EQ(stand_in_counts.alive, 0);
}

}  // namespace
}  // namespace mw::gpu
