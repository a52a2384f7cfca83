#include <gtest/gtest.h>

#include "engine/engine.h"
#include "ops/device.h"

namespace mw::test {
namespace {

TEST(ChooseDevice, TakesTheCpuWhenAsked) { EXPECT_EQ(choose_device(DeviceChoice::cpu, 3).kind, DeviceKind::cpu); }

TEST(ChooseDevice, WithoutAGpuAutoIsTheCpuAndOthersAreRefused) {
  if (count_gpus() > 0) GTEST_SKIP() << "there is a GPU here";
  EXPECT_EQ(choose_device(DeviceChoice::automatic, 0).kind, DeviceKind::cpu);
  for (const DeviceChoice wanted : {DeviceChoice::cuda, DeviceChoice::hip}) {
    try {
      choose_device(wanted, 0);
      ADD_FAILURE() << word_of(wanted) << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Exit::unsupported);
      EXPECT_NE(std::string(error.what()).find(word_of(wanted)), std::string::npos);
      EXPECT_FALSE(error.hint().empty());
    }
  }
}

TEST(ChooseDevice, RanksTakeTheGpusInTurn) {
  const int count = count_gpus();
  if (count == 0) GTEST_SKIP() << "no GPU here";
  for (int rank = 0; rank < 2 * count; ++rank)
    EXPECT_EQ(choose_device(DeviceChoice::automatic, rank).index, rank % count);
}

}  // namespace
}  // namespace mw::test
