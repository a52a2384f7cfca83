#include "planner/load.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "layout/shards.h"
#include "planner/metrics_lines.h"

namespace mw {
namespace {

constexpr int kDraws = 400;
constexpr size_t kMostSteps = 1000;
constexpr double kLeastRows = 1e-6, kMostRows = 1e18;  // of a layer; shares of 1 are rows too

// The same numbers on every machine.
class Draws {
 public:
  // Marsaglia and Tsang's method; below 1 by a power of a uniform number.
  double gamma(double shape) {
    if (shape < 1) return gamma(shape + 1) * std::pow(uniform(), 1 / shape);
    const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
    for (;;) {
      const double x = normal(), v = std::pow(1 + c * x, 3);
      if (v > 0 && std::log(uniform()) < x * x / 2 + d - d * v + d * std::log(v)) return d * v;
    }
  }

 private:
  double uniform() {  // above 0, below 1
    state_ += 0x9E3779B97F4A7C15ull;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return (static_cast<double>((z ^ (z >> 31)) >> 11) + 0.5) * 0x1p-53;
  }
  double normal() { return std::sqrt(-2 * std::log(uniform())) * std::cos(6.283185307179586 * uniform()); }

  uint64_t state_ = 1;
};

// The fullest expert over the mean, of which each takes at most `most` times that.
double fullest_expert(const std::vector<double>& shares, double most) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  const double fullest = *std::max_element(shares.begin(), shares.end());
  return std::min(fullest * static_cast<double>(shares.size()) / sum, most);
}

// The fullest rank over the mean, experts in blocks, each of which takes at most `most` times the mean.
double fullest_rank(const std::vector<double>& shares, int64_t ep, double most) {
  const auto experts = std::ssize(shares);
  const double mean = std::accumulate(shares.begin(), shares.end(), 0.0) / static_cast<double>(experts);
  double rows = 0;
  for (int64_t rank = 0; rank < ep; ++rank) {
    const Block block = block_of(experts, ep, rank);
    double own = 0;
    for (int64_t e = block.begin; e < block.begin + block.count; ++e)
      own += std::min(shares[static_cast<size_t>(e)], most * mean);
    rows = std::max(rows, own);
  }
  return rows * static_cast<double>(ep) / (mean * static_cast<double>(experts));
}

RankLoad load_of(std::vector<double> loads) {
  std::sort(loads.begin(), loads.end());
  return {std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(loads.size()),
          loads[loads.size() * 99 / 100]};
}

[[noreturn]] void refuse_load(const std::string& where, const std::string& why) {
  fail(Exit::config, fmt::format("{}: {}", where, why),
       "pass a JSON list with the rows of each expert, such as [120, 80, 300], or the metrics.jsonl of a run of this "
       "model");
}

std::vector<double> read_list(const nlohmann::json& list, const std::string& where) {
  std::vector<double> rows;
  if (!list.is_array())
    refuse_load(where, fmt::format("expected a list with the rows of each expert, got {}", list.type_name()));
  for (const nlohmann::json& share : list) {
    if (!share.is_number())
      refuse_load(where, fmt::format("expected a number of rows per expert, got {}", share.type_name()));
    rows.push_back(share.get<double>());
  }
  return rows;
}

}  // namespace

double largest_block(int64_t experts, int64_t ep) {
  return static_cast<double>(ep * block_of(experts, ep, 0).count) / static_cast<double>(experts);
}

std::vector<std::vector<double>> read_loads(const std::string& path, const ModelSpec& model) {
  return parse_loads(read_text_file(path), path, model);
}

