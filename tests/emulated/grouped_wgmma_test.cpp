// Grouped products by warpgroups: the very source, run on the CPU, against plain loops.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "core/rng.h"
#include "emulated/processors.h"
#include "emulated/stream.h"
#include "ops/gpu/grouped_products.h"  // with the stand-ins of launch.h, wgmma.h and tensor_map.h
#include "ops/gpu/operators.h"

namespace mw::gpu {

bool warn_unless(Stream&, bool done) { return done; }

namespace {

std::vector<bf16> drawn(std::string_view name, int64_t count) {
  const RngKey key = make_rng_key(5, name);
  std::vector<bf16> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back(to_bf16(static_cast<float>(normal_at(key, static_cast<uint64_t>(i)))));
  return values;
}

// Products of rows with the weights of their experts, and what they give back: x [rows, k], dy [rows, n], w [e, n, k].
struct Problem {
  std::vector<int64_t> offsets;
  int64_t n, k;
  bool x_indexed, dy_indexed;

  int64_t experts() const { return std::ssize(offsets) - 1; }
  int64_t rows() const { return offsets.back(); }
  std::string name() const {
    return fmt::format("{} rows in {}, [{}, {}]{}{}", rows(), experts(), n, k, x_indexed ? ", x indexed" : "",
                       dy_indexed ? ", dy indexed" : "");
  }
};

class Products {
 public:
  explicit Products(const Problem& problem)
      : p_(problem),
        emulated_(1 << 20),
        x_(drawn("x", p_.rows() * p_.k)),
        dy_(drawn("dy", p_.rows() * p_.n)),
        w_(drawn("w", p_.experts() * p_.n * p_.k)),
        backwards_(static_cast<size_t>(p_.rows())) {
    std::iota(backwards_.rbegin(), backwards_.rend(), 0);
    for (int64_t e = 0; e < p_.experts(); ++e)
      weights_.push_back({p_.n, p_.k, {}, TensorView(w_.data() + e * p_.n * p_.k, DType::u8, {2 * p_.n * p_.k}), {}});
  }

  SortedRows x() { return {TensorView(x_.data(), DType::bf16, {p_.rows(), p_.k}), index(p_.x_indexed)}; }
  SortedRows dy() { return {TensorView(dy_.data(), DType::bf16, {p_.rows(), p_.n}), index(p_.dy_indexed)}; }

  // Rows before those of the first expert stay as they are.
  void check_rows(ProductKind kind, DType dtype = DType::f32, Store store = Store::overwrite) {
    const bool forward = kind == ProductKind::forward;
    const int64_t width = forward ? p_.n : p_.k, count = p_.rows() * width;
    constexpr float kBefore = 7;
    std::vector<float> wide(dtype == DType::f32 ? static_cast<size_t>(count) : 0, kBefore);
    std::vector<bf16> narrow(dtype == DType::bf16 ? static_cast<size_t>(count) : 0, to_bf16(kBefore));
    void* const memory = dtype == DType::f32 ? static_cast<void*>(wide.data()) : narrow.data();
    ASSERT_TRUE(multiply_metered(emulated_.stream, kind, forward ? x() : dy(), p_.offsets, weights_,
                                 {TensorView(memory, dtype, {p_.rows(), width})}, store, NoMeter()));
    const auto result = [&](int64_t i) {
      return dtype == DType::f32 ? wide[static_cast<size_t>(i)] : to_float(narrow[static_cast<size_t>(i)]);
    };
    for (int64_t i = 0; i < p_.offsets.front() * width; ++i) ASSERT_EQ(result(i), kBefore) << i / width;
    for_each_row([&](int64_t e, int64_t r) {
      for (int64_t j = 0; j < width; ++j) {
        double sum = store == Store::accumulate ? kBefore : 0;
        for (int64_t i = 0; i < (forward ? p_.k : p_.n); ++i)
          sum += forward ? x_at(r, i) * w_at(e, j, i) : dy_at(r, i) * w_at(e, i, j);
        ASSERT_NEAR(result(r * width + j), sum, dtype == DType::f32 ? 1e-4 : 1e-4 + 0x1p-8 * std::abs(sum))
            << r << ", " << j;
      }
    });
  }

