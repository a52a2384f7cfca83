#include "comm/watchdog/watchdog_judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

namespace mw {
namespace {

constexpr size_t kNamed = 8;    // ranks that are told about one by one
constexpr size_t kGroups = 12;  // groups of ranks at the same point
constexpr size_t kRanges = 24;  // of neighbours in a list of ranks
constexpr const char* kLeft = "had left";

bool is_silent(const WatchedRank& rank, double limit) {
  return rank.link != RankLink::left &&
         rank.age >= (rank.link == RankLink::lost ? std::min(limit, kLostSeconds) : limit);
}

std::string describe_point(const Beat& at) {
  const std::string step = at.step == 0 ? "before the first step" : fmt::format("step {}", at.step);
  const std::string phase = at.phase.empty() ? "" : fmt::format(", phase {}", at.phase);
  if (at.awaited > 0) return fmt::format("in collective {} ({}), {}{}", at.awaited, at.call, step, phase);
  return fmt::format("outside of collectives after number {}, {}{}", at.collectives, step, phase);
}

using Points = std::map<std::string, std::vector<int>>;

// Ranks by where they are, without those of `left_out`.
Points find_points(std::span<const WatchedRank> ranks, const std::vector<int>& left_out) {
  Points groups;
  for (const WatchedRank& rank : ranks) {
    if (std::find(left_out.begin(), left_out.end(), rank.last.rank) != left_out.end()) continue;
    groups[rank.link == RankLink::left ? kLeft : describe_point(rank.last)].push_back(rank.last.rank);
  }
  return groups;
}

std::string describe_points(const Points& groups) {
  std::string text;
  size_t told = 0;
  for (const auto& [point, members] : groups) {
    if (told++ == kGroups) return text + fmt::format("\n  and ranks at {} more points", groups.size() - kGroups);
    text += fmt::format("\n  {}: {}", describe_ranks(members), point);
  }
  return text;
}

std::vector<int> choose_silent(std::span<const WatchedRank> ranks, double limit) {
  std::vector<int> silent;
  for (const WatchedRank& rank : ranks)
    if (is_silent(rank, limit)) silent.push_back(rank.last.rank);
  return silent;
}

std::vector<int> choose_behind(std::span<const WatchedRank> ranks) {
  std::vector<const Beat*> candidates;
  for (const WatchedRank& rank : ranks)
    if (rank.link != RankLink::left) candidates.push_back(&rank.last);
  const size_t all = candidates.size();
  const auto waits = [](const Beat* at) { return at->awaited > 0; };
  if (!std::all_of(candidates.begin(), candidates.end(), waits)) std::erase_if(candidates, waits);
  const auto point = [](const Beat* at) { return std::tuple(at->step, at->collectives); };
  const auto lowest = point(*std::min_element(candidates.begin(), candidates.end(),
                                              [&](const Beat* a, const Beat* b) { return point(a) < point(b); }));
  std::erase_if(candidates, [&](const Beat* at) { return point(at) != lowest; });
  std::vector<int> behind;
  if (candidates.size() == all) return behind;
  for (const Beat* at : candidates) behind.push_back(at->rank);
  return behind;
}

const WatchedRank& find_rank(std::span<const WatchedRank> ranks, int number) {
  return *std::find_if(ranks.begin(), ranks.end(), [&](const WatchedRank& r) { return r.last.rank == number; });
}

Alarm name_silent(std::span<const WatchedRank> ranks, std::vector<int> silent, double limit) {
  std::string text = fmt::format("nothing is heard from {} (watchdog.seconds = {})", describe_ranks(silent), limit);
  for (size_t i = 0; i < std::min(silent.size(), kNamed); ++i) {
    const WatchedRank& rank = find_rank(ranks, silent[i]);
    text += fmt::format("\n  rank {} on {}: {} for {:.1f} s, last {}", silent[i], rank.last.host,
                        rank.link == RankLink::lost ? "connection lost and silent" : "silent", rank.age,
                        describe_point(rank.last));
  }
  text += describe_points(find_points(ranks, silent));
  return {std::move(silent), {}, std::move(text)};
}

Alarm name_behind(std::span<const WatchedRank> ranks, std::vector<int> behind, double limit) {
  std::string text = fmt::format("no rank has moved for {} s (watchdog.seconds)", limit);
  const Points others = find_points(ranks, behind);
  if (!behind.empty()) text += fmt::format("; {} {} behind", describe_ranks(behind), behind.size() == 1 ? "is" : "are");
  else if (others.size() - others.count(kLeft) == 1) text += ", and all are at the same point";
  else text += "; none is behind the others, but they are at different points";
  for (size_t i = 0; i < std::min(behind.size(), kNamed); ++i) {
    const WatchedRank& rank = find_rank(ranks, behind[i]);
    text += fmt::format("\n  rank {} on {}: alive, {}", behind[i], rank.last.host, describe_point(rank.last));
  }
  text += describe_points(others);
  return {{}, std::move(behind), std::move(text)};
}

}  // namespace

std::string describe_lost_rank(const Beat& last, double age) {
  return fmt::format(
      "the connection to rank {}{} closed ({:.1f} s before, it was {}); if that rank printed no error, it was killed: "
      "`dmesg` on its node says whether memory ran out there",
      last.rank, last.host.empty() ? "" : " on " + last.host, age, describe_point(last));
}

std::string describe_ranks(std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  size_t ranges = 0;
  for (size_t first = 0, last = 0; first < ranks.size(); first = last + 1) {
    if (ranges++ == kRanges) return text + fmt::format(" and {} more", ranks.size() - first);
    last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += fmt::format("{}{}", first == 0 ? "" : ", ", ranks[first]);
    if (last > first) text += fmt::format("-{}", ranks[last]);
  }
  return text;
}

std::optional<Alarm> judge_silence(std::span<const WatchedRank> ranks, double limit) {
  if (choose_silent(ranks, limit).empty()) return std::nullopt;
  return name_silent(ranks, choose_silent(ranks, limit / 2), limit);
}

std::optional<Alarm> judge_progress(std::span<const WatchedRank> ranks, double limit) {
  bool any = false;
  for (const WatchedRank& rank : ranks) {
    if (rank.link == RankLink::left) continue;
    any = true;
    if (rank.last.idle_seconds + rank.age < limit) return judge_silence(ranks, limit);
  }
  if (!any) return std::nullopt;
  std::vector<int> silent = choose_silent(ranks, limit / 2);
  return silent.empty() ? name_behind(ranks, choose_behind(ranks), limit)
                        : name_silent(ranks, std::move(silent), limit);
}

std::optional<Alarm> judge_rank_zero(const WatchedRank& zero, const Beat& own, double limit) {
  std::optional<Alarm> alarm = judge_silence(std::array{zero, WatchedRank{own, 0, RankLink::up}}, limit);
  if (!alarm) return alarm;
  if (zero.last.quiet_rank >= 0) {
    alarm->silent.push_back(zero.last.quiet_rank);
    alarm->text += fmt::format("\n  rank {}: rank 0's last word was that it had been silent for {:.1f} s",
                               zero.last.quiet_rank, zero.last.quiet_seconds);
  }
  alarm->text += "\n  all others are heard by rank 0 alone: more of them may be silent";
  return alarm;
}

const WatchedRank* find_quiet(std::span<const WatchedRank> ranks, double late) {
  const WatchedRank* quiet = nullptr;
  for (const WatchedRank& rank : ranks)
    if (is_silent(rank, late) && (quiet == nullptr || rank.age > quiet->age)) quiet = &rank;
  return quiet;
}

}  // namespace mw
