// The kernels of matrix cores for AMD GPUs: their very source, run on the CPU, against plain loops.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "core/rng.h"
#include "emulated/stream.h"
#include "ops/gpu/grouped_mfma.cu"  // with the stand-in of launch.h

namespace mw::gpu {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// [rows, width] of bf16 or f32, held as fp32 by the test.
struct Matrix {
  Matrix(int64_t rows_in, int64_t width_in, DType dtype_in, float fill)
      : rows(rows_in),
        width(width_in),
        dtype(dtype_in),
        wide(dtype_in == DType::f32 ? size() : 0, fill),
        narrow(dtype_in == DType::bf16 ? size() : 0, to_bf16(fill)) {}

  size_t size() const { return static_cast<size_t>(rows * width); }
  TensorView view() {
    void* data = dtype == DType::f32 ? static_cast<void*>(wide.data()) : narrow.data();
    return {data, dtype, {rows, width}};
  }
  float at(int64_t r, int64_t c) const {
    const auto i = static_cast<size_t>(r * width + c);
    return dtype == DType::f32 ? wide[i] : to_float(narrow[i]);
  }
  void set(int64_t r, int64_t c, float value) {
    const auto i = static_cast<size_t>(r * width + c);
    if (dtype == DType::f32) wide[i] = value;
    else narrow[i] = to_bf16(value);
  }
  void randomise(std::string_view name) {
    const RngKey key = make_rng_key(7, name);
    for (int64_t i = 0; i < rows * width; ++i) set(i / width, i % width, normal_at(key, static_cast<uint64_t>(i)));
  }

