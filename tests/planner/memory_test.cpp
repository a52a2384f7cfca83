#include "planner/memory.h"

#include "config/hf_config.h"
#include "config/param_groups.h"
#include "planner/helpers.h"

namespace mw::test {
namespace {

void expect_equal(const ByteSummary& closed, const ByteSummary& table, const std::string& what) {
  for (int kind = 0; kind < kByteKinds; ++kind)
    EXPECT_EQ(closed.by_kind[kind], table.by_kind[kind]) << name_of(static_cast<ByteKind>(kind)) << " of " << what;
  EXPECT_EQ(closed.fixed, table.fixed) << what;
  EXPECT_EQ(closed.on_host, table.on_host) << what;
  EXPECT_EQ(closed.routed_mean, table.routed_mean) << what;
  EXPECT_EQ(closed.routed_committed, table.routed_committed) << what;
  EXPECT_EQ(closed.routed_max, table.routed_max) << what;
}

ByteSummary table_of(MemoryModel& memory, const Layout& layout, const Mesh& mesh, const MeshCoords& coords,
                     const std::vector<StagePlan>& stages) {
  ByteSummary sum = memory.parameters(layout, mesh, coords, stages);
  add(sum, memory.activations(layout, mesh, coords, {stages}).front());
  return sum;
}

// Every rank of the layout; returns how many were compared.
int compare(MemoryModel& memory, const ModelSpec& model, const RunSpec& base, const std::string& text, int ranks,
            const Platform& platform) {
  Layout none;
  none.tp_mode = base.moe.tp_mode;
  const Layout layout = parse_layout(text, none);
  const RunSpec run = with_layout(base, layout);
  EXPECT_EQ(layout_of(run), layout) << describe(layout);
  int compared = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const Plan plan = make_plan(model, run, ranks, rank, platform);
    EXPECT_EQ(mesh_of(layout, ranks), plan.mesh);
    expect_equal(table_of(memory, layout, plan.mesh, plan.coords, plan.stages), summarise(all_rows(plan)),
                 fmt::format("rank {} of {}, {}", rank, ranks, describe(layout)));
    ++compared;
  }
  return compared;
}

TEST(Memory, EqualsTheTableOfBytesOfEveryRank) {
  const struct {
    const char* layout;
    int ranks;
  } layouts[] = {
      {"", 1},
      {"micro_batches=4 recompute=full", 1},
      {"ep=4", 4},
      {"ep=4 placement=dp_first zero=1", 8},
      {"tp=2 ep=2 micro_batches=2", 4},
      {"tp=4 ep=8 zero=1 recompute=moe", 8},
      {"tp=8 ep=3 zero=1 micro_batches=4", 24},
      {"pp=2 micro_batches=8 ep=3 zero=1", 6},
      {"pp=3 schedule=gpipe micro_batches=4 recompute=selective", 6},
      {"pp=3 schedule=interleaved chunks=2 micro_batches=8 tp=2 zero=1", 12},
      {"pp=3 schedule=zb_v micro_batches=8 tp=2 zero=1", 12},  // the same stages a rank, cut elsewhere
      {"pp=7 micro_batches=16 recompute=full", 7},
      {"pp=2 schedule=interleaved chunks=3 micro_batches=6 ep=4 placement=dp_first zero=1", 8},
  };
  for (const bool tied : {false, true})
    for (const DType dtype : {DType::bf16, DType::f32})
      for (const Platform& platform : {Platform{false, false, 1000}, Platform{true, true, 77, int64_t{1} << 27}}) {
        const ModelSpec model = odd_model(tied);
        RunSpec run = small_run();
        run.train.dtype = dtype;
        MemoryModel memory(model, run, platform);
        for (const auto& [layout, ranks] : layouts) compare(memory, model, run, layout, ranks, platform);
      }
}

TEST(Memory, EqualsTheTableWithMuon) {
  for (const DType dtype : {DType::bf16, DType::f32})
    for (const DType moments : {DType::bf16, DType::f32})
      for (const Platform& platform : {Platform{false, false, 1000}, Platform{true, true, 77}}) {
        const ModelSpec model = odd_model();
        RunSpec run = small_run();
        run.train.dtype = dtype;
        run.moments = moments;
        run.train.optimizer = Optimizer::muon;
        MemoryModel memory(model, run, platform);
        for (const char* layout :
             {"ep=4", "ep=2 zero=1", "tp=2 ep=3 zero=1", "pp=3 schedule=zb_v micro_batches=8 tp=2 zero=1"})
          compare(memory, model, run, layout, 12, platform);
        compare(memory, model, run, "", 1, platform);
      }
}

// Products of five Newton-Schulz steps: of every matrix once on one rank, and with ZeRO once over all ranks.
TEST(Memory, CountsTheProductsOfMuon) {
  const ModelSpec model = odd_model();
  RunSpec run = small_run();
  run.train.optimizer = Optimizer::muon;
  double all = 0, dense = 0;
  for (const ParamRow& row : run_params(model, run.train)) {
    if (!row.muon) continue;
    const MuonShape shape = muon_shape(row);
    const auto n = static_cast<double>(shape.n), k = static_cast<double>(shape.k), side = std::min(n, k);
    const double flops = 5 * static_cast<double>(shape.matrices) * (4 * n * k * side + 2 * side * side * side);
    all += flops;
    if (!row.expert) dense += flops;
  }
  MemoryModel memory(model, run, {});
  const auto sum_over_ranks = [&](const char* text, int ranks) {
    const Layout layout = parse_layout(text, {});
    double flops = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const Plan plan = make_plan(model, with_layout(run, layout), ranks, rank, {});
      flops += memory.muon_work(layout, plan.mesh, plan.coords, plan.stages).flops;
    }
    return flops;
  };
  EXPECT_NEAR(sum_over_ranks("", 1) / all, 1, 1e-12);
  EXPECT_NEAR(sum_over_ranks("ep=2 zero=1", 4) / all, 1, 1e-12);
  EXPECT_NEAR(sum_over_ranks("ep=4", 4) / (all + 3 * dense), 1, 1e-12);
}

