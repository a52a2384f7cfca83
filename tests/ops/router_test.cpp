#include "ops/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "support/op_case.h"

namespace mw::test {
namespace {

using Doubles = std::vector<double>;

struct RouterCase {
  int64_t T = 0;
  RouterRule rule;
  bool biased = false;
  bool tied = false;  // logits and bias on a coarse grid
};

std::string describe(const RouterCase& c) {
  const RouterRule& r = c.rule;
  return fmt::format("router/{}{}/T{}xE{}k{}{}{}{}{}{}", r.softmax_p ? "softmax p of " : "",
                     r.score == ScoreFunction::softmax ? "softmax" : "sigmoid", c.T, r.experts, r.top_k,
                     r.renormalise ? "/renormalise" : "",
                     r.least_sum > 0 ? fmt::format("/at least {}", r.least_sum) : "", c.biased ? "/bias" : "",
                     c.tied ? "/tied" : "",
                     r.groups > 1 ? fmt::format("/{} of {} groups by {}", r.kept_groups, r.groups, r.group_best) : "");
}

Doubles softmax_of(const float* x, int64_t E) {
  const double largest = *std::max_element(x, x + E);
  Doubles p(static_cast<size_t>(E));
  double sum = 0;
  for (int64_t e = 0; e < E; ++e) sum += p[static_cast<size_t>(e)] = std::exp(static_cast<double>(x[e]) - largest);
  for (double& value : p) value /= sum;
  return p;
}

Doubles scores_of(const RouterRule& rule, const float* x) {
  if (rule.score == ScoreFunction::softmax) return softmax_of(x, rule.experts);
  Doubles s;
  for (int64_t e = 0; e < rule.experts; ++e) s.push_back(1 / (1 + std::exp(-static_cast<double>(x[e]))));
  return s;
}

double log_sum_exp_of(const float* x, int64_t E) {
  double sum = 0;
  for (int64_t e = 0; e < E; ++e) sum += std::exp(static_cast<double>(x[e]));
  return std::log(sum);
}

// Indices of values in descending order, ties to the lower index.
std::vector<int> order_of(const Doubles& values) {
  std::vector<int> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)]; });
  return order;
}

struct Choice {
  std::vector<int> ids;
  double gap = std::numeric_limits<double>::infinity();
};

Choice choose(const RouterRule& rule, const float* x, const std::vector<float>& bias) {
  Doubles choice = scores_of(rule, x);
  for (size_t e = 0; e < bias.size(); ++e) choice[e] += static_cast<double>(bias[e]);
  Choice result;
  const auto width = static_cast<size_t>(rule.experts / rule.groups);
  std::vector<bool> kept(choice.size(), true);
  size_t allowed = choice.size();
  if (rule.kept_groups < rule.groups) {
    Doubles group_scores;
    for (size_t g = 0; g < static_cast<size_t>(rule.groups); ++g) {
      Doubles group(choice.begin() + static_cast<long>(g * width), choice.begin() + static_cast<long>((g + 1) * width));
      std::sort(group.rbegin(), group.rend());
      group_scores.push_back(
          std::accumulate(group.begin(), group.begin() + std::min<long>(rule.group_best, std::ssize(group)), 0.0));
    }
    const std::vector<int> groups = order_of(group_scores);
    const auto last = static_cast<size_t>(rule.kept_groups);
    result.gap = group_scores[static_cast<size_t>(groups[last - 1])] - group_scores[static_cast<size_t>(groups[last])];
    for (size_t g = last; g < groups.size(); ++g)
      for (size_t e = 0; e < width; ++e) kept[static_cast<size_t>(groups[g]) * width + e] = false;
    allowed = last * width;
  }
  for (size_t e = 0; e < choice.size(); ++e)
    if (!kept[e]) choice[e] = -1e300;
  const std::vector<int> order = order_of(choice);
  const auto K = static_cast<size_t>(rule.top_k);
  result.ids.assign(order.begin(), order.begin() + rule.top_k);
  if (K < allowed)
    result.gap =
        std::min(result.gap, choice[static_cast<size_t>(order[K - 1])] - choice[static_cast<size_t>(order[K])]);
  return result;
}

