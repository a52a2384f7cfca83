// What the byte table reserves for rows by way of the node, against choices that are drawn.
#include "layout/routed_rows.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "layout/islands.h"

namespace mw {
namespace {

constexpr int64_t kTokens = 400, kExperts = 36, kTopK = 4;

// Experts of each token of a member, all different.
std::set<int64_t> draw(int member, int64_t token) {
  std::mt19937_64 random(static_cast<uint64_t>(member * kTokens + token));
  std::set<int64_t> experts;
  while (std::ssize(experts) < kTopK) experts.insert(static_cast<int64_t>(random() % kExperts));
  return experts;
}

struct Counts {
  double sent = 0, units = 0, pilots = 0, spread = 0;
};

// Of one member, from the definition: members and islands that a token's experts lie on, or choices where not merged.
Counts count(const Islands& islands, int own, bool merges) {
  const int64_t each = kExperts / islands.size();
  const int island = islands.island_of[static_cast<size_t>(own)];
  Counts c;
  for (int source = 0; source < islands.size(); ++source) {
    const bool near = islands.is_near(source, own), is_gateway = !near && islands.gateway(source, island) == own;
    for (int64_t t = 0; t < kTokens; ++t) {
      std::multiset<int> members, here, others;
      for (const int64_t e : draw(source, t)) {
        const auto member = static_cast<int>(e / each);
        members.insert(member);
        const int of = islands.island_of[static_cast<size_t>(member)];
        (of == island ? here : others).insert(of == island ? member : of);
      }
      const auto size = [&](const std::multiset<int>& all) {
        return static_cast<double>(merges ? std::set<int>(all.begin(), all.end()).size() : all.size());
      };
      if (source == own) c.sent += size(here) + size(others);
      c.units += static_cast<double>(merges ? std::min<size_t>(members.count(own), 1) : members.count(own));
      if (is_gateway) c.pilots += merges ? static_cast<double>(!here.empty()) : size(here), c.spread += size(here);
    }
  }
  return c;
}

TEST(RoutedRows, ByNodeAreThoseOfDrawnChoices) {
  MoeSpec moe;
  moe.experts = kExperts;
  moe.top_k = kTopK;
  RunSpec run;
  run.moe.row_headroom = 1;
  for (const std::vector<int>& nodes : std::vector<std::vector<int>>{
           {0, 0, 0, 0, 0, 0, 0, 0, 1}, {0, 0, 1, 1, 1, 1}, {0, 0, 0, 1, 1, 1, 2, 2, 2}, {0, 1, 1, 0}, {0, 0, 0}}) {
    std::vector<int> ranks(nodes.size());
    for (size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int>(i);
    const Islands islands = make_islands(ranks, {0, nodes});
    for (const bool merges : {false, true})
      for (int own = 0; own < islands.size(); ++own) {
        const NodesSeen seen = nodes_seen(islands, own);
        const int64_t n = islands.size();
        const RoutedShape shape = {moe, run,          kTokens,   kTokens,     n * kTokens,
                                   n,   kExperts / n, seen.near, seen.others, seen.sources};
        const Counts drawn = count(islands, own, merges);
        const auto expect = [&](const RoutedRows& rows, double count, const char* name) {
          EXPECT_NEAR(static_cast<double>(rows.mean), count, 0.1 * count + 1) << name << " of " << own << " of " << n;
          EXPECT_GE(static_cast<double>(rows.max), count) << name << " of " << own << " of " << n;
        };
        if (merges) expect(merged_send_rows(shape), drawn.sent, "sent");
        expect(unit_rows(shape, merges), drawn.units, "units");
        expect(pilot_rows(shape, merges), drawn.pilots, "pilots");
        expect(spread_rows(shape, merges), drawn.spread, "spread");
      }
  }
}

}  // namespace
}  // namespace mw
