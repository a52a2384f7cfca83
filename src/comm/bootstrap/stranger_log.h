// Log lines about rejected connections ("strangers"): the first of each kind at once, the others as one summary line
// now and then, so that thousands of them do not fill a log.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace mw {

class StrangerLog {
 public:
  // Records a connection and returns the line to print, if any. `why` is one of a few texts, such as "it closed the
  // connection"; `details` appears only in the first line of each kind. `now` is in seconds and never decreases.
  std::optional<std::string> note(const std::string& host, const std::string& why, const std::string& details,
                                  double now);
  // Returns the summary of connections not yet reported, when one is due; with at_end, whenever there are any.
  std::optional<std::string> sum_up(double now, bool at_end = false);

 private:
  std::set<std::string> known_;            // kinds already reported on a line of their own
  std::map<std::string, int64_t> unsaid_;  // unreported connections by kind
  std::set<std::string> hosts_;            // some of the hosts that those came from
  bool more_hosts_ = false;
  double next_ = 0, interval_ = 10;  // doubles with each line, up to an hour
};

}  // namespace mw