  int64_t rows, width;
  DType dtype;
  std::vector<float> wide;
  std::vector<bf16> narrow;
};

Matrix random_matrix(std::string_view name, int64_t rows, int64_t width, DType dtype = DType::bf16) {
  Matrix matrix(rows, width, dtype, 0);
  matrix.randomise(name);
  return matrix;
}

// Rows of a matrix in sorted order: all of them, or some behind an index, with every other row of the matrix NaN.
struct Gathered {
  Gathered(Matrix matrix, int64_t count, bool indexed) : data(std::move(matrix)) {
    if (!indexed) return;
    Matrix scattered(2 * count + 1, data.width, data.dtype, kNaN);
    for (int64_t r = 0; r < count; ++r) {
      index.push_back(static_cast<int32_t>(2 * (count - r)));
      for (int64_t c = 0; c < data.width; ++c) scattered.set(index.back(), c, data.at(r, c));
    }
    data = std::move(scattered);
  }
  SortedRows rows() { return {data.view(), index.empty() ? nullptr : index.data()}; }
  float at(int64_t r, int64_t c) const {
    return data.at(index.empty() ? r : static_cast<int64_t>(index[static_cast<size_t>(r)]), c);
  }
  Matrix data;
  std::vector<int32_t> index;
};

// Within fp32 sums in another order, and one rounding of the result.
void expect_close(double got, double expected, DType dtype, const std::string& what) {
  const double relative = dtype == DType::f32 ? 2e-6 : 0x1p-8;
  ASSERT_LE(std::abs(got - expected), relative * std::abs(expected) + 2e-5) << what;
}

struct Case {
  std::vector<int64_t> offsets;
  int64_t n, k;
  bool indexed;
  DType result;
  Store store;
  std::string name() const {
    return fmt::format("{} rows in {}, [{}, {}]{}{}{}", offsets.back(), offsets.size() - 1, n, k,
                       indexed ? ", indexed" : "", result == DType::f32 ? ", f32" : ", bf16",
                       store == Store::accumulate ? ", added" : "");
  }
  int64_t experts() const { return static_cast<int64_t>(offsets.size()) - 1; }
};

// More than one tile of rows and of columns, the last one of either a narrow one, and experts without rows; more steps
// than stages, the last step of fewer summands, in numbers of rows that are odd; one step alone; no rows at all.
std::vector<Case> make_cases() {
  std::vector<Case> cases;
  for (const bool indexed : {false, true})
    for (const DType result : {DType::f32, DType::bf16})
      for (const Store store : {Store::overwrite, Store::accumulate})
        cases.push_back({{0, 131, 131, 138, 138}, 136, 72, indexed, result, store});
  cases.push_back({{0, 9}, 8, 8, false, DType::f32, Store::overwrite});
  cases.push_back({{0, 9}, 16, 264, true, DType::f32, Store::overwrite});
  cases.push_back({{0, 0, 0}, 16, 24, false, DType::f32, Store::accumulate});
  return cases;
}

// y[r, j] of forward (weights [n, k] transposed) and d_input.
void check_rows(const Case& c, ProductKind kind) {
  const bool forward = kind == ProductKind::forward;
  const int64_t depth = forward ? c.k : c.n, width = forward ? c.n : c.k, rows = c.offsets.back();
  emulated::EmulatedStream emulated(kGroupedWorkspaceBytes);
  Gathered x(random_matrix("x", rows, depth), rows, c.indexed);
  Gathered y(
      c.store == Store::accumulate ? random_matrix("y", rows, width, c.result) : Matrix(rows, width, c.result, kNaN),
      rows, c.indexed);
  const Gathered before = y;
  Matrix w = random_matrix("w", c.experts() * c.n, c.k);
  std::vector<Weight> weights;
  for (int64_t e = 0; e < c.experts(); ++e) weights.push_back({c.n, c.k, {}, w.view().slice(e * c.n, c.n), {}});
  ASSERT_TRUE(multiply_on_tensor_cores(emulated.stream, kind, x.rows(), c.offsets, weights, y.rows(), c.store));
  for (int64_t e = 0; e < c.experts(); ++e)
    for (int64_t r = c.offsets[static_cast<size_t>(e)]; r < c.offsets[static_cast<size_t>(e) + 1]; ++r)
      for (int64_t j = 0; j < width; ++j) {
        double sum = c.store == Store::accumulate ? before.at(r, j) : 0;
        for (int64_t d = 0; d < depth; ++d)
          sum += static_cast<double>(x.at(r, d)) * (forward ? w.at(e * c.n + j, d) : w.at(e * c.n + d, j));
        expect_close(y.at(r, j), sum, c.result, fmt::format("row {}, column {}", r, j));
        if (::testing::Test::HasFatalFailure()) return;
      }
  if (!c.indexed) return;
  for (int64_t r = 0; r < y.data.rows; r += r == 0 ? 1 : 2)  // rows that no index names
    for (int64_t j = 0; j < width; ++j) ASSERT_TRUE(std::isnan(y.data.at(r, j))) << r << ", " << j;
}

void check_weights(const Case& c) {
  const int64_t rows = c.offsets.back();
  emulated::EmulatedStream emulated(kGroupedWorkspaceBytes);
  Gathered dy(random_matrix("dy", rows, c.n), rows, c.indexed), x(random_matrix("x", rows, c.k), rows, c.indexed);
  Matrix dw = random_matrix("dw", c.experts() * c.n, c.k, c.result);
  const Matrix before = dw;
  ASSERT_TRUE(accumulate_on_tensor_cores(emulated.stream, dy.rows(), x.rows(), c.offsets,
                                         dw.view().reshape({c.experts(), c.n, c.k})));
  for (int64_t e = 0; e < c.experts(); ++e)
    for (int64_t n = 0; n < c.n; ++n)
      for (int64_t k = 0; k < c.k; ++k) {
        double sum = before.at(e * c.n + n, k);
        for (int64_t r = c.offsets[static_cast<size_t>(e)]; r < c.offsets[static_cast<size_t>(e) + 1]; ++r)
          sum += static_cast<double>(dy.at(r, n)) * x.at(r, k);
        expect_close(dw.at(e * c.n + n, k), sum, c.result, fmt::format("expert {}, [{}, {}]", e, n, k));
        if (::testing::Test::HasFatalFailure()) return;
      }
}

TEST(GroupedMfma, ForwardMatchesLoops) {
  for (const Case& c : make_cases()) {
    SCOPED_TRACE(c.name());
    check_rows(c, ProductKind::forward);
  }
}

TEST(GroupedMfma, InputGradientMatchesLoops) {
  for (const Case& c : make_cases()) {
    SCOPED_TRACE(c.name());
    check_rows(c, ProductKind::d_input);
  }
}

TEST(GroupedMfma, WeightGradientMatchesLoops) {
  for (const Case& c : make_cases()) {
    SCOPED_TRACE(c.name());
    check_weights(c);
  }
}

TEST(GroupedMfma, RefusesWhatIsNotMadeOfChunks) {
  emulated::EmulatedStream emulated(kGroupedWorkspaceBytes);
  const std::vector<int64_t> offsets = {0, 4};
  const auto takes = [&](Matrix x, Matrix y, int64_t shift) {
    Matrix w(y.width, x.width + 8, DType::bf16, 1);
    TensorView values = w.view();
    values.data = w.narrow.data() + shift;
    const Weight weight{y.width, x.width, {}, values, {}};
    const Matrix before = y;
    const bool taken = multiply_on_tensor_cores(emulated.stream, ProductKind::forward, {x.view()}, offsets,
                                                {&weight, 1}, {y.view()}, Store::overwrite);
    EXPECT_EQ(taken, fits_tensor_cores({x.view()}, {&weight, 1}, {y.view()}));
    EXPECT_EQ(taken, before.wide != y.wide);
    return taken;
  };
  const auto of = [](int64_t width, DType dtype) { return Matrix(4, width, dtype, 1); };
  EXPECT_TRUE(takes(of(16, DType::bf16), of(8, DType::f32), 0));
  EXPECT_FALSE(takes(of(12, DType::bf16), of(8, DType::f32), 0));
  EXPECT_FALSE(takes(of(16, DType::bf16), of(12, DType::f32), 0));
  EXPECT_FALSE(takes(of(16, DType::f32), of(8, DType::f32), 0));
  EXPECT_FALSE(takes(of(16, DType::bf16), of(8, DType::f32), 1));  // not on a border of 16 bytes
}

// The emulation itself.
TEST(Block, ThreadsThatWaitForNobodyAreFound) {
  EXPECT_THROW(emulated::run_block(64,
                                   [] {
                                     if (threadIdx.x > 0) emulated::wait_for_block();
                                   }),
               std::logic_error);
}

}  // namespace
}  // namespace mw::gpu
