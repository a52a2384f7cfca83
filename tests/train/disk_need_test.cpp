// Hints about checkpoint.keep, followed literally.
#include "train/checkpoint/disk_need.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "base/error.h"

namespace mw::test {
namespace {

DiskNeed need_of(int64_t keep, int64_t saves, int64_t existing, int64_t room) {
  constexpr int64_t kEach = 1 << 20;
  return {kEach, std::max<int64_t>(1, std::min(saves, keep + 1 - existing)), existing, room * kEach + kEach / 2};
}

// The largest keep that fits, by trial; 0: none.
int64_t largest_keep(int64_t below, int64_t saves, int64_t existing, int64_t room) {
  for (int64_t keep = below - 1; keep > 0; --keep)
    if (const DiskNeed need = need_of(keep, saves, existing, room); need.bytes() <= *need.free) return keep;
  return 0;
}

TEST(DiskNeed, HintNamesTheLargestKeepThatFits) {
  int refused = 0;
  for (int64_t keep = 1; keep <= 5; ++keep)
    for (int64_t saves = 1; saves <= 8; ++saves)
      for (int64_t existing = 0; existing <= keep; ++existing)
        for (int64_t room = 0; room <= 6; ++room) {
          CheckpointSpec spec;
          spec.dir = "runs";
          spec.keep = keep;
          const int64_t fits = largest_keep(keep, saves, existing, room);
          try {
            check_disk(spec, need_of(keep, saves, existing, room));
          } catch (const Error& error) {
            std::smatch found;
            const std::string hint = error.hint();
            const bool names = std::regex_search(hint, found, std::regex("checkpoint\\.keep=(\\d+) fits"));
            EXPECT_EQ(names ? std::stoll(found[1]) : 0, fits)
                << "keep " << keep << ", " << saves << " saves, " << existing << " there, room for " << room;
            ++refused;
          }
        }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace mw::test
