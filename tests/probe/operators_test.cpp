// What the commands' tests cannot see of the measurements on a machine without GPUs.
#include "probe/operators.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "core/tensor_store.h"
#include "ops/device.h"
#include "probe/meter.h"
#include "probe/peak.h"
#include "support/test_device.h"
#include "support/thread_comm.h"

namespace mw::test {
namespace {

TEST(Meter, ComparesCallsInTurns) {
  const auto comm = make_self_comm();
  Stream stream(1);
  Meter meter(*comm, stream, 0.1);
  const auto sleep = [](int microseconds) {
    return [microseconds] { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); };
  };
  EXPECT_NEAR(meter.ratio_of(sleep(8000), sleep(4000)), 2, 0.5);
  EXPECT_NEAR(meter.ratio_of(sleep(500), sleep(4000)), 0.14, 0.1);  // rows of several calls, and of one
}

TEST(Meter, TimesEachRankWhileAllAreAtWork) {
  run_ranks(2, [](Comm& world, Stream& stream) {
    Meter meter(world, stream, 0.05);
    const auto pause = std::chrono::milliseconds(world.rank() == 0 ? 2 : 8);
    const std::vector<double> seconds = meter.seconds_by_rank([&] { std::this_thread::sleep_for(pause); });
    ASSERT_EQ(seconds.size(), 2U);
    EXPECT_NEAR(seconds[1] / seconds[0], 4, 1);
  });
}

TEST(Probe, FindsNoKindsWhereThereIsOneRank) {
  const auto comm = make_self_comm();
  Stream stream = make_stream(1);
  TensorStore scratch({{"work", DType::u8, {probe_workspace_bytes(1, stream.device().kind)}, 0}},
                      arenas_of(stream.device()));
  stream.workspace().attach(scratch.fixed("work").data, static_cast<size_t>(scratch.fixed("work").bytes()));
  Meter meter(*comm, stream, 0.01);
  PlatformProfile profile;
  profile.rank_kinds = {{1, 2.0}};
  measure_rank_kinds(meter, stream, profile);
  EXPECT_FALSE(profile.rank_kinds);
}

TEST(Probe, KnowsPublicPeaks) {
  EXPECT_EQ(public_peak("NVIDIA H200, compute 9.0, 132 processors, 139.8 GiB"), 989.4e12);
  EXPECT_EQ(public_peak("NVIDIA H100 80GB HBM3, compute 9.0"), 989.4e12);
  EXPECT_EQ(public_peak("NVIDIA A100-SXM4-40GB"), 312e12);
  EXPECT_EQ(public_peak("AMD Instinct MI250X"), 191.5e12);
  for (const char* other : {"NVIDIA H100 PCIe", "NVIDIA H200 NVL", "NVIDIA L4", ""})
    EXPECT_FALSE(public_peak(other)) << other;
}

// A CPU's states lie in the same memory wherever they are put: updating them takes as long. A GPU's take a bus.
TEST(Probe, TimesTheUpdateOfStatesOnTheHost) {
  const auto comm = make_self_comm();
  Stream stream = make_stream(1);
  Meter meter(*comm, stream, 0.2);
  PlatformProfile profile;
  measure_memory_operators(meter, stream, profile);
  ASSERT_FALSE(profile.host_bytes_per_s);
  measure_host_memory(meter, stream, profile);
  ASSERT_TRUE(profile.host_bytes_per_s);
  const double share = *profile.host_bytes_per_s / profile.stream_bytes_per_s;
  EXPECT_GT(share, on_gpu() ? 1e-4 : 0.2);
  EXPECT_LT(share, on_gpu() ? 1 : 4);
  for (const double copies : {profile.to_host_bytes_per_s.value(), profile.from_host_bytes_per_s.value()}) {
    EXPECT_GT(copies, 1e8);
    EXPECT_LT(copies, on_gpu() ? 1e12 : 1e13);
  }
}

}  // namespace
}  // namespace mw::test
