// What is recomputed gives the bits of what is kept, in a whole model.
#include <algorithm>
#include <string>

#include "model/helpers.h"

namespace mw::test {
namespace {

constexpr Recompute kOthers[] = {Recompute::keep_norms, Recompute::selective, Recompute::moe, Recompute::full};

// In every mode, twice in a row: the second time over what the first left in the shared rows.
void expect_bits_of_none(RunSpec run, const std::string& what) {
  run.recompute = Recompute::none;
  SmallModel keeps(run);
  const Outcome expected = run_once(keeps);
  for (const Recompute mode : kOthers) {
    run.recompute = mode;
    SmallModel recomputes(run);
    for (int i = 0; i < 2; ++i) {
      const Outcome got = run_once(recomputes);
      EXPECT_EQ(got.loss, expected.loss) << word_of(mode) << ", " << what;
      EXPECT_EQ(got.gradients, expected.gradients) << word_of(mode) << ", " << what;
      EXPECT_EQ(got.statistics, expected.statistics) << word_of(mode) << ", " << what;
    }
  }
}

TEST(Recompute, GivesTheBitsOfWhatIsKept) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const char* transport : {"in_place", "flat", "padded"})
      for (const int64_t chunks : {1, 3}) {
        RunSpec run = small_run();
        run.moe.transport = transport;
        run.moe.row_chunks = chunks;
        run.train.dtype = dtype;
        expect_bits_of_none(run, fmt::format("{} {} {} chunks", word_of(dtype), transport, chunks));
      }
}

TEST(Recompute, OfEveryKindOfLayer) {
  const auto with = [](auto change, const char* what) {
    RunSpec run = small_run();
    run.moe.transport = "flat";
    change(run);
    expect_bits_of_none(run, what);
  };
  with([](RunSpec& r) { r.native.activation = Activation::gelu; }, "two-matrix experts");
  with([](RunSpec& r) { r.native.qk_norm = QkNorm::full_width, r.native.clip_qkv = 0.5; }, "clip and full-width norm");
  with([](RunSpec& r) { r.native.qk_norm = QkNorm::none, r.native.clip_qkv = 0.5; }, "clip alone");
  with([](RunSpec& r) { r.native = latent_run().native; }, "latent attention");
  with([](RunSpec& r) { r.native.shared_experts = 0, r.native.dense_layers = 0; }, "routed experts alone");
  with([](RunSpec& r) { r.native.dense_layers = r.native.layers; }, "dense layers alone");
  with([](RunSpec& r) { r.native.score = ScoreFunction::sigmoid, r.native.selection_bias = true; }, "sigmoid and bias");
  with([](RunSpec& r) { r.moe.capacity_factor = 0.75, r.moe.aux_scope = AuxScope::model; }, "drops");
  with([](RunSpec& r) { r.moe.capacity_factor = 0.75, r.moe.transport = "padded"; }, "padded drops");
  with([](RunSpec& r) { r.moe.row_headroom = 1.0; }, "rows that grow");
  with([](RunSpec& r) { r.fault = Fault::drop_row; }, "a row that a fault dropped");
}

TEST(Recompute, StandsInTheTraceUnderItsName) {
  for (const Recompute mode :
       {Recompute::keep_norms, Recompute::none, Recompute::selective, Recompute::moe, Recompute::full}) {
    RunSpec run = small_run();
    run.recompute = mode;
    run.moe.transport = "flat";
    SmallModel m(run);
    m.stream.trace().keep_events(true);
    m.loss(false, true);
    const std::vector<TraceEvent>& events = m.stream.trace().events();
    const auto scopes = std::count_if(events.begin(), events.end(),
                                      [](const TraceEvent& e) { return std::string(e.label) == "recompute"; });
    if (mode == Recompute::none || mode == Recompute::keep_norms) EXPECT_EQ(scopes, 0);
    else EXPECT_GE(scopes, m.model.moe_layers());
  }
}

