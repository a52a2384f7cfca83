// Who sends which states to whom: every element that a rank needs comes once, from a rank that holds it.
#include "layout/state_moves.h"

#include <map>
#include <random>
#include <set>

#include "layout/helpers.h"
#include "support/random_placement.h"

namespace mw::test {
namespace {

struct Side {
  int64_t pp = 1, tp = 1, ep = 1, zero = 0;
  MoeTpMode tp_mode = MoeTpMode::ssmb;
  uint64_t seed = 0;  // of the placement; 0: blocks
};

StateMap map_of(const Side& side, int world, bool tied) {
  NativeModel native = small_native();
  native.layers = 4;
  native.tie_embeddings = tied;
  RunSpec run = small_run();
  run.train.dtype = DType::bf16;
  run.mesh.pp = side.pp;
  run.mesh.tp = side.tp;
  run.mesh.ep = side.ep;
  run.mesh.zero = side.zero;
  run.moe.tp_mode = side.tp_mode;
  const ModelSpec model = build_native_model(native);
  SharedPlacements placements;
  if (side.seed != 0) placements = random_placements(model, static_cast<int>(side.ep), side.seed);
  return StateMap(make_plan(model, run, world, 0, {}, placements));
}

using Element = std::pair<std::string, int64_t>;  // of a tensor

// The global elements of a part of a move, in the order in which they travel.
std::vector<Element> elements_of(const StateMap& map, const StateMove& move) {
  const ParamRow& row = map.rows()[move.row];
  std::vector<Element> list;
  TensorSlice part = move.to;
  for_each_shared_run(row.shape, move.from, part, [&](int64_t, int64_t b, int64_t count) {
    for (int64_t i = b; i < b + count; ++i) {
      TensorSlice one = part;
      one.first += i;
      one.size = 1;
      for_each_shared_run(row.shape, whole_tensor(row.shape), one, [&](int64_t global, int64_t, int64_t) {
        list.emplace_back(state_name(move.kind, row), global);
      });
    }
  });
  EXPECT_EQ(std::ssize(list), move.elements);
  return list;
}

std::set<Element> held_by(const StateMap& map, int rank) {
  std::set<Element> held;
  for (size_t row = 0; row < map.rows().size(); ++row)
    for (const StateKind kind : kStateKinds)
      for (const HeldSlice& slice : map.slices(kind, row, rank))
        for_each_shared_run(map.rows()[row].shape, whole_tensor(map.rows()[row].shape), slice.slice,
                            [&](int64_t global, int64_t, int64_t count) {
                              for (int64_t i = 0; i < count; ++i)
                                EXPECT_TRUE(held.emplace(state_name(kind, map.rows()[row]), global + i).second);
                            });
  return held;
}

void expect_complete(const Side& a, const Side& b, int world, bool tied) {
  const StateMap from = map_of(a, world, tied), to = map_of(b, world, tied);
  std::vector<RankMoves> moves;
  for (int rank = 0; rank < world; ++rank) moves.push_back(state_moves(from, to, rank));
  for (int rank = 0; rank < world; ++rank) {
    const auto self = static_cast<size_t>(rank);
    std::set<Element> came;
    const auto take = [&](const std::vector<StateMove>& list, const std::set<Element>& source) {
      for (const StateMove& move : list)
        for (const Element& element : elements_of(from, move)) {
          EXPECT_TRUE(came.insert(element).second) << element.first << " comes twice";
          EXPECT_EQ(source.count(element), 1u) << element.first << " comes from a rank that has none";
        }
    };
    const std::set<Element> own = held_by(from, rank);
    take(moves[self].stays, own);
    for (int peer = 0; peer < world; ++peer) {
      const std::vector<StateMove>&sent = moves[static_cast<size_t>(peer)].sends[self],
            &received = moves[self].receives[static_cast<size_t>(peer)];
      ASSERT_EQ(sent.size(), received.size());
      for (size_t i = 0; i < sent.size(); ++i) EXPECT_EQ(elements_of(from, sent[i]), elements_of(from, received[i]));
      if (!received.empty()) take(received, held_by(from, peer));
    }
    EXPECT_TRUE(moves[self].sends[self].empty() && moves[self].receives[self].empty());
    EXPECT_EQ(came, held_by(to, rank));
  }
}

TEST(StateMoves, BringEveryElementOnce) {
  expect_complete({1, 1, 2, 0, MoeTpMode::ssmb, 0}, {1, 1, 2, 0, MoeTpMode::ssmb, 3}, 4, false);
  expect_complete({1, 1, 2, 1, MoeTpMode::ssmb, 4}, {2, 1, 2, 0, MoeTpMode::ssmb, 5}, 4, true);
  expect_complete({2, 1, 1, 1, MoeTpMode::ssmb, 0}, {1, 2, 4, 1, MoeTpMode::ssmb, 6}, 4, true);
  expect_complete({1, 2, 2, 1, MoeTpMode::ted, 7}, {2, 2, 1, 0, MoeTpMode::ssmb, 0}, 4, false);
}

// Replicas share the receivers: with four holders of everything and other placements, each sends a part.
TEST(StateMoves, SpreadTheLoadOverReplicas) {
  const StateMap from = map_of({1, 1, 1, 0, MoeTpMode::ssmb, 0}, 4, false),
                 to = map_of({1, 1, 4, 1, MoeTpMode::ssmb, 0}, 4, false);
  for (int rank = 0; rank < 4; ++rank) {  // whoever holds all sends nothing
    const RankMoves moves = state_moves(from, to, rank);
    for (const std::vector<StateMove>& list : moves.sends) EXPECT_TRUE(list.empty());
  }
  const StateMap halves = map_of({1, 1, 2, 0, MoeTpMode::ssmb, 0}, 4, false),
                 swapped = map_of({1, 1, 2, 0, MoeTpMode::ssmb, 9}, 4, false);
  for (int rank = 0; rank < 4; ++rank) {  // two groups of two ranks: states travel inside each
    const RankMoves moves = state_moves(halves, swapped, rank);
    for (int peer = 0; peer < 4; ++peer)
      EXPECT_TRUE(peer / 2 == rank / 2 || moves.sends[static_cast<size_t>(peer)].empty());
  }
}

TEST(StateMoves, RefuseOtherModels) {
  const StateMap one = map_of({}, 1, false), tied = map_of({}, 1, true), two = map_of({}, 2, false);
  error_of([&] { state_moves(one, tied, 0); }, Exit::config);
  error_of([&] { state_moves(one, two, 0); }, Exit::config);
}

}  // namespace
}  // namespace mw::test
