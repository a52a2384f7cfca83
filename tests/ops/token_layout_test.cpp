#include "ops/token_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "core/rng.h"
#include "ops/index.h"
#include "support/op_case.h"

namespace mw::test {
namespace {

struct LayoutCase {
  int64_t T, K, E;
  CapacityRule rule = {};
  bool tied = false;         // weights on a coarse grid
  bool ranked = false;       // by other numbers than the weights
  int64_t used_experts = 0;  // 0: all; otherwise only the first ones are chosen
  int threads = 2;
};

std::string describe(const LayoutCase& c) {
  return fmt::format("T{} K{} E{} capacity {} per {}{}", c.T, c.K, c.E, c.rule.capacity, c.rule.domain_tokens,
                     c.tied ? " tied" : "") +
         (c.ranked ? " ranked" : "");
}

struct Routing {
  std::vector<int> ids;
  CaseTensor weights, ranking;  // the latter may be empty
  std::vector<int32_t> position_of_expert;
  const std::vector<float>& rank_of() const { return ranking.values.empty() ? weights.values : ranking.values; }
};

Routing make_routing(const LayoutCase& c) {
  Routing routing;
  const RngKey key = make_rng_key(7, "layout");
  const int64_t used = c.used_experts == 0 ? c.E : c.used_experts;
  for (int64_t t = 0; t < c.T; ++t)  // K distinct experts per token
    for (int64_t k = 0; k < c.K; ++k) {
      const auto first = static_cast<int64_t>(bits_at(key, static_cast<uint64_t>(t)) % static_cast<uint64_t>(used));
      routing.ids.push_back(static_cast<int>((first + k) % used));
    }
  routing.weights = random_tensor("layout.weights", {c.T, c.K}, DType::f32);
  for (float& w : routing.weights.values) w = c.tied ? std::floor(std::abs(w) * 2.0f) : std::abs(w);
  if (c.ranked) routing.ranking = random_tensor("layout.ranking", {c.T, c.K}, DType::f32);
  routing.position_of_expert.resize(static_cast<size_t>(c.E));
  for (int64_t e = 0; e < c.E; ++e)  // a permutation, whatever E is
    routing.position_of_expert[static_cast<size_t>(e)] = static_cast<int32_t>(c.E - 1 - (e + 1) % c.E);
  return routing;
}

// A layout with its memory.
struct Built {
  Owned token_ids, expert_ids, weights, row_of, rows_per_expert;
  TokenLayout layout;