TEST(Memory, EqualsTheTableWhereWeightsAreGathered) {
  for (const char* transport : {"gather_weights", "gather_weights*2,flat*3"})
    for (const DType dtype : {DType::bf16, DType::f32})
      for (const Platform& platform : {Platform{false, false, 1000}, Platform{true, true, 77, int64_t{1} << 27}})
        for (const auto& [chunks, slots] : {std::pair<int64_t, int64_t>{0, 2}, {1, 1}, {3, 5}, {2, 0}}) {
          const ModelSpec model = odd_model();
          RunSpec run = small_run();
          run.train.dtype = dtype;
          run.moe.transport = transport;
          run.moe.row_chunks = chunks;
          run.moe.weight_slots = slots;
          MemoryModel memory(model, run, platform);
          for (const char* layout : {"ep=4", "ep=2 zero=1 recompute=selective", "tp=2 ep=3 recompute=moe",
                                     "pp=3 schedule=zb_v micro_batches=8 tp=2 zero=1", "ep=6 recompute=full"})
            compare(memory, model, run, layout, 12, platform);
        }
}

TEST(Memory, EqualsTheTableWhereTokensAreGathered) {
  for (const char* transport : {"gather_tokens", "gather_tokens*2,bypass*3"})
    for (const DType dtype : {DType::bf16, DType::f32})
      for (const Platform& platform : {Platform{false, false, 1000}, Platform{true, true, 77, int64_t{1} << 27}}) {
        const ModelSpec model = odd_model();
        RunSpec run = small_run();
        run.train.dtype = dtype;
        run.moe.transport = transport;
        MemoryModel memory(model, run, platform);
        for (const char* layout : {"ep=4", "ep=2 zero=1 recompute=selective", "tp=2 ep=3 recompute=moe",
                                   "pp=3 schedule=zb_v micro_batches=8 tp=2 zero=1", "ep=6 recompute=full"})
          compare(memory, model, run, layout, 12, platform);
        run.mesh.width_shares = "1,3,2";
        MemoryModel uneven(model, run, platform);
        for (const char* layout : {"ep=3", "tp=2 ep=3 zero=1 recompute=moe"})
          compare(uneven, model, run, layout, 12, platform);
      }
}

