#include "layout/platform_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"

namespace mw {

double rate_at(const RateTable& table, double size) {
  const auto above =
      std::lower_bound(table.begin(), table.end(), size, [](const RatePoint& p, double s) { return p.size < s; });
  if (above == table.begin()) return table.front().per_second;
  if (above == table.end()) return table.back().per_second;
  const RatePoint& below = *(above - 1);
  const double share = std::log(size / below.size) / std::log(above->size / below.size);
  return below.per_second + share * (above->per_second - below.per_second);
}

namespace {

double expert_rate(const OperatorRates& rates, RateTable OperatorRates::*any, RateTable ExpertRates::*of_count,
                   double experts, double flops) {
  if (!rates.expert_counts) return rate_at(rates.*any, flops);
  RateTable by_count;
  for (const ExpertRates& count : *rates.expert_counts)
    by_count.push_back({static_cast<double>(count.experts), rate_at(count.*of_count, flops)});
  return rate_at(by_count, experts);
}

}  // namespace

double expert_rate(const OperatorRates& rates, double experts, double flops) {
  return expert_rate(rates, &OperatorRates::expert_products, &ExpertRates::products, experts, flops);
}

double expert_weight_rate(const OperatorRates& rates, double experts, double flops) {
  return expert_rate(rates, &OperatorRates::expert_weight_products, &ExpertRates::weight_products, experts, flops);
}

std::vector<LinkCost*> link_costs(LinkLevel& level) {
  std::vector<LinkCost*> costs = {&level.all_to_all, &level.ring, &level.message};
  if (level.owner) costs.push_back(&*level.owner);
  if (level.groups)
    for (GroupCosts& group : *level.groups) {
      costs.insert(costs.end(), {&group.all_to_all, &group.ring});
      if (group.owner) costs.push_back(&*group.owner);
    }
  return costs;
}

std::vector<RateTable*> rate_tables(PlatformProfile& profile) {
  std::vector<RateTable*> tables;
  const auto add = [&](OperatorRates& r) {
    for (RateTable* table : {&r.dense_products, &r.expert_products, &r.expert_weight_products, &r.attention_forward,
                             &r.attention_backward})
      tables.push_back(table);
    if (r.expert_counts)
      for (ExpertRates& count : *r.expert_counts)
        tables.insert(tables.end(), {&count.products, &count.weight_products});
  };
  add(profile.bf16);
  if (profile.fp32) add(*profile.fp32);
  return tables;
}

double time_over_predicted(const PlatformProfile& profile, const std::string& transport) {
  if (profile.transport_times)
    for (const TransportTime& time : *profile.transport_times)
      if (time.transport == transport) return time.over_predicted;
  return 1;
}

OperatorRates rates_of(const PlatformProfile& profile, DType dtype) {
  if (dtype == DType::bf16) return profile.bf16;
  if (profile.fp32) return *profile.fp32;
  PlatformProfile copy = profile;
  for (RateTable* table : rate_tables(copy))
    for (RatePoint& point : *table) point.per_second *= profile.fp32_share;
  // Of libraries, which have no fp32.
  for (std::optional<double>* share : {&copy.bf16.attention_any_order, &copy.bf16.attention_forward_documents,
                                       &copy.bf16.attention_backward_documents})
    share->reset();
  return copy.bf16;
}

Platform platform_of(const PlatformProfile& profile, const RunSpec& run) {
  Platform platform;
  platform.nodes.ranks_per_node = profile.ranks_per_node;
  platform.native_bf16 = profile.native_bf16;
  platform.one_packed_form = profile.one_packed_form;
  platform.logit_elements = profile.logit_elements;
  platform.logit_gradient_rows = profile.logit_gradient_rows.value_or(0);
  platform.split_masters = profile.split_masters.value_or(true);
  platform.row_chunks = profile.row_chunks;
  if (!profile.one_packed_form) {
    platform.scratch = ScratchRule::on_cpu;
    platform.threads = run.train.threads > 0 ? run.train.threads : profile.threads.value_or(1);
    return platform;
  }
  platform.ops_workspace_bytes = profile.scratch_bytes;
  platform.scratch = profile.attention_library.value_or(false) ? ScratchRule::by_library : ScratchRule::on_gpu;
  return platform;
}

double speed_of(const PlatformProfile& profile, int64_t rank) {
  if (!profile.rank_kinds) return 1;
  for (const RankKind& kind : *profile.rank_kinds) {
    if (rank < kind.ranks) return kind.speed;
    rank -= kind.ranks;
  }
  return 1;
}

std::string describe_rank_kinds(const PlatformProfile& profile) {
  if (!profile.rank_kinds) return "all ranks are alike";
  std::string text;
  for (const RankKind& kind : *profile.rank_kinds)
    text += fmt::format(
        "{}{}{}", text.empty() ? "" : ", ", counted(kind.ranks, "rank"),
        kind.speed > 1 ? fmt::format(" at {:.3g} times the speed of the slowest", kind.speed) : " of those");
  return text;
}

std::vector<RankKind> rank_kinds_of(std::span<const double> seconds) {
  constexpr double kAlike = 1.1;
  std::vector<double> sorted(seconds.begin(), seconds.end());
  std::sort(sorted.begin(), sorted.end());
  std::vector<double> fastest;  // of each kind
  for (const double own : sorted)
    if (fastest.empty() || own > kAlike * fastest.back()) fastest.push_back(own);
  std::vector<RankKind> kinds;
  for (const double own : seconds) {
    // The slowest of a kind counts for it: others wait for that one.
    const auto above = std::upper_bound(fastest.begin(), fastest.end(), own);
    const double slowest =
        above == fastest.end() ? sorted.back() : *(std::lower_bound(sorted.begin(), sorted.end(), *above) - 1);
    const double speed = sorted.back() / slowest;
    if (!kinds.empty() && kinds.back().speed == speed) ++kinds.back().ranks;
    else kinds.push_back({1, speed});
  }
  return kinds;
}

}  // namespace mw
