#include <gtest/gtest.h>

#include "engine/engine.h"
#include "ops/device.h"

namespace mw::test {
namespace {

TEST(ChooseDevice, TakesTheCpuWhenAsked) { EXPECT_EQ(choose_device("cpu", 3).kind, DeviceKind::cpu); }

TEST(ChooseDevice, WithoutAGpuAutoIsTheCpuAndOthersAreRefused) {
  if (count_gpus() > 0) GTEST_SKIP() << "there is a GPU here";
  EXPECT_EQ(choose_device("auto", 0).kind, DeviceKind::cpu);
  for (const char* wanted : {"cuda", "hip"}) {
    try {
      choose_device(wanted, 0);
      ADD_FAILURE() << wanted << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Exit::unsupported);
      EXPECT_NE(std::string(error.what()).find(wanted), std::string::npos);
      EXPECT_FALSE(error.hint().empty());
    }
  }
}

TEST(ChooseDevice, RanksTakeTheGpusInTurn) {
  const int count = count_gpus();
  if (count == 0) GTEST_SKIP() << "no GPU here";
  for (int rank = 0; rank < 2 * count; ++rank) EXPECT_EQ(choose_device("auto", rank).index, rank % count);
}

}  // namespace
}  // namespace mw::test
