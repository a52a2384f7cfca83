#include "layout/row_split.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace mw {
namespace {

size_t rank_of(const ExpertHome& home) { return static_cast<size_t>(home.ep_rank); }

// Pours the rows of one expert over its copies, to the least level of time. load: of ranks, without these rows.
void level(const std::vector<ExpertHome>& homes, int64_t rows, std::span<const int64_t> load,
           std::span<const int64_t> speeds, std::vector<int64_t>& quotas) {
  const auto load_of = [&](size_t i) { return load[rank_of(homes[i])]; };
  const auto speed_of = [&](size_t i) { return speeds[rank_of(homes[i])]; };
  std::vector<size_t> order(homes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return load_of(a) * speed_of(b) < load_of(b) * speed_of(a); });
  // The level is sum / speed over the ranks that lie below it.
  int64_t sum = rows, speed = 0;
  size_t used = 0;
  for (; used < order.size(); ++used) {
    if (used > 0 && load_of(order[used]) * speed >= sum * speed_of(order[used])) break;
    sum += load_of(order[used]);
    speed += speed_of(order[used]);
  }
  std::fill(quotas.begin(), quotas.end(), 0);
  int64_t left = rows;
  for (size_t i = 0; i < used; ++i) {
    quotas[order[i]] = sum * speed_of(order[i]) / speed - load_of(order[i]);
    left -= quotas[order[i]];
  }
  for (size_t i = 0; left > 0; ++i, --left) ++quotas[order[i]];
}

}  // namespace

RowQuotas split_rows_evenly(const ExpertPlacement& placement, std::span<const int64_t> rows) {
  MW_CHECK(std::ssize(rows) == placement.experts(), "rows of {} experts in a placement of {}", rows.size(),
           placement.experts());
  RowQuotas quotas(rows.size());
  for (size_t e = 0; e < rows.size(); ++e) {
    const auto copies = std::ssize(placement.homes[e]);
    for (int64_t i = 0; i < copies; ++i) quotas[e].push_back(rows[e] / copies + (i < rows[e] % copies ? 1 : 0));
  }
  return quotas;
}

RowQuotas split_rows(const ExpertPlacement& placement, std::span<const int64_t> rows, std::span<const int64_t> speeds) {
  MW_CHECK(std::ssize(speeds) == placement.ep, "speeds of {} ranks, the placement has {}", speeds.size(), placement.ep);
  RowQuotas quotas = split_rows_evenly(placement, rows);
  std::vector<int64_t> load = rows_of_ranks(placement, quotas);
  std::vector<size_t> many;
  for (size_t e = 0; e < rows.size(); ++e)
    if (placement.homes[e].size() > 1) many.push_back(e);
  std::stable_sort(many.begin(), many.end(), [&](size_t a, size_t b) { return rows[a] > rows[b]; });
  constexpr int kPasses = 3;
  for (int pass = 0; pass < kPasses; ++pass)
    for (const size_t e : many) {
      const std::vector<ExpertHome>& homes = placement.homes[e];
      for (size_t i = 0; i < homes.size(); ++i) load[rank_of(homes[i])] -= quotas[e][i];
      level(homes, rows[e], load, speeds, quotas[e]);
      for (size_t i = 0; i < homes.size(); ++i) load[rank_of(homes[i])] += quotas[e][i];
    }
  return quotas;
}

std::vector<int64_t> rows_of_ranks(const ExpertPlacement& placement, const RowQuotas& quotas) {
  std::vector<int64_t> rows(static_cast<size_t>(placement.ep));
  for (size_t e = 0; e < quotas.size(); ++e)
    for (size_t i = 0; i < quotas[e].size(); ++i) rows[rank_of(placement.homes[e][i])] += quotas[e][i];
  return rows;
}

double imbalance_of(std::span<const int64_t> rows_of_ranks, std::span<const int64_t> speeds) {
  MW_CHECK(rows_of_ranks.size() == speeds.size(), "rows of {} ranks, speeds of {}", rows_of_ranks.size(),
           speeds.size());
  double most = 0, all = 0, speed = 0;
  for (size_t rank = 0; rank < speeds.size(); ++rank) {
    most = std::max(most, static_cast<double>(rows_of_ranks[rank]) / static_cast<double>(speeds[rank]));
    all += static_cast<double>(rows_of_ranks[rank]);
    speed += static_cast<double>(speeds[rank]);
  }
  return all == 0 ? 1 : most * speed / all;
}

}  // namespace mw
