#include "layout/plan.h"

#include "base/text.h"
#include "layout/helpers.h"

namespace mw::test {
namespace {

TEST(Plan, IsAPureFunctionOfItsInputs) {
  RunSpec run = small_run();
  run.mesh.ep = 2;
  const Plan a = small_plan(run, 4, 1), b = small_plan(run, 4, 1);
  EXPECT_EQ(describe(a), describe(b));
  EXPECT_EQ(describe(a.schedule), "F0 S0 B0 F1 S1 B1 R");
  EXPECT_EQ(a.placements->layers.size(), 2u);
  EXPECT_EQ(a.placements->layers[0], ExpertPlacement{});  // the first layer is dense
  EXPECT_EQ(a.placements->layers[1], make_block_placement(6, 2));
  EXPECT_EQ(a.coords.ep, 1);
  EXPECT_EQ(a.batch.sequences, 1);
  EXPECT_EQ(all_rows(a).size(), a.parameter_rows.size() + a.activation_rows.size());
  EXPECT_TRUE(contains(describe(a), "4 ranks")) << describe(a);
}

TEST(Plan, NamesGradientsThatAreKeptInBf16) {
  RunSpec run = small_run();
  run.train.dtype = DType::bf16;
  EXPECT_FALSE(contains(describe(small_plan(run, 1, 0)), "of experts in bf16"));
  run.expert_gradients = DType::bf16;
  const Plan plan = small_plan(run, 1, 0);
  const std::string gradients = format_bytes(summarise(all_rows(plan)).by_kind[static_cast<int>(ByteKind::gradient)]);
  EXPECT_TRUE(contains(describe(plan), ", gradients " + gradients + " (those of experts in bf16)")) << describe(plan);
}

TEST(Plan, NamesMomentsAndMasterWeightsInHalves) {
  RunSpec run = small_run();
  run.train.dtype = DType::bf16;
  NativeModel even = small_native();
  even.vocab = 128;
  even.width = even.dense_width = even.expert_width = 64;
  even.kv_heads = 4;
  even.head_dim = 16;
  Platform gpu;
  gpu.native_bf16 = gpu.one_packed_form = true;
  const auto header = [&](const Platform& platform) {
    return describe(make_plan(build_native_model(even), run, 1, 0, platform));
  };
  EXPECT_FALSE(contains(header(gpu), "(in bf16)")) << header(gpu);
  EXPECT_FALSE(contains(header({}), "(what packed weights lack)")) << header({});
  run.moments = DType::bf16;
  EXPECT_TRUE(contains(header(gpu), " (what packed weights lack), gradients ")) << header(gpu);
  EXPECT_TRUE(contains(header(gpu), " (in bf16), packed weights ")) << header(gpu);
}

// Micro-batches do not depend on the layout: every rank has the same schedule.
TEST(Plan, RanksAgreeOnTheSchedule) {
  RunSpec run = small_run();
  run.mesh.ep = 4;
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(small_plan(run, 4, rank).schedule, small_plan(run, 4, 0).schedule);
}

TEST(Plan, RefusesWhatCannotBe) {
  const auto refuse = [](auto change, int world, Exit code, const char* why) {
    RunSpec run = small_run();
    NativeModel native = small_native();
    change(run, native);
    const auto error = refusal_of([&] { make_plan(build_native_model(native), run, world, 0, {}); });
    ASSERT_TRUE(error) << why;
    EXPECT_EQ(error->code(), code) << error->what();
    EXPECT_TRUE(contains(error->what(), why)) << error->what();
  };
  refuse([](RunSpec& r, NativeModel&) { r.mesh.ep = 3; }, 4, Exit::config, "mesh.ep = 3");
  refuse([](RunSpec& r, NativeModel&) { r.mesh.ep = 8, r.train.micro_batches = 1; }, 8, Exit::config, "6 experts");
  refuse([](RunSpec& r, NativeModel& n) { r.mesh.ep = 2, n.dense_layers = 2; }, 2, Exit::config, "no MoE layer");
  refuse([](RunSpec&, NativeModel&) {}, 3, Exit::config, "not divisible");
  refuse([](RunSpec& r, NativeModel&) { r.train.dtype = DType::f32, r.expert_gradients = DType::bf16; }, 1,
         Exit::config, "memory.expert_gradients = \"bf16\" needs train.dtype = \"bf16\", got \"fp32\"");
  refuse([](RunSpec& r, NativeModel&) { r.train.dtype = DType::f32, r.logits = DType::bf16; }, 1, Exit::config,
         "memory.logits = \"bf16\" needs train.dtype = \"bf16\", got \"fp32\"");
  refuse([](RunSpec& r, NativeModel&) { r.mesh.ep = 2, r.moe.transport = "in_place"; }, 2, Exit::config, "in_place");
  for (const char* transport : {"padded", "gather_weights", "gather_tokens"})
    refuse([&](RunSpec& r, NativeModel&) { r.mesh.ep = 2, r.moe.replica_slots = 1, r.moe.transport = transport; }, 2,
           Exit::unsupported, transport);
  refuse(
      [](RunSpec& r, NativeModel& n) {
        r.mesh.ep = 2, r.moe.transport = "gather_tokens";
        n = {};
        n.preset = "gpt-oss-20b";
      },
      2, Exit::unsupported, "no slices of the biases");
  refuse([](RunSpec& r, NativeModel&) { r.train.seq_len = 1 << 22, r.train.global_batch = 1 << 12; }, 1, Exit::config,
         "2^30");
}

// The largest numbers that the tables of keys let through must not wrap around.
TEST(Plan, HugeSizesAreErrorsNotOverflows) {
  NativeModel wide;
  wide.vocab = 1;
  wide.width = 1 << 24;
  wide.layers = 10000;
  wide.heads = 1;
  wide.head_dim = 2;
  wide.experts = wide.top_k = wide.expert_width = 1;
  RunSpec run;
  run.train.seq_len = 1 << 22;
  run.train.global_batch = 1 << 8;
  const auto error = refusal_of([&] { make_plan(build_native_model(wide), run, 1, 0, {}); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), Exit::memory);
  EXPECT_TRUE(contains(error->what(), "2^60")) << error->what();

  NativeModel many = small_native();
  many.experts = 1 << 16;
  many.top_k = 1;
  RunSpec padded;
  padded.moe.transport = "padded";
  padded.moe.capacity_factor = 1e6;
  padded.train.seq_len = 1 << 22;
  padded.train.global_batch = 1 << 8;
  refusal_of([&] { make_plan(build_native_model(many), padded, 1, 0, {}); }, {Exit::config, Exit::memory}, "padded");
  for (const int64_t seq : {1, 1 << 15, 1 << 22})
    for (const char* transport : {"auto", "flat", "padded"}) {
      padded.train.seq_len = seq;
      padded.moe.transport = transport;
      padded.moe.row_headroom = 1e6;
      refusal_of([&] { summarise(all_rows(make_plan(build_native_model(many), padded, 1, 0, {}))); },
                 {Exit::config, Exit::memory}, transport);
    }
}

TEST(Plan, RefusesRowsThatThirtyTwoBitsCannotCount) {
  NativeModel model = small_native();
  model.top_k = 2;
  model.experts = 3;
  RunSpec run;
  run.train.micro_batches = 1;
  run.train.seq_len = 1 << 20;
  const auto plan = [&](const char* transport, int64_t samples) {
    run.moe.transport = transport;
    run.train.global_batch = samples;
    return refusal_of([&] { make_plan(build_native_model(model), run, 1, 0, {}); }, {Exit::config}, transport);
  };
  EXPECT_TRUE(plan("auto", 1 << 10));  // 2^30 tokens, two choices each
  EXPECT_FALSE(plan("auto", (1 << 10) - 1));
  EXPECT_TRUE(plan("padded", 1 << 9));  // 2^29 tokens, three experts and one source
  EXPECT_FALSE(plan("padded", (1 << 9) - 1));
}

// Of a token's choices, a rank gets at most as many rows as it has experts; of merged rows, all choices are counted.
TEST(Plan, CountsRowsOfTheExpertsThatARankHas) {
  NativeModel model = small_native();
  model.top_k = 8;
  model.experts = 16;
  RunSpec run;
  run.train.micro_batches = 1;
  run.train.seq_len = 1 << 20;
  run.mesh.ep = 8;
  const auto plan = [&](const char* transport, int64_t samples_of_rank) {
    run.moe.transport = transport;
    run.train.global_batch = 8 * samples_of_rank;
    return refusal_of([&] { make_plan(build_native_model(model), run, 8, 0, {}); }, {Exit::config}, transport);
  };
  EXPECT_FALSE(plan("flat", (1 << 7) - 1));  // two experts on each of eight ranks
  const auto error = plan("flat", 1 << 7);
  ASSERT_TRUE(error);
  EXPECT_TRUE(contains(error->hint(), "mesh.tp") && contains(error->hint(), "lower mesh.ep")) << error->hint();
  EXPECT_FALSE(plan("bypass", (1 << 5) - 1));  // eight choices
  EXPECT_TRUE(plan("bypass", 1 << 5));
}

TEST(Plan, RefusesExpertsBeyondCountBeforeTheirTables) {
  NativeModel model = small_native();
  model.width = model.expert_width = 4;
  model.layers = 10000;
  model.experts = 1 << 16;
  const auto error = refusal_of([&] { make_plan(build_native_model(model), RunSpec{}, 1, 0, {}); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), Exit::config);
  EXPECT_TRUE(contains(error->what(), "655294464 routed experts")) << error->what();
}

TEST(Plan, RefusesKeysOfTrainingThatContradictOthers) {
  RunSpec run;
  EXPECT_NO_THROW(check_training(run));
  run.mesh.adapt_every = 10;
  error_of([&] { check_training(run); }, Exit::config);
  run.mesh.shares = kMeasuredShares;
  EXPECT_NO_THROW(check_training(run));
  run.moe.replica_slots = 1;
  error_of([&] { check_training(run); }, Exit::config);
  run.moe.balance = Balance::swap;
  EXPECT_NO_THROW(check_training(run));
  run.moe.balance = Balance::none;
  run.migrate = true;
  EXPECT_NO_THROW(check_training(run));
}

TEST(Plan, LoadsTheModelThatTheRunNames) {
  RunSpec run;
  run.native = small_native();
  EXPECT_EQ(load_model_spec(run), build_native_model(small_native()));
  const ScratchDir dir;
  write_raw(dir / "config.json", read_config("olmoe-1b-7b"));
  run.hf_dir = dir.path();
  EXPECT_EQ(load_model_spec(run).family, "olmoe");
  run.hf_dir = dir / "absent";
  error_of([&] { load_model_spec(run); }, Exit::config);
}

}  // namespace
}  // namespace mw::test
