#include "layout/stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/text.h"
#include "layout/shares.h"

namespace mw {
namespace {

// Layers per stage as the run file lists them.
std::vector<int64_t> parse_counts(const std::string& wanted, int64_t layers, int stages) {
  constexpr int64_t kMostLayers = 1 << 20;  // sums of what is accepted do not overflow
  std::vector<int64_t> first = {0};
  const char* at = wanted.data();
  const char* const end = at + wanted.size();
  const std::string hint =
      fmt::format("list the number of layers of each of the {}, {} in total, or leave mesh.stage_layers empty",
                  counted(stages, "stage"), layers);
  while (at != end) {
    int64_t count = 0;
    const auto [next, error] = std::from_chars(at, end, count);
    const bool last = next == end;
    if (error != std::errc() || count < 1 || count > kMostLayers || (!last && (*next != ',' || next + 1 == end)))
      fail(Exit::config,
           fmt::format("mesh.stage_layers = \"{}\" is not a comma-separated list of layer counts", wanted), hint);
    first.push_back(first.back() + count);
    at = last ? next : next + 1;
  }
  if (static_cast<int>(first.size()) != stages + 1 || first.back() != layers)
    fail(Exit::config,
         fmt::format(
             "mesh.stage_layers = \"{}\" has {} stages with {} layers in total, expected {} stages and {} layers",
             wanted, first.size() - 1, first.back(), stages, layers),
         hint);
  return first;
}

double flops_of(const ModelSpec& model, int64_t layer, int64_t seq_len) {
  ModelSpec alone = model;
  alone.vocab = 0;
  alone.layers = {model.layers[static_cast<size_t>(layer)]};
  return forward_flops_per_token(alone, seq_len);
}

double head_flops(const ModelSpec& model) {
  return 2.0 * static_cast<double>(model.width) * static_cast<double>(model.vocab);
}

std::vector<double> sums_of_layers(const ModelSpec& model, int64_t seq_len) {
  std::vector<double> sums = {0};  // of the layers before
  for (int64_t i = 0; i < model.layer_count(); ++i) sums.push_back(sums.back() + flops_of(model, i, seq_len));
  return sums;
}

// Cuts the layers into stages, one rank for each. sums: cost of the layers before. slowness: of each stage, a
// factor of its cost; most: layers of each stage.
std::vector<int64_t> split_over_stages(const std::vector<double>& sums, double head, std::span<const double> slowness,
                                       std::span<const int64_t> most) {
  const auto layers = std::ssize(sums) - 1;
  const auto stages = static_cast<int>(slowness.size());
  // Of the best cut of layers i.. into the stages from s on: its slowest stage, then the squares of all.
  struct Cut {
    double slowest = std::numeric_limits<double>::infinity(), squares = 0;
    int64_t end = 0;  // of stage s
  };
  std::vector<std::vector<Cut>> best(static_cast<size_t>(stages) + 1,
                                     std::vector<Cut>(static_cast<size_t>(layers) + 1));
  best.back().back() = {0, 0, layers};
  for (int s = stages - 1; s >= 0; --s) {
    const int64_t left = stages - 1 - s;  // stages after this one
    for (int64_t i = s; i < layers - left; ++i) {
      Cut& cut = best[static_cast<size_t>(s)][static_cast<size_t>(i)];
      for (int64_t end = i + 1; end <= std::min(layers - left, i + most[static_cast<size_t>(s)]); ++end) {
        const Cut& rest = best[static_cast<size_t>(s) + 1][static_cast<size_t>(end)];
        const double cost =
            slowness[static_cast<size_t>(s)] *
            (sums[static_cast<size_t>(end)] - sums[static_cast<size_t>(i)] + (s == stages - 1 ? head : 0));
        const Cut with{std::max(cost, rest.slowest), cost * cost + rest.squares, end};
        if (std::tie(with.slowest, with.squares) <= std::tie(cut.slowest, cut.squares)) cut = with;
      }
    }
  }
  std::vector<int64_t> first = {0};
  for (int s = 0; s < stages; ++s) first.push_back(best[static_cast<size_t>(s)][static_cast<size_t>(first.back())].end);
  return first;
}

// Cost of the slowest rank, then of the slowest stage, then the squares of all stages.
std::tuple<double, double, double> cost_of(const std::vector<int64_t>& first, const std::vector<double>& sums,
                                           double head, const PipelineShape& shape) {
  std::vector<double> ranks(static_cast<size_t>(shape.ranks));
  double slowest = 0, squares = 0;
  for (int s = 0; s < shape.stages(); ++s) {
    const auto at = static_cast<size_t>(s);
    const double cost = sums[static_cast<size_t>(first[at + 1])] - sums[static_cast<size_t>(first[at])] +
                        (s + 1 == shape.stages() ? head : 0);
    ranks[static_cast<size_t>(rank_of_stage(shape, s))] += cost;
    slowest = std::max(slowest, cost);
    squares += cost * cost;
  }
  return {*std::max_element(ranks.begin(), ranks.end()), slowest, squares};
}

// Moves boundary b of `first` by some layers; false, with `first` as it was, where a stage would be left without.
bool move(std::vector<int64_t>& first, size_t b, int64_t by) {
  if (first[b] + by <= first[b - 1] || first[b] + by >= first[b + 1]) return false;
  first[b] += by;
  return true;
}

// A step that lowers the cost most; false when none does.
bool improve(std::vector<int64_t>& first, const std::vector<double>& sums, double head, const PipelineShape& shape) {
  auto best = cost_of(first, sums, head, shape);
  std::vector<int64_t> better;
  const auto consider = [&](const std::vector<int64_t>& cut) {
    if (const auto cost = cost_of(cut, sums, head, shape); cost < best) best = cost, better = cut;
  };
  for (size_t a = 1; a + 1 < first.size(); ++a)
    for (const int64_t by_a : {-2, -1, 1, 2}) {
      std::vector<int64_t> one = first;
      if (!move(one, a, by_a)) continue;
      consider(one);
      for (size_t b = 1; b + 1 < first.size(); ++b)
        for (const int64_t by_b : {-2, -1, 1, 2})
          if (std::vector<int64_t> two = one; b != a && move(two, b, by_b)) consider(two);
    }
  if (better.empty()) return false;
  first = std::move(better);
  return true;
}

// What leaves a layer for each stage. Schedules with several stages a rank have at least two.
std::string hint_to_have_fewer(const PipelineShape& shape, int64_t layers) {
  if (shape.chunks == 1) return fmt::format("set mesh.pp to at most {}", layers);
  if (layers < 2) return "set mesh.pp = 1 and mesh.schedule = \"1f1b\"";
  const std::string lower =
      shape.chunks > 2 ? fmt::format(
                             "lower mesh.pp = {}, or mesh.chunks = {} to no less than 2, until their product is "
                             "at most {}",
                             shape.ranks, shape.chunks, layers)
                       : fmt::format("set mesh.pp to at most {}", layers / 2);
  return lower + "; mesh.schedule = \"1f1b\" and \"zb_h1\" have one stage a rank";
}

}  // namespace

std::vector<int64_t> split_layers(const ModelSpec& model, const PipelineShape& shape, int64_t seq_len,
                                  const std::string& wanted) {
  const int64_t layers = model.layer_count();
  const int stages = shape.stages();
  if (layers < stages)
    fail(Exit::config, fmt::format("{} pipeline stages are too many for a model of {} layers", stages, layers),
         hint_to_have_fewer(shape, layers));
  if (!wanted.empty() && wanted != kMeasuredShares) return parse_counts(wanted, layers, stages);
  const std::vector<double> sums = sums_of_layers(model, seq_len);
  const auto count = static_cast<size_t>(stages);
  std::vector<int64_t> first =
      split_over_stages(sums, head_flops(model), std::vector<double>(count, 1), std::vector<int64_t>(count, layers));
  while (shape.chunks > 1 && improve(first, sums, head_flops(model), shape)) {
  }
  return first;
}

std::vector<int64_t> layers_by_speed(const ModelSpec& model, int64_t seq_len, std::span<const double> seconds,
                                     std::span<const int64_t> most) {
  std::vector<int64_t> first = split_over_stages(sums_of_layers(model, seq_len), head_flops(model), seconds, most);
  for (size_t s = 0; s + 1 < first.size(); ++s) first[s] = first[s + 1] - first[s];
  first.pop_back();
  return first;
}

double flops_of_stage(const ModelSpec& model, int64_t seq_len, const StagePlan& stage) {
  const std::vector<double> sums = sums_of_layers(model, seq_len);
  return sums[static_cast<size_t>(stage.end_layer)] - sums[static_cast<size_t>(stage.first_layer)] +
         (stage.has_head ? head_flops(model) : 0);
}

std::vector<StagePlan> plan_stages(const Schedule& schedule, int rank, const std::vector<int64_t>& first_layers) {
  const PipelineShape& shape = schedule.shape;
  std::vector<StagePlan> plans;
  for (const int stage : stages_of_rank(shape, rank)) {
    StagePlan plan;
    plan.stage = stage;
    plan.first_layer = first_layers[static_cast<size_t>(stage)];
    plan.end_layer = first_layers[static_cast<size_t>(stage) + 1];
    plan.embeds = stage == 0;
    plan.has_head = stage + 1 == shape.stages();
    plan.receives = receives_activation(shape, stage);
    plan.sends = sends_activation(shape, stage);
    plans.push_back(plan);
  }
  std::map<int, std::set<int64_t>> live, waiting;  // micro-batches, by stage
  for (const Action& action : schedule.ranks[static_cast<size_t>(rank)]) {
    switch (action.kind) {
      case ActionKind::receive_activation: live[action.stage].insert(action.micro_batch); break;
      case ActionKind::forward:
        live[action.stage].insert(action.micro_batch);
        if (action.stage + 1 < shape.stages() && !sends_activation(shape, action.stage))
          live[action.stage + 1].insert(action.micro_batch);
        break;
      case ActionKind::receive_gradient: waiting[action.stage].insert(action.micro_batch); break;
      case ActionKind::backward:
      case ActionKind::backward_input:
        waiting[action.stage].erase(action.micro_batch);
        if (action.kind == ActionKind::backward) live[action.stage].erase(action.micro_batch);
        if (action.stage > 0 && !receives_activation(shape, action.stage))
          waiting[action.stage - 1].insert(action.micro_batch);
        break;
      case ActionKind::backward_weight: live[action.stage].erase(action.micro_batch); break;
      default: break;
    }
    for (StagePlan& plan : plans) {
      plan.slots = std::max(plan.slots, std::ssize(live[plan.stage]));
      plan.gradients = std::max(plan.gradients, std::ssize(waiting[plan.stage]));
    }
  }
  return plans;
}

std::string describe(const std::vector<StagePlan>& stages) {
  std::string text;
  for (const StagePlan& s : stages)
    text += fmt::format("{}{}-{}", text.empty() ? "layers " : " and ", s.first_layer, s.end_layer - 1);
  return text;
}

bool holds(const std::vector<StagePlan>& stages, const ParamRow& row, bool tied_embeddings) {
  return std::any_of(stages.begin(), stages.end(), [&](const StagePlan& s) {
    if (row.layer >= 0) return s.has_layer(row.layer);
    if (row.role == ParamRole::embedding) return s.embeds || (s.has_head && tied_embeddings);
    return s.has_head;
  });
}

}  // namespace mw
