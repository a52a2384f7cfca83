#include "layout/recompute.h"

#include <algorithm>
#include <initializer_list>
#include <map>

#include "layout/helpers.h"

namespace mw::test {
namespace {

constexpr Recompute kModes[] = {Recompute::keep_norms, Recompute::none, Recompute::selective, Recompute::moe,
                                Recompute::full};

// Without rounding; of rows that depend on the load what a balanced one takes.
int64_t mean_bytes(const ByteRow& row) {
  int64_t bytes = size_of(row.dtype);
  for (size_t i = 0; i < row.shape.size(); ++i) bytes *= i == 0 && row.mean_rows > 0 ? row.mean_rows : row.shape[i];
  return bytes;
}

int64_t kept_bytes(const Plan& plan, const std::string& prefix) {
  int64_t bytes = 0;
  for (const ByteRow& row : plan.activation_rows)
    if (row.name.rfind(prefix, 0) == 0) bytes += mean_bytes(row);
  return bytes;
}

Plan plan_of(Recompute mode, int ep, int tp, DType dtype) {
  RunSpec run = small_run();
  run.train.dtype = dtype;
  run.recompute = mode;
  run.mesh.ep = ep;
  run.mesh.tp = tp;
  return small_plan(run, ep);
}

// What a weight part reads is kept in a layer's own rows.
TEST(RecomputeTable, WeightPartsReadWhatIsKept) {
  for (const ScheduleKind schedule : {ScheduleKind::zb_h1, ScheduleKind::zb_v})
    for (const Recompute mode : kModes) {
      RunSpec run = small_run();
      run.mesh.schedule = schedule;
      run.mesh.ep = 2;
      run.recompute = mode;
      const WeightPart part = weight_part(run);
      EXPECT_EQ(part.empty(), mode == Recompute::full);
      if (part.empty()) {
        const auto error = refusal_of([&] { small_plan(run, 2); });
        ASSERT_TRUE(error);
        EXPECT_EQ(error->code(), Exit::config);
        EXPECT_TRUE(contains(error->what(), word_of(schedule))) << error->what();
        continue;
      }
      const Plan plan = small_plan(run, 2);
      const auto kept = [&](bool deferred, const std::string& at, std::initializer_list<const char*> names) {
        for (const char* name : names) {
          const auto row = std::find_if(plan.activation_rows.begin(), plan.activation_rows.end(),
                                        [&](const ByteRow& r) { return r.name == at + name; });
          EXPECT_TRUE(!deferred || row != plan.activation_rows.end()) << word_of(mode) << ": " << at << name;
        }
      };
      kept(part.attention, "act.0.", {"x", "attn_rstd", "q", "k", "v"});
      kept(part.dense, "act.0.", {"x_mid", "ffn_rstd", "ffn.h"});
      kept(part.moe, "act.1.", {"x_mid", "ffn_rstd", "h", "shared.h", "received", "received_index", "token_ids"});
      EXPECT_EQ(part.attention && part.dense && part.moe, mode == Recompute::none || mode == Recompute::keep_norms);
    }
  RunSpec whole = small_run();
  EXPECT_TRUE(weight_part(whole).empty());
}

// The formulas of layout/recompute.h.
TEST(RecomputeTable, KeepsWhatTheFormulasSay) {
  const int64_t d = 48, h = 10, e = 6, k = 3, f = 20, shared = 40, c = 2;
  for (const auto& [ep, tp] : {std::pair(1, 1), std::pair(2, 1), std::pair(2, 2)})
    for (const DType dtype : {DType::bf16, DType::f32})
      for (const Recompute mode : kModes) {
        const Plan plan = plan_of(mode, ep, tp, dtype);
        const int64_t heads = 4 / tp, kv = 2 / tp, dense = 70 / tp, n = plan.batch.tokens(), t = n / tp;
        const int64_t b = size_of(dtype), received = t * k;
        const int64_t attention = 2 * b * t * d + 8 * t + 2 * b * n * (heads + kv) * h + 4 * n * heads,
                      routing = 24 * t * k + 8 * e, logits = 4 * t * e,
                      dispatched = ep == 1 ? 0 : received * (b * d + 8), hidden = b * c * (received * f + t * shared),
                      dense_hidden = b * c * n * dense, norms = 2 * b * t * d + b * n * (heads + kv) * h;
        std::map<Recompute, int64_t> of_moe = {
            {Recompute::keep_norms, attention + routing + logits + dispatched + hidden + norms},
            {Recompute::none, attention + routing + logits + dispatched + hidden},
            {Recompute::selective, attention + routing + logits + dispatched},
            {Recompute::moe, attention + routing + logits},
            {Recompute::full, b * t * d + routing}};
        std::map<Recompute, int64_t> of_dense = {{Recompute::keep_norms, attention + dense_hidden + norms},
                                                 {Recompute::none, attention + dense_hidden},
                                                 {Recompute::selective, attention},
                                                 {Recompute::moe, attention + dense_hidden},
                                                 {Recompute::full, b * t * d}};
        EXPECT_EQ(kept_bytes(plan, "act.1."), of_moe[mode]) << word_of(mode) << " ep " << ep << " tp " << tp;
        EXPECT_EQ(kept_bytes(plan, "act.0."), of_dense[mode]) << word_of(mode) << " ep " << ep << " tp " << tp;
        // The shared set is what the layers together no longer keep, each tensor once.
        const int64_t once = std::max<int64_t>(0, of_moe[Recompute::none] - of_moe[mode]);
        const int64_t of_the_dense_one = mode == Recompute::selective || mode == Recompute::full ? dense_hidden : 0;
        EXPECT_EQ(kept_bytes(plan, "recomputed."), once + of_the_dense_one)
            << word_of(mode) << " ep " << ep << " tp " << tp;
      }
}

TEST(RecomputeTable, SharedRowsAreAsLargeAsTheLargestLayerAsks) {
  RunSpec run = small_run();
  run.recompute = Recompute::full;
  ModelSpec model = build_native_model(small_native());
  LayerSpec wide = model.layers[0], narrow = model.layers[0];
  wide.dense_width = 90;
  narrow.attention.heads = 2;
  model.layers = {narrow, wide, model.layers[1], narrow};
  const std::vector<ByteRow> rows = make_plan(model, run, 1, 0, {}).activation_rows;
  const int64_t t = 64;
  EXPECT_EQ(row_of(rows, "recomputed.ffn.h").shape, (std::vector<int64_t>{t, 2, 90}));
  EXPECT_EQ(row_of(rows, "recomputed.q").shape, (std::vector<int64_t>{t, 4, 10}));
  EXPECT_EQ(row_of(rows, "recomputed.h").shape, (std::vector<int64_t>{t * 3, 2, 20}));
  EXPECT_EQ(row_of(rows, "recomputed.h").kind, ByteKind::workspace);
}

// Once for all micro-batches that live at a time in a pipeline, and for all layers.
TEST(RecomputeTable, SharedRowsDoNotCountMicroBatches) {
  const auto bytes = [](Recompute mode, const char* prefix) {
    RunSpec run = small_run();
    run.recompute = mode;
    run.mesh.pp = 2;
    run.mesh.schedule = ScheduleKind::gpipe;
    NativeModel native = small_native();
    native.layers = 6;
    return kept_bytes(make_plan(build_native_model(native), run, 2, 1, {}), prefix);
  };
  // Three MoE layers with two slots each.
  EXPECT_EQ(bytes(Recompute::none, "act.3.") - bytes(Recompute::full, "act.3."), bytes(Recompute::full, "recomputed."));
  EXPECT_EQ(bytes(Recompute::full, "act.5#1."), bytes(Recompute::full, "act.3."));
}

TEST(RecomputeTable, EachModePredictsLessThanTheOneBefore) {
  const auto total = [](Recompute mode) {
    RunSpec run = small_run();
    run.recompute = mode;
    run.mesh.ep = 2;
    NativeModel native = small_native();
    native.layers = 9;
    return summarise(all_rows(make_plan(build_native_model(native), run, 2, 0, {}))).total();
  };
  for (size_t i = 1; i < std::size(kModes); ++i)
    EXPECT_LT(total(kModes[i]), total(kModes[i - 1])) << word_of(kModes[i]);
}

TEST(RecomputeTable, RowsHaveTheNamesThatLayersAskFor) {
  EXPECT_EQ(LayerRows(Recompute::none, 3, 0)("h"), "act.3.h");
  EXPECT_EQ(LayerRows(Recompute::none, 3, 1)("h"), "act.3#1.h");
  EXPECT_EQ(LayerRows(Recompute::selective, 3, 1)("h"), "recomputed.h");
  EXPECT_EQ(LayerRows(Recompute::selective, 3, 1)("received"), "act.3#1.received");
  EXPECT_EQ(LayerRows(Recompute::moe, 3, 1)("received"), "recomputed.received");
  EXPECT_EQ(LayerRows(Recompute::full, 3, 1)("expert_choice"), "act.3#1.expert_choice");
  // Only rows of layers are shared.
  const std::vector<ByteRow> rows = {{"act.final_x", ByteKind::activation, DType::f32, {4}, 0, 0},
                                     {"work.q", ByteKind::workspace, DType::f32, {4}, 0, 0}};
  EXPECT_EQ(share_recomputed(Recompute::full, rows).size(), 2u);
  EXPECT_EQ(share_recomputed(Recompute::full, rows)[0].name, "act.final_x");
}

}  // namespace
}  // namespace mw::test
