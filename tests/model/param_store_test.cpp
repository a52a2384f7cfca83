// Where parameters lie.
#include "model/helpers.h"

namespace mw::test {
namespace {

int64_t sum_of(const std::vector<ByteRow>& rows, bool on_host) {
  int64_t bytes = 0;
  for (const ByteRow& row : rows)
    if (row.on_host == on_host) bytes += row.bytes();
  return bytes;
}

// memory.offload takes moments and masters from memory of its own, as much as the table of bytes says; everything is
// there as without it, and a pass gives the same bits.
TEST(ParamStore, OffloadsIntoMemoryOfItsOwn) {
  for (const char* dtype : {"fp32", "bf16"}) {
    RunSpec run = small_run();
    run.train.dtype = dtype;
    SmallModel kept(run);
    run.offload = "optimizer";
    SmallModel offloaded(run);
    EXPECT_EQ(run_once(offloaded).gradients, run_once(kept).gradients) << dtype;

    int64_t device = 0, host = 0;
    const auto count = [](int64_t& bytes) {
      return [&bytes](size_t more) {
        bytes += static_cast<int64_t>(more);
        return reserve_host(more);
      };
    };
    const ParamStore store(offloaded.plan, count(device), count(host));
    const int64_t on_host = sum_of(offloaded.plan.parameter_rows, true);
    EXPECT_GT(on_host, 0) << dtype;
    EXPECT_GE(host, on_host) << dtype;
    EXPECT_LT(host, on_host + (1 << 20)) << dtype;  // whole pages
    EXPECT_GE(device, sum_of(offloaded.plan.parameter_rows, false)) << dtype;
    ASSERT_EQ(store.all().size(), kept.params.all().size());
    for (size_t i = 0; i < store.all().size(); ++i) {
      const Parameter &p = store.all()[i], &q = kept.params.all()[i];
      EXPECT_EQ(p.master.numel(), q.master.numel()) << p.row.name;
      EXPECT_EQ(p.adam_m.numel(), q.adam_m.numel()) << p.row.name;
      EXPECT_EQ(p.adam_v.numel(), q.adam_v.numel()) << p.row.name;
    }
  }
}

}  // namespace
}  // namespace mw::test
