#include "layout/balance.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "layout/row_split.h"
#include "layout/swap_search.h"

namespace mw {
namespace {

ExpertLists lists_of(const ExpertPlacement& placement) {
  ExpertLists lists(index_of(placement.ep));
  for (int rank = 0; rank < placement.ep; ++rank) lists[index_of(rank)] = placement.copies_of(rank);
  return lists;
}

// Which node owns each expert, once owners were exchanged between nodes as if these were ranks.
std::vector<int> balanced_nodes(const ExpertPlacement& now, const std::vector<double>& rows, const BalanceRanks& ranks,
                                const BalanceStop& stop) {
  const auto nodes = static_cast<size_t>((now.ep + ranks.per_node - 1) / ranks.per_node);
  ExpertLists owned(nodes);
  for (size_t e = 0; e < now.homes.size(); ++e)
    owned[index_of(now.homes[e].front().ep_rank / ranks.per_node)].push_back(static_cast<int>(e));
  SearchRanks as_ranks{std::vector<double>(nodes), {}, 0};
  for (size_t g = 0; g < ranks.speeds.size(); ++g)
    as_ranks.speeds[g / index_of(ranks.per_node)] += static_cast<double>(ranks.speeds[g]);
  for (const std::vector<int>& list : owned) as_ranks.slots.push_back(static_cast<int>(list.size()));
  owned = swap_search(std::move(owned), rows, std::move(as_ranks), stop);
  std::vector<int> node_of(rows.size());
  for (size_t node = 0; node < nodes; ++node)
    for (const int e : owned[node]) node_of[index_of(e)] = static_cast<int>(node);
  return node_of;
}

// The search inside each node, of the experts that it owns.
ExpertLists balance_nodes(const ExpertLists& lists, const std::vector<double>& rows, const std::vector<int>& node_of,
                          const BalanceRanks& ranks, const BalanceStop& stop) {
  ExpertLists out;
  const auto per_node = index_of(ranks.per_node);
  for (size_t first = 0; first < lists.size(); first += per_node) {
    const size_t end = std::min(first + per_node, lists.size());
    std::vector<int> experts, local(rows.size(), -1);  // by local number; by expert
    std::vector<double> own_rows;
    for (size_t e = 0; e < rows.size(); ++e) {
      if (index_of(node_of[e]) != first / per_node) continue;
      local[e] = static_cast<int>(experts.size());
      experts.push_back(static_cast<int>(e));
      own_rows.push_back(rows[e]);
    }
    ExpertLists own(end - first);
    SearchRanks as_ranks;
    int slots = 0;
    for (size_t g = first; g < end; ++g) {
      for (const int e : lists[g])
        if (local[index_of(e)] >= 0) own[g - first].push_back(local[index_of(e)]);
      as_ranks.speeds.push_back(static_cast<double>(ranks.speeds[g]));
      as_ranks.slots.push_back(ranks.slots[g]);
      slots += ranks.slots[g];
    }
    as_ranks.replicas = ranks.replicas == 0 ? 0 : slots - static_cast<int>(experts.size());
    for (std::vector<int>& list : swap_search(std::move(own), std::move(own_rows), std::move(as_ranks), stop)) {
      for (int& e : list) e = experts[index_of(e)];
      out.push_back(std::move(list));
    }
  }
  return out;
}

// Who is the home of each expert. Where every rank must stay the home of as many experts as now, lists of copies may
// allow that only with other replicas.
class Homes {
 public:
  Homes(ExpertLists& lists, const ExpertPlacement& now, const std::vector<double>& rows)
      : lists_(lists), rows_(rows), home_(rows.size(), -1), ranks_of_(rows.size()), homes_of_(lists.size()) {
    for (size_t g = 0; g < lists.size(); ++g)
      for (const int e : lists[g]) {
        ranks_of_[index_of(e)].push_back(static_cast<int>(g));
        if (now.homes[index_of(e)].front().ep_rank == static_cast<int>(g)) settle(e, g);
      }
  }

  // Homes stay where a copy stays; a new home is the copy whose rank takes over fewest others.
  std::vector<int> freely() {
    std::vector<int> taken(lists_.size());
    for (size_t e = 0; e < rows_.size(); ++e) {
      if (home_[e] >= 0) continue;
      const int best = *std::min_element(ranks_of_[e].begin(), ranks_of_[e].end(),
                                         [&](int a, int b) { return taken[index_of(a)] < taken[index_of(b)]; });
      ++taken[index_of(best)];
      settle(static_cast<int>(e), index_of(best));
    }
    return home_;
  }