  // together: with the gradient of x.
  void check_gradients(DType dtype, bool together) {
    const int64_t count = p_.experts() * p_.n * p_.k;
    std::vector<float> wide(dtype == DType::f32 ? static_cast<size_t>(count) : 0, NAN);
    std::vector<bf16> narrow(dtype == DType::bf16 ? static_cast<size_t>(count) : 0, to_bf16(NAN));
    void* const memory = dtype == DType::f32 ? static_cast<void*>(wide.data()) : narrow.data();
    const TensorView dw(memory, dtype, {p_.experts(), p_.n, p_.k});
    std::vector<int64_t> limbs(SquareSums::kSets * ExactSum::kLimbs);
    SquareSums squares{TensorView(limbs.data(), DType::i64, {SquareSums::kSets, ExactSum::kLimbs})};
    double read = 0;  // squares of what was overwritten
    for (const Store store : {Store::overwrite, Store::accumulate}) {
      if (together) {
        std::vector<float> dx(static_cast<size_t>(p_.rows() * p_.k));
        ASSERT_TRUE(differentiate_metered(emulated_.stream, dy(), x(), p_.offsets, weights_,
                                          {TensorView(dx.data(), DType::f32, {p_.rows(), p_.k})}, dw, {store, &squares},
                                          NoMeter(), NoMeter()));
      } else {
        ASSERT_TRUE(
            multiply_weights_metered(emulated_.stream, dy(), x(), p_.offsets, dw, {store, &squares}, NoMeter()));
      }
      const double times = store == Store::overwrite ? 1 : 2;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t e = i / (p_.n * p_.k), row = i / p_.k % p_.n, column = i % p_.k;
        double sum = 0;
        for (int64_t r = p_.offsets[static_cast<size_t>(e)]; r < p_.offsets[static_cast<size_t>(e) + 1]; ++r)
          sum += times * dy_at(r, row) * x_at(r, column);
        const float got = dtype == DType::f32 ? wide[static_cast<size_t>(i)] : to_float(narrow[static_cast<size_t>(i)]);
        ASSERT_NEAR(got, sum, dtype == DType::f32 ? 2e-4 : 2e-4 + 0x1p-7 * std::abs(sum))
            << e << ", " << row << ", " << column;
      }
      if (store == Store::overwrite) read = gpu::sum_squares_by_tile(emulated_.stream, {&dw, 1}, {}).value();
      EXPECT_EQ(gpu::sum_squares_by_tile(emulated_.stream, {}, squares).value(), read);
      EXPECT_EQ(squares.elements, count);
    }
  }

 private:
  const int32_t* index(bool indexed) const { return indexed ? backwards_.data() : nullptr; }
  int64_t place(bool indexed, int64_t r) const { return indexed ? p_.rows() - 1 - r : r; }
  double x_at(int64_t r, int64_t i) const { return at(x_, place(p_.x_indexed, r) * p_.k + i); }
  double dy_at(int64_t r, int64_t i) const { return at(dy_, place(p_.dy_indexed, r) * p_.n + i); }
  double w_at(int64_t e, int64_t row, int64_t column) const { return at(w_, (e * p_.n + row) * p_.k + column); }
  static double at(const std::vector<bf16>& values, int64_t i) { return to_float(values[static_cast<size_t>(i)]); }
  template <class Body>
  void for_each_row(const Body& body) const {
    for (int64_t e = 0; e < p_.experts(); ++e)
      for (int64_t r = p_.offsets[static_cast<size_t>(e)]; r < p_.offsets[static_cast<size_t>(e) + 1]; ++r) body(e, r);
  }

