#include "train/loop/slow_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace mw {
namespace {

struct SlowRank {
  int rank = 0;
  double speed = 0;  // relative to its own
  int64_t from = 0;  // step
};

std::vector<SlowRank> parse(const std::string& slow) {
  std::vector<SlowRank> ranks;
  for (size_t begin = 0; begin < slow.size();) {
    const size_t end = std::min(slow.find(',', begin), slow.size());
    const char *at = slow.data() + begin, *const stop = slow.data() + end;
    SlowRank entry;
    bool valid = true;
    const auto read = [&](auto& value) {
      const auto [next, error] = std::from_chars(at, stop, value);
      valid = valid && error == std::errc();
      at = next;
    };
    const auto skip = [&](char mark) { valid = valid && at != stop && *at++ == mark; };
    read(entry.rank);
    skip(':');
    read(entry.speed);
    if (valid && at != stop) {
      skip('@');
      read(entry.from);
    }
    if (!valid || at != stop || entry.rank < 0 || !(entry.speed >= 0.001 && entry.speed <= 1) || entry.from < 0)
      fail(Exit::config, fmt::format("debug.slow = \"{}\" is not a list of ranks and speeds", printable(slow)),
           "write for example \"1:0.5\", or \"1:0.5@100\" from step 100 on");
    ranks.push_back(entry);
    begin = end + 1;
  }
  return ranks;
}

}  // namespace

void check_slow_ranks(const std::string& slow, int ranks, DeviceKind device) {
  for (const SlowRank& entry : parse(slow))
    if (entry.rank >= ranks)
      fail(Exit::config,
           fmt::format("debug.slow = \"{}\" names rank {}, but the last rank is {}", slow, entry.rank, ranks - 1),
           fmt::format("name ranks below {}", ranks));
  if (!slow.empty() && device != DeviceKind::cpu)
    fail(Exit::unsupported, "debug.slow does not slow GPUs down", "set train.device = \"cpu\"");
}

double speed_of(const std::string& slow, int rank, int64_t step) {
  double speed = 1;
  for (const SlowRank& entry : parse(slow))
    if (entry.rank == rank && step >= entry.from) speed = entry.speed;
  return speed;
}

void slow_down(Engine& engine, int64_t step) {
  const std::string& slow = engine.plan.run.slow;
  if (!slow.empty()) engine.stream.trace().slow_down(speed_of(slow, engine.plan.rank, step));
}

}  // namespace mw
