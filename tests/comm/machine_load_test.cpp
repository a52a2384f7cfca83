#include "comm/machine_load.h"

#include <gtest/gtest.h>

namespace mw::test {
namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(MachineLoad, BusySecondsOfCoresAreReadFromProcStat) {
  const std::string stat =
      "cpu  9 9 9 9 9 9 9 9 0 0\n"
      "cpu0 100 10 20 5000 600 3 4 63 7 0\n"
      "cpu2 300 0 0 4000 0 0 0 0 0 0\n"
      "intr 12345 0 cpu\n";
  const std::vector<double> busy = parse_busy_seconds(stat, 100);
  ASSERT_EQ(busy.size(), 3u);
  EXPECT_DOUBLE_EQ(busy[0], 2.0);  // all but idle and waiting for disks; with what the hypervisor gave to others
  EXPECT_DOUBLE_EQ(busy[1], 0.0);  // offline
  EXPECT_DOUBLE_EQ(busy[2], 3.0);
  EXPECT_TRUE(parse_busy_seconds("", 100).empty());
  EXPECT_TRUE(parse_busy_seconds("cpu0 1 2 3\n", 100).empty());
  EXPECT_TRUE(parse_busy_seconds("cpux 1 2 3 4 5 6 7 8\n", 100).empty());
}

TEST(MachineLoad, ThisProcessIsSeen) {
  const CpuTimes before = read_cpu_times();
  if (before.busy.empty()) GTEST_SKIP() << "no /proc/stat";
  CpuTimes now = before;
  while (now.own < before.own + 0.1) now = read_cpu_times();
  double busy = 0;
  for (size_t core = 0; core < now.busy.size(); ++core) busy += now.busy[core] - before.busy[core];
  EXPECT_GT(busy, 0.03);  // the kernel counts in steps of 10 ms
  EXPECT_GT(now.at, before.at);
}

TEST(MachineLoad, ARunWithCoresOfItsOwnIsNotWarned) {
  EXPECT_EQ(describe_load({0.0, 2, 2, 1}), "");
  EXPECT_EQ(describe_load({0.2, 2, 2, 1}), "");    // the system itself
  EXPECT_EQ(describe_load({8.0, 64, 32, 4}), "");  // there is room for both
}

TEST(MachineLoad, SharedCoresComeWithTheThreadsThatAreLeft) {
  EXPECT_EQ(describe_load({1.0, 2, 2, 1}),
            "other processes use 1.0 of the 2 cores that this run computes on (2 threads): steps will be slower; set "
            "train.threads=1, or stop the other processes");
  EXPECT_TRUE(contains(describe_load({16.0, 64, 64, 4}), "train.threads=12"));
  // Fewer threads than one a rank cannot be.
  const std::string full = describe_load({1.9, 2, 2, 2});
  EXPECT_TRUE(contains(full, "stop the other processes, or start fewer ranks") && !contains(full, "train.threads"))
      << full;
}

}  // namespace
}  // namespace mw::test
