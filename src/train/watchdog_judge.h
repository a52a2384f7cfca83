// Says from the last words of all ranks whether the job is stuck, and at whom. Pure.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "train/watchdog_message.h"

namespace mw {

enum class RankLink : uint8_t {
  up,
  lost,  // the connection broke without a word: most likely the process is gone
  left   // it said that it ends
};

// What is known of one rank.
struct WatchedRank {
  Beat last;
  double age = 0;  // seconds since `last` came
  RankLink link = RankLink::up;
};

struct Alarm {
  std::vector<int> silent;  // ranks that nothing is heard from
  std::vector<int> behind;  // none is silent: those that the others wait for; empty where all are at the same point
  std::string text;         // both with their last step, phase, collective and host, and where the other ranks are
};

// A rank whose connection was lost is silent after so many seconds, if not after `limit` already.
constexpr double kLostSeconds = 10;

// An alarm when a rank has been silent for `limit` seconds. Names those that have been so for half of that: ranks that
// stop together fall silent one after the other. Ranks that left are not judged.
std::optional<Alarm> judge_silence(std::span<const WatchedRank> ranks, double limit);

// Also when none of the ranks has moved for `limit` seconds. Where none is silent then, those are behind that wait in
// no collective while others do, and of these, or of all, those with the lowest step and collective.
std::optional<Alarm> judge_progress(std::span<const WatchedRank> ranks, double limit);

// What another rank, at `own`, knows when rank 0 falls silent: that, and what rank 0 had told of the others.
std::optional<Alarm> judge_rank_zero(const WatchedRank& zero, const Beat& own, double limit);

// For Beat::quiet_rank: the rank that is silent for longest, and for more than `late` seconds. Null: none.
const WatchedRank* find_quiet(std::span<const WatchedRank> ranks, double late);

// For the log, when a connection breaks without a word: which rank, where it was, and what most often ends a process
// so. A launcher that then ends the job only names a signal.
std::string describe_lost_rank(const Beat& last);

// {0, 1, 2, 5}: "ranks 0-2, 5". Ascending; a long list is cut, with the number of those left out.
std::string describe_ranks(std::span<const int> ranks);

}  // namespace mw