  template <class T>
  DeviceVector<T> read(const TensorView& view, int64_t count) const {
    wait_for_device();
    const T* data = view.as<T>();
    return DeviceVector<T>(data, data + count);
  }
};

Built build(const LayoutCase& c, const Routing& routing) {
  Built built{make_output(DType::i32, {c.T * c.K}), make_output(DType::i32, {c.T * c.K}),
              make_output(DType::f32, {c.T * c.K}), make_output(DType::i32, {c.T, c.K}),
              make_output(DType::i64, {c.E}),       {}};
  TokenLayout& layout = built.layout;
  layout.tokens = c.T, layout.top_k = c.K, layout.experts = c.E;
  layout.token_ids_R = built.token_ids.view, layout.expert_ids_R = built.expert_ids.view;
  layout.weights_R = built.weights.view, layout.row_of_TK = built.row_of.view;
  layout.rows_per_expert_E = built.rows_per_expert.view;
  // A workspace of just the promised size.
  TestStream tight(c.threads, static_cast<size_t>(token_layout_workspace_bytes(c.T, c.K, c.E, device_kind())));
  Stream& stream = tight.stream;
  const Owned ids = to_operand(integer_tensor({c.T, c.K}, routing.ids)), weights = to_operand(routing.weights);
  const Owned ranking = c.ranked ? to_operand(routing.ranking) : Owned();
  build_token_layout(stream, ids.view, weights.view, ranking.view, routing.position_of_expert, c.rule, layout);
  wait_for_device();
  return built;
}

// The kept choices by brute force: a choice is dropped when `capacity` others of its domain and expert come before it.
std::vector<bool> keep_by_brute_force(const LayoutCase& c, const Routing& routing) {
  const auto choices = static_cast<size_t>(c.T * c.K);
  std::vector<bool> kept(choices, true);
  if (c.rule.capacity == 0) return kept;
  const auto domain = static_cast<size_t>(c.rule.domain_tokens * c.K);
  const std::vector<float>& w = routing.rank_of();
  for (size_t i = 0; i < choices; ++i) {
    int64_t before = 0;
    for (size_t j = i / domain * domain; j < std::min(choices, (i / domain + 1) * domain); ++j)
      before += routing.ids[j] == routing.ids[i] && (w[j] > w[i] || (w[j] == w[i] && j < i));
    kept[i] = before < c.rule.capacity;
  }
  return kept;
}

void check_layout(const LayoutCase& c) {
  SCOPED_TRACE(describe(c));
  const Routing routing = make_routing(c);
  const Built built = build(c, routing);
  const TokenLayout& layout = built.layout;
  const std::vector<bool> kept = keep_by_brute_force(c, routing);

  // The kept choices in the order of (position of the expert, token, choice).
  std::vector<size_t> order;
  for (size_t i = 0; i < kept.size(); ++i)
    if (kept[i]) order.push_back(i);
  const auto position = [&](size_t i) { return routing.position_of_expert[static_cast<size_t>(routing.ids[i])]; };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return position(a) < position(b); });
  DeviceVector<int32_t> token_ids, expert_ids, row_of(kept.size(), -1);
  DeviceVector<float> weights;
  DeviceVector<int64_t> rows_per_expert(static_cast<size_t>(c.E));
  for (size_t i : order) {
    row_of[i] = static_cast<int32_t>(token_ids.size());
    token_ids.push_back(static_cast<int32_t>(static_cast<int64_t>(i) / c.K));
    expert_ids.push_back(routing.ids[i]);
    weights.push_back(routing.weights.values[i]);
    ++rows_per_expert[static_cast<size_t>(routing.ids[i])];
  }
  ASSERT_EQ(layout.rows, std::ssize(order));
  EXPECT_EQ(layout.dropped, c.T * c.K - layout.rows);
  EXPECT_EQ(built.read<int32_t>(layout.token_ids_R, layout.rows), token_ids);
  EXPECT_EQ(built.read<int32_t>(layout.expert_ids_R, layout.rows), expert_ids);
  EXPECT_EQ(built.read<float>(layout.weights_R, layout.rows), weights);
  EXPECT_EQ(built.read<int32_t>(layout.row_of_TK, c.T * c.K), row_of);
  EXPECT_EQ(built.read<int64_t>(layout.rows_per_expert_E, c.E), rows_per_expert);
}

TEST(TokenLayout, DroplessAgreesWithAStableSort) {
  for (const LayoutCase& c :
       {LayoutCase{0, 2, 4}, LayoutCase{1, 1, 1}, LayoutCase{5, 5, 5}, LayoutCase{63, 8, 64}, LayoutCase{64, 2, 8},
        LayoutCase{65, 3, 7}, LayoutCase{1000, 4, 33}, LayoutCase{4097, 2, 6}})
    check_layout(c);
  LayoutCase few{200, 2, 50};
  few.used_experts = 3;  // most experts get no row
  check_layout(few);
}

TEST(TokenLayout, CapacityKeepsTheLargestWeightsOfEachDomain) {
  for (bool tied : {false, true}) {
    for (int64_t capacity : {1, 3, 10, 1000}) {
      check_layout({60, 3, 8, {capacity, 20}, tied});  // per sequence
      check_layout({60, 3, 8, {capacity, 60}, tied});  // per rank
      check_layout({61, 2, 5, {capacity, 20}, tied});  // the last domain is short
      check_layout({300, 4, 90, {capacity, 300}, tied});
      check_layout({0, 4, 9, {capacity, 16}, tied});
    }
    check_layout({9, 4, 4, {2, 1}, tied});  // each token its own domain
  }
}

// What is kept follows the ranking, and brings its own weights.
TEST(TokenLayout, CapacityKeepsTheLargestOfAGivenRanking) {
  for (int64_t capacity : {1, 3, 1000}) {
    check_layout({60, 3, 8, {capacity, 20}, false, true});
    check_layout({300, 4, 90, {capacity, 300}, true, true});
    check_layout({0, 4, 9, {capacity, 16}, false, true});
  }
  check_layout({61, 2, 5, {}, false, true});  // without a capacity it says nothing
}

