// Where experts should be under skewed loads that drift: no balancing, Piper's algorithm 2, EPLB, and our swap search,
// with and without replicas.
//
// Loads: the log-popularity of each expert is a stationary random walk (AR(1)) plus jumps that make a cold expert hot,
// plus noise of the batch; the rows of a step are these shares with multinomial noise. Every `every` steps a policy
// sees the mean rows of the last `every` steps and may change its placement. A policy that is `paid` looks every 10
// steps at a decaying mean, and moves only where `pays` says so. What counts is the imbalance of the rows that follow.
//   bench_balance --json FILE
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "base/file.h"
#include "layout/balance.h"
#include "layout/row_split.h"
#include "python_random.h"

namespace {

using namespace mw;

struct Options {
  int steps = 400, every = 50, seeds = 3, tokens = 8192;
  double tau = 1000, expert_ms = 100, gbps = 50, params = 44.04e6;
  std::vector<double> sigmas = {0.5, 1.0};
  std::string json;
};

struct Setting {
  int experts, ranks;
};
constexpr Setting kSettings[] = {{16, 8}, {64, 8}, {128, 8}, {256, 32}, {256, 64}};

using Rows = std::vector<int64_t>;

std::vector<Rows> load_series(const Setting& s, const Options& o, double sigma, int steps, uint32_t seed) {
  bench::PythonRandom r(seed);
  const double all = static_cast<double>(o.tokens) * s.ranks * std::max(2, s.experts / 32), a = std::exp(-1 / o.tau),
               b = sigma * std::sqrt(1 - a * a);
  const auto n = static_cast<size_t>(s.experts);
  std::vector<double> x(n), hot(n), w(n);
  for (double& value : x) value = r.gauss(sigma);
  std::vector<Rows> series;
  for (int t = 0; t < steps; ++t) {
    for (size_t e = 0; e < n; ++e) {
      x[e] = a * x[e] + b * r.gauss(1);
      hot[e] *= 1 - 1 / o.tau;
    }
    if (r.random() < 5 / o.tau) hot[r.randrange(static_cast<uint32_t>(n))] += 2 * sigma;
    for (size_t e = 0; e < n; ++e) w[e] = std::exp(x[e] + hot[e] + 0.1 * r.gauss(1));
    const double scale = all / std::accumulate(w.begin(), w.end(), 0.0);
    Rows& rows = series.emplace_back();
    for (const double share : w)
      rows.push_back(std::llround(std::max(0.0, share * scale + std::sqrt(share * scale) * r.gauss(1))));
  }
  return series;
}

ExpertPlacement placement_of(const ExpertLists& lists, size_t experts) {
  ExpertPlacement placement{static_cast<int>(lists.size()), {}};
  placement.homes.resize(experts);
  for (size_t g = 0; g < lists.size(); ++g)
    for (size_t slot = 0; slot < lists[g].size(); ++slot)
      placement.homes[index_of(lists[g][slot])].push_back({static_cast<int>(g), static_cast<int>(slot)});
  return placement;
}

// Piper, algorithm 2: the best swap of the fullest and the emptiest rank, by their gap.
ExpertPlacement piper(const ExpertPlacement& now, const Rows& rows) {
  ExpertLists lists;
  std::vector<int64_t> sums;
  for (int g = 0; g < now.ep; ++g) {
    lists.push_back(now.experts_of(g));
    sums.push_back(0);
    for (const int e : lists.back()) sums.back() += rows[index_of(e)];
  }
  constexpr int kRounds = 100;
  for (int i = 0; i < kRounds; ++i) {
    const auto high = static_cast<size_t>(std::max_element(sums.begin(), sums.end()) - sums.begin()),
               low = static_cast<size_t>(std::min_element(sums.begin(), sums.end()) - sums.begin());
    const int64_t gap = sums[high] - sums[low];
    int64_t least = gap;
    int *from = nullptr, *to = nullptr;
    for (int& a : lists[high])
      for (int& b : lists[low])
        if (const int64_t left = std::abs(gap - 2 * (rows[index_of(a)] - rows[index_of(b)])); left < least)
          least = left, from = &a, to = &b;
    if (from == nullptr) break;
    const int64_t moved = rows[index_of(*from)] - rows[index_of(*to)];
    sums[high] -= moved;
    sums[low] += moved;
    std::swap(*from, *to);
  }
  return placement_of(lists, rows.size());
}

// EPLB's global policy: the expert with most rows per copy gets the next copy; then copies are packed in descending
// order. Where experts are now plays no part, and a rank may get two copies of one expert.
ExpertPlacement eplb(const ExpertPlacement& now, const Rows& rows, int replica_slots) {
  const int ranks = now.ep, experts = static_cast<int>(rows.size());
  std::vector<int> copies(rows.size(), 1);
  const auto share = [&](int e) { return static_cast<double>(rows[index_of(e)]) / copies[index_of(e)]; };
  for (int i = 0; i < replica_slots * ranks; ++i) {
    int best = -1;
    for (int e = 0; e < experts; ++e)
      if (copies[index_of(e)] < ranks && (best < 0 || share(e) > share(best))) best = e;
    if (best >= 0) ++copies[index_of(best)];
  }
  std::vector<int> items;
  for (int e = 0; e < experts; ++e) items.insert(items.end(), index_of(copies[index_of(e)]), e);
  std::stable_sort(items.begin(), items.end(), [&](int a, int b) { return share(a) > share(b); });
  const size_t slots = index_of(experts / ranks + replica_slots);
  ExpertLists lists(index_of(ranks));
  std::vector<double> sums(index_of(ranks));
  for (const int e : items) {
    size_t best = lists.size();
    for (size_t g = 0; g < lists.size(); ++g)
      if (lists[g].size() < slots && (best == lists.size() || sums[g] < sums[best])) best = g;
    lists[best].push_back(e);
    sums[best] += share(e);
  }
  return placement_of(lists, rows.size());
}

ExpertPlacement swaps(const ExpertPlacement& now, const Rows& rows, int replica_slots, const BalanceStop& stop) {
  BalanceRanks ranks = even_ranks(make_block_placement(now.experts(), now.ep), replica_slots);
  return balance_experts(now, rows, ranks, stop);
}

constexpr BalanceStop kTight = {1e-3, 0};

struct Policy {
  const char* name;
  std::function<ExpertPlacement(const ExpertPlacement&, const Rows&)> plan;
  bool fills = false, paid = false;
};
const std::vector<Policy> kPolicies = {
    {"none", [](const auto& now, const auto&) { return now; }},
    {"piper", piper},
    {"eplb r=0", [](const auto& now, const auto& rows) { return eplb(now, rows, 0); }},
    {"swap r=0", [](const auto& now, const auto& rows) { return swaps(now, rows, 0, kTight); }},
    {"swap r=0 dead band", [](const auto& now, const auto& rows) { return swaps(now, rows, 0, {}); }},
    {"eplb r=1", [](const auto& now, const auto& rows) { return eplb(now, rows, 1); }},
    {"eplb r=1 fill", [](const auto& now, const auto& rows) { return eplb(now, rows, 1); }, true},
    {"swap r=1 even", [](const auto& now, const auto& rows) { return swaps(now, rows, 1, kTight); }},
    {"swap r=1 fill", [](const auto& now, const auto& rows) { return swaps(now, rows, 1, {}); }, true},
    {"swap r=2 fill", [](const auto& now, const auto& rows) { return swaps(now, rows, 2, {}); }, true},
    {"swap r=0 paid", [](const auto& now, const auto& rows) { return swaps(now, rows, 0, {}); }, false, true},
    {"swap r=1 paid", [](const auto& now, const auto& rows) { return swaps(now, rows, 1, {}); }, true, true},
};

double imbalance(const ExpertPlacement& placement, const Rows& rows, bool fills) {
  const std::vector<int64_t> speeds(index_of(placement.ep), 1);
  const RowQuotas quotas = fills ? split_rows(placement, rows, speeds) : split_rows_evenly(placement, rows);
  return imbalance_of(rows_of_ranks(placement, quotas), speeds);
}

// Weights are sent in bf16 (2 bytes a parameter), master weights and moments in fp32 (12); in every step a replica
// sends its gradient (4) and receives weights (2).
constexpr double kWeightBytes = 2, kStateBytes = 12, kReplicaStepBytes = 6;

bool is_worth_it(const Options& o, const ExpertPlacement& from, const ExpertPlacement& to, const Rows& rows) {
  constexpr int64_t kHorizon = 100;
  return seconds_saved(from, to, rows, std::vector<int64_t>(index_of(from.ep), 1),
                       {o.expert_ms * 1e-3, kWeightBytes * o.params, kStateBytes * o.params, o.gbps * 1e9,
                        kReplicaStepBytes * o.params / (o.gbps * 1e9), kHorizon}) > 0;
}

double most_received(const PlacementChange& change) {
  double most = 0;
  for (size_t g = 0; g < change.copies_to.size(); ++g)
    most = std::max(most, kWeightBytes * static_cast<double>(change.copies_to[g]) +
                              kStateBytes * static_cast<double>(change.owners_to[g]));
  return most;
}

struct Result {
  double seen = 0, mean = 0, p99 = 0, moved = 0, gigabytes = 0, plan_ms = 0;
  void add(const Result& other, double share) {
    seen += other.seen * share;
    mean += other.mean * share;
    p99 += other.p99 * share;
    moved += other.moved * share;
    gigabytes += other.gigabytes * share;
    plan_ms += other.plan_ms * share;
  }
};

Result run(const Policy& policy, const Setting& s, const Options& o, const std::vector<Rows>& series) {
  ExpertPlacement placement = make_block_placement(s.experts, s.ranks);
  const int every = policy.paid ? 10 : o.every;
  std::vector<double> decaying(series[0].begin(), series[0].end()), ratios;
  Result result;
  int plans = 0;
  for (int t = 0; t < o.steps; ++t) {
    if (t > 0)
      for (size_t e = 0; e < decaying.size(); ++e)
        decaying[e] = 0.9 * decaying[e] + 0.1 * static_cast<double>(series[index_of(t - 1)][e]);
    if (t > 0 && t % every == 0) {
      Rows rows(decaying.size());
      for (size_t e = 0; e < rows.size(); ++e) {
        for (int u = t - every; u < t; ++u) rows[e] += series[index_of(u)][e];
        rows[e] = policy.paid ? std::llround(decaying[e]) : rows[e] / every;
      }
      const auto begin = std::chrono::steady_clock::now();
      ExpertPlacement next = policy.plan(placement, rows);
      result.plan_ms += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
      ++plans;
      if (!policy.paid || is_worth_it(o, placement, next, rows)) {
        const PlacementChange change = change_between(placement, next);
        result.moved += static_cast<double>(change.moves);
        result.gigabytes += most_received(change) * o.params / 1e9;
        placement = std::move(next);
      }
      result.seen += imbalance(placement, rows, policy.fills);
    }
    if (t >= o.every) ratios.push_back(imbalance(placement, series[index_of(t)], policy.fills));
  }
  std::sort(ratios.begin(), ratios.end());
  result.seen /= plans;
  result.plan_ms /= plans;
  result.mean = std::accumulate(ratios.begin(), ratios.end(), 0.0) / static_cast<double>(ratios.size());
  result.p99 = ratios[static_cast<size_t>(0.99 * static_cast<double>(ratios.size()))];
  result.moved *= 100.0 / o.steps;
  result.gigabytes *= 100.0 / o.steps;
  return result;
}

nlohmann::json measure(const Setting& s, double sigma, const Options& o) {
  std::vector<Result> results(kPolicies.size());
  for (int seed = 0; seed < o.seeds; ++seed) {
    const auto series = load_series(s, o, sigma, o.steps, static_cast<uint32_t>(1000 * seed + s.experts + s.ranks));
    for (size_t i = 0; i < kPolicies.size(); ++i) results[i].add(run(kPolicies[i], s, o, series), 1.0 / o.seeds);
  }
  fmt::print(
      "\n{} experts on {} ranks, sigma {}: max/mean of the loads seen, of those that follow (mean, p99); of 100 "
      "steps: copies that arrive, GB to the rank that receives most; ms a plan\n",
      s.experts, s.ranks, sigma);
  nlohmann::json rows;
  for (size_t i = 0; i < kPolicies.size(); ++i) {
    const Result& r = results[i];
    fmt::print("  {:20} {:6.3f} {:6.3f} {:6.3f} {:7.1f} {:7.2f} {:8.3f}\n", kPolicies[i].name, r.seen, r.mean, r.p99,
               r.moved, r.gigabytes, r.plan_ms);
    rows.push_back({{"experts", s.experts},
                    {"ranks", s.ranks},
                    {"sigma", sigma},
                    {"policy", kPolicies[i].name},
                    {"seen", r.seen},
                    {"mean", r.mean},
                    {"p99", r.p99},
                    {"arrivals_per_100_steps", r.moved},
                    {"gigabytes_per_100_steps", r.gigabytes},
                    {"plan_ms", r.plan_ms}});
  }
  return rows;
}

// Ranks of speed 2 and 1 in turn: the time of the slowest over that of a perfect split, on the loads seen.
nlohmann::json measure_unlike_ranks(const Setting& s, double sigma, const Options& o) {
  std::vector<int64_t> speeds;
  for (int g = 0; g < s.ranks; ++g) speeds.push_back(g % 2 == 0 ? 2 : 1);
  const std::vector<Rows> series = load_series(s, o, sigma, o.every, 7);
  Rows rows(index_of(s.experts));
  for (size_t e = 0; e < rows.size(); ++e) {
    for (const Rows& step : series) rows[e] += step[e];
    rows[e] /= o.every;
  }
  const ExpertPlacement blocks = make_block_placement(s.experts, s.ranks);
  const int64_t all = std::accumulate(speeds.begin(), speeds.end(), int64_t{0});
  const auto time_of = [&](int spare, int replica_slots, bool knows_speeds, bool fills) {
    BalanceRanks ranks = even_ranks(blocks, replica_slots);
    if (knows_speeds) ranks.speeds = speeds;
    if (spare > 0) ranks.homes.clear();
    if (spare > 0)
      for (size_t g = 0; g < speeds.size(); ++g)
        ranks.slots[g] = static_cast<int>(s.experts * speeds[g] / all) + spare + replica_slots;
    if (replica_slots > 0) ranks.replicas = std::accumulate(ranks.slots.begin(), ranks.slots.end(), 0) - s.experts;
    const ExpertPlacement placement = balance_experts(blocks, rows, ranks, kTight);
    return imbalance_of(
        rows_of_ranks(placement, fills ? split_rows(placement, rows, speeds) : split_rows_evenly(placement, rows)),
        speeds);
  };
  const nlohmann::json row = {{"experts", s.experts},
                              {"ranks", s.ranks},
                              {"sigma", sigma},
                              {"blocks", imbalance_of(rows_of_ranks(blocks, split_rows_evenly(blocks, rows)), speeds)},
                              {"speeds_unknown", time_of(0, 0, false, false)},
                              {"even_slots", time_of(0, 0, true, false)},
                              {"uneven_slots", time_of(1, 0, true, false)},
                              {"uneven_slots_replicas", time_of(1, 1, true, false)},
                              {"uneven_slots_replicas_fill", time_of(1, 1, true, true)}};
  fmt::print("{}\n", row.dump());
  return row;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Imbalance, moves and planning time of expert placements under drifting loads");
  app.add_option("--steps", o.steps);
  app.add_option("--every", o.every, "steps between two plans");
  app.add_option("--seeds", o.seeds);
  app.add_option("--sigma", o.sigmas, "spread of the log-popularity");
  app.add_option("--json", o.json, "keep the rows in this file");
  CLI11_PARSE(app, argc, argv);
  nlohmann::json rows, unlike;
  for (const double sigma : o.sigmas)
    for (const Setting& s : kSettings)
      for (const nlohmann::json& row : measure(s, sigma, o)) rows.push_back(row);
  fmt::print("\nranks of speed 2 and 1 in turn: slowest time over the perfect one\n");
  for (const Setting& s : kSettings)
    for (const double sigma : {0.0, 1.0}) unlike.push_back(measure_unlike_ranks(s, sigma, o));
  if (o.json.empty()) return 0;
  const nlohmann::json result = {{"benchmark", "balance"}, {"steps", o.steps},      {"every", o.every},
                                 {"seeds", o.seeds},       {"tokens", o.tokens},    {"correlation_steps", o.tau},
                                 {"rows", rows},           {"unlike_ranks", unlike}};
  write_text_file_atomically(o.json, result.dump(1) + "\n");
  return 0;
}
