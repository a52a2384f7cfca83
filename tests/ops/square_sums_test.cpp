#include "ops/square_sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/matmul.h"
#include "support/op_case.h"

namespace mw::test {
namespace {

double exact_squares(const CaseTensor& tensor) {
  double sum = 0;
  for (const float value : tensor.values) sum += double{value} * double{value};
  return sum;
}

TEST(SquareSums, OfMatricesAgreeWithDoublesWhereverTheyLie) {
  TestStream test;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 1}, {16, 64}, {17, 65}, {40, 200}, {3, 514}, {130, 63}}) {
      SCOPED_TRACE(fmt::format("{} {}x{}", name_of(dtype), n, k));
      const CaseTensor values = random_tensor("values", {5, n, k}, dtype, 1e-4F);
      const Owned all = to_operand(values);
      const double sum = sum_squares_by_tile(test.stream, {&all.view, 1}).value();
      EXPECT_NEAR(sum, exact_squares(values), 1e-6 * sum);
      const std::vector<TensorView> parts = {all.view.slice(3, 2), all.view.slice(0, 1), all.view.slice(1, 2)};
      EXPECT_EQ(sum_squares_by_tile(test.stream, parts).value(), sum);
    }
  EXPECT_EQ(sum_squares_by_tile(test.stream, {}).value(), 0);
}

TEST(SquareSums, ContinueATotalThatHasBegun) {
  TestStream test;
  const Owned all = to_operand(random_tensor("values", {2, 20, 70}, DType::f32)),
              limbs = make_output(DType::i64, {SquareSums::kSets, ExactSum::kLimbs});
  SquareSums begun{limbs.view, 7};
  clear(test.stream, begun);
  EXPECT_EQ(begun.elements, 0);
  wait_for_device();
  const ExactSum::Terms terms = ExactSum::terms(0.75);  // in two sets
  for (const int64_t set : {3, 60})
    for (size_t i = 0; i < terms.values.size(); ++i)
      limbs.view.as<int64_t>()[set * ExactSum::kLimbs + terms.first + static_cast<int64_t>(i)] += terms.values[i];
  ExactSum expected = sum_squares_by_tile(test.stream, {&all.view, 1});
  expected.add(0.75);
  expected.add(0.75);
  EXPECT_EQ(sum_squares_by_tile(test.stream, {&all.view, 1}, begun).value(), expected.value());
}

TEST(SquareSums, ShowWhatIsNotFinite) {
  TestStream test;
  for (const float value : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    CaseTensor values = random_tensor("values", {1, 20, 70}, DType::f32);
    values.values[19 * 70 + 69] = value;
    const Owned all = to_operand(values);
    EXPECT_TRUE(std::isnan(sum_squares_by_tile(test.stream, {&all.view, 1}).value()));
  }
}

// What products of weight gradients add, and whether they add anything, which those on Hopper do.
class SquaresOfProducts {
 public:
  SquaresOfProducts(int64_t n, int64_t k, std::vector<int64_t> offsets, DType dtype)
      : n_(n),
        k_(k),
        offsets_(std::move(offsets)),
        backwards_(static_cast<size_t>(offsets_.back())),
        x_(to_operand(random_tensor("x", {offsets_.back(), k}, DType::bf16))),
        dy_(to_operand(random_tensor("dy", {offsets_.back(), n}, DType::bf16))),
        dx_(make_output(DType::bf16, {offsets_.back(), k})),
        dw_(make_output(dtype, {std::ssize(offsets_) - 1, n, k})),
        w_(to_operand(random_tensor("w", {n, k}, DType::f32))),
        packed_(make_output(DType::u8, {dw_.view.dim(0), packed_weight_bytes(n, k, false)})),
        limbs_(make_output(DType::i64, {SquareSums::kSets, ExactSum::kLimbs})) {
    std::iota(backwards_.rbegin(), backwards_.rend(), 0);
    for (int64_t e = 0; e < dw_.view.dim(0); ++e) {
      weights_.push_back({n, k, w_.view, packed_.view.at(e), packed_.view.at(e)});
      pack_weight(test_.stream, weights_.back());
    }
    sums_.limbs = limbs_.view;
    clear(test_.stream, sums_);
  }