// The choice is made once, on the case's own logits: finite differences must not step over a change of experts.
std::vector<Choice> choose_all(const RouterCase& c, const Tensors& inputs) {
  std::vector<Choice> choices;
  const std::vector<float> bias = c.biased ? inputs.at("bias").values : std::vector<float>{};
  for (int64_t t = 0; t < c.T; ++t)
    choices.push_back(choose(c.rule, inputs.at("logits").values.data() + t * c.rule.experts, bias));
  return choices;
}

std::map<std::string, Doubles> reference_of(const RouterCase& c, const std::vector<Choice>& choices,
                                            const Tensors& inputs) {
  const RouterRule& rule = c.rule;
  const auto E = static_cast<size_t>(rule.experts);
  std::map<std::string, Doubles> out{{"ids", {}}, {"weights", {}}};
  Doubles counts(E), prob_sums(E);
  double z_sum = 0;
  for (int64_t t = 0; t < c.T; ++t) {
    const float* x = inputs.at("logits").values.data() + t * rule.experts;
    const Doubles s = scores_of(rule, x);
    const Choice& choice = choices[static_cast<size_t>(t)];
    double chosen = 0;
    for (int id : choice.ids) chosen += s[static_cast<size_t>(id)];
    for (int id : choice.ids) {
      const double sum = std::max(chosen, static_cast<double>(rule.least_sum));
      const double weight = s[static_cast<size_t>(id)] / (rule.renormalise ? sum : 1.0);
      out["ids"].push_back(id);
      out["weights"].push_back(weight * static_cast<double>(rule.scale));
      counts[static_cast<size_t>(id)] += 1;
    }
    const Doubles p = rule.softmax_p ? softmax_of(x, rule.experts) : s;
    const double total = std::accumulate(p.begin(), p.end(), 0.0);
    for (size_t e = 0; e < E; ++e) prob_sums[e] += p[e] / total;
    z_sum += std::pow(log_sum_exp_of(x, rule.experts), 2);
  }
  out["counts"] = counts;
  out["prob_sums"] = prob_sums;
  out["z_sum"] = {z_sum};
  return out;
}

CaseTensor to_tensor(const Doubles& values) {
  return {{std::ssize(values)}, std::vector<float>(values.begin(), values.end()), DType::f32};
}

Tensors run_route(const RouterCase& c, Stream& stream, const Tensors& inputs, const CaseTensor* forced_ids = nullptr) {
  const RouterRule& rule = c.rule;
  // A workspace of just the promised size.
  TestStream tight(stream.threads(), static_cast<size_t>(router_workspace_bytes(c.T, rule.experts, device_kind())));
  Stream& bounded = tight.stream;
  const Owned logits = to_operand(inputs.at("logits"));
  const Owned bias = c.biased ? to_operand(inputs.at("bias")) : Owned{};
  const Owned ids = forced_ids == nullptr ? make_output(DType::i32, {c.T, rule.top_k}) : to_operand(*forced_ids);
  const Owned weights = make_output(DType::f32, {c.T, rule.top_k}), gaps = make_output(DType::f32, {c.T});
  Doubles counts(static_cast<size_t>(rule.experts), NAN), prob_sums = counts;
  double z_sum = NAN;
  route(bounded, rule, logits.view, bias.view, forced_ids != nullptr, ids.view, weights.view,
        {counts, prob_sums, &z_sum}, gaps.view);
  bounded.wait();
  return {{"ids", to_case_tensor(ids)},  {"weights", to_case_tensor(weights)}, {"gaps", to_case_tensor(gaps)},
          {"counts", to_tensor(counts)}, {"prob_sums", to_tensor(prob_sums)},  {"z_sum", to_tensor({z_sum})}};
}

CaseTensor run_backward(const RouterCase& c, Stream& stream, const Tensors& inputs, const std::vector<Choice>& choices,
                        const CaseTensor& d_weights, const std::vector<float>& d_prob, float z_scale) {
  std::vector<int> ids;
  for (const Choice& choice : choices) ids.insert(ids.end(), choice.ids.begin(), choice.ids.end());
  const Owned logits = to_operand(inputs.at("logits")), ids_TK = to_operand(integer_tensor({c.T, c.rule.top_k}, ids));
  const Owned d_w = to_operand(d_weights), d_logits = make_output(DType::f32, {c.T, c.rule.experts});
  route_backward(stream, c.rule, logits.view, ids_TK.view, d_w.view, d_prob, z_scale, d_logits.view);
  return to_case_tensor(d_logits);
}

