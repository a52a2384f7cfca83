// Memory that is left, as a made-up cgroup tells it.
#include "engine/memory_meter.h"

#include "train/helpers.h"

namespace mw::test {
namespace {

constexpr int64_t kLimit = 9000;  // far below what this machine has

TEST(AvailableBytes, FilePagesOfACgroupAreFree) {
  const ScratchDir v2;
  write_raw(v2 / "memory.max", "9000\n");
  write_raw(v2 / "memory.current", "8000\n");
  EXPECT_EQ(available_bytes(v2.path()), 1000);
  write_raw(v2 / "memory.stat",
            "anon 2000\nfile 6000\ninactive_anon 1\nactive_anon 2\ninactive_file 2500\nactive_file 500\n");
  EXPECT_EQ(available_bytes(v2.path()), 4000);

  const ScratchDir v1;
  write_raw(v1 / "memory/memory.limit_in_bytes", "9000\n");
  write_raw(v1 / "memory/memory.usage_in_bytes", "8000\n");
  write_raw(v1 / "memory/memory.stat",
            "inactive_file 1\nactive_file 1\ntotal_inactive_file 2500\ntotal_active_file 500\n");
  EXPECT_EQ(available_bytes(v1.path()), 4000);
}

TEST(AvailableBytes, StaysBetweenNothingAndTheLimit) {
  const ScratchDir dir;
  write_raw(dir / "memory.max", "9000\n");
  write_raw(dir / "memory.current", "9500\n");
  EXPECT_EQ(available_bytes(dir.path()), 0);
  write_raw(dir / "memory.stat", "inactive_file 100000\n");
  EXPECT_EQ(available_bytes(dir.path()), kLimit);
}

// The counters of version 1 are not read at one instant: pages of files may be more than what is used, and a cgroup
// without a limit has one near the largest number there is.
TEST(AvailableBytes, MorePagesOfFilesThanUsedLeaveEverything) {
  const ScratchDir dir;
  write_raw(dir / "memory/memory.limit_in_bytes", "9223372036854771712\n");
  write_raw(dir / "memory/memory.usage_in_bytes", "8000\n");
  write_raw(dir / "memory/memory.stat", "total_inactive_file 6000000\ntotal_active_file 500\n");
  EXPECT_GT(available_bytes(dir.path()), kLimit);
}

TEST(AvailableBytes, WithoutALimitTheNodeDecides) {
  const ScratchDir dir;
  const int64_t node = available_bytes(dir / "absent");
  EXPECT_GT(node, kLimit);
  write_raw(dir / "memory.max", "max\n");
  write_raw(dir / "memory.current", "9500\n");
  EXPECT_GT(available_bytes(dir.path()), kLimit);
}

}  // namespace
}  // namespace mw::test
