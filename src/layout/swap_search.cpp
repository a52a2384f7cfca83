#include "layout/swap_search.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace mw {
namespace {

class Search {
 public:
  Search(ExpertLists lists, std::vector<double> rows, SearchRanks ranks, const BalanceStop& stop)
      : lists_(std::move(lists)),
        rows_(std::move(rows)),
        ranks_(std::move(ranks)),
        stop_(stop),
        holds_(lists_.size() * rows_.size()),
        homes_(rows_.size()),
        times_(lists_.size()) {
    for (size_t g = 0; g < lists_.size(); ++g)
      for (const int e : lists_[g]) {
        homes_[index_of(e)].push_back(static_cast<int>(g));
        holds(e, g) = 1;
      }
  }

  ExpertLists run() {
    count_copies();
    for (size_t g = 0; g < lists_.size(); ++g)
      for (const int e : lists_[g]) times_[g] += shares_[index_of(e)] / ranks_.speeds[g];
    drop_surplus();
    add_missing();
    exchange();
    return std::move(lists_);
  }

 private:
  char& holds(int e, size_t g) { return holds_[g * rows_.size() + index_of(e)]; }
  bool has_room(size_t g) const { return std::ssize(lists_[g]) < ranks_.slots[g]; }

  void put(int e, size_t g) {
    lists_[g].push_back(e);
    holds(e, g) = 1;
    times_[g] += shares_[index_of(e)] / ranks_.speeds[g];
  }
  void take(int e, size_t g) {
    lists_[g].erase(std::find(lists_[g].begin(), lists_[g].end(), e));
    holds(e, g) = 0;
    times_[g] -= shares_[index_of(e)] / ranks_.speeds[g];
  }

  void count_copies() {
    copies_.assign(rows_.size(), 1);
    for (int i = 0; i < ranks_.replicas; ++i) {
      constexpr double kKeep = 1.1;  // an existing copy counts so much more
      size_t best = 0;
      double most = -1;
      for (size_t e = 0; e < rows_.size(); ++e) {
        if (copies_[e] == std::ssize(lists_)) continue;
        const double key = rows_[e] / copies_[e] * (std::ssize(homes_[e]) > copies_[e] ? kKeep : 1);
        if (key > most) best = e, most = key;
      }
      if (most < 0) break;  // every rank has every expert
      ++copies_[best];
    }
    shares_.resize(rows_.size());
    for (size_t e = 0; e < rows_.size(); ++e) shares_[e] = rows_[e] / copies_[e];
  }

  // From the slowest ranks; then what is beyond a rank's slots.
  void drop_surplus() {
    for (size_t e = 0; e < rows_.size(); ++e) {
      std::vector<int>& homes = homes_[e];
      std::stable_sort(homes.begin(), homes.end(),
                       [&](int a, int b) { return times_[index_of(a)] < times_[index_of(b)]; });
      for (; std::ssize(homes) > copies_[e]; homes.pop_back()) take(static_cast<int>(e), index_of(homes.back()));
    }
    for (size_t g = 0; g < lists_.size(); ++g)
      while (std::ssize(lists_[g]) > ranks_.slots[g]) {
        const int e = *std::min_element(lists_[g].begin(), lists_[g].end(),
                                        [&](int a, int b) { return shares_[index_of(a)] < shares_[index_of(b)]; });
        take(e, g);
        std::erase(homes_[index_of(e)], static_cast<int>(g));
      }
  }

  void add_missing() {
    std::vector<int> order(rows_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return shares_[index_of(a)] > shares_[index_of(b)]; });
    for (const int e : order)
      while (std::ssize(homes_[index_of(e)]) < copies_[index_of(e)]) {
        const size_t g = room_for(e);
        put(e, g);
        homes_[index_of(e)].push_back(static_cast<int>(g));
      }
  }

