#include "train/loop/slow_ranks.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace mw::test {
namespace {

TEST(SlowRanks, AreNamedWithTheirSpeeds) {
  EXPECT_EQ(speed_of("", 0, 1), 1);
  EXPECT_EQ(speed_of("1:0.5", 0, 1), 1);
  EXPECT_EQ(speed_of("1:0.5", 1, 0), 0.5);
  EXPECT_EQ(speed_of("0:0.25,1:0.5@100", 0, 7), 0.25);
  EXPECT_EQ(speed_of("0:0.25,1:0.5@100", 1, 99), 1);
  EXPECT_EQ(speed_of("0:0.25,1:0.5@100", 1, 100), 0.5);
  for (const char* bad :
       {"1", "1:", "1:0", "1:2", "1:0.5@", "1:0.5@x", "x:0.5", "1:0.5,,", "-1:0.5", "1:nan", "1:0.5 "})
    EXPECT_THROW(speed_of(bad, 0, 0), Error) << bad;
}

TEST(SlowRanks, AreRanksOfARunOnCpus) {
  EXPECT_NO_THROW(check_slow_ranks("", 2, DeviceKind::cuda));
  EXPECT_NO_THROW(check_slow_ranks("1:0.5@100", 2, DeviceKind::cpu));
  EXPECT_THROW(check_slow_ranks("1:2", 2, DeviceKind::cpu), Error);
  EXPECT_THROW(check_slow_ranks("2:0.5", 2, DeviceKind::cpu), Error);
  EXPECT_THROW(check_slow_ranks("1:0.5", 2, DeviceKind::cuda), Error);
}

}  // namespace
}  // namespace mw::test