  bool on_hopper() {
    return mw::test::on_gpu() &&
           describe_esmm(test_.stream, {x_.view}, weights_, {dy_.view}, 1, ExpertProducts::grouped).find("wgmma") !=
               std::string::npos;
  }
  void differentiate(bool together, bool indexed, Store store) {
    const SortedRows x{x_.view, indexed ? backwards_.data() : nullptr}, dy{dy_.view};
    const auto by = ExpertProducts::grouped;
    if (together) esfk(test_.stream, dy, x, offsets_, weights_, {dx_.view}, dw_.view, {store, &sums_}, {}, by);
    else estmm(test_.stream, dy, x, offsets_, dw_.view, {store, &sums_}, by);
  }
  int64_t elements() const { return sums_.elements; }
  int64_t all_elements() const { return dw_.view.numel(); }
  double added() { return sum_squares_by_tile(test_.stream, {}, sums_).value(); }
  double stored() { return sum_squares_by_tile(test_.stream, {&dw_.view, 1}).value(); }

 private:
  TestStream test_;
  int64_t n_, k_;
  std::vector<int64_t> offsets_;
  DeviceVector<int32_t> backwards_;
  Owned x_, dy_, dx_, dw_, w_, packed_, limbs_;
  std::vector<Weight> weights_;
  SquareSums sums_;
};

// Narrow, wide, paired and tall tiles, with edges in all of them.
TEST(SquareSums, ProductsAddTheSquaresOfWhatTheyStore) {
  const std::vector<int64_t> few = {0, 70, 70, 200}, many = {0, 600, 600, 960, 1700};
  for (const auto& [n, k, offsets] : {std::tuple<int64_t, int64_t, std::vector<int64_t>>{64, 48, few},
                                      {264, 200, few},
                                      {11 * 256 - 8, 4 * 128 + 8, many},
                                      {4 * 128 + 8, 11 * 256 - 8, many}}) {
    if (!on_gpu() && offsets == many) continue;  // CPUs add nothing
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const bool indexed : {false, true})
        for (const bool together : {false, true}) {
          SCOPED_TRACE(fmt::format("{}x{} {}{}{}", n, k, name_of(dtype), indexed ? ", x indexed" : "",
                                   together ? ", with d_x" : ""));
          SquaresOfProducts products(n, k, offsets, dtype);
          products.differentiate(together, indexed, Store::overwrite);
          ASSERT_EQ(products.elements(), products.on_hopper() ? products.all_elements() : 0);
          if (products.on_hopper()) {
            const double stored = products.stored();
            EXPECT_GT(stored, 0);
            EXPECT_EQ(products.added(), stored);
          }
          products.differentiate(together, indexed, Store::accumulate);
          EXPECT_EQ(products.elements(), products.on_hopper() ? products.all_elements() : 0);
        }
  }
}

TEST(SquareSums, AddUpOverProducts) {
  SquaresOfProducts products(264, 200, {0, 70, 70, 200}, DType::f32);
  if (!products.on_hopper()) GTEST_SKIP() << "only products on Hopper add squares";
  for (int i = 0; i < 3; ++i) products.differentiate(false, true, Store::overwrite);
  EXPECT_EQ(products.elements(), 3 * products.all_elements());
  EXPECT_DOUBLE_EQ(products.added(), 3 * products.stored());
}

TEST(SquareSums, GradientsWithoutRowsAreIncluded) {
  SquaresOfProducts products(64, 48, {0, 0, 0}, DType::f32);
  products.differentiate(false, false, Store::overwrite);
  EXPECT_EQ(products.elements(), on_gpu() ? products.all_elements() : 0);
  EXPECT_EQ(products.added(), 0);
}

}  // namespace
}  // namespace mw::test