TEST(TokenLayout, SameOnAnyThreadCount) {
  for (CapacityRule rule : {CapacityRule{}, CapacityRule{40, 500}}) {
    LayoutCase c{3000, 4, 24, rule, true};
    const Routing routing = make_routing(c);
    c.threads = 1;
    const Built one = build(c, routing);
    c.threads = 3;
    const Built three = build(c, routing);
    EXPECT_EQ(one.row_of.memory, three.row_of.memory);
    EXPECT_EQ(one.token_ids.memory, three.token_ids.memory);
    EXPECT_EQ(one.rows_per_expert.memory, three.rows_per_expert.memory);
  }
}

TEST(TokenLayout, NanWeightsSortWithoutHarm) {
  const LayoutCase c{40, 2, 4, {5, 20}};
  Routing routing = make_routing(c);
  for (size_t i = 0; i < routing.weights.values.size(); i += 3) routing.weights.values[i] = NAN;
  const Built built = build(c, routing);
  EXPECT_LE(built.layout.rows, 40);
  EXPECT_EQ(built.layout.rows + built.layout.dropped, 80);
}

TEST(TokenLayout, BrokenInputIsRefused) {
  const LayoutCase c{4, 2, 4};
  Routing routing = make_routing(c);
  routing.ids[3] = 4;
  if (!on_gpu()) {  // a kernel cannot throw
    EXPECT_THROW(build(c, routing), Error);
  }
  routing = make_routing(c);
  routing.position_of_expert[0] = routing.position_of_expert[1];
  EXPECT_THROW(build(c, routing), Error);
}

double bf16_or(DType dtype, double rounded, double exact) { return dtype == DType::bf16 ? rounded : exact; }

// out[r] = x[rows[r]], whose backward is a combine with weights of 1.
OpCase make_gather_case(DType dtype, int64_t T, int64_t D) {
  OpCase op;
  op.name = fmt::format("gather_rows/{}/{}x{}", name_of(dtype), T, D);
  op.inputs["x"] = random_tensor("gather.x", {T, D}, dtype);
  const LayoutCase c{T, 2, 5, {3, T == 0 ? 1 : T}};
  const auto built = std::make_shared<Built>(build(c, make_routing(c)));
  const int64_t R = built->layout.rows;
  DeviceVector<int32_t> rows = built->read<int32_t>(built->layout.token_ids_R, R);
  rows.push_back(-1);
  op.forward = [=](Stream& stream, const Tensors& inputs) {
    const Owned x = to_operand(inputs.at("x")), out = make_output(dtype, {R + 1, D});
    gather_rows(stream, x.view, rows.data(), R + 1, out.view);
    return Tensors{{"out", to_case_tensor(out)}};
  };
  op.backward = [=](Stream& stream, const Tensors&, const Tensors& d_outputs) {
    const Owned d_out = to_operand(d_outputs.at("out")), d_x = make_output(dtype, {T, D});
    combine_rows(stream, d_out.view, built->layout.row_of_TK, {}, {}, d_x.view);
    return Tensors{{"x", to_case_tensor(d_x)}};
  };
  op.reference = [=](const Tensors& inputs) {
    std::vector<double> out;
    for (int32_t row : rows)
      for (int64_t d = 0; d < D; ++d)
        out.push_back(row < 0 ? 0.0 : static_cast<double>(inputs.at("x").values[static_cast<size_t>(row * D + d)]));
    return std::map<std::string, std::vector<double>>{{"out", out}};
  };
  op.tolerance = 0;
  op.gradient_tolerance = bf16_or(dtype, 1e-2, 1e-5);
  op.reason = "a copy is exact; sums of bf16 gradients are rounded once";
  return op;
}