  // counts: by rank, the number of its homes. Takes a rank without a copy where the ranks with one have no place.
  std::vector<int> with_counts(const std::vector<int>& counts, const std::vector<int>& slots) {
    counts_ = counts;
    for (size_t e = 0; e < rows_.size(); ++e) {
      std::vector<char> asked(lists_.size());
      if (home_[e] < 0 && !find_home(static_cast<int>(e), asked)) unsettled_.push_back(static_cast<int>(e));
    }
    for (const int e : unsettled_) {
      size_t g = 0;
      while (!has_place(g)) ++g;
      if (std::ssize(lists_[g]) == slots[g]) drop_replica(g);
      lists_[g].push_back(e);
      settle(e, g);
    }
    return home_;
  }

 private:
  bool has_place(size_t g) const { return std::ssize(homes_of_[g]) < counts_[g]; }
  void settle(int e, size_t g) {
    home_[index_of(e)] = static_cast<int>(g);
    homes_of_[g].push_back(e);
  }

  // An augmenting path: experts on the way take a home on another of their ranks.
  bool find_home(int e, std::vector<char>& asked) {
    for (const int rank : ranks_of_[index_of(e)])
      if (has_place(index_of(rank))) return settle(e, index_of(rank)), true;
    for (const int rank : ranks_of_[index_of(e)]) {
      const size_t g = index_of(rank);
      if (asked[g] != 0) continue;
      asked[g] = 1;
      for (const int other : std::vector<int>(homes_of_[g])) {
        if (!find_home(other, asked)) continue;
        std::erase(homes_of_[g], other);
        settle(e, g);
        return true;
      }
    }
    return false;
  }

  // Of the expert with fewest rows.
  void drop_replica(size_t g) {
    auto least = lists_[g].end();
    for (auto e = lists_[g].begin(); e != lists_[g].end(); ++e)
      if (home_[index_of(*e)] != static_cast<int>(g) &&
          (least == lists_[g].end() || rows_[index_of(*e)] < rows_[index_of(*least)]))
        least = e;
    lists_[g].erase(least);
  }