  Problem p_;
  emulated::EmulatedStream emulated_;
  std::vector<bf16> x_, dy_, w_;
  std::vector<int32_t> backwards_;
  std::vector<Weight> weights_;
};

// Products and copies happen as late or as early as a GPU may run them.
template <class Body>
void in_each_order(const Problem& problem, const Body& body) {
  emulated::lanes_of_wave = 32;
  for (const bool at_once : {false, true}) {
    SCOPED_TRACE(problem.name() + (at_once ? ", at once" : ", late"));
    copies_happen_at_once = products_happen_at_once = at_once;
    Products products(problem);
    body(products);
  }
  emulated::lanes_of_wave = emulated::kWaveLanes;
}

// Experts with no rows, fewer rows than a tile and more than one; edges of tiles in both directions.
TEST(GroupedByWarpgroups, RowsAreThoseOfPlainLoops) {
  for (const bool indexed : {false, true})
    in_each_order({{0, 70, 70, 210}, 72, 136, indexed, indexed}, [](Products& products) {
      products.check_rows(ProductKind::forward);
      products.check_rows(ProductKind::d_input);
    });
}

// Rows of bf16 leave as boxes, but for the last ones of an expert. Some rows belong to none.
TEST(GroupedByWarpgroups, RoundedRowsAreThoseOfPlainLoops) {
  for (const bool indexed : {false, true})
    in_each_order({{30, 100, 100, 320}, 200, 136, indexed, indexed}, [](Products& products) {
      products.check_rows(ProductKind::forward, DType::bf16);
      products.check_rows(ProductKind::d_input, DType::bf16);
    });
  emulated_processors.pairs = 1;
  in_each_order({{30, 160, 160, 180}, 504, kPairDepth, false, false},
                [](Products& products) { products.check_rows(ProductKind::forward, DType::bf16); });
  emulated_processors.pairs = 0;
}

// Boxes of wide tiles, rows of the last of an expert and of narrow tiles.
TEST(GroupedByWarpgroups, RoundedRowsAreAddedTo) {
  for (const int64_t width : {504, 136})
    in_each_order({{30, 230, 360}, 136, width, false, false}, [](Products& products) {
      products.check_rows(ProductKind::d_input, DType::bf16, Store::accumulate);
    });
  emulated_processors.pairs = 1;
  in_each_order({{0, 160}, kPairDepth, 504, false, false},
                [](Products& products) { products.check_rows(ProductKind::d_input, DType::bf16, Store::accumulate); });
  emulated_processors.pairs = 0;
}

TEST(GroupedByWarpgroups, WeightGradientsAreThoseOfPlainLoops) {
  for (const bool x_indexed : {false, true})
    for (const DType dtype : {DType::f32, DType::bf16})
      in_each_order({{0, 70, 70, 150}, 72, 136, x_indexed, false},
                    [&](Products& products) { products.check_gradients(dtype, !x_indexed); });
  in_each_order({{0, 40, 100}, 136, 264, false, true},
                [](Products& products) { products.check_gradients(DType::f32, false); });
}

TEST(GroupedByWarpgroups, WideTilesAreThoseOfPlainLoops) {
  for (const bool x_indexed : {false, true})
    in_each_order({{0, 140, 170}, 136, 504, x_indexed, false}, [&](Products& products) {
      products.check_rows(ProductKind::d_input);
      products.check_gradients(x_indexed ? DType::bf16 : DType::f32, true);
    });
}

// One tall tile for each expert.
TEST(GroupedByWarpgroups, TallWeightGradientsAreThoseOfPlainLoops) {
  for (const DType dtype : {DType::f32, DType::bf16})
    in_each_order({{0, 70, 70, 140}, 248, 184, true, dtype == DType::bf16},
                  [&](Products& products) { products.check_gradients(dtype, dtype == DType::f32); });
}

// Of an odd number of row tiles the last is taken with two tiles of columns, which may both lie in the matrix or not.
TEST(GroupedByWarpgroups, PairsOfBlocksGiveWhatPlainLoopsDo) {
  emulated_processors.pairs = 1;
  for (const DType dtype : {DType::f32, DType::bf16})
    in_each_order({{0, 130, 130, 170}, 312, dtype == DType::f32 ? 504 : 760, false, dtype == DType::bf16},
                  [&](Products& products) { products.check_gradients(dtype, false); });
  for (const bool indexed : {false, true})
    in_each_order({{0, 130, 130, 150}, 504, kPairDepth, indexed, indexed},
                  [](Products& products) { products.check_rows(ProductKind::forward); });
  emulated_processors.pairs = 0;
}

}  // namespace
}  // namespace mw::gpu
