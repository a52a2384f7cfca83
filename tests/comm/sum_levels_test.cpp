#include "comm/sum_levels.h"

#include <gtest/gtest.h>

namespace mw {
namespace {

using Levels = std::vector<SumLevel>;

TEST(SumLevels, JoinAllMembersOnce) {
  for (int members = 1; members <= 600; ++members) {
    int joined = 1;
    for (const SumLevel& level : sum_levels(members)) {
      EXPECT_EQ(level.stride, joined) << members;
      EXPECT_GT(level.members, 1) << members;
      joined *= level.members;
    }
    EXPECT_EQ(joined, members);
  }
}

TEST(SumLevels, AreFewAndSmall) {
  EXPECT_EQ(sum_levels(1), Levels());
  EXPECT_EQ(sum_levels(16), Levels({{1, 16}}));
  EXPECT_EQ(sum_levels(256), Levels({{1, 16}, {16, 16}}));
  EXPECT_EQ(sum_levels(24), Levels({{1, 12}, {12, 2}}));
  EXPECT_EQ(sum_levels(17), Levels({{1, 17}}));
  EXPECT_EQ(sum_levels(289), Levels({{1, 17}, {17, 17}}));
  for (const int members : {64, 96, 128, 320, 1000, 1024, 4096, 8192}) {
    int others = 0;
    for (const SumLevel& level : sum_levels(members)) others += level.members - 1;
    EXPECT_LE(others, 48) << members;
  }
}

}  // namespace
}  // namespace mw
