#include "comm/world.h"

#include <gtest/gtest.h>

namespace mw {
namespace {

TEST(Turns, OfAJobOfFewRanksAreQuick) {
  EXPECT_EQ(seconds_until_turn(0, 1), 0);
  for (const int turns : {2, 3, 8, 100}) {
    EXPECT_EQ(seconds_until_turn(0, turns), 0);
    EXPECT_GE(seconds_until_turn(1, turns), 3);
    EXPECT_LE(seconds_until_turn(turns - 1, turns), 3 + 0.01 * turns);
  }
}

// Also where the first node with all its ranks is gone, few speak before one of them has ended the others.
TEST(Turns, OfManyRanksAreApart) {
  for (const int turns : {1000, 4096, 16384}) {
    double before = 0;
    for (int turn = 1; turn < turns; ++turn) {
      const double seconds = seconds_until_turn(turn, turns);
      EXPECT_GT(seconds, before) << turn << " of " << turns;
      before = seconds;
    }
    EXPECT_LE(before, 33);
    EXPECT_GT(seconds_until_turn(16, turns), seconds_until_turn(8, turns) + 1) << turns;
  }
}

}  // namespace
}  // namespace mw