Tensors make_inputs(const RouterCase& c) {
  Tensors inputs{{"logits", random_tensor("router.logits", {c.T, c.rule.experts}, DType::f32, 2.0f)}};
  if (c.biased) inputs["bias"] = random_tensor("router.bias", {c.rule.experts}, DType::f32, 0.1f);
  if (c.tied)
    for (auto& entry : inputs)
      for (float& value : entry.second.values) value = std::round(value * 2.0f) * 0.5f;
  return inputs;
}

OpCase make_case(const RouterCase& c) {
  OpCase op;
  op.name = describe(c);
  op.inputs = make_inputs(c);
  const std::vector<Choice> choices = choose_all(c, op.inputs);
  op.forward = [c](Stream& stream, const Tensors& inputs) { return run_route(c, stream, inputs); };
  op.reference = [c, choices](const Tensors& inputs) { return reference_of(c, choices, inputs); };
  // The cotangents of the two sums are what route_backward takes as d_prob_E and z_scale.
  op.backward = [c, choices](Stream& stream, const Tensors& inputs, const Tensors& d_outputs) {
    return Tensors{{"logits", run_backward(c, stream, inputs, choices, d_outputs.at("weights"),
                                           d_outputs.at("prob_sums").values, d_outputs.at("z_sum").values[0])}};
  };
  op.constant_outputs = {"counts"};
  op.tolerance = std::max(2e-6, 1e-8 * static_cast<double>(c.rule.experts));
  op.gradient_tolerance = 2e-5;
  op.reason = "fp32 exponentials and sums over E";
  return op;
}

std::vector<RouterCase> all_cases() {
  std::vector<RouterCase> cases;
  const auto add = [&](int64_t T, int64_t E, int64_t K, bool tied = false) {
    for (ScoreFunction score : {ScoreFunction::softmax, ScoreFunction::sigmoid})
      for (bool renormalise : {false, true})
        for (bool biased : {false, true})
          cases.push_back({T,
                           {.experts = E,
                            .top_k = K,
                            .score = score,
                            .renormalise = renormalise,
                            .scale = renormalise ? 2.5f : 1.0f},
                           biased,
                           tied});
  };
  for (int64_t K = 1; K <= 8; ++K) add(7, 33, K);
  add(0, 8, 2);
  add(1, 1, 1);
  add(5, 6, 6);
  add(9, 16, 16);
  add(301, 60, 4);
  add(40, 37, 5, true);
  // More experts than a lane's register holds, and than registers hold.
  const RouterRule grouped{
      .top_k = 8, .score = ScoreFunction::sigmoid, .renormalise = true, .groups = 8, .kept_groups = 4, .group_best = 2};
  for (const int64_t experts : {256, 640, 1040}) {
    cases.push_back({12, grouped, true, false});
    cases.back().rule.experts = experts;
  }
  cases.push_back({12, {.experts = 100, .top_k = 6}, false, false});
  cases.push_back({9, {.experts = 384, .top_k = 8}, false, false});
  cases.push_back({9, {.experts = 600, .top_k = 40}, false, true});
  // Statistics of softmax beside sigmoid scores; a least sum that some tokens fall below.
  for (const bool biased : {false, true}) {
    cases.push_back(
        {30,
         {.experts = 12, .top_k = 3, .score = ScoreFunction::sigmoid, .renormalise = true, .softmax_p = true},
         biased,
         false});
    cases.push_back({30, {.experts = 12, .top_k = 3, .renormalise = true, .least_sum = 0.6f}, biased, false});
  }
  for (const auto& [groups, kept, best] : {std::array<int64_t, 3>{4, 2, 2}, {8, 3, 1}, {2, 1, 9}})
    for (bool tied : {false, true})
      cases.push_back({50,
                       {.experts = 32,
                        .top_k = 6,
                        .score = best == 1 ? ScoreFunction::softmax : ScoreFunction::sigmoid,
                        .renormalise = true,
                        .groups = groups,
                        .kept_groups = kept,
                        .group_best = best},
                       best != 1,
                       tied});
  return cases;
}