TEST(Memory, EqualsTheTableWithUnevenExperts) {
  for (const char* transport : {"flat", "halo*2,gather_weights*3"})
    for (const Platform& platform : {Platform{false, false, 1000}, Platform{true, true, 77}}) {
      RunSpec run = small_run();
      run.moe.transport = transport;
      run.mesh.expert_shares = "1,3,2";
      MemoryModel memory(odd_model(), run, platform);
      for (const char* layout : {"ep=3", "tp=2 ep=3 zero=1 recompute=moe", "pp=2 ep=3 micro_batches=4"})
        compare(memory, odd_model(), run, layout, 12, platform);
    }
}

TEST(Memory, EqualsTheTableWithReplicaSlots) {
  for (const char* transport : {"flat", "halo*2,bypass*3"})
    for (const auto& [dtype, gradients] : {std::pair{DType::f32, DType::f32}, {DType::bf16, DType::bf16}})
      for (const Platform& platform : {Platform{false, false, 1000}, Platform{true, true, 77}}) {
        RunSpec run = small_run();
        run.train.dtype = dtype;
        run.expert_gradients = gradients;
        run.moe.transport = transport;
        run.moe.replica_slots = 2;
        const ModelSpec model = odd_model();
        MemoryModel memory(model, run, platform);
        for (const char* layout : {"ep=4", "ep=2 zero=1 recompute=selective", "tp=2 ep=3 recompute=moe",
                                   "pp=3 schedule=zb_v micro_batches=8 tp=2 zero=1", "ep=6 recompute=full"})
          compare(memory, model, run, layout, 12, platform);
      }
}

TEST(Memory, EqualsTheTableWithBf16GradientsOfExperts) {
  for (const Platform& platform : {Platform{false, false, 1000}, Platform{true, true, 77}})
    for (const int64_t width : {21, 40}) {  // of experts: with and without gaps behind fp32 tensors
      ModelSpec model = odd_model();
      for (LayerSpec& layer : model.layers)
        if (layer.feed_forward == FeedForwardKind::moe) layer.moe.width = width;
      RunSpec run = small_run();
      run.train.dtype = DType::bf16;
      run.expert_gradients = DType::bf16;
      MemoryModel memory(model, run, platform);
      for (const char* layout : {"ep=2", "ep=2 zero=1", "ep=3 zero=1", "ep=1 zero=1 micro_batches=2",
                                 "pp=3 schedule=zb_v micro_batches=8 tp=2 zero=1"})
        compare(memory, model, run, layout, 12, platform);
    }
}

TEST(Memory, EqualsTheTableOfSplitMasters) {
  NativeModel n;
  n.vocab = 128;
  n.width = n.expert_width = n.dense_width = 64;
  n.layers = 3;
  n.heads = n.kv_heads = 4;
  n.head_dim = 16;
  n.experts = 4;
  n.top_k = 2;
  n.dense_layers = 1;
  const ModelSpec model = build_native_model(n);
  RunSpec run = small_run();
  run.train.dtype = DType::bf16;
  for (const Offload offload : {Offload::none, Offload::optimizer}) {
    run.offload = offload;
    const Platform gpu{true, true, 77};
    MemoryModel memory(model, run, gpu);
    for (const char* layout : {"", "ep=2 zero=1", "ep=1 zero=1", "pp=3 schedule=1f1b micro_batches=4 zero=1"})
      compare(memory, model, run, layout, 12, gpu);
    const auto masters = [&](const Platform& platform) {
      int64_t bytes = 0;
      for (const ByteRow& row : make_plan(model, run, 1, 0, platform).parameter_rows)
        if (row.kind == ByteKind::master) bytes += row.bytes();
      return bytes;
    };
    Platform whole = gpu;
    whole.split_masters = false;
    EXPECT_LT(masters(gpu), 0.6 * static_cast<double>(masters(whole)));
    EXPECT_EQ(masters({true, false, 77}), masters(whole));  // a form for each direction: not the values themselves
  }
}

