#include <algorithm>
#include <map>

#include "base/median.h"
#include "base/text.h"
#include "train/doctor/doctor.h"

namespace mw {
namespace {

constexpr double kSlowHost = 0.7, kSlowRank = 0.5, kSlowLink = 0.5, kSlowDisk = 0.2;

std::string name_of(const JobHealth& health, int rank) {
  return fmt::format("rank {} ({})", rank, health.ranks[static_cast<size_t>(rank)].host);
}

std::string rate(double flops) { return fmt::format("{:.1f} GFLOP/s", flops * 1e-9); }
std::string speed(double bytes) { return format_bytes(static_cast<int64_t>(bytes)) + "/s"; }

// Ranks whose text is not that of most.
void compare_texts(const JobHealth& health, std::string RankHealth::*text, const char* what,
                   std::vector<std::string>& problems) {
  std::map<std::string, int> counts;
  for (const RankHealth& rank : health.ranks) ++counts[rank.*text];
  const auto most =
      std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  for (size_t r = 0; r < health.ranks.size(); ++r)
    if (health.ranks[r].*text != most->first)
      problems.push_back(fmt::format("{}: {} is {}, but most ranks have {}", name_of(health, static_cast<int>(r)), what,
                                     health.ranks[r].*text, most->first));
}

void judge_compute(const JobHealth& health, std::vector<std::string>& problems) {
  std::vector<double> all;
  std::map<std::string, std::vector<double>> by_host;
  for (const RankHealth& rank : health.ranks) {
    all.push_back(rank.flops_per_s);
    by_host[rank.host].push_back(rank.flops_per_s);
  }
  const double middle = median(all);
  std::map<std::string, bool> slow;
  for (const auto& [host, rates] : by_host) {
    slow[host] = median(rates) < kSlowHost * middle;
    if (slow[host])
      problems.push_back(fmt::format("node {}: its ranks compute at {}, the median of all ranks is {}", host,
                                     rate(median(rates)), rate(middle)));
  }
  for (size_t r = 0; r < health.ranks.size(); ++r)
    if (!slow[health.ranks[r].host] && health.ranks[r].flops_per_s < kSlowRank * middle)
      problems.push_back(fmt::format("{}: computes at {}, the median of all ranks is {}",
                                     name_of(health, static_cast<int>(r)), rate(health.ranks[r].flops_per_s),
                                     rate(middle)));
}

void judge_links(const JobHealth& health, std::vector<std::string>& problems) {
  const auto within = [&](const LinkHealth& link) {
    return health.ranks[static_cast<size_t>(link.from)].host == health.ranks[static_cast<size_t>(link.to)].host;
  };
  for (const bool inside : {true, false}) {
    std::vector<double> rates;
    for (const LinkHealth& link : health.links)
      if (within(link) == inside) rates.push_back(link.bytes_per_s);
    for (const LinkHealth& link : health.links)
      if (within(link) == inside && link.bytes_per_s < kSlowLink * median(rates))
        problems.push_back(fmt::format("{} to {}: {}, the median {} is {}", name_of(health, link.from),
                                       name_of(health, link.to), speed(link.bytes_per_s),
                                       inside ? "within a node" : "between nodes", speed(median(rates))));
  }
}

void judge_folder(const JobHealth& health, const std::string& folder, std::vector<std::string>& problems) {
  std::vector<double> rates;
  for (const RankHealth& rank : health.ranks) rates.push_back(rank.write_bytes_per_s);
  const double middle = median(rates);
  for (size_t r = 0; r < health.ranks.size(); ++r) {
    const RankHealth& rank = health.ranks[r];
    const std::string name = name_of(health, static_cast<int>(r));
    const auto next = static_cast<int>((r + 1) % health.ranks.size());
    if (!rank.folder_error.empty()) {
      problems.push_back(fmt::format("{}: {}", name, rank.folder_error));
    } else if (!rank.sees_next && health.ranks[static_cast<size_t>(next)].folder_error.empty()) {
      problems.push_back(fmt::format("{} cannot read in {} the file that {} wrote: the folder is not shared", name,
                                     folder, name_of(health, next)));
    } else if (rank.write_bytes_per_s < kSlowDisk * middle) {
      problems.push_back(fmt::format("{}: writes to {} at {}, the median of all ranks is {}", name, folder,
                                     speed(rank.write_bytes_per_s), speed(middle)));
    }
  }
}

}  // namespace

std::vector<std::string> find_problems(const JobHealth& health, const std::string& folder) {
  std::vector<std::string> problems;
  compare_texts(health, &RankHealth::program, "the program", problems);
  compare_texts(health, &RankHealth::device, "the device", problems);
  judge_compute(health, problems);
  judge_links(health, problems);
  if (!folder.empty()) judge_folder(health, folder, problems);
  if (!health.sums_are_right)
    problems.push_back("an all-reduce over all ranks gave a wrong sum: the communication library is broken");
  return problems;
}

}  // namespace mw