TEST(Router, ForwardAgreesWithTheReference) {
  TestStream test;
  for (const RouterCase& c : all_cases()) check_forward(make_case(c), test.stream);
}

// A gap is a difference of scores of order one, so that its error is absolute.
TEST(Router, GapsToTheChoiceNearlyMade) {
  TestStream test;
  for (const RouterCase& c : all_cases()) {
    const Tensors inputs = make_inputs(c);
    const std::vector<Choice> choices = choose_all(c, inputs);
    const std::vector<float> gaps = run_route(c, test.stream, inputs).at("gaps").values;
    ASSERT_EQ(gaps.size(), choices.size());
    for (size_t t = 0; t < gaps.size(); ++t)
      if (std::isinf(choices[t].gap))
        EXPECT_EQ(static_cast<double>(gaps[t]), choices[t].gap) << describe(c) << " token " << t;
      else EXPECT_NEAR(static_cast<double>(gaps[t]), choices[t].gap, 1e-6) << describe(c) << " token " << t;
  }
}

TEST(Router, GradientAgreesWithFiniteDifferences) {
  TestStream test;
  for (const RouterCase& c : all_cases()) check_gradient(make_case(c), test.stream);
}

TEST(Router, SameBitsOnAnyThreadCount) {
  for (const RouterCase& c : all_cases())
    if (c.T > 8) check_thread_invariance(make_case(c));
}

// The whole auxiliary loss of a layer in one number: aux_coef * E * sum_e(f_e P_e) + z_coef * mean(logsumexp^2).
TEST(Router, FullAuxiliaryLoss) {
  TestStream test;
  const double aux_coef = 0.3, z_coef = 0.02;
  for (ScoreFunction score : {ScoreFunction::softmax, ScoreFunction::sigmoid}) {
    const RouterCase c{57, {.experts = 12, .top_k = 3, .score = score, .renormalise = true}, true, false};
    OpCase op = make_case(c);
    op.name += "/auxiliary loss";
    const std::vector<Choice> choices = choose_all(c, op.inputs);
    const auto T = static_cast<double>(c.T), E = static_cast<double>(c.rule.experts);
    const auto loss_of = [=](const Doubles& counts, const Doubles& prob_sums, double z_sum) {
      double balance = 0;
      for (size_t e = 0; e < counts.size(); ++e) balance += counts[e] / T * prob_sums[e] / T;
      return aux_coef * E * balance + z_coef * z_sum / T;
    };
    op.forward = [=](Stream& stream, const Tensors& inputs) {
      Tensors out = run_route(c, stream, inputs);
      const auto values = [&](const char* name) {
        const std::vector<float>& v = out.at(name).values;
        return Doubles(v.begin(), v.end());
      };
      return Tensors{{"loss", to_tensor({loss_of(values("counts"), values("prob_sums"), values("z_sum")[0])})}};
    };
    op.reference = [=](const Tensors& inputs) {
      const auto out = reference_of(c, choices, inputs);
      return std::map<std::string, Doubles>{
          {"loss", {loss_of(out.at("counts"), out.at("prob_sums"), out.at("z_sum")[0])}}};
    };
    op.backward = [=](Stream& stream, const Tensors& inputs, const Tensors& d_outputs) {
      const auto seed = static_cast<double>(d_outputs.at("loss").values[0]);
      std::vector<float> d_prob(static_cast<size_t>(c.rule.experts), 0.0f);
      for (const Choice& choice : choices)
        for (int id : choice.ids) d_prob[static_cast<size_t>(id)] += static_cast<float>(seed * aux_coef * E / (T * T));
      const CaseTensor d_weights{
          {c.T, c.rule.top_k}, std::vector<float>(static_cast<size_t>(c.T * c.rule.top_k)), DType::f32};
      return Tensors{{"logits", run_backward(c, stream, inputs, choices, d_weights, d_prob,
                                             static_cast<float>(seed * z_coef / T))}};
    };
    check_forward(op, test.stream);
    check_gradient(op, test.stream);
  }
}

