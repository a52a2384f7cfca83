#include "engine/qk_clip.h"

#include <algorithm>
#include <cmath>

#include "train/engines.h"

namespace mw::test {
namespace {

using Logits = std::vector<std::vector<double>>;  // [layer][head]

RunSpec grouped_run() {
  RunSpec run = small_run();  // 4 heads, 2 key/value heads
  run.native.qk_norm = QkNorm::none;
  return run;
}

RunSpec compressed_run() {
  RunSpec run = latent_run();
  run.native.q_rank = 11;
  return run;
}

RunSpec bf16_run() {
  RunSpec run = even_run();
  run.native.qk_norm = QkNorm::none;
  return run;
}

// Layers whose attention adds nothing: what a layer reads does not depend on queries and keys before it.
struct Fixture {
  Fixture(RunSpec run, double limit) : engine(build_native_model(run.native), with(run, limit), *world, 1) {
    engine.params.initialise(1, engine.stream);
    for (Parameter& p : engine.params.all())
      if (p.row.name.ends_with(".wo"))
        p.set_master(engine.device, 0, std::vector<float>(static_cast<size_t>(p.held.count)));
    refresh_weights(engine);
  }
  static RunSpec with(RunSpec run, double limit) {
    run.train.qk_clip = limit;
    return run;
  }
  StepStats gradients() { return accumulate_gradients(engine, stage(engine, random_batches(engine.plan))); }