TEST(Memory, EqualsTheTableWithBf16Moments) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const ModelSpec model = odd_model();
    RunSpec run = small_run();
    run.train.dtype = dtype;
    MemoryModel wide(model, run, {});
    run.moments = DType::bf16;
    MemoryModel memory(model, run, {});
    for (const char* layout : {"", "ep=2 zero=1", "ep=3 zero=1", "pp=3 schedule=zb_v micro_batches=8 tp=2 zero=1"})
      compare(memory, model, run, layout, 12, {});
    const Layout layout = parse_layout("ep=2", {});
    const auto bytes_in = [&](MemoryModel& model_of) {
      const Mesh mesh = mesh_of(layout, 4);
      return table_of(model_of, layout, mesh, {}, make_plan(model, run, 4, 0, {}).stages)
          .by_kind[static_cast<int>(ByteKind::moment)];
    };
    EXPECT_NEAR(static_cast<double>(bytes_in(memory)) / static_cast<double>(bytes_in(wide)), 0.5, 0.02);
  }
}

TEST(Memory, EqualsTheTableWithDocumentMask) {
  const ModelSpec model = odd_model();
  RunSpec run = small_run();
  run.data.document_mask = true;
  MemoryModel memory(model, run, {});
  for (const char* layout :
       {"", "ep=2 zero=1", "tp=2 micro_batches=2", "pp=3 schedule=zb_v micro_batches=8 tp=2 zero=1"})
    compare(memory, model, run, layout, 12, {});
}

TEST(Memory, EqualsTheTableWithAKeyValueCache) {
  const ModelSpec model = odd_model();
  RunSpec run = small_run();
  run.sample.tokens = 5;
  run.sample.sequences = 3;
  MemoryModel memory(model, run, {});
  for (const char* layout : {"", "tp=2 micro_batches=2", "pp=3 schedule=zb_v micro_batches=8 tp=2 zero=1"})
    compare(memory, model, run, layout, 12, {});
}

TEST(Memory, EqualsTheTableOfOffloadedStates) {
  for (const DType dtype : {DType::bf16, DType::f32})
    for (const bool tied : {false, true}) {
      const ModelSpec model = odd_model(tied);
      RunSpec run = small_run();
      run.train.dtype = run.moments = dtype;
      run.offload = Offload::optimizer;
      const Platform platform{true, true, 77};
      MemoryModel memory(model, run, platform);
      const Layout layout = parse_layout("ep=2 zero=1", {});
      EXPECT_GT(table_of(memory, layout, mesh_of(layout, 4), {}, make_plan(model, run, 4, 0, platform).stages).on_host,
                0);
      for (const char* text : {"ep=2", "ep=2 zero=1", "ep=3 zero=1", "tp=2 zero=1 micro_batches=2",
                               "pp=3 schedule=zb_v micro_batches=8 tp=2 zero=1"})
        compare(memory, model, run, text, 12, platform);
    }
}

TEST(Memory, EqualsTheTableWhereRanksHaveDifferentHeads) {
  ModelSpec model = odd_model();
  RunSpec run = small_run();
  MemoryModel memory(model, run, {});
  for (const char* text : {"tp=3 zero=1 micro_batches=2", "tp=3 pp=2 micro_batches=4 recompute=full"})
    EXPECT_EQ(compare(memory, model, run, text, 12, {}), 12);
}