TEST(Router, WithoutAuxiliaryGradientsOnlyTheWeightsCount) {
  TestStream test;
  for (ScoreFunction score : {ScoreFunction::softmax, ScoreFunction::sigmoid}) {
    const RouterCase c{11, {.experts = 9, .top_k = 2, .score = score}, false, false};
    OpCase op = make_case(c);
    const std::vector<Choice> choices = choose_all(c, op.inputs);
    op.constant_outputs = {"counts", "prob_sums", "z_sum"};
    op.backward = [c, choices](Stream& stream, const Tensors& inputs, const Tensors& d_outputs) {
      return Tensors{{"logits", run_backward(c, stream, inputs, choices, d_outputs.at("weights"), {}, 0.0f)}};
    };
    check_gradient(op, test.stream);
  }
}

TEST(Router, ForcedIdsAreReplayed) {
  TestStream test;
  const RouterCase c{6, {.experts = 5, .top_k = 2, .renormalise = true}, false, false};
  const Tensors inputs = make_inputs(c);
  const std::vector<int> ids = {4, 0, 0, 1, 2, 3, 3, 2, 1, 4, 0, 2};
  const CaseTensor forced = integer_tensor({c.T, 2}, ids);
  Tensors out = run_route(c, test.stream, inputs, &forced);
  std::vector<Choice> choices;
  for (size_t t = 0; t < 6; ++t) choices.push_back({{ids[2 * t], ids[2 * t + 1]}});
  const auto expected = reference_of(c, choices, inputs);
  EXPECT_EQ(out.at("ids").values, forced.values);
  for (const char* name : {"weights", "counts", "prob_sums", "z_sum"})
    EXPECT_LT(largest_error(out.at(name).values, expected.at(name)), 2e-6) << name;
  const CaseTensor bad = integer_tensor({c.T, 2}, {4, 0, 0, 1, 2, 5, 3, 2, 1, 4, 0, 2});
  EXPECT_THROW(run_route(c, test.stream, inputs, &bad), Error);
}

TEST(Router, ExtremeLogits) {
  TestStream test;
  for (ScoreFunction score : {ScoreFunction::softmax, ScoreFunction::sigmoid}) {
    const RouterCase c{2, {.experts = 3, .top_k = 2, .score = score, .renormalise = true}, false, false};
    const Tensors inputs{{"logits", {{2, 3}, {-200.0f, -300.0f, -250.0f, 500.0f, 400.0f, 90.0f}, DType::f32}}};
    const Tensors out = run_route(c, test.stream, inputs);
    for (const char* name : {"weights", "prob_sums", "z_sum"})
      for (float value : out.at(name).values) EXPECT_TRUE(std::isfinite(value)) << name;
    const CaseTensor d_weights{{2, 2}, {1.0f, 2.0f, 3.0f, 4.0f}, DType::f32};
    const CaseTensor d =
        run_backward(c, test.stream, inputs, {{{0, 2}}, {{0, 1}}}, d_weights, {1.0f, 2.0f, 3.0f}, 0.1f);
    for (float value : d.values) EXPECT_TRUE(std::isfinite(value));
  }
}

TEST(Router, NonFiniteLogitsGiveValidIds) {
  TestStream test;
  const float inf = std::numeric_limits<float>::infinity();
  for (ScoreFunction score : {ScoreFunction::softmax, ScoreFunction::sigmoid})
    for (int64_t groups : {1, 2}) {
      const RouterCase c{
          3, {.experts = 4, .top_k = 2, .score = score, .groups = groups, .group_best = 2}, false, false};
      const Tensors out =
          run_route(c, test.stream,
                    {{"logits", {{3, 4}, {NAN, NAN, NAN, NAN, -inf, -inf, -inf, -inf, inf, NAN, 1, inf}, DType::f32}}});
      const std::vector<float>& ids = out.at("ids").values;
      for (size_t t = 0; t < 3; ++t) {
        EXPECT_NE(ids[2 * t], ids[2 * t + 1]);
        for (size_t k = 0; k < 2; ++k) EXPECT_TRUE(ids[2 * t + k] >= 0 && ids[2 * t + k] < 4);
      }
    }
}

}  // namespace
}  // namespace mw::test