  std::unique_ptr<Comm> world = make_self_comm();
  Engine engine;
};

// A limit that some heads exceed and others do not.
double limit_between(const Logits& logits) {
  std::vector<double> all;
  for (const std::vector<double>& heads : logits) all.insert(all.end(), heads.begin(), heads.end());
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

TEST(ClippedRows, QueryHeadsOfOneKeyHeadShareAFactor) {
  AttentionSpec a;
  a.heads = 6;
  a.kv_heads = 3;
  a.head_dim = 10;
  const std::vector<double> logits = {8, 2, 4, 4, 1, 16};  // 8, 4 and 16 of the groups
  const double s8 = std::sqrt(0.5), s16 = 0.5;
  for (const char* name : {"wq", "bq"})
    EXPECT_EQ(clipped_rows(a, name, logits, 4), (std::vector<RowFactor>{{0, 20, s8}, {40, 20, s16}})) << name;
  for (const char* name : {"wk", "bk"})
    EXPECT_EQ(clipped_rows(a, name, logits, 4), (std::vector<RowFactor>{{0, 10, s8}, {20, 10, s16}})) << name;
  for (const char* name : {"wv", "bv", "wo", "sinks"}) EXPECT_TRUE(clipped_rows(a, name, logits, 4).empty()) << name;
  EXPECT_TRUE(clipped_rows(a, "wq", logits, 16).empty());
}

TEST(ClippedRows, TheSharedKeyOfLatentAttentionStays) {
  AttentionSpec a;
  a.kind = AttentionKind::latent;
  a.heads = a.kv_heads = 2;
  a.head_dim = 8;
  a.latent = {.q_rank = 4, .kv_rank = 4, .nope_dim = 5, .rope_dim = 3, .value_dim = 7};
  const std::vector<double> logits = {1, 16};
  for (const char* name : {"wq", "wq_b"})
    EXPECT_EQ(clipped_rows(a, name, logits, 4), (std::vector<RowFactor>{{8, 5, 0.5}, {13, 3, 0.25}})) << name;
  EXPECT_EQ(clipped_rows(a, "wkv_b", logits, 4), (std::vector<RowFactor>{{12, 5, 0.5}}));
  for (const char* name : {"wq_a", "wkv_a", "q_norm", "kv_norm", "wo"})
    EXPECT_TRUE(clipped_rows(a, name, logits, 4).empty()) << name;
}

// With no other change of the weights, the same tokens have logits of at most the limit.
TEST(QkClip, TheNextForwardMeetsTheLimit) {
  for (const RunSpec& run : {grouped_run(), latent_run(), compressed_run(), bf16_run()}) {
    const Logits before = Fixture(run, 1e9).gradients().largest_logits;
    const double limit = limit_between(before), tolerance = run.train.dtype == DType::bf16 ? 2e-2 : 1e-5;
    Fixture f(run, limit);
    const StepStats stats = f.gradients();
    EXPECT_EQ(stats.largest_logits, before);
    apply_update(f.engine, stats, {0, 1});
    const Logits after = f.gradients().largest_logits;
    int clipped = 0, kept = 0;
    for (size_t l = 0; l < before.size(); ++l) {
      const AttentionSpec& a = f.engine.plan.model.layers[l].attention;
      const auto group = static_cast<size_t>(a.heads / a.kv_heads);
      for (size_t h = 0; h < before[l].size(); ++h) {
        const auto first = before[l].begin() + static_cast<std::ptrdiff_t>(h / group * group);
        const double largest = *std::max_element(first, first + static_cast<std::ptrdiff_t>(group));
        const double factor = std::min(1.0, limit / largest);
        EXPECT_NEAR(after[l][h], before[l][h] * factor, tolerance * before[l][h]) << l << " " << h;
        ++(factor < 1 ? clipped : kept);
      }
    }
    EXPECT_GT(clipped, 0);
    EXPECT_GT(kept, 0);
  }
}

// Beside an update, moments and other weights are those of a run without it.
TEST(QkClip, ChangesQueriesAndKeysAlone) {
  for (const Optimizer optimizer : {Optimizer::adamw, Optimizer::muon}) {
    RunSpec run = grouped_run();
    run.train.optimizer = optimizer;
    Fixture plain(run, 1e9);
    const StepStats stats = plain.gradients();
    Fixture clipped(run, 0.5 * limit_between(stats.largest_logits));
    apply_update(plain.engine, stats, {1e-3, 1});
    apply_update(clipped.engine, clipped.gradients(), {1e-3, 1});
    for (size_t i = 0; i < plain.engine.params.all().size(); ++i) {
      const Parameter &x = plain.engine.params.all()[i], &y = clipped.engine.params.all()[i];
      expect_same_bits(x.adam_m, y.adam_m, x.row.name);
      expect_same_bits(x.adam_v, y.adam_v, x.row.name);
      if (!x.row.name.ends_with(".wq") && !x.row.name.ends_with(".wk")) {
        expect_same_bits(x.master, y.master, x.row.name);
        continue;
      }
      std::vector<float> expected(x.master.as<float>(), x.master.as<float>() + x.master.numel());
      const int64_t cols = x.row.shape[1];
      const auto layer = static_cast<size_t>(x.row.layer);
      for (const RowFactor& rows :
           clipped_rows(plain.engine.plan.model.layers[layer].attention, x.row.name.substr(x.row.name.rfind('.') + 1),
                        stats.largest_logits[layer], clipped.engine.plan.run.train.qk_clip))
        for (int64_t e = rows.begin * cols; e < (rows.begin + rows.count) * cols; ++e)
          expected[static_cast<size_t>(e)] *= static_cast<float>(rows.factor);
      for (size_t e = 0; e < expected.size(); ++e)
        EXPECT_NEAR(y.master.as<float>()[e], expected[e], 1e-6 * std::abs(expected[e])) << x.row.name;
    }
  }
}

TEST(QkClip, KeepsWeightsWhoseLearningRateIsZero) {
  RunSpec run = grouped_run();
  run.train.lr_scales = {"*.attn.wk 0"};
  Fixture f(run, 1e-3);
  const StepStats stats = f.gradients();
  std::vector<std::vector<float>> before;
  for (const Parameter& p : f.engine.params.all())
    before.emplace_back(p.master.as<float>(), p.master.as<float>() + p.master.numel());
  apply_update(f.engine, stats, {1e-3, 1});
  for (size_t i = 0; i < before.size(); ++i) {
    const Parameter& p = f.engine.params.all()[i];
    const bool same = std::equal(before[i].begin(), before[i].end(), p.master.as<float>());
    if (p.row.name.ends_with(".wk") || p.row.name.ends_with(".wq")) {
      EXPECT_EQ(same, p.row.name.ends_with(".wk")) << p.row.name;
    }
  }
}

TEST(QkClip, IsOffByDefault) {
  Fixture f(grouped_run(), 0);
  EXPECT_TRUE(f.gradients().largest_logits.empty());
  for (const ByteRow& row : f.engine.plan.activation_rows) EXPECT_FALSE(row.name.ends_with(kLargestLogits)) << row.name;
}

TEST(QkClip, NeedsAModelWithoutNormsAndLimits) {
  RunSpec run = small_run();
  run.train.qk_clip = 100;
  const std::string error =
      error_of([&] { make_plan(build_native_model(run.native), run, 1, 0, Platform{}); }, Exit::config);
  EXPECT_TRUE(contains(error, "train.qk_clip = 100 shrinks query and key weights")) << error;

  ModelSpec limited = build_native_model(grouped_run().native);
  limited.layers.back().attention.clip_qkv = 8;
  run = grouped_run();
  run.train.qk_clip = 100;
  const std::string other = error_of([&] { make_plan(limited, run, 1, 0, Platform{}); }, Exit::config);
  EXPECT_TRUE(contains(other, "limits queries and keys (clip_qkv)")) << other;
}

}  // namespace
}  // namespace mw::test
