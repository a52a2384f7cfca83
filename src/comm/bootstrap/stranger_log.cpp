#include "comm/bootstrap/stranger_log.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "base/text.h"

namespace mw {
namespace {

constexpr size_t kMostHosts = 8;
constexpr double kLongestInterval = 3600;

}  // namespace

std::optional<std::string> StrangerLog::note(const std::string& host, const std::string& why,
                                             const std::string& details, double now) {
  if (known_.insert(why).second) {
    if (unsaid_.empty()) next_ = std::max(next_, now + interval_);
    return fmt::format("refused a connection from {}: {}{}", host, why, details);
  }
  ++unsaid_[why];
  if (hosts_.size() < kMostHosts || hosts_.count(host) > 0) hosts_.insert(host);
  else more_hosts_ = true;
  return std::nullopt;
}

std::optional<std::string> StrangerLog::sum_up(double now, bool at_end) {
  if (unsaid_.empty() || (now < next_ && !at_end)) return std::nullopt;
  int64_t count = 0;
  std::vector<std::string> kinds;
  for (const auto& [why, times] : unsaid_) {
    count += times;
    kinds.push_back(fmt::format("{} x {}", times, why));
  }
  std::string line = fmt::format("refused {} from {}{}: {}", counted(count, "more connection"), fmt::join(hosts_, ", "),
                                 more_hosts_ ? " and others" : "", fmt::join(kinds, ", "));
  unsaid_.clear();
  hosts_.clear();
  more_hosts_ = false;
  interval_ = std::min(2 * interval_, kLongestInterval);
  next_ = now + interval_;
  return line;
}

}  // namespace mw
