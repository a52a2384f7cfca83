// Decides from the last reports of all ranks whether the job is stuck, and on which ranks. Pure functions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/watchdog/watchdog_message.h"

namespace mw {

enum class RankLink : uint8_t {
  up,
  lost,  // the connection broke without a message: most likely the process died
  left   // it reported its end
};

// The state of one rank as far as known.
struct WatchedRank {
  Beat last;
  double age = 0;  // seconds since `last` arrived
  RankLink link = RankLink::up;
};

struct Alarm {
  std::vector<int> silent;  // ranks that no longer report
  std::vector<int> behind;  // when none is silent: ranks that the others wait for; empty where none is behind
  std::string text;         // for the log: these ranks' last step, phase, collective and host, and where the others are
};

// A rank whose connection was lost counts as silent after this many seconds, if not after `limit` already.
constexpr double kLostSeconds = 10;

// Raises an alarm when a rank has been silent for `limit` seconds. It names all ranks that have been silent for half of
// that, because ranks that stop together fall silent one after the other. Ranks that left are ignored.
std::optional<Alarm> judge_silence(std::span<const WatchedRank> ranks, double limit);

// Also raises an alarm when no rank has made progress for `limit` seconds. If none is silent then, the ranks behind are
// those that wait in no collective while others do, and among these (or among all) those with the lowest step and
// collective.
std::optional<Alarm> judge_progress(std::span<const WatchedRank> ranks, double limit);

// The alarm of another rank, at `own`, when rank 0 falls silent: that fact, and what rank 0 had reported about the
// others.
std::optional<Alarm> judge_rank_zero(const WatchedRank& zero, const Beat& own, double limit);

// For Beat::quiet_rank: the rank that has been silent for the longest time, if more than `late` seconds. Null: none.
const WatchedRank* find_quiet(std::span<const WatchedRank> ranks, double late);

// A log line for a connection that broke without a message: which rank, where it was `age` seconds before, when `last`
// arrived, and the most frequent causes. A launcher that then ends the job only names a signal.
std::string describe_lost_rank(const Beat& last, double age);

// {0, 1, 2, 5}: "ranks 0-2, 5". Must be ascending; a long list is truncated, with the number of omitted ranks.
std::string describe_ranks(std::span<const int> ranks);

}  // namespace mw
