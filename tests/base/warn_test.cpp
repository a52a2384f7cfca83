#include "base/warn.h"

#include <gtest/gtest.h>

namespace mw::test {
namespace {

TEST(WarnOnce, TellsTheSameTextOnce) {
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) warn_once("slow");
  warn_once("slower");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "warning: slow\nwarning: slower\n");
}

}  // namespace
}  // namespace mw::test