  ExpertLists& lists_;
  const std::vector<double>& rows_;
  std::vector<int> home_, counts_, unsettled_;
  ExpertLists ranks_of_;  // by expert: its ranks in `lists`, as the search left them
  ExpertLists homes_of_;  // by rank
};

// Slots [first, first + experts) of a rank: experts that were in them before stay in their slots.
void add_copies(std::vector<std::vector<ExpertHome>>& homes, size_t rank, const std::vector<int>& experts,
                const std::vector<int>& before, size_t first) {
  std::vector<int> slots(experts.size(), -1), arrivals;  // expert by slot
  for (const int e : experts) {
    const auto at = static_cast<size_t>(std::find(before.begin(), before.end(), e) - before.begin());
    if (at < before.size() && at < slots.size()) slots[at] = e;
    else arrivals.push_back(e);
  }
  auto next = arrivals.begin();
  for (size_t slot = 0; slot < slots.size(); ++slot)
    homes[index_of(slots[slot] >= 0 ? slots[slot] : *next++)].push_back(
        {static_cast<int>(rank), static_cast<int>(first + slot)});
}

std::vector<std::vector<ExpertHome>> copies_of(const ExpertLists& lists, const std::vector<int>& home,
                                               const ExpertPlacement& now) {
  ExpertLists owned(lists.size()), replicas(lists.size());
  for (size_t g = 0; g < lists.size(); ++g)
    for (const int e : lists[g]) (home[index_of(e)] == static_cast<int>(g) ? owned : replicas)[g].push_back(e);
  std::vector<std::vector<ExpertHome>> homes(home.size());
  for (size_t g = 0; g < lists.size(); ++g) add_copies(homes, g, owned[g], now.experts_of(static_cast<int>(g)), 0);
  for (size_t g = 0; g < lists.size(); ++g)
    add_copies(homes, g, replicas[g], now.replicas_of(static_cast<int>(g)), owned[g].size());
  return homes;
}

}  // namespace

BalanceRanks even_ranks(const ExpertPlacement& placement, int replica_slots) {
  BalanceRanks ranks;
  ranks.speeds.assign(index_of(placement.ep), 1);
  ranks.slots.assign(index_of(placement.ep), replica_slots);
  for (const std::vector<ExpertHome>& homes : placement.homes) ++ranks.slots[index_of(homes.front().ep_rank)];
  ranks.replicas = replica_slots * placement.ep;
  if (replica_slots > 0)
    for (const int slots : ranks.slots) ranks.homes.push_back(slots - replica_slots);
  return ranks;
}

ExpertPlacement balance_experts(const ExpertPlacement& now, std::span<const int64_t> rows, const BalanceRanks& ranks,
                                const BalanceStop& stop) {
  const int64_t slots = std::accumulate(ranks.slots.begin(), ranks.slots.end(), int64_t{0});
  MW_CHECK(!now.is_sliced() && std::ssize(rows) == now.experts() && std::ssize(ranks.speeds) == now.ep &&
               std::ssize(ranks.slots) == now.ep && slots >= now.experts() + ranks.replicas,
           "rows of {} experts and {} slots of {} ranks for a placement of {} experts on {}", rows.size(), slots,
           ranks.slots.size(), now.experts(), now.ep);
  const std::vector<double> loads(rows.begin(), rows.end());
  ExpertLists lists = lists_of(now);
  if (ranks.per_node > 0 && ranks.per_node < now.ep) {
    lists = balance_nodes(lists, loads, balanced_nodes(now, loads, ranks, stop), ranks, stop);
  } else {
    const std::vector<double> speeds(ranks.speeds.begin(), ranks.speeds.end());
    lists = swap_search(std::move(lists), loads, {speeds, ranks.slots, ranks.replicas}, stop);
  }
  ExpertPlacement next;
  next.ep = now.ep;
  Homes homes(lists, now, loads);
  const std::vector<int> home = ranks.homes.empty() ? homes.freely() : homes.with_counts(ranks.homes, ranks.slots);
  next.homes = copies_of(lists, home, now);
  return next;
}

PlacementChange change_between(const ExpertPlacement& from, const ExpertPlacement& to) {
  PlacementChange change;
  change.copies_to.resize(index_of(to.ep));
  change.owners_to.resize(index_of(to.ep));
  const auto holds = [](const std::vector<ExpertHome>& homes, int rank) {
    return std::any_of(homes.begin(), homes.end(), [&](const ExpertHome& home) { return home.ep_rank == rank; });
  };
  for (size_t e = 0; e < to.homes.size(); ++e) {
    const int owner = to.homes[e].front().ep_rank;
    for (const ExpertHome& home : to.homes[e]) {
      const bool copy_arrives = !holds(from.homes[e], home.ep_rank),
                 owner_arrives = home.ep_rank == owner && owner != from.homes[e].front().ep_rank;
      change.copies_to[index_of(home.ep_rank)] += copy_arrives;
      change.owners_to[index_of(home.ep_rank)] += owner_arrives;
      change.moves += copy_arrives || owner_arrives;
    }
  }
  const auto most_replicas = [](const ExpertPlacement& placement) {
    std::vector<int64_t> replicas(index_of(placement.ep));
    for (const std::vector<ExpertHome>& homes : placement.homes)
      for (size_t i = 1; i < homes.size(); ++i) ++replicas[index_of(homes[i].ep_rank)];
    return *std::max_element(replicas.begin(), replicas.end());
  };
  change.most_replicas_before = most_replicas(from);
  change.most_replicas = most_replicas(to);
  return change;
}

double seconds_saved_per_step(const ExpertPlacement& from, const ExpertPlacement& to, std::span<const int64_t> rows,
                              std::span<const int64_t> speeds, const BalanceCosts& costs) {
  const auto imbalance = [&](const ExpertPlacement& placement) {
    return imbalance_of(rows_of_ranks(placement, split_rows(placement, rows, speeds)), speeds);
  };
  const PlacementChange change = change_between(from, to);
  return (imbalance(from) - imbalance(to)) * costs.expert_seconds -
         static_cast<double>(change.most_replicas - change.most_replicas_before) * costs.replica_seconds;
}

double seconds_saved(const ExpertPlacement& from, const ExpertPlacement& to, std::span<const int64_t> rows,
                     std::span<const int64_t> speeds, const BalanceCosts& costs) {
  const PlacementChange change = change_between(from, to);
  double most = 0;
  for (size_t g = 0; g < change.copies_to.size(); ++g)
    most = std::max(most, static_cast<double>(change.copies_to[g]) * costs.weight_bytes +
                              static_cast<double>(change.owners_to[g]) * costs.state_bytes);
  return seconds_saved_per_step(from, to, rows, speeds, costs) * static_cast<double>(costs.horizon) -
         most / costs.bytes_per_second;
}

ExpertPlacement best_placement(const ExpertPlacement& now, std::span<const int64_t> rows,
                               const std::vector<int64_t>& speeds, int replica_slots, const BalanceCosts& costs) {
  ExpertPlacement best = now;
  double most = 0;
  for (int slots = 0; slots <= replica_slots; ++slots) {
    BalanceRanks ranks = even_ranks(now, slots);
    ranks.speeds = speeds;
    ExpertPlacement next = balance_experts(now, rows, ranks);
    const double saved = seconds_saved(now, next, rows, speeds, costs);
    if (saved <= most) continue;
    most = saved;
    best = std::move(next);
  }
  return best;
}

}  // namespace mw
