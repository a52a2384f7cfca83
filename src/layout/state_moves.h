// Who sends which states to whom when a run changes from one layout or placement to another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "layout/state_map.h"

namespace mw {

// Elements that a slice of the sender and a slice of the receiver share.
struct StateMove {
  StateKind kind = StateKind::param;
  size_t row = 0;                       // of StateMap::rows
  size_t from_index = 0, to_index = 0;  // of the slices in StateMap::slices of sender and receiver
  TensorSlice from, to;
  int64_t elements = 0;
};

// The moves of one rank, by peer, in the same order on both sides of a pair.
struct RankMoves {
  std::vector<std::vector<StateMove>> sends, receives;  // none to or from the rank itself
  std::vector<StateMove> stays;                         // from the rank to itself
};

// Every element that `to` assigns to a rank comes to it exactly once: from the rank itself where it holds the element,
// otherwise from one of the ranks that hold it. Ranks that hold the same slices of a tensor share its receivers in the
// order of ranks, so that loads are even and neighbours in rank serve each other; where there are more holders than
// receivers, they take turns from tensor to tensor. Both maps are of the same model and number of ranks. Pure. Time:
// O(ranks log ranks) per tensor. Errors: config, when models or numbers of ranks differ.
RankMoves state_moves(const StateMap& from, const StateMap& to, int rank);
// Those of some rows of the model alone.
RankMoves state_moves(const StateMap& from, const StateMap& to, int rank, std::span<const size_t> rows);

}  // namespace mw