std::vector<std::vector<double>> parse_loads(const std::string& text, const std::string& path, const ModelSpec& model) {
  std::vector<int64_t> experts;  // of the MoE layers
  for (const LayerSpec& layer : model.layers)
    if (layer.feed_forward == FeedForwardKind::moe) experts.push_back(layer.moe.experts);
  std::vector<std::vector<double>> loads;
  if (text.find_first_not_of(" \t\r\n") == text.find('[')) {
    loads.push_back(read_list(parse_json(text, path, Exit::config), path));
    if (std::find(experts.begin(), experts.end(), std::ssize(loads.front())) == experts.end())
      refuse_load(
          path,
          fmt::format("has the rows of {} experts, expected {}", loads.front().size(),
                      experts.empty()
                          ? "a model with MoE layers"
                          : fmt::format("{}", fmt::join(std::set<int64_t>(experts.begin(), experts.end()), " or "))));
    return loads;
  }
  if (const nlohmann::json first = parse_json(text.substr(0, text.find('\n')), path, Exit::config);
      !first.is_object() || !first.contains("step"))
    refuse_load(path, "expected a list with the rows of each expert, or the metrics of a run");
  for_each_step(text, path, kMostSteps, [&](const nlohmann::json& step, const std::string& where) {
    const auto found = step.find("expert_load");
    if (found == step.end()) return;  // a run lists loads every log.every steps
    if (!found->is_array() || found->size() != experts.size())
      refuse_load(where,
                  fmt::format("\"expert_load\" must be a list over the {} MoE layers of the model", experts.size()));
    for (size_t layer = 0; layer < experts.size(); ++layer) {
      loads.push_back(read_list((*found)[layer], where));
      if (std::ssize(loads.back()) != experts[layer])
        refuse_load(where, fmt::format("\"expert_load\" has {} experts in MoE layer {}, expected {}",
                                       loads.back().size(), layer, experts[layer]));
    }
  });
  if (loads.empty()) refuse_load(path, fmt::format("no step after the first {} has \"expert_load\"", kPreparingSteps));
  return loads;
}

LoadModel::LoadModel(ExpertLoad load, const MoeRunSpec& moe)
    : load_(std::move(load)),
      capacity_(moe.capacity_factor > 0 ? moe.capacity_factor : std::numeric_limits<double>::infinity()) {
  for (const std::vector<double>& rows : load_.measured) {
    const double sum = std::accumulate(rows.begin(), rows.end(), 0.0);
    const bool valid = std::all_of(rows.begin(), rows.end(), [](double share) { return share >= 0; });
    if (!valid || !(sum >= kLeastRows && sum <= kMostRows))
      fail(Exit::config,
           fmt::format("--load: expected non-negative row counts per expert; their sum {:g} is out of range", sum),
           fmt::format("pass numbers of at least 0 with a sum from {:g} to {:g}", kLeastRows, kMostRows));
  }
}

const std::vector<std::vector<double>>& LoadModel::drawn(int64_t experts) {
  std::vector<std::vector<double>>& draws = drawn_[experts];
  if (!draws.empty()) return draws;
  Draws numbers;
  draws.assign(kDraws, std::vector<double>(static_cast<size_t>(experts)));
  for (std::vector<double>& shares : draws)
    for (double& share : shares) share = numbers.gamma(load_.concentration);
  return draws;
}

RankLoad LoadModel::of(int64_t experts, int64_t ep, bool equal_rows) {
  if (experts <= 1 || (ep == 1 && !equal_rows)) return {};
  const auto [entry, is_new] = known_.try_emplace({experts, ep, equal_rows});
  if (!is_new) return entry->second;
  const auto fullest = [&](const std::vector<double>& shares) {
    return equal_rows ? largest_block(experts, ep) * fullest_expert(shares, capacity_)
                      : fullest_rank(shares, ep, capacity_);
  };
  std::vector<double> loads;
  for (const std::vector<double>& rows : load_.measured)
    if (std::ssize(rows) == experts) loads.push_back(fullest(rows));
  if (loads.empty())
    for (const std::vector<double>& shares : drawn(experts)) loads.push_back(fullest(shares));
  return entry->second = load_of(std::move(loads));
}

}  // namespace mw
