// What is said about connections that were not let in: the first of each kind at once, the others summed up in one line
// every so often, so that thousands of strangers do not fill a log.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace mw {

class StrangerLog {
 public:
  // `why` is one of a few texts, such as "it closed the connection"; `details` goes into the first line of its kind
  // only. `now` is in seconds and never decreases. Returns the line to print, if any.
  std::optional<std::string> note(const std::string& host, const std::string& why, const std::string& details,
                                  double now);
  // The line about those that were not named yet, once it is time for one; at the end, whenever there are any.
  std::optional<std::string> sum_up(double now, bool at_end = false);

 private:
  std::set<std::string> known_;            // kinds that had their own line
  std::map<std::string, int64_t> unsaid_;  // connections by kind
  std::set<std::string> hosts_;            // from where those came, a few of them
  bool more_hosts_ = false;
  double next_ = 0, interval_ = 10;  // doubles with each line, up to an hour
};

}  // namespace mw
