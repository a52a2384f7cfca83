#include "train/loop/slow_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/text.h"

namespace mw {

double speed_of(const std::string& slow, int rank, int64_t step) {
  double speed = 1;
  for (size_t begin = 0; begin < slow.size();) {
    const size_t end = std::min(slow.find(',', begin), slow.size());
    const char *at = slow.data() + begin, *const stop = slow.data() + end;
    int named = 0;
    double given = 0;
    int64_t from = 0;
    bool valid = true;
    const auto read = [&](auto& value) {
      const auto [next, error] = std::from_chars(at, stop, value);
      valid = valid && error == std::errc();
      at = next;
    };
    const auto skip = [&](char mark) { valid = valid && at != stop && *at++ == mark; };
    read(named);
    skip(':');
    read(given);
    if (valid && at != stop) {
      skip('@');
      read(from);
    }
    if (!valid || at != stop || named < 0 || !(given >= 0.001 && given <= 1) || from < 0)
      fail(Exit::config, fmt::format("debug.slow = \"{}\" is not a list of ranks and speeds", printable(slow)),
           "write for example \"1:0.5\", or \"1:0.5@100\" from step 100 on");
    if (named == rank && step >= from) speed = given;
    begin = end + 1;
  }
  return speed;
}

void slow_down(Engine& engine, int64_t step) {
  const std::string& slow = engine.plan.run.slow;
  if (slow.empty()) return;
  if (engine.device.kind != DeviceKind::cpu)
    fail(Exit::unsupported, "debug.slow does not slow GPUs down", "set train.device = \"cpu\"");
  engine.stream.trace().slow_down(speed_of(slow, engine.plan.rank, step));
}

}  // namespace mw