// y rows weighted and summed on a base, some choices dropped; the gradient of y and of the weights goes the way of the
// layer.
OpCase make_combine_case(DType dtype, int64_t T, int64_t K, int64_t D, bool with_base) {
  OpCase op;
  op.name = fmt::format("combine_rows/{}/T{} K{} D{}{}", name_of(dtype), T, K, D, with_base ? "/base" : "");
  LayoutCase c{T, K, 9, {2, 5}};
  const Routing routing = make_routing(c);
  const auto built = std::make_shared<Built>(build(c, routing));
  const int64_t R = built->layout.rows;
  op.inputs["y"] = random_tensor("combine.y", {R, D}, dtype);
  op.inputs["weights"] = routing.weights;
  if (with_base) op.inputs["base"] = random_tensor("combine.base", {T, D}, dtype);
  op.forward = [=](Stream& stream, const Tensors& inputs) {
    const Owned y = to_operand(inputs.at("y")), weights = to_operand(inputs.at("weights"));
    // The base is given in place of the output, as the layer does.
    const Owned out = with_base ? to_operand(inputs.at("base")) : make_output(dtype, {T, D});
    combine_rows(stream, y.view, built->layout.row_of_TK, weights.view, with_base ? out.view : TensorView{}, out.view);
    return Tensors{{"out", to_case_tensor(out)}};
  };
  op.backward = [=](Stream& stream, const Tensors& inputs, const Tensors& d_outputs) {
    const Owned d_weights = make_output(DType::f32, {T, K}), d_row = make_output(DType::f32, {R});
    const Owned d_out = to_operand(d_outputs.at("out")), d_gathered = make_output(dtype, {R, D});
    const DeviceVector<int32_t> tokens = built->read<int32_t>(built->layout.token_ids_R, R);
    gather_rows(stream, d_out.view, tokens.data(), R, d_gathered.view);
    CaseTensor d_y = to_case_tensor(d_gathered);
    for (int64_t r = 0; r < R; ++r) {
      float product = 0.0f;
      for (int64_t d = 0; d < D; ++d) {
        const auto i = static_cast<size_t>(r * D + d);
        product += d_y.values[i] * inputs.at("y").values[i];
        d_y.values[i] *= built->layout.weights_R.as<float>()[r];
      }
      d_row.view.as<float>()[r] = product;
    }
    gather_values(stream, d_row.view, built->layout.row_of_TK, d_weights.view);
    Tensors gradients{{"y", d_y}, {"weights", to_case_tensor(d_weights)}};
    if (with_base) gradients["base"] = d_outputs.at("out");
    return gradients;
  };
  op.reference = [=](const Tensors& inputs) {
    std::vector<double> out(static_cast<size_t>(T * D));
    for (int64_t t = 0; t < T; ++t)
      for (int64_t d = 0; d < D; ++d) {
        const auto i = static_cast<size_t>(t * D + d);
        if (with_base) out[i] = static_cast<double>(inputs.at("base").values[i]);
        for (int64_t k = 0; k < K; ++k) {
          const int32_t row = built->layout.row_of_TK.as<int32_t>()[t * K + k];
          if (row < 0) continue;
          out[i] += static_cast<double>(inputs.at("weights").values[static_cast<size_t>(t * K + k)]) *
                    static_cast<double>(inputs.at("y").values[static_cast<size_t>(row * D + d)]);
        }
      }
    return std::map<std::string, std::vector<double>>{{"out", out}};
  };
  op.tolerance = bf16_or(dtype, 4e-3, 1e-6);
  op.gradient_tolerance = bf16_or(dtype, 1e-2, 1e-5);
  op.reason = "fp32 sums of K terms; a bf16 result is rounded once";
  return op;
}

std::vector<OpCase> all_cases() {
  std::vector<OpCase> cases;
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& [T, D] : {std::pair<int64_t, int64_t>{0, 8}, {1, 1}, {7, 33}, {50, 129}, {3, 1030}})
      cases.push_back(make_gather_case(dtype, T, D));
    for (bool with_base : {false, true}) {
      cases.push_back(make_combine_case(dtype, 0, 2, 16, with_base));
      cases.push_back(make_combine_case(dtype, 1, 1, 1, with_base));
      cases.push_back(make_combine_case(dtype, 31, 8, 37, with_base));
      cases.push_back(make_combine_case(dtype, 6, 2, 1100, with_base));
      cases.push_back(make_combine_case(dtype, 3, 9, 2064, with_base));
    }
  }
  return cases;
}

TEST(TokenLayout, RowsAgreeWithTheReference) {
  TestStream test;
  for (const OpCase& op : all_cases()) check_forward(op, test.stream);
}

TEST(TokenLayout, GradientsAgreeWithFiniteDifferences) {
  TestStream test;
  for (const OpCase& op : all_cases()) check_gradient(op, test.stream);
}

TEST(TokenLayout, RowsHaveTheSameBitsOnAnyThreadCount) {
  check_thread_invariance(make_gather_case(DType::bf16, 50, 1030));
  check_thread_invariance(make_combine_case(DType::f32, 60, 4, 1030, true));
}

}  // namespace
}  // namespace mw::test
