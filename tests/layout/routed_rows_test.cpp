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

// The member that holds an expert, where members hold so many consecutive ones.
int member_of(int64_t expert, const std::vector<int64_t>& held) {
  int member = 0;
  for (; expert >= held[static_cast<size_t>(member)]; ++member) expert -= held[static_cast<size_t>(member)];
  return member;
}

// Of one member, from the definition: members and islands that a token's experts lie on, or choices where not merged.
Counts count(const Islands& islands, const std::vector<int64_t>& held, int own, bool merges) {
  const int island = islands.island_of[static_cast<size_t>(own)];
  Counts c;
  for (int source = 0; source < islands.size(); ++source) {
    const bool near = islands.is_near(source, own), is_gateway = !near && islands.gateway(source, island) == own;
    for (int64_t t = 0; t < kTokens; ++t) {
      std::multiset<int> members, here, others;
      for (const int64_t e : draw(source, t)) {
        const int member = member_of(e, held);
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
  // The node of each member, and how many experts it holds; none: equally many.
  struct Group {
    std::vector<int> nodes;
    std::vector<int64_t> held = {};
  };
  for (Group group : std::vector<Group>{{{0, 0, 0, 0, 0, 0, 0, 0, 1}},
                                        {{0, 0, 1, 1, 1, 1}},
                                        {{0, 0, 0, 1, 1, 1, 2, 2, 2}},
                                        {{0, 1, 1, 0}},
                                        {{0, 0, 0}},
                                        {{0, 0, 1, 1}, {3, 15, 3, 15}},
                                        {{0, 0, 1, 1, 1}, {14, 2, 2, 16, 2}}}) {
    const auto n = std::ssize(group.nodes);
    const bool equal = group.held.empty();
    if (equal) group.held.assign(group.nodes.size(), kExperts / n);
    std::vector<int> ranks(group.nodes.size());
    for (size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int>(i);
    const Islands islands = make_islands(ranks, {0, group.nodes});
    const auto held_by = [&](const std::vector<int>& members) {
      int64_t experts = 0;
      for (const int member : members) experts += group.held[static_cast<size_t>(member)];
      return experts;
    };
    for (const bool merges : {false, true})
      for (int own = 0; own < islands.size(); ++own) {
        const NodesSeen seen = nodes_seen(islands, own);
        std::vector<int64_t> others;
        for (const std::vector<int>& members : seen.others) others.push_back(held_by(members));
        const RoutedShape shape = {moe,
                                   run,
                                   kTokens,
                                   kTokens,
                                   n * kTokens,
                                   n,
                                   group.held[static_cast<size_t>(own)],
                                   std::ssize(seen.near),
                                   held_by(seen.near),
                                   others,
                                   seen.sources};
        const Counts drawn = count(islands, group.held, own, merges);
        // Merged means take the ranks of a node as alike.
        const auto expect = [&](const RoutedRows& rows, double count, const char* name, bool alike = false) {
          EXPECT_NEAR(static_cast<double>(rows.mean), count, (alike && !equal ? 0.4 : 0.1) * count + 1)
              << name << " of " << own << " of " << n;
          EXPECT_GE(static_cast<double>(rows.max), count) << name << " of " << own << " of " << n;
        };
        if (merges) expect(merged_send_rows(shape), drawn.sent, "sent", true);
        expect(unit_rows(shape, merges), drawn.units, "units");
        expect(pilot_rows(shape, merges), drawn.pilots, "pilots");
        expect(spread_rows(shape, merges), drawn.spread, "spread", merges);
      }
  }
}

}  // namespace
}  // namespace mw
