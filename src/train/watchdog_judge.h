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

// An alarm when a rank has been silent for `limit` seconds. Ranks that left are not judged.
std::optional<Alarm> judge_silence(std::span<const WatchedRank> ranks, double limit);

// Also when none of the ranks has moved for `limit` seconds. Then ranks that have been silent for half of that are
// named as such. Without any, those are behind that wait in no collective while others do, and of these, or of all,
// those with the lowest step and collective.
std::optional<Alarm> judge_progress(std::span<const WatchedRank> ranks, double limit);

// {0, 1, 2, 5}: "ranks 0-2, 5". Ascending; a long list is cut, with the number of those left out.
std::string describe_ranks(std::span<const int> ranks);

}  // namespace mw