// Two micro-batches whose activations live at the same time in the slots of one stage, as in a pipeline.
TEST(Recompute, KeepsMicroBatchesApart) {
  RunSpec run = small_run();
  run.native.clip_qkv = 0.5;
  const auto gradients = [&](Recompute mode, ScheduleKind schedule) {
    run.recompute = mode;
    run.mesh.schedule = schedule;
    ModelSpec spec = build_native_model(run.native);
    Plan plan = make_plan(spec, run, 1, 0, measure_platform(spec, run, Mesh{}, 1));
    plan.stages.front().slots = 2;
    plan.activation_rows =
        activation_bytes(plan.model, run, plan.mesh, plan.coords, plan.stages, plan.placements->layers, plan.transports,
                         measure_platform(spec, run, Mesh{}, 1));
    const std::unique_ptr<Comm> world = make_self_comm();
    MeshComms comms = make_mesh_comms(*world, plan.mesh);
    Stream stream(1);
    ParamStore params(plan);
    params.initialise(3, stream);
    params.repack(stream);
    Transformer model(plan, params, comms, stream);
    params.zero_gradients(stream);
    const auto tokens = static_cast<size_t>(plan.batch.tokens());
    std::vector<std::vector<int32_t>> ids(2);
    for (size_t m = 0; m < 2; ++m)
      for (size_t t = 0; t < tokens; ++t)
        ids[m].push_back(static_cast<int32_t>(bits_at(make_rng_key(5 + m, "tokens"), t) % 29));
    const auto batch = [&](int64_t m) {
      const std::vector<int32_t>& own = ids[static_cast<size_t>(m)];
      return Batch{own.data(), own.data(), plan.batch.sequences, plan.batch.seq_len};
    };
    for (int64_t m : {0, 1}) model.forward(0, m, batch(m), true);
    std::vector<double> statistics;
    for (int64_t m : {0, 1}) {
      const std::vector<double> summed = model.statistics(0, m);
      statistics.insert(statistics.end(), summed.begin(), summed.end());
      std::vector<float> losses;
      model.loss(m, batch(m), 0.01f, losses, m == 0 ? Store::overwrite : Store::accumulate);
      model.set_auxiliary(0, m, summed, {}, plan.batch.tokens(), 1.0);
      model.backward(0, m, batch(m), m == 0 ? Store::overwrite : Store::accumulate);
      EXPECT_EQ(model.live(0), splits_backward(plan.pipeline.kind) ? 2 : 1 - m);
    }
    // The weight parts of a split come after all other work.
    for (int64_t m = 0; m < 2 && splits_backward(plan.pipeline.kind); ++m) {
      model.backward_weights(0, m, batch(m), m == 0 ? Store::overwrite : Store::accumulate);
      EXPECT_EQ(model.live(0), 1 - m);
    }
    std::vector<std::vector<float>> out;
    for (const Parameter& p : params.all())
      if (p.row.trained) out.emplace_back(p.grad.as<float>(), p.grad.as<float>() + p.grad.numel());
    return std::pair(out, statistics);
  };
  for (const char* transport : {"flat", "in_place"}) {
    run.moe.transport = transport;
    const auto expected = gradients(Recompute::none, ScheduleKind::one_f_one_b);
    for (const Recompute mode : kOthers) {
      EXPECT_EQ(gradients(mode, ScheduleKind::one_f_one_b), expected) << word_of(mode);
      if (mode == Recompute::full) continue;
      EXPECT_EQ(gradients(mode, ScheduleKind::zb_h1), expected) << word_of(mode);
    }
    EXPECT_EQ(gradients(Recompute::none, ScheduleKind::zb_h1), expected);
  }
}

TEST(Recompute, KeptNormsAreNotComputedAgain) {
  const auto count = [&](Recompute mode, const char* label) {
    RunSpec run = small_run();
    run.recompute = mode;
    SmallModel m(run);
    m.stream.trace().keep_events(true);
    m.loss(false, true);
    const std::vector<TraceEvent>& events = m.stream.trace().events();
    return std::count_if(events.begin(), events.end(),
                         [&](const TraceEvent& e) { return std::string(e.label) == label; });
  };
  for (const char* again : {"rms_norm_apply", "norm_rope_apply"}) {
    EXPECT_GT(count(Recompute::none, again), 0);
    EXPECT_EQ(count(Recompute::keep_norms, again), 0);
  }
  EXPECT_EQ(count(Recompute::keep_norms, "norm_rope"), count(Recompute::none, "norm_rope"));
}

}  // namespace
}  // namespace mw::test
