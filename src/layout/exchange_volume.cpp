#include "layout/exchange_volume.h"

#include <algorithm>

namespace mw {
namespace {

// C(others, chosen) / C(all, chosen): all that is chosen is among the others.
double chance_of_others(double all, double others, int64_t chosen) {
  double chance = 1;
  for (int64_t i = 0; i < chosen; ++i) {
    const auto taken = static_cast<double>(i);
    chance *= others > taken ? (others - taken) / (all - taken) : 0;
  }
  return chance;
}

// C(of, chosen).
double combinations(int64_t of, int64_t chosen) {
  double count = 1;
  for (int64_t i = 0; i < chosen; ++i) count *= static_cast<double>(of - i) / static_cast<double>(i + 1);
  return count;
}

// Units of a token for a part that has `own` of the experts: the chance of one where rows merge, else its choices
// there.
double units_to(const MoeSpec& moe, bool merges, int64_t own) {
  if (!merges) return static_cast<double>(moe.top_k * own) / static_cast<double>(moe.experts);
  return chance_of_any(moe, own);
}

}  // namespace

double chance_of_any(const MoeSpec& moe, int64_t own) {
  const auto all = static_cast<double>(moe.experts);
  return 1 - chance_of_others(all, all - static_cast<double>(own), moe.top_k);
}

double distinct_groups(int64_t experts, int64_t top_k, int64_t groups) {
  const auto all = static_cast<double>(experts), n = static_cast<double>(groups);
  return n * (1 - chance_of_others(all, all - all / n, top_k));
}

double distinct_nodes(const MoeSpec& moe, int64_t nodes) {
  if (moe.groups <= 1) return distinct_groups(moe.experts, moe.top_k, nodes);
  // Sums over how many of the groups that lie on a node are kept; a node may also hold a part of one.
  const auto group = static_cast<double>(moe.experts) / static_cast<double>(moe.groups);
  const double kept = group * static_cast<double>(moe.kept_groups);
  const int64_t own = std::max<int64_t>(1, moe.groups / nodes);
  const double of_each = std::min(group, static_cast<double>(moe.experts) / static_cast<double>(nodes));
  double none = 0;
  for (int64_t i = 0; i <= std::min(own, moe.kept_groups); ++i)
    if (moe.kept_groups - i <= moe.groups - own)
      none += combinations(own, i) * combinations(moe.groups - own, moe.kept_groups - i) *
              chance_of_others(kept, kept - of_each * static_cast<double>(i), moe.top_k);
  return static_cast<double>(nodes) * (1 - none / combinations(moe.groups, moe.kept_groups));
}

LinkRows rows_per_token(const MoeSpec& moe, const TransportTraits& traits, const Islands& islands) {
  const int n = islands.size();
  if (traits.slices_experts) {
    double near = 0;
    for (const std::vector<int>& members : islands.members)
      near += static_cast<double>(members.size() * (members.size() - 1)) / n;
    return {near, n - 1 - near};
  }
  const auto experts_of = [&](int member) { return moe.experts / n + (member < moe.experts % n ? 1 : 0); };
  const auto to_rank = [&](int member) { return units_to(moe, traits.merges, experts_of(member)); };
  bool equal = true;  // nodes
  for (const std::vector<int>& members : islands.members) equal &= members.size() == islands.members.front().size();
  const auto to_island = [&](int island) {
    if (traits.merges && equal && moe.groups > 1)
      return distinct_nodes(moe, islands.count()) / static_cast<double>(islands.count());
    int64_t experts = 0;
    for (const int member : islands.members[static_cast<size_t>(island)]) experts += experts_of(member);
    return units_to(moe, traits.merges, experts);
  };
  LinkRows rows;
  for (int source = 0; source < n; ++source)
    for (int island = 0; island < islands.count(); ++island) {
      const std::vector<int>& members = islands.members[static_cast<size_t>(island)];
      const bool own = islands.island_of[static_cast<size_t>(source)] == island;
      // Who sends over the links of this node; what the gateway's own experts need has arrived.
      const int sender = own ? source : traits.by_node ? islands.gateway(source, island) : -1;
      double to_others = 0;
      for (const int member : members) to_others += member == sender ? 0 : to_rank(member);
      if (own || traits.by_node) rows.near += to_others;
      if (!own) rows.far += traits.by_node ? to_island(island) : to_others;
    }
  return {rows.near / n, rows.far / n};
}

LinkRows rows_per_token(const MoeSpec& moe, const TransportTraits& traits, int64_t nodes, int64_t near) {
  const auto n = static_cast<double>(nodes), g = static_cast<double>(near), k = static_cast<double>(moe.top_k);
  const double elsewhere = (n - 1) / n, others = (g - 1) / g;
  if (traits.slices_experts) return {g - 1, (n - 1) * g};
  if (!traits.by_node) return {k * others / n, k * elsewhere};
  if (!traits.merges) return {k * others, k * elsewhere};
  return {distinct_groups(moe.experts, moe.top_k, nodes * near) * others, distinct_nodes(moe, nodes) * elsewhere};
}

double bytes_per_row(const MoeSpec& moe, const TransportTraits& traits, int64_t row_bytes, bool again) {
  const double row = static_cast<double>(row_bytes) * (again ? 5 : 4);
  const double gates = static_cast<double>(sizeof(float)) * static_cast<double>(traits.merges ? moe.top_k : 1);
  if (!traits.by_node && !traits.slices_experts) return row + 2 * gates;
  // Choices and weights go out each time, weights of halo only in the dispatch that the backward pass follows.
  const double dispatches = again ? 2 : 1;
  return row + dispatches * gates + (traits.merges ? dispatches : 1) * gates + gates;
}

}  // namespace mw
