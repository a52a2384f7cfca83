#include "ops/rope.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/op_case.h"

namespace mw::test {
namespace {

constexpr float kTheta = 10000.0f;

struct Table {
  Owned cosine, sine;
};

Table make_table(int64_t positions, int64_t pairs, float theta = kTheta) {
  Table table{make_output(DType::f32, {positions, pairs}), make_output(DType::f32, {positions, pairs})};
  make_rope_table(rope_frequencies(theta, pairs), 1.0f, table.cosine.view, table.sine.view);
  return table;
}

Tensors rotate(Stream& stream, const std::string& name, const CaseTensor& tensor, int64_t positions,
               RopeDirection direction) {
  const Table table = make_table(positions, tensor.shape[2] / 2);
  const Owned x = to_operand(tensor), y = make_output(tensor.dtype, tensor.shape);
  rope(stream, x.view, table.cosine.view, table.sine.view, direction, y.view);
  rope(stream, x.view, table.cosine.view, table.sine.view, direction, x.view);
  wait_for_device();
  EXPECT_EQ(x.memory, y.memory) << "in place";
  return {{name, to_case_tensor(y)}};
}

OpCase make_case(int64_t sequences, int64_t positions, int64_t heads, int64_t head_dim, DType dtype) {
  OpCase c;
  c.name = fmt::format("rope/{}/{}x{}x{}x{}", name_of(dtype), sequences, positions, heads, head_dim);
  c.inputs = {{"x", random_tensor("x", {sequences * positions, heads, head_dim}, dtype)}};
  c.forward = [positions](Stream& stream, const Tensors& inputs) {
    return rotate(stream, "y", inputs.at("x"), positions, RopeDirection::forward);
  };
  c.backward = [positions](Stream& stream, const Tensors&, const Tensors& d_outputs) {
    return rotate(stream, "x", d_outputs.at("y"), positions, RopeDirection::backward);
  };
  c.reference = [positions, heads, head_dim](const Tensors& inputs) {
    const std::vector<float>& x = inputs.at("x").values;
    std::vector<double> y(x.size());
    const auto H = static_cast<size_t>(heads), h = static_cast<size_t>(head_dim);
    for (size_t row = 0; row < x.size() / h; ++row)
      for (size_t j = 0; j < h / 2; ++j) {
        const auto position = static_cast<double>(row / H % static_cast<size_t>(positions));
        const double exponent = -2.0 * static_cast<double>(j) / static_cast<double>(h);
        const double angle = position * std::pow(static_cast<double>(kTheta), exponent);
        const double a = x[row * h + j], b = x[row * h + j + h / 2];
        y[row * h + j] = a * std::cos(angle) - b * std::sin(angle);
        y[row * h + j + h / 2] = b * std::cos(angle) + a * std::sin(angle);
      }
    return std::map<std::string, std::vector<double>>{{"y", y}};
  };
  c.tolerance = dtype == DType::bf16 ? 4e-3 : 1e-5;
  c.gradient_tolerance = dtype == DType::bf16 ? 1e-2 : 1e-3;
  c.reason = dtype == DType::bf16 ? "one rounding to bf16 (2^-9)" : "angles of up to 100 are rounded to fp32";
  return c;
}

std::vector<OpCase> all_cases() {
  std::vector<OpCase> cases;
  for (DType dtype : {DType::f32, DType::bf16}) {
    cases.push_back(make_case(1, 1, 1, 2, dtype));
    cases.push_back(make_case(2, 17, 3, 12, dtype));
    cases.push_back(make_case(3, 100, 2, 20, dtype));
    cases.push_back(make_case(1, 60, 8, 64, dtype));
  }
  return cases;
}

TEST(Rope, ForwardMatchesReference) {
  TestStream test;
  for (const OpCase& c : all_cases()) check_forward(c, test.stream);
}

TEST(Rope, GradientMatchesFiniteDifferences) {
  TestStream test;
  for (const OpCase& c : all_cases()) check_gradient(c, test.stream);
}

TEST(Rope, TensorsMayStartAnywhere) {
  const OffBorders scope;
  TestStream test;
  for (const OpCase& c : all_cases()) {
    check_forward(c, test.stream);
    check_gradient(c, test.stream);
  }
}

TEST(Rope, ThreadsDoNotChangeBits) {
  check_thread_invariance(make_case(3, 100, 4, 64, DType::f32));
  check_thread_invariance(make_case(3, 100, 4, 64, DType::bf16));
}

TEST(Rope, BackwardUndoesForward) {
  TestStream test;
  const CaseTensor x = random_tensor("x", {34, 3, 10}, DType::f32);
  const Tensors turned = rotate(test.stream, "x", x, 17, RopeDirection::forward);
  const Tensors back = rotate(test.stream, "x", turned.at("x"), 17, RopeDirection::backward);
  EXPECT_LE(largest_error(back.at("x").values, std::vector<double>(x.values.begin(), x.values.end())), 1e-6);
}

// Heads of which some elements are rotated, in place: in latent attention the last ones, elsewhere the first ones.
OpCase make_part_case(int64_t positions, int64_t heads, int64_t head_dim, int64_t first, int64_t rotated,
                      RopePairs pairing, float scale, DType dtype) {
  OpCase c;
  c.name = fmt::format("rope/{}/{}x{}x{} from {} of {}/{}", name_of(dtype), positions, heads, rotated, first, head_dim,
                       pairing == RopePairs::halves ? "halves" : "neighbours");
  c.inputs = {{"x", random_tensor("x", {2 * positions, heads, head_dim}, dtype)}};
  const auto turn = [=](Stream& stream, const char* name, const CaseTensor& tensor, RopeDirection direction) {
    Table table{make_output(DType::f32, {positions, rotated / 2}), make_output(DType::f32, {positions, rotated / 2})};
    make_rope_table(rope_frequencies(kTheta, rotated / 2), scale, table.cosine.view, table.sine.view);
    const Owned x = to_operand(tensor);
    rope(stream, x.view, table.cosine.view, table.sine.view, direction, x.view, pairing, {}, first);
    return Tensors{{name, to_case_tensor(x)}};
  };
  c.forward = [=](Stream& stream, const Tensors& inputs) {
    return turn(stream, "y", inputs.at("x"), RopeDirection::forward);
  };
  c.backward = [=](Stream& stream, const Tensors&, const Tensors& d_outputs) {
    return turn(stream, "x", d_outputs.at("y"), RopeDirection::backward);
  };
  c.reference = [=](const Tensors& inputs) {
    const std::vector<float>& x = inputs.at("x").values;
    std::vector<double> y(x.begin(), x.end());
    const int64_t pairs = rotated / 2;
    for (int64_t row = 0; row < 2 * positions * heads; ++row)
      for (int64_t j = 0; j < pairs; ++j) {
        const auto position = static_cast<double>(row / heads % positions);
        const double exponent = -static_cast<double>(j) / static_cast<double>(pairs);
        const double angle = position * std::pow(static_cast<double>(kTheta), exponent);
        const int64_t begin = row * head_dim + first;
        const bool halves = pairing == RopePairs::halves;
        const auto a = static_cast<size_t>(begin + (halves ? j : 2 * j)),
                   b = static_cast<size_t>(begin + (halves ? j + pairs : 2 * j + 1));
        const auto s = static_cast<double>(scale);
        y[a] = s * (x[a] * std::cos(angle) - x[b] * std::sin(angle));
        y[b] = s * (x[b] * std::cos(angle) + x[a] * std::sin(angle));
      }
    return std::map<std::string, std::vector<double>>{{"y", y}};
  };
  c.tolerance = dtype == DType::bf16 ? 4e-3 : 1e-5;
  c.gradient_tolerance = dtype == DType::bf16 ? 1e-2 : 1e-3;
  c.reason = "as for whole heads";
  return c;
}

std::vector<OpCase> part_cases() {
  std::vector<OpCase> cases;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const RopePairs pairing : {RopePairs::halves, RopePairs::neighbours}) {
      cases.push_back(make_part_case(17, 3, 22, 10, 12, pairing, 1.0f, dtype));
      cases.push_back(make_part_case(40, 1, 64, 0, 64, pairing, 1.25f, dtype));
      cases.push_back(make_part_case(30, 4, 192, 128, 64, pairing, 1.0f, dtype));
      cases.push_back(make_part_case(30, 4, 128, 0, 64, pairing, 1.0f, dtype));
      cases.push_back(make_part_case(5, 2, 9, 2, 6, pairing, 0.5f, dtype));
    }
  return cases;
}

TEST(Rope, PartsOfHeadsAndNeighboursMatchReference) {
  TestStream test;
  for (const OpCase& c : part_cases()) {
    check_forward(c, test.stream);
    check_gradient(c, test.stream);
  }
  const OffBorders scope;
  for (const OpCase& c : part_cases()) check_forward(c, test.stream);
  check_thread_invariance(make_part_case(100, 4, 192, 128, 64, RopePairs::neighbours, 1.0f, DType::bf16));
}

// DeepSeek-V2-Lite's: 64 rotated values, 40 times longer than 4096 tokens. The correction range is 10 to 23.
TEST(Rope, YarnSlowsDownThePairsThatTurnSlowly) {
  const std::vector<float> plain = rope_frequencies(kTheta, 32), yarn = rope_frequencies(kTheta, 32, {40, 32, 1, 4096});
  for (size_t j = 0; j < 32; ++j) {
    const double kept = std::min(1.0, std::max(0.0, 1.0 - (static_cast<double>(j) - 10) / 13));
    const double factor = kept + (1 - kept) / 40;
    EXPECT_NEAR(static_cast<double>(yarn[j]) / static_cast<double>(plain[j]), factor, 1e-6) << j;
  }
  EXPECT_EQ(rope_frequencies(kTheta, 32, {1, 32, 1, 4096}), plain);
}

// As gpt-oss mixes frequencies: from the pair that turns 32 times within 4096 positions to the one that turns once.
TEST(Rope, YarnMayBeginBetweenPairs) {
  const double theta = 150000, turns = 4096 / (2 * M_PI), step = std::log(theta) / 32;
  const double low = std::log(turns / 32) / step, high = std::log(turns) / step;
  const std::vector<float> plain = rope_frequencies(150000, 32),
                           yarn = rope_frequencies(150000, 32, {32, 32, 1, 4096, false});
  for (size_t j = 0; j < 32; ++j) {
    const double kept = std::clamp(1 - (static_cast<double>(j) - low) / (high - low), 0.0, 1.0);
    EXPECT_NEAR(static_cast<double>(yarn[j]) / static_cast<double>(plain[j]), kept + (1 - kept) / 32, 1e-6) << j;
  }
  EXPECT_GT(high - low, 1);
  EXPECT_NE(rope_frequencies(150000, 32, {32, 32, 1, 4096}), yarn);
}

// The fp32 angle is part of the contract: at large positions it differs from the exact one by more than an ulp of cos.
TEST(Rope, TableRoundsAnglesAsHuggingFace) {
  constexpr int64_t kPositions = 5000, kPairs = 32;
  const Table table = make_table(kPositions, kPairs, 1e6f);
  const std::vector<float> cosine = to_case_tensor(table.cosine).values, sine = to_case_tensor(table.sine).values;
  for (int64_t t = 0; t < kPositions; t += 7)
    for (int64_t j = 0; j < kPairs; ++j) {
      const float frequency = 1.0f / std::pow(1e6f, static_cast<float>(2 * j) / 64.0f);
      const float angle = static_cast<float>(t) * frequency;
      const auto at = static_cast<size_t>(t * kPairs + j);
      // The library's fp32 power may be off by an ulp.
      const double slack = 2e-7 + 1.3e-7 * static_cast<double>(angle);
      ASSERT_NEAR(cosine[at], std::cos(static_cast<double>(angle)), slack) << "position " << t << ", pair " << j;
      ASSERT_NEAR(sine[at], std::sin(static_cast<double>(angle)), slack) << "position " << t << ", pair " << j;
    }
}

// With first_T a token stands at its distance from its document's first one: a packed sequence is rotated as its
// documents are alone.
TEST(Rope, PositionsBeginAnewInEveryDocument) {
  TestStream test;
  constexpr int64_t kPositions = 20, kHeads = 2;
  const std::vector<int64_t> begins = {0, 1, 7, 20, 33, 39};  // of two sequences
  std::vector<int> first;
  for (int64_t t = 0; t < 2 * kPositions; ++t)
    first.push_back(static_cast<int>(*(std::upper_bound(begins.begin(), begins.end(), t) - 1) % kPositions));
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const RopePairs pairing : {RopePairs::halves, RopePairs::neighbours})
      for (const RopeDirection direction : {RopeDirection::forward, RopeDirection::backward}) {
        const CaseTensor x = random_tensor("x", {2 * kPositions, kHeads, 16}, dtype);
        const Table table = make_table(kPositions, 8);
        const Owned packed = to_operand(x), starts = to_operand(integer_tensor({2 * kPositions}, first));
        rope(test.stream, packed.view, table.cosine.view, table.sine.view, direction, packed.view, pairing,
             starts.view);
        const Owned alone = to_operand(x);
        for (size_t i = 0; i < begins.size(); ++i) {
          const int64_t end = i + 1 < begins.size() ? begins[i + 1] : 2 * kPositions;
          const TensorView rows = alone.view.slice(begins[i], end - begins[i]);
          rope(test.stream, rows, table.cosine.view, table.sine.view, direction, rows, pairing);
        }
        wait_for_device();
        EXPECT_EQ(packed.memory, alone.memory);
      }
}

TEST(Rope, NoTokens) {
  TestStream test;
  EXPECT_TRUE(rotate(test.stream, "x", CaseTensor{{0, 2, 8}, {}, DType::bf16}, 4, RopeDirection::forward)
                  .at("x")
                  .values.empty());
}

TEST(Rope, WidthsThatDoNotFitAreRefused) {
  TestStream test;
  const Table table = make_table(4, 2);
  const Owned narrow = make_output(DType::f32, {4, 1, 3}), x = make_output(DType::f32, {4, 1, 6});
  const auto turn = [&](const Owned& heads, int64_t begin) {
    rope(test.stream, heads.view, table.cosine.view, table.sine.view, RopeDirection::forward, heads.view,
         RopePairs::halves, {}, begin);
  };
  EXPECT_THROW(turn(narrow, 0), Error);
  EXPECT_THROW(turn(x, 3), Error);
  EXPECT_THROW(turn(x, -1), Error);
}

}  // namespace
}  // namespace mw::test