TEST(Memory, EqualsTheTableOfNormsOverHeadsOfAllRanks) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    ModelSpec model = odd_model();
    for (LayerSpec& layer : model.layers) layer.attention.qk_norm = QkNorm::full_width;
    RunSpec run = small_run();
    run.train.dtype = dtype;
    MemoryModel memory(model, run, {});
    for (const char* text : {"", "tp=2 zero=1 micro_batches=2", "tp=4 ep=2 recompute=full micro_batches=2",
                             "pp=3 schedule=zb_v micro_batches=8 tp=2 zero=1"})
      compare(memory, model, run, text, 12, {});
  }
}

TEST(Memory, EqualsTheTableWhereRanksHaveNoVocabulary) {
  for (const bool tied : {false, true}) {
    ModelSpec model = odd_model(tied);
    model.vocab = 5;
    RunSpec run = small_run();
    run.train.dtype = DType::bf16;
    for (const Platform& platform : {Platform{false, false, 1000}, Platform{true, true, 77}}) {
      MemoryModel memory(model, run, platform);
      EXPECT_EQ(compare(memory, model, run, "tp=8 zero=1 micro_batches=4", 16, platform), 16);
    }
  }
}

TEST(Memory, EqualsTheTableForPaddedRowsAndCapacities) {
  const ModelSpec model = odd_model();
  RunSpec run = small_run();
  run.moe.transport = "padded";
  run.moe.capacity_factor = 1.25;
  MemoryModel memory(model, run, {});
  EXPECT_EQ(compare(memory, model, run, "ep=4 micro_batches=2 recompute=moe", 8, {}), 8);
}

TEST(Memory, EqualsTheTableOfTensorShardedExperts) {
  const ModelSpec model = odd_model();
  RunSpec run = small_run();
  run.moe.tp_mode = MoeTpMode::ted;
  for (const Platform& platform : {Platform{false, false, 1000}, Platform{true, true, 77}}) {
    MemoryModel memory(model, run, platform);
    for (const char* text : {"tp=2 ep=4 zero=1", "tp=4 ep=2 micro_batches=3 recompute=moe",
                             "pp=2 tp=2 ep=2 zero=1 micro_batches=4 placement=dp_first"})
      EXPECT_EQ(compare(memory, model, run, text, 8, platform), 8);
  }
}

TEST(Memory, EqualsTheTableOfPublishedModels) {
  RunSpec run;
  run.train.seq_len = 4096;
  run.train.global_batch = 256;
  for (const char* name : {"qwen3-30b-a3b", "mixtral-8x7b"}) {
    const ModelSpec model = config_model(name);
    const Platform platform = platform_of(shipped_profile("h200x8"), run);
    MemoryModel memory(model, run, platform);
    for (const char* layout : {"ep=8 zero=1 micro_batches=8", "pp=4 tp=2 ep=2 micro_batches=32 recompute=moe"})
      compare(memory, model, run, layout, 8, platform);
  }
}

TEST(Layout, SaysAndReadsTheSame) {
  const Layout layout = parse_layout(
      "pp=4, schedule=interleaved chunks=3 tp=2 ep=8 placement=dp_first zero=1,micro_batches=12 recompute=moe", {});
  EXPECT_EQ(parse_layout(describe(layout), {}), layout);
  EXPECT_EQ(parse_layout("schedule=zb_v", {}).chunks, 2);
  EXPECT_EQ(parse_layout("schedule=1f1b", layout).chunks, 1);
  for (const char* text : {"pp", "pp=", "pp=0", "pp=4x", "ppp=4", "placement=up", "recompute=all", "schedule=1f1",
                           "zero=2", "schedule=zb_v chunks=3"})
    EXPECT_THROW(parse_layout(text, {}), Error) << text;
}

}  // namespace
}  // namespace mw::test
