// A running engine that changes its transport: weights and optimizer state stay, and it computes from then on as an
// engine that was made with the other transport.
#include <cmath>
#include <filesystem>

#include "layout/byte_table.h"
#include "support/row_bits.h"
#include "support/thread_comm.h"
#include "train/engines.h"
#include "train/loop/transport_chooser.h"
#include "train/redistribute.h"

namespace mw::test {
namespace {

struct Case {
  const char* name;
  int ranks;
  DType dtype = DType::f32;
  int64_t zero = 0, pp = 1;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
};

RandomLayout layout_with(const Case& c, const std::string& transport) {
  RandomLayout layout = layout_of(2, c.zero, nullptr);
  layout.run.moe.transport = transport;
  layout.run.moe.row_chunks = 2;
  layout.run.train.dtype = c.dtype;
  layout.run.mesh.pp = c.pp;
  layout.run.mesh.schedule = c.schedule;
  return layout;
}

bool change_transport(Engine& engine, const std::string& setting) {
  RunSpec run = engine.plan.run;
  run.moe.transport = setting;
  return change_run(engine, run);
}

TEST(ChangeTransport, ComputesAsAnEngineMadeWithIt) {
  for (const Case& c : {Case{"fp32", 2}, Case{"bf16, ZeRO", 4, DType::bf16, 1},
                        Case{"pipeline", 4, DType::f32, 0, 2, ScheduleKind::zb_h1}})
    run_ranks(c.ranks, [&](Comm& world, Stream&) {
      SCOPED_TRACE(c.name);
      const std::unique_ptr<Engine> engine = trained_engine(layout_with(c, "flat"), world);
      for (const char* next : {"gather_weights", "bypass,flat", "bypass", "gather_weights,halo", "flat"}) {
        const std::unique_ptr<Engine> fresh = make_engine(layout_with(c, next), world);
        redistribute(*engine, *fresh);
        ASSERT_TRUE(change_transport(*engine, next));
        expect_same_states(*engine, *fresh);
        EXPECT_EQ(engine->plan.transports, fresh->plan.transports);
        EXPECT_EQ(engine->plan.platform.ops_workspace_bytes, fresh->plan.platform.ops_workspace_bytes);
        const ByteSummary bytes = summarise(all_rows(engine->plan));
        EXPECT_EQ(engine->params.fixed_bytes() + engine->model->activations().fixed_bytes(), bytes.fixed);
        EXPECT_EQ(take_step(*engine, 3), take_step(*fresh, 3)) << next;
        expect_same_states(*engine, *fresh);
      }
    });
}

// Rows stay where they are with gathered weights, and travel with flat: neither changes what comes out, unless the bits
// of a row depend on how many there are.
TEST(ChangeTransport, FromFlatToGatheredWeightsChangesNoBitOfTheNextLoss) {
  const Case c{"fp32", 2};
  run_ranks(c.ranks, [&](Comm& world, Stream&) {
    const std::unique_ptr<Engine> stays = trained_engine(layout_with(c, "flat"), world),
                                  changes = trained_engine(layout_with(c, "flat"), world);
    ASSERT_TRUE(change_transport(*changes, "gather_weights"));
    const double loss = take_step(*stays, 3);
    EXPECT_NEAR(take_step(*changes, 3), loss, row_tolerance() * loss);
  });
}

TEST(ChangeTransport, RefusesOneThatStoresTheExpertsInAnotherWay) {
  run_ranks(2, [&](Comm& world, Stream&) {
    const std::unique_ptr<Engine> engine = trained_engine(layout_with({"fp32", 2}, "flat"), world);
    EXPECT_THROW(change_transport(*engine, "gather_tokens"), Error);
    EXPECT_EQ(engine->plan.run.moe.transport, "flat");
    take_step(*engine, 3);
  });
}

// A choice that cannot be made again is told, and nothing changes.
TEST(TransportChooser, WarnsWhereItsProfileIsGone) {
  const std::filesystem::path profile = std::filesystem::path(testing::TempDir()) / "transport_chooser.json";
  std::filesystem::copy_file(MOEWRIGHT_SOURCE_DIR "/profiles/frontier.json", profile,
                             std::filesystem::copy_options::overwrite_existing);
  run_ranks(2, [&](Comm& world, Stream&) {
    RandomLayout layout = layout_with({"fp32", 2}, "auto");
    layout.run.plan.platform = profile.string();
    TransportChooser chooser(layout.run, world, {}, "", false);
    EXPECT_EQ(chooser.note().empty(), world.rank() != 0);
    const std::string chosen = layout.run.moe.transport;
    const std::unique_ptr<Engine> engine = trained_engine(layout, world);
    const StepStats stats = accumulate_gradients(*engine, stage(*engine, random_batches(engine->plan)));
    EXPECT_EQ(chooser.after_step(*engine, stats, 15), "");
    world.barrier();
    if (world.rank() == 0) std::filesystem::remove(profile);
    const std::string told = chooser.after_step(*engine, stats, 16);
    EXPECT_EQ(told.starts_with("warning: step 16: moe.transport stays " + chosen), world.rank() == 0) << told;
    EXPECT_EQ(engine->plan.run.moe.transport, chosen);
    EXPECT_TRUE(std::isfinite(take_step(*engine, 3)));
  });
}

}  // namespace
}  // namespace mw::test
