#include "layout/state_moves.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace mw {
namespace {

// Ranks that hold the same slices of a tensor.
struct Holders {
  std::vector<TensorSlice> slices;
  std::vector<int> ranks;  // ascending
  bool has(int rank) const { return std::binary_search(ranks.begin(), ranks.end(), rank); }
};

bool is_before(const TensorSlice& a, const TensorSlice& b) {
  const auto key = [](const TensorSlice& s) { return std::tuple(s.axis, s.begin, s.count, s.first, s.size); };
  return key(a) < key(b);
}

enum class Copies : uint8_t { counted, left_out };

// All holders of a tensor, in the order of their slices.
std::vector<Holders> holders_of(const StateMap& map, StateKind kind, size_t row, Copies copies) {
  std::vector<Holders> each;
  for (int rank = 0; rank < map.ranks(); ++rank) {
    if (copies == Copies::left_out && map.is_copy(row, rank)) continue;
    Holders one{{}, {rank}};
    for (const HeldSlice& held : map.slices(kind, row, rank)) one.slices.push_back(held.slice);
    if (!one.slices.empty()) each.push_back(std::move(one));
  }
  std::stable_sort(each.begin(), each.end(), [](const Holders& a, const Holders& b) {
    return std::lexicographical_compare(a.slices.begin(), a.slices.end(), b.slices.begin(), b.slices.end(), is_before);
  });
  std::vector<Holders> groups;
  for (Holders& one : each) {
    if (!groups.empty() && groups.back().slices == one.slices) groups.back().ranks.push_back(one.ranks.front());
    else groups.push_back(std::move(one));
  }
  return groups;
}

// The holder that serves receiver i of n.
int sender_of(const std::vector<int>& holders, size_t i, size_t n, size_t turn) {
  const size_t begin = i * holders.size() / n, end = (i + 1) * holders.size() / n;
  return holders[begin + (end > begin ? turn % (end - begin) : 0)];
}

class MoveList {
 public:
  MoveList(const StateMap& from, const StateMap& to, int rank) : from_(from), to_(to), rank_(rank) {
    const auto peers = static_cast<size_t>(from.ranks());
    moves_.sends.resize(peers);
    moves_.receives.resize(peers);
  }
  void add(StateKind kind, size_t row) {
    const std::vector<Holders> holders = holders_of(from_, kind, row, Copies::left_out),
                               receivers = holders_of(to_, kind, row, Copies::counted);
    const auto mine =
        std::find_if(receivers.begin(), receivers.end(), [&](const Holders& to) { return to.has(rank_); });
    for (const Holders& from : holders) {
      if (from.has(rank_))
        for (const Holders& to : receivers) add(kind, row, from, to);
      else if (mine != receivers.end()) add(kind, row, from, *mine);
    }
  }
  RankMoves take() { return std::move(moves_); }

 private:
  void add(StateKind kind, size_t row, const Holders& from, const Holders& to) {
    const std::vector<StateMove> shared = shared_parts(kind, row, from, to);
    if (shared.empty()) return;
    const auto append = [&](std::vector<StateMove>& list) { list.insert(list.end(), shared.begin(), shared.end()); };
    if (from.has(rank_) && to.has(rank_)) append(moves_.stays);
    std::vector<int> strangers;  // receivers that do not hold these elements
    std::set_difference(to.ranks.begin(), to.ranks.end(), from.ranks.begin(), from.ranks.end(),
                        std::back_inserter(strangers));
    for (size_t i = 0; i < strangers.size(); ++i) {
      const int sender =
          sender_of(from.ranks, i, strangers.size(), kStateKinds.size() * row + static_cast<size_t>(kind));
      if (sender == rank_) append(moves_.sends[static_cast<size_t>(strangers[i])]);
      if (strangers[i] == rank_) append(moves_.receives[static_cast<size_t>(sender)]);
    }
  }

  std::vector<StateMove> shared_parts(StateKind kind, size_t row, const Holders& from, const Holders& to) const {
    std::vector<StateMove> shared;
    for (size_t a = 0; a < from.slices.size(); ++a)
      for (size_t b = 0; b < to.slices.size(); ++b) {
        StateMove move{kind, row, a, b, from.slices[a], to.slices[b], 0};
        for_each_shared_run(from_.rows()[row].shape, move.from, move.to,
                            [&](int64_t, int64_t, int64_t count) { move.elements += count; });
        if (move.elements > 0) shared.push_back(move);
      }
    return shared;
  }

  const StateMap &from_, &to_;
  int rank_;
  RankMoves moves_;
};

void check_same_model(const StateMap& from, const StateMap& to) {
  constexpr const char* kCure = "build both plans from the same model";
  if (from.ranks() != to.ranks())
    fail(Exit::config, fmt::format("states cannot be moved from {} ranks to {}", from.ranks(), to.ranks()),
         "build both plans for the same ranks, or save a checkpoint and load it");
  if (from.rows().size() != to.rows().size())
    fail(
        Exit::config,
        fmt::format("states of {} parameters cannot be moved to a model with {}", from.rows().size(), to.rows().size()),
        kCure);
  for (size_t i = 0; i < from.rows().size(); ++i) {
    const ParamRow &a = from.rows()[i], &b = to.rows()[i];
    if (a.name != b.name || a.shape != b.shape || a.trained != b.trained)
      fail(Exit::config,
           fmt::format("states of {} {} cannot be moved to {} {}", a.name, format_shape(a.shape), b.name,
                       format_shape(b.shape)),
           kCure);
  }
}

}  // namespace

RankMoves state_moves(const StateMap& from, const StateMap& to, int rank) {
  std::vector<size_t> rows(from.rows().size());
  std::iota(rows.begin(), rows.end(), size_t{0});
  return state_moves(from, to, rank, rows);
}

RankMoves state_moves(const StateMap& from, const StateMap& to, int rank, std::span<const size_t> rows) {
  check_same_model(from, to);
  MoveList list(from, to, rank);
  for (const size_t row : rows)
    for (const StateKind kind : kStateKinds) list.add(kind, row);
  return list.take();
}

}  // namespace mw
