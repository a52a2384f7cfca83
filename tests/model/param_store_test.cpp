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
  for (const DType dtype : {DType::f32, DType::bf16}) {
    RunSpec run = small_run();
    run.train.dtype = dtype;
    SmallModel kept(run);
    run.offload = Offload::optimizer;
    SmallModel offloaded(run);
    EXPECT_EQ(run_once(offloaded).gradients, run_once(kept).gradients) << word_of(dtype);

    int64_t device = 0, host = 0;
    const auto count = [](int64_t& bytes) {
      return [&bytes](size_t more) {
        bytes += static_cast<int64_t>(more);
        return reserve_host(more);
      };
    };
    const ParamStore store(offloaded.plan, count(device), count(host));
    const int64_t on_host = sum_of(offloaded.plan.parameter_rows, true);
    EXPECT_GT(on_host, 0) << word_of(dtype);
    EXPECT_GE(host, on_host) << word_of(dtype);
    EXPECT_LT(host, on_host + (1 << 20)) << word_of(dtype);  // whole pages
    EXPECT_GE(device, sum_of(offloaded.plan.parameter_rows, false)) << word_of(dtype);
    ASSERT_EQ(store.all().size(), kept.params.all().size());
    for (size_t i = 0; i < store.all().size(); ++i) {
      const Parameter &p = store.all()[i], &q = kept.params.all()[i];
      EXPECT_EQ(p.master.numel(), q.master.numel()) << p.row.name;
      EXPECT_EQ(p.adam_m.numel(), q.adam_m.numel()) << p.row.name;
      EXPECT_EQ(p.adam_v.numel(), q.adam_v.numel()) << p.row.name;
    }
  }
}

// Where both directions read one form that is the bf16 values and nothing more, master weights are what it lacks of
// them: the same values, of the same cut, in half the memory.
TEST(ParamStore, SplitsMasterWeights) {
  RunSpec run = even_run();
  const ModelSpec spec = build_native_model(run.native);
  Platform splits;
  splits.native_bf16 = splits.one_packed_form = true;
  Platform whole = splits;
  whole.split_masters = false;
  for (const int64_t zero : {0, 1})
    for (const int rank : {0, 3}) {
      run.mesh.zero = zero;
      ParamStore a(make_plan(spec, run, 4, rank, whole)), b(make_plan(spec, run, 4, rank, splits));
      Stream stream(2);
      a.initialise(3, stream);
      b.initialise(3, stream);
      int64_t split = 0;
      for (size_t i = 0; i < a.all().size(); ++i) {
        const Parameter &p = a.all()[i], &q = b.all()[i];
        ASSERT_EQ(q.is_split(), p.row.role == ParamRole::matrix) << p.row.name;
        ASSERT_EQ(p.held.count, q.held.count) << p.row.name;
        for (int64_t j = 0; j < p.held.count; ++j) ASSERT_EQ(p.master_at(j), q.master_at(j)) << p.row.name;
        if (!q.is_split()) continue;
        split += q.rest.numel();
        EXPECT_EQ(q.master.data, nullptr);
        for (const Weight& w : q.weights) EXPECT_EQ(w.values.data, nullptr);
        for (int64_t j = 0; j < q.held.count; ++j)
          ASSERT_EQ(q.held_near().as<bf16>()[j].bits, split_float(p.master_at(j)).near.bits) << p.row.name;
        // Where an update writes.
        EXPECT_EQ(q.owned_master().numel(), q.owned.count);
        EXPECT_EQ(q.owned_master().dtype, DType::u16);
        EXPECT_EQ(q.owned_copy().numel(), q.owned.count);
        const float values[] = {-1.00390625f, 3.0e38f};
        if (q.held.count < 2) continue;
        q.set_master({}, q.held.count - 2, values);
        EXPECT_EQ(q.master_at(q.held.count - 2), values[0]);
        EXPECT_EQ(q.master_at(q.held.count - 1), values[1]);
      }
      EXPECT_GT(split, 0);
      EXPECT_NEAR(static_cast<double>(a.fixed_bytes() - b.fixed_bytes()), static_cast<double>(2 * split), 64.0 * 40);
    }
}

}  // namespace
}  // namespace mw::test
