// How often layers gather weights in a search, beside the plans of runs; and what that does to a step.
#include "planner/gather_rates.h"

#include "layout/plan.h"
#include "planner/estimate.h"
#include "planner/helpers.h"

namespace mw::test {
namespace {

RunSpec run_with_slots(int64_t slots) {
  RunSpec run;
  run.native.vocab = 64;
  run.native.width = 32;
  run.native.heads = run.native.kv_heads = 4;
  run.native.expert_width = 16;
  run.native.dense_width = 48;
  run.native.top_k = 2;
  run.native.layers = 8;
  run.native.dense_layers = 1;
  run.native.experts = 8;
  run.train.dtype = DType::bf16;
  run.train.seq_len = 16;
  run.train.global_batch = 96;
  run.moe.transport = "gather_weights";
  run.moe.row_chunks = 2;
  run.moe.weight_slots = slots;
  return run;
}

double total_of(const std::vector<int64_t>& counts) {
  double all = 0;
  for (const int64_t count : counts) all += static_cast<double>(count);
  return all;
}

// Exact for steps that hardly fill the pipeline, and where every piece is gathered once; else nearly.
TEST(GatherRates, AreThoseOfThePlan) {
  for (const int64_t slots : {1, 2, 5, 0})
    for (const bool one_form : {true, false})
      for (const char* text : {"ep=4 micro_batches=2", "ep=2 micro_batches=24", "pp=2 ep=2 micro_batches=4",
                               "pp=2 ep=2 micro_batches=48 schedule=zb_h1", "pp=2 ep=2 micro_batches=48 schedule=gpipe",
                               "pp=2 ep=2 micro_batches=24 schedule=zb_v chunks=2",
                               "pp=2 ep=2 micro_batches=48 schedule=interleaved chunks=2", "pp=4 micro_batches=24"}) {
        const RunSpec run = run_with_slots(slots);
        const ModelSpec model = build_native_model(run.native);
        const Platform platform{true, one_form};
        const Layout layout = parse_layout(text, {});
        MemoryModel memory(model, run, platform);
        Pipelines pipelines(model, run.train.seq_len, "");
        GatherRates rates(memory, pipelines, slots);
        const std::vector<GatherRates::Rate> got = rates.of(layout, mesh_of(layout, 4));
        const Plan plan = make_plan(model, with_layout(run, layout), 4, 0, platform);
        ASSERT_EQ(got.size(), model.layers.size());
        const auto steps = static_cast<double>(layout.micro_batches);
        double all = 0, expected = 0;
        for (size_t i = 1; i < got.size(); ++i) {
          const PieceGathers& counts = plan.weight_cache.gathers[i];
          const auto pieces = static_cast<double>(counts.forward.size());
          if (enough_micro_batches(layout) == layout.micro_batches || slots == 0) {
            EXPECT_NEAR(got[i].forward, total_of(counts.forward) / pieces / steps, 1e-9) << text << ", layer " << i;
            EXPECT_NEAR(got[i].backward, total_of(counts.backward) / pieces / steps, 1e-9) << text << ", layer " << i;
          }
          all += got[i].forward + got[i].backward;
          expected += (total_of(counts.forward) + total_of(counts.backward)) / pieces / steps;
        }
        EXPECT_NEAR(all, expected, 0.03 * expected) << text << ", " << slots << " slots";
      }
}

TEST(GatherRates, AreEmptyWhereNoWeightsAreGathered) {
  RunSpec run = run_with_slots(2);
  run.moe.transport = "flat";
  const ModelSpec model = build_native_model(run.native);
  MemoryModel memory(model, run, {});
  Pipelines pipelines(model, run.train.seq_len, "");
  const Layout layout = parse_layout("ep=4", {});
  EXPECT_TRUE(GatherRates(memory, pipelines, 2).of(layout, mesh_of(layout, 4)).empty());
}

// More slots take memory, and spare a step gathers; slots for all leave those of one micro-batch.
TEST(GatherRates, SpareTime) {
  PlatformProfile profile = shipped_profile("h200x8");
  profile.levels = {{"near", 8, {0, 1e6}, {0, 1e6}, {0, 1e6}}};  // so slow that nothing hides a gather
  const auto estimate = [&](int64_t slots) {
    const RunSpec run = run_with_slots(slots);
    const ModelSpec model = build_native_model(run.native);
    const ExpertLoad load{};
    Estimator estimator(model, run, profile, load, 4);
    return estimator.closed_form(parse_layout("ep=4 micro_batches=8", {}));
  };
  const Estimate one = estimate(1), two = estimate(2), all = estimate(0);
  EXPECT_LT(one.needed, two.needed);
  EXPECT_LT(two.needed, all.needed);
  EXPECT_GT(one.time.exchange, two.time.exchange);
  EXPECT_GT(two.time.exchange, all.time.exchange);
}

}  // namespace
}  // namespace mw::test
