// The ways to multiply rows with their experts against each other, at sizes where they differ: too large for the cases
// of matmul_test.cpp, which hold each against its reference.
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "ops/matmul.h"
#include "support/op_case.h"

namespace mw::test {
namespace {

constexpr auto kWays = {ExpertProducts::automatic, ExpertProducts::grouped, ExpertProducts::per_expert};

// bf16 weights of [e, n, k].
struct Experts {
  Experts(Stream& stream, int64_t e, int64_t n, int64_t k)
      : values(to_operand(random_tensor("w", {e, n, k}, DType::f32))),
        packed(make_output(DType::u8, {e, packed_weight_bytes(n, k, true)})) {
    for (int64_t i = 0; i < e; ++i) {
      weights.push_back({n, k, values.view.at(i), packed.view.at(i), packed.view.at(i)});
      pack_weight(stream, weights.back());
    }
  }
  Owned values, packed;
  std::vector<Weight> weights;
};

TEST(ExpertProducts, AutomaticIsTheLibraryForLargeExperts) {
  if (!on_gpu()) GTEST_SKIP() << "a CPU has one way";
  TestStream test;
  constexpr int64_t kWidth = 4096;
  const Experts experts(test.stream, 2, kWidth, kWidth);
  for (const int64_t rows : {512, 4096}) {  // 1.7e10 and 1.4e11 FLOP an expert
    const Owned x = to_operand(random_tensor("x", {rows, kWidth}, DType::bf16));
    std::vector<Owned> y;
    for (const ExpertProducts by : kWays) {
      y.push_back(make_output(DType::bf16, {rows, kWidth}));
      // An expert without rows is no part of the average.
      esmm(test.stream, {x.view}, std::vector<int64_t>{0, rows, rows}, experts.weights, {y.back().view}, by);
    }
    wait_for_device();
    EXPECT_EQ(y[0].memory, y[rows == 512 ? 1 : 2].memory) << rows << " rows";
  }
}

// An expert whose rows, behind indices, are more than a piece of scratch holds; the scratch is as small as may be.
TEST(ExpertProducts, RowsOfSeveralPiecesAgreeWithTheGroupedKernels) {
  if (!on_gpu()) GTEST_SKIP() << "a CPU has one way";
  constexpr int64_t kRows = 50'000, kTokens = 500, kN = 256, kK = 1024;
  TestStream test(2,
                  static_cast<size_t>(matmul_workspace_bytes(kN, kK, device_kind()) +
                                      esmm_workspace_bytes(ExpertProducts::per_expert, kRows, kN, kK, device_kind())));
  const Experts experts(test.stream, 3, kN, kK);
  const std::vector<int64_t> offsets = {0, 300, 300, kRows};
  DeviceVector<int32_t> token_of(kRows), place_of(kRows);
  for (int64_t r = 0; r < kRows; ++r) {
    token_of[static_cast<size_t>(r)] = static_cast<int32_t>(r * 7 % kTokens);
    place_of[static_cast<size_t>(r)] = static_cast<int32_t>(r * 7919 % kRows);  // a prime: no place twice
  }
  const Owned x = to_operand(random_tensor("x", {kTokens, kK}, DType::bf16)),
              dy = to_operand(random_tensor("dy", {kRows, kN}, DType::bf16));
  Tensors expected;
  for (const ExpertProducts by : {ExpertProducts::grouped, ExpertProducts::per_expert}) {
    Owned y = make_output(DType::bf16, {kRows, kN}), dx = make_output(DType::bf16, {kRows, kK}),
          dw = to_operand(random_tensor("dw", {3, kN, kK}, DType::f32));
    esmm(test.stream, {x.view, token_of.data()}, offsets, experts.weights, {y.view, place_of.data()}, by);
    esmm_d_input(test.stream, {dy.view, place_of.data()}, offsets, experts.weights, {dx.view, place_of.data()}, by);
    estmm(test.stream, {dy.view, place_of.data()}, {x.view, token_of.data()}, offsets, dw.view, Store::accumulate, by);
    const Tensors got = {{"y", to_case_tensor(y)}, {"dx", to_case_tensor(dx)}, {"dw", to_case_tensor(dw)}};
    if (by == ExpertProducts::grouped) expected = got;
    for (const auto& [name, tensor] : got) {
      const std::vector<float>& other = expected.at(name).values;
      // Sums of fp32 in another order: a unit of bf16 for y and dx, for dw 50 000 terms, which tensor cores cut off.
      EXPECT_LE(largest_error(tensor.values, {other.begin(), other.end()}), name == "dw" ? 1e-3 : 8e-3) << name;
    }
  }
}

int processors_of_device() {
  const std::string text = describe({device_kind(), 0});
  return std::stoi(text.substr(text.rfind(", ", text.find(" processors")) + 2));
}

// One call for as many experts as a model may have: most have no rows.
TEST(ExpertProducts, OfAsManyExpertsAsAModelMayHave) {
  if (!on_gpu()) GTEST_SKIP() << "only GPUs have tables of experts";
  constexpr int64_t kExperts = 1 << 16, kSize = 8;
  TestStream test(2);
  const Experts experts(test.stream, kExperts, kSize, kSize);
  std::vector<int64_t> offsets = {0};
  for (int64_t e = 0; e < kExperts; ++e) offsets.push_back(offsets.back() + (e % 4001 == 4000 ? 3 : 0));
  const int64_t rows = offsets.back();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const CaseTensor x_values = random_tensor("x", {rows, kSize}, dtype),
                     dy_values = random_tensor("dy", {rows, kSize}, dtype);
    const Owned x = to_operand(x_values), dy = to_operand(dy_values);
    Owned y = make_output(dtype, {rows, kSize}), dx = make_output(dtype, {rows, kSize}),
          dw = make_output(DType::f32, {kExperts, kSize, kSize});
    esmm(test.stream, {x.view}, offsets, experts.weights, {y.view}, ExpertProducts::grouped);
    esmm_d_input(test.stream, {dy.view}, offsets, experts.weights, {dx.view}, ExpertProducts::grouped);
    estmm(test.stream, {dy.view}, {x.view}, offsets, dw.view, Store::overwrite, ExpertProducts::grouped);
    wait_for_device();
    const CaseTensor got_y = to_case_tensor(y), got_dx = to_case_tensor(dx), got_dw = to_case_tensor(dw),
                     w = to_case_tensor(experts.values);
    double error = 0;
    for (int64_t e = 0; e < kExperts; ++e)
      for (int64_t i = 0; i < kSize; ++i) {
        for (int64_t r = offsets[static_cast<size_t>(e)]; r < offsets[static_cast<size_t>(e) + 1]; ++r) {
          double of_y = 0, of_dx = 0;
          for (int64_t j = 0; j < kSize; ++j) {
            of_y += x_values.values[r * kSize + j] * w.values[(e * kSize + i) * kSize + j];
            of_dx += dy_values.values[r * kSize + j] * w.values[(e * kSize + j) * kSize + i];
          }
          error = std::max(
              {error, std::abs(of_y - got_y.values[r * kSize + i]), std::abs(of_dx - got_dx.values[r * kSize + i])});
        }
        for (int64_t j = 0; j < kSize; ++j) {
          double of_dw = 0;
          for (int64_t r = offsets[static_cast<size_t>(e)]; r < offsets[static_cast<size_t>(e) + 1]; ++r)
            of_dw += dy_values.values[r * kSize + i] * x_values.values[r * kSize + j];
          error = std::max(error, std::abs(of_dw - got_dw.values[(e * kSize + i) * kSize + j]));
        }
      }
    EXPECT_LE(error, dtype == DType::f32 ? 1e-5 : 0.1) << name_of(dtype);
  }
}

// Kernels start one block per SM of the whole device; those that start late find that all tiles are taken.
TEST(ExpertProducts, TakeLongerOnFewProcessorsWithTheSameBits) {
  if (!on_gpu() || device_kind() != DeviceKind::cuda) GTEST_SKIP() << "only CUDA limits processors";
  if (processors_of_device() < 64) GTEST_SKIP() << "16 processors are too large a part of this GPU";
  constexpr int64_t kRows = 4096, kWidth = 2048;
  const Owned x = to_operand(random_tensor("x", {kRows, kWidth}, DType::bf16));
  std::vector<Owned> results;
  std::vector<double> seconds;
  for (const int processors : {0, 16}) {
    TestStream test(2, size_t{256} << 20, {.processors = processors});
    const Experts experts(test.stream, 4, kWidth, kWidth);
    const TensorView y = results.emplace_back(make_output(DType::bf16, {kRows, kWidth})).view,
                     dw = results.emplace_back(make_output(DType::f32, {4, kWidth, kWidth})).view;
    const std::vector<int64_t> offsets = {0, 600, 600, 1700, kRows};
    const auto multiply = [&] {
      esmm(test.stream, {x.view}, offsets, experts.weights, {y}, ExpertProducts::grouped);
      estmm(test.stream, {y}, {x.view}, offsets, dw, Store::overwrite, ExpertProducts::grouped);
      test.stream.wait();
    };
    multiply();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 20; ++i) multiply();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  EXPECT_EQ(results[0].memory, results[2].memory);
  EXPECT_EQ(results[1].memory, results[3].memory);
  EXPECT_GT(seconds[1], 2 * seconds[0]);
}

// Enough tiles that blocks of Hopper compute them in pairs: row tiles of 128 in even and odd numbers, and an odd number
// of columns of 256. Weight gradients are computed so where x has no index, and otherwise in tall tiles if n is the
// larger one.
TEST(ExpertProducts, ManyTilesAgreeWithTheLibrary) {
  if (!on_gpu()) GTEST_SKIP() << "a CPU has one way";
  TestStream test;
  const std::vector<int64_t> offsets = {0, 600, 600, 960, 1700};
  const int64_t rows = offsets.back();
  DeviceVector<int32_t> backwards(static_cast<size_t>(rows));
  std::iota(backwards.rbegin(), backwards.rend(), 0);
  for (const auto& shape : {std::pair<int64_t, int64_t>{11 * 256 - 8, 4 * 128 + 8}, {4 * 128 + 8, 11 * 256 - 8}}) {
    const int64_t n = shape.first, k = shape.second;
    const Experts experts(test.stream, 4, n, k);
    const Owned x = to_operand(random_tensor("x", {rows, k}, DType::bf16)),
                dy = to_operand(random_tensor("dy", {rows, n}, DType::bf16));
    for (const auto& [x_indexed, y_indexed] : {std::pair{false, false}, {true, false}, {true, true}}) {
      SCOPED_TRACE(fmt::format("{}x{}{}{}", n, k, x_indexed ? ", x indexed" : "", y_indexed ? ", y indexed" : ""));
      const int32_t* const x_index = x_indexed ? backwards.data() : nullptr;
      const int32_t* const y_index = y_indexed ? backwards.data() : nullptr;
      // Weight gradients that are overwritten, and ones that are added to what is there.
      const auto differentiate = [&](ExpertProducts by, DType dtype, Store store) {
        Owned dw = store == Store::accumulate ? to_operand(random_tensor("dw", {4, n, k}, dtype))
                                              : make_output(dtype, {4, n, k});
        estmm(test.stream, {dy.view, y_index}, {x.view, x_index}, offsets, dw.view, store, by);
        return to_case_tensor(dw);
      };
      Tensors expected;
      for (const ExpertProducts by : {ExpertProducts::per_expert, ExpertProducts::grouped}) {
        Owned y = make_output(DType::bf16, {rows, n}), dx = make_output(DType::bf16, {rows, k});
        esmm(test.stream, {x.view, x_index}, offsets, experts.weights, {y.view, y_index}, by);
        esmm_d_input(test.stream, {dy.view, y_index}, offsets, experts.weights, {dx.view, x_index}, by);
        const Tensors got = {{"y", to_case_tensor(y)},
                             {"dx", to_case_tensor(dx)},
                             {"dw", differentiate(by, DType::f32, Store::overwrite)},
                             {"dw added", differentiate(by, DType::f32, Store::accumulate)}};
        if (by == ExpertProducts::per_expert) expected = got;
        for (const auto& [name, tensor] : got) {
          const std::vector<float>& other = expected.at(name).values;
          EXPECT_LE(largest_error(tensor.values, {other.begin(), other.end()}), name[1] == 'w' ? 1e-4 : 8e-3) << name;
        }
        if (by == ExpertProducts::per_expert) continue;
        // The same bits in every run, and in bf16 the same sums, rounded once.
        const std::vector<float>& dw = got.at("dw").values;
        EXPECT_EQ(differentiate(by, DType::f32, Store::overwrite).values, dw);
        EXPECT_EQ(differentiate(by, DType::f32, Store::accumulate).values, got.at("dw added").values);
        const std::vector<float> narrow = differentiate(by, DType::bf16, Store::overwrite).values;
        for (size_t i = 0; i < dw.size(); ++i) ASSERT_EQ(narrow[i], to_float(to_bf16(dw[i]))) << i;
      }
    }
  }
}

}  // namespace
}  // namespace mw::test