  // The rank that needs least time with this expert. Where only ranks that hold it have room, another expert moves to
  // such a rank from one that does not.
  size_t room_for(int e) {
    const size_t none = lists_.size();
    size_t best = none;
    for (size_t g = 0; g < lists_.size(); ++g) {
      const auto time = [&](size_t rank) { return times_[rank] + shares_[index_of(e)] / ranks_.speeds[rank]; };
      if (has_room(g) && holds(e, g) == 0 && (best == none || time(g) < time(best))) best = g;
    }
    if (best != none) return best;
    int moves = -1;
    size_t to = none;
    for (size_t g = 0; g < lists_.size(); ++g) {
      if (holds(e, g) != 0 || (best != none && times_[g] >= times_[best])) continue;
      for (size_t h = 0; h < lists_.size(); ++h) {
        if (!has_room(h)) continue;
        int least = -1;
        for (const int x : lists_[g])
          if (holds(x, h) == 0 && (least < 0 || shares_[index_of(x)] < shares_[index_of(least)])) least = x;
        if (least < 0) continue;
        best = g, to = h, moves = least;
        break;
      }
    }
    MW_CHECK(moves >= 0, "no slot for a copy of expert {}", e);
    take(moves, best);
    put(moves, to);
    std::replace(homes_[index_of(moves)].begin(), homes_[index_of(moves)].end(), static_cast<int>(best),
                 static_cast<int>(to));
    return best;
  }

  struct Exchange {
    double time = 0;  // of the slower of the two ranks, afterwards
    size_t with = 0;
    int gives = -1, gets = -1;  // gets -1: a free slot
  };

  // The best of the slowest rank. Below the common level of both ranks no exchange can bring them: ranks whose level is
  // not below the best so far are passed over.
  Exchange best_exchange(size_t slowest) {
    std::vector<int> mine = lists_[slowest];
    std::stable_sort(mine.begin(), mine.end(),
                     [&](int a, int b) { return shares_[index_of(a)] < shares_[index_of(b)]; });
    std::vector<double> keys;
    for (const int e : mine) keys.push_back(shares_[index_of(e)]);
    const double time = times_[slowest], speed = ranks_.speeds[slowest];
    Exchange best;
    const auto consider = [&](size_t g, int b, double share) {
      const double ideal = (time - times_[g]) / (1 / speed + 1 / ranks_.speeds[g]);
      const auto above = std::lower_bound(keys.begin(), keys.end(), share + ideal) - keys.begin();
      for (auto i = std::max<ptrdiff_t>(0, above - 1); i < std::min(above + 1, std::ssize(keys)); ++i) {
        const int a = mine[static_cast<size_t>(i)];
        const double moved = keys[static_cast<size_t>(i)] - share;
        if (moved <= 0 || holds(a, g) != 0) continue;
        const double slower = std::max(time - moved / speed, times_[g] + moved / ranks_.speeds[g]);
        constexpr double kTie = 1e-12;
        if (best.gives < 0 || slower < best.time - kTie) best = {slower, g, a, b};
      }
    };
    for (size_t g = 0; g < lists_.size(); ++g) {
      if (g == slowest || times_[g] >= time) continue;
      const double level = (time * speed + times_[g] * ranks_.speeds[g]) / (speed + ranks_.speeds[g]);
      if (best.gives >= 0 && level >= best.time) continue;
      for (const int b : lists_[g])
        if (holds(b, slowest) == 0) consider(g, b, shares_[index_of(b)]);
      if (has_room(g)) consider(g, -1, 0);
    }
    return best;
  }

  void exchange() {
    const double mean = std::accumulate(rows_.begin(), rows_.end(), 0.0) /
                        std::accumulate(ranks_.speeds.begin(), ranks_.speeds.end(), 0.0);
    const double bound = std::max(mean, *std::max_element(shares_.begin(), shares_.end()) /
                                            *std::max_element(ranks_.speeds.begin(), ranks_.speeds.end()));
    for (size_t i = 0; i < 2 * rows_.size(); ++i) {
      const auto slowest = static_cast<size_t>(std::max_element(times_.begin(), times_.end()) - times_.begin());
      if (times_[slowest] <= bound * (1 + stop_.gap)) break;
      const Exchange best = best_exchange(slowest);
      if (best.gives < 0 || times_[slowest] - best.time <= stop_.least_gain * mean) break;
      take(best.gives, slowest);
      put(best.gives, best.with);
      if (best.gets < 0) continue;
      take(best.gets, best.with);
      put(best.gets, slowest);
    }
  }

  ExpertLists lists_;
  std::vector<double> rows_;
  SearchRanks ranks_;
  BalanceStop stop_;
  std::vector<char> holds_;  // [rank, expert]
  ExpertLists homes_;        // by expert: its ranks; kept up to the exchanges, which do not need it
  std::vector<double> times_;
  std::vector<int> copies_;
  std::vector<double> shares_;  // rows of a copy
};

}  // namespace

ExpertLists swap_search(ExpertLists lists, std::vector<double> rows, SearchRanks ranks, const BalanceStop& stop) {
  return Search(std::move(lists), std::move(rows), std::move(ranks), stop).run();
}

}  // namespace mw
