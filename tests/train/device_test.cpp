#include <gtest/gtest.h>

#include "engine/engine.h"
#include "ops/device.h"
#include "support/thread_comm.h"
#include "train/helpers.h"

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

// debug.processors is refused before anything starts, also on a machine without GPUs.
TEST(Processors, AreRefusedUnlessEveryRankOfAGpuHasANumber) {
  run_ranks(2, [](Comm& world, Stream&) {
    RunSpec run = small_run();
    for (const char* bad : {"88", "88,48,16", "88,x", "88,", "88,0", "-8,8", "88,48"}) {  // the last: on CPUs
      run.processors = bad;
      try {
        plan_on_machine(build_native_model(run.native), run, world, {}, 1, {});
        ADD_FAILURE() << bad << " was accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Exit::config);
        EXPECT_NE(std::string(error.what()).find("debug.processors"), std::string::npos) << error.what();
        EXPECT_FALSE(error.hint().empty());
      }
    }
  });
}

TEST(Processors, AreThoseOfTheRank) {
  RunSpec run = small_run();
  const Device gpu{DeviceKind::cuda, 0};
  EXPECT_EQ(processors_of(run, 1, 2, gpu), 0);
  EXPECT_EQ(processors_of(run, 1, 2, {}), 0);
  run.processors = "88,48";
  EXPECT_EQ(processors_of(run, 0, 2, gpu), 88);
  EXPECT_EQ(processors_of(run, 1, 2, gpu), 48);
}

}  // namespace
}  // namespace mw::test
