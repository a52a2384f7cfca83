#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

#include "comm/cores.h"
#include "comm/world.h"

namespace mw::test {
namespace {

// Binds this process to some cores for its lifetime.
class Binding {
 public:
  explicit Binding(int cores) {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&set) < cores; ++cpu)
      if (CPU_ISSET(cpu, &before_)) CPU_SET(cpu, &set);
    bound_ = sched_setaffinity(0, sizeof set, &set) == 0;
  }
  ~Binding() { sched_setaffinity(0, sizeof before_, &before_); }
  bool bound() const { return bound_; }
  int cores_before() const { return CPU_COUNT(&before_); }

 private:
  cpu_set_t before_;
  bool bound_ = false;
};

// A launcher that binds a rank to its cores has shared them out: they are not divided once more.
TEST(ThreadsPerRank, UsesTheCoresItIsBoundTo) {
  const Binding one(1);
  if (!one.bound() || one.cores_before() < 2 || std::thread::hardware_concurrency() < 2)
    GTEST_SKIP() << "one core only";
  EXPECT_EQ(threads_per_rank(0, 1), 1);
  EXPECT_EQ(threads_per_rank(0, 4), 1);
  EXPECT_EQ(threads_per_rank(3, 4), 3);
}

TEST(ThreadsPerRank, UsesBothOfTwoCores) {
  const Binding two(2);
  if (!two.bound() || two.cores_before() < 3 || std::thread::hardware_concurrency() < 3)
    GTEST_SKIP() << "two cores only";
  EXPECT_EQ(threads_per_rank(0, 1), 2);
  EXPECT_EQ(threads_per_rank(0, 4), 2);
}

TEST(CoreList, ReadsRangesAndSingleCores) {
  EXPECT_EQ(parse_core_list("0-3,8\n"), (std::vector<int>{0, 1, 2, 3, 8}));
  EXPECT_EQ(parse_core_list("5"), std::vector<int>{5});
  for (const char* bad : {"", "a", "3-1", "-2", "1-", "1,,2", "1 2", "0-99999", "1-2x"})
    EXPECT_TRUE(parse_core_list(bad).empty()) << bad;
}

TEST(StayNear, LeavesACpuRankFree) { EXPECT_EQ(stay_near(Device{}), ""); }

}  // namespace
}  // namespace mw::test
