#include "layout/stages.h"

#include <algorithm>
#include <numeric>

#include "layout/helpers.h"
#include "layout/schedule/schedule_check.h"

namespace mw::test {
namespace {

ModelSpec model_of(int64_t layers, int64_t vocab = 100, int64_t dense = 0) {
  NativeModel native = small_native();
  native.layers = layers;
  native.vocab = vocab;
  native.dense_layers = dense;
  return build_native_model(native);
}

PipelineShape pipeline(int ranks) { return {ScheduleKind::one_f_one_b, ranks, 1, 4}; }

std::vector<int64_t> counts(const std::vector<int64_t>& first) {
  std::vector<int64_t> out(first.size());
  std::adjacent_difference(first.begin(), first.end(), out.begin());
  out.erase(out.begin());
  return out;
}

TEST(SplitLayers, EqualLayersGoInEqualParts) {
  EXPECT_EQ(split_layers(model_of(8, 1), pipeline(4), 16, ""), (std::vector<int64_t>{0, 2, 4, 6, 8}));
  EXPECT_EQ(split_layers(model_of(8, 1), pipeline(1), 16, ""), (std::vector<int64_t>{0, 8}));
}

// The vocabulary's product is work of the last stage.
TEST(SplitLayers, ALargeHeadTakesLayersFromItsStage) {
  const std::vector<int64_t> large = counts(split_layers(model_of(16, 30000), pipeline(4), 16, ""));
  EXPECT_EQ(std::accumulate(large.begin(), large.end(), int64_t{0}), 16);
  EXPECT_EQ(large.back(), 1);
  EXPECT_EQ(*std::min_element(large.begin(), large.end() - 1), 5);
}

// Against every cut there is.
TEST(LayersBySpeed, NoOtherCutTakesLessTime) {
  const ModelSpec model = model_of(9, 700, 3);
  const auto cost = [&](const std::vector<int64_t>& parts, const std::vector<double>& seconds) {
    double slowest = 0;
    StagePlan stage;
    for (size_t s = 0; s < 3; ++s) {
      stage.first_layer = stage.end_layer;
      stage.end_layer += parts[s];
      stage.has_head = s == 2;
      slowest = std::max(slowest, seconds[s] * flops_of_stage(model, 16, stage));
    }
    return slowest;
  };
  for (const std::vector<double>& seconds : {std::vector<double>{1, 1, 1}, {1, 2, 3}, {5, 1, 0.3}})
    for (const std::vector<int64_t>& most : {std::vector<int64_t>{9, 9, 9}, {3, 4, 5}}) {
      double best = 1e300;
      for (int64_t a = 1; a < 8; ++a)
        for (int64_t b = 1; a + b < 9; ++b)
          if (a <= most[0] && b <= most[1] && 9 - a - b <= most[2])
            best = std::min(best, cost({a, b, 9 - a - b}, seconds));
      const std::vector<int64_t> parts = layers_by_speed(model, 16, seconds, most);
      for (size_t s = 0; s < 3; ++s) EXPECT_LE(parts[s], most[s]);
      EXPECT_DOUBLE_EQ(cost(parts, seconds), best);
    }
  EXPECT_EQ(split_layers(model, pipeline(3), 16, "measured"), split_layers(model, pipeline(3), 16, ""));
}

// Against every cut there is.
TEST(SplitLayers, NoOtherCutHasAFasterSlowestStage) {
  const ModelSpec model = model_of(9, 700, 3);
  const auto cost = [&](int64_t begin, int64_t end, bool last) {
    ModelSpec part = model;
    part.layers.assign(model.layers.begin() + begin, model.layers.begin() + end);
    if (!last) part.vocab = 0;
    return forward_flops_per_token(part, 16);
  };
  const auto slowest = [&](int64_t a, int64_t b) {
    return std::max({cost(0, a, false), cost(a, b, false), cost(b, 9, true)});
  };
  double best = 1e300;
  for (int64_t a = 1; a < 8; ++a)
    for (int64_t b = a + 1; b < 9; ++b) best = std::min(best, slowest(a, b));
  const std::vector<int64_t> cut = split_layers(model, pipeline(3), 16, "");
  EXPECT_DOUBLE_EQ(slowest(cut[1], cut[2]), best);
}

// Against every cut there is: with several stages a rank, the slowest rank counts. A search by steps comes close.
TEST(SplitLayers, RanksOfSeveralStagesShareTheHead) {
  for (const PipelineShape shape :
       {PipelineShape{ScheduleKind::zb_v, 2, 2, 4}, PipelineShape{ScheduleKind::interleaved, 2, 2, 4}})
    for (const int64_t vocab : {1, 300, 900, 3000}) {
      const ModelSpec model = model_of(11, vocab, 2);
      const auto slowest = [&](const std::vector<int64_t>& first) {
        std::vector<double> ranks(2);
        for (int s = 0; s < 4; ++s) {
          ModelSpec part = model;
          part.layers.assign(model.layers.begin() + first[static_cast<size_t>(s)],
                             model.layers.begin() + first[static_cast<size_t>(s) + 1]);
          if (s < 3) part.vocab = 0;
          ranks[static_cast<size_t>(rank_of_stage(shape, s))] += forward_flops_per_token(part, 16);
        }
        return std::max(ranks[0], ranks[1]);
      };
      double best = 1e300;
      for (int64_t a = 1; a < 9; ++a)
        for (int64_t b = a + 1; b < 10; ++b)
          for (int64_t c = b + 1; c < 11; ++c) best = std::min(best, slowest({0, a, b, c, 11}));
      EXPECT_LE(slowest(split_layers(model, shape, 16, "")), best * 1.02)
          << describe(shape) << ", vocabulary " << vocab;
    }
}

TEST(SplitLayers, AListIsTakenAsItIsOrRefused) {
  EXPECT_EQ(split_layers(model_of(8), pipeline(3), 16, "1,6,1"), (std::vector<int64_t>{0, 1, 7, 8}));
  for (const char* wrong :
       {"1,6", "1,6,1,", "1,6,2", "0,7,1", "a,7,1", "1;6;1", ",1,6", "8", "1,6,99999999999999999999"}) {
    const auto error = refusal_of([&] { split_layers(model_of(8), pipeline(3), 16, wrong); });
    ASSERT_TRUE(error) << wrong;
    EXPECT_EQ(error->code(), Exit::config);
    EXPECT_TRUE(contains(error->what(), wrong)) << error->what();
  }
  const auto sum = refusal_of([&] { split_layers(model_of(2), pipeline(2), 16, "3,1"); });
  ASSERT_TRUE(sum);
  EXPECT_TRUE(contains(sum->what(), "2 stages with 4 layers in total, expected 2 stages and 2 layers")) << sum->what();
  const auto error = refusal_of([&] { split_layers(model_of(3), pipeline(4), 16, ""); });
  ASSERT_TRUE(error);
  EXPECT_TRUE(contains(error->what(), "4 pipeline stages are too many for a model of 3 layers")) << error->what();
}

// zb_v has two stages a rank whatever mesh.chunks is, and the interleaved schedule no fewer.
TEST(SplitLayers, TooManyStagesAreRefusedWithAWayThatWorks) {
  const auto hint = [](ScheduleKind kind, int ranks, int chunks, int64_t layers) {
    const auto error = refusal_of([&] { split_layers(model_of(layers), {kind, ranks, chunks, 4}, 16, ""); });
    return error ? error->hint() : "not refused";
  };
  EXPECT_EQ(hint(ScheduleKind::one_f_one_b, 4, 1, 3), "set mesh.pp to at most 3");
  EXPECT_TRUE(hint(ScheduleKind::zb_v, 4, 2, 5).starts_with("set mesh.pp to at most 2;"));
  EXPECT_TRUE(hint(ScheduleKind::interleaved, 3, 2, 5).starts_with("set mesh.pp to at most 2;"));
  EXPECT_TRUE(hint(ScheduleKind::interleaved, 3, 3, 8).starts_with("lower mesh.pp = 3, or mesh.chunks = 3 to no less"));
  EXPECT_EQ(hint(ScheduleKind::zb_v, 2, 2, 1), "set mesh.pp = 1 and mesh.schedule = \"1f1b\"");
}

std::vector<StagePlan> plans_of(ScheduleKind kind, int ranks, int chunks, int64_t micro_batches, int rank) {
  const Schedule schedule = make_schedule({kind, ranks, chunks, micro_batches});
  std::vector<int64_t> first(static_cast<size_t>(ranks * chunks) + 1);
  std::iota(first.begin(), first.end(), 0);
  return plan_stages(schedule, rank, first);
}

TEST(PlanStages, LiveMicroBatchesAreTheSchedules) {
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(plans_of(ScheduleKind::gpipe, 4, 1, 6, rank)[0].slots, 6);
    EXPECT_EQ(plans_of(ScheduleKind::one_f_one_b, 4, 1, 8, rank)[0].slots, 4 - rank);
    EXPECT_EQ(plans_of(ScheduleKind::one_f_one_b, 4, 1, 2, rank)[0].slots, std::min(2, 4 - rank));
  }
  EXPECT_EQ(plans_of(ScheduleKind::one_f_one_b, 1, 1, 8, 0)[0].slots, 1);
}

// What a stage keeps is what the proof of the schedule says, also where its input comes from its own rank.
TEST(PlanStages, SlotsAreThePeaksOfTheProof) {
  for (const auto& [kind, chunks] : {std::pair(ScheduleKind::gpipe, 1),
                                     {ScheduleKind::one_f_one_b, 1},
                                     {ScheduleKind::interleaved, 2},
                                     {ScheduleKind::interleaved, 3},
                                     {ScheduleKind::zb_h1, 1},
                                     {ScheduleKind::zb_v, 2}})
    for (const int ranks : {1, 2, 3, 4})
      for (const int64_t m : {1 * ranks, 2 * ranks, 4 * ranks}) {
        const PipelineShape shape{kind, ranks, chunks, m};
        const ScheduleReport report = validate_schedule(make_schedule(shape));
        for (int rank = 0; rank < ranks; ++rank)
          for (const StagePlan& s : plans_of(kind, ranks, chunks, m, rank))
            EXPECT_EQ(s.slots, report.stage_peak[static_cast<size_t>(s.stage)]) << describe(shape) << ", " << s.stage;
      }
}

// A step of a batch-size ramp runs in the memory of a whole one.
TEST(PlanStages, FewerMicroBatchesNeedNoMoreRoom) {
  for (const auto& [kind, chunks] : {std::pair(ScheduleKind::gpipe, 1),
                                     {ScheduleKind::one_f_one_b, 1},
                                     {ScheduleKind::interleaved, 2},
                                     {ScheduleKind::interleaved, 3},
                                     {ScheduleKind::zb_h1, 1},
                                     {ScheduleKind::zb_v, 2}})
    for (const int ranks : {1, 2, 3, 4, 6})
      for (int rank = 0; rank < ranks; ++rank)
        for (int64_t m = 2; m <= 5 * ranks; ++m) {
          const std::vector<StagePlan> fewer = plans_of(kind, ranks, chunks, m - 1, rank),
                                       more = plans_of(kind, ranks, chunks, m, rank);
          for (size_t i = 0; i < more.size(); ++i) {
            EXPECT_LE(fewer[i].slots, more[i].slots) << word_of(kind) << " " << ranks << " " << rank << " " << m;
            EXPECT_LE(fewer[i].gradients, more[i].gradients)
                << word_of(kind) << " " << ranks << " " << rank << " " << m;
          }
        }
}

TEST(PlanStages, KnowTheirNeighbours) {
  const StagePlan middle = plans_of(ScheduleKind::one_f_one_b, 3, 1, 4, 1)[0];
  EXPECT_TRUE(middle.receives && middle.sends && !middle.embeds && !middle.has_head);
  const std::vector<StagePlan> two = plans_of(ScheduleKind::interleaved, 2, 2, 4, 1);
  ASSERT_EQ(two.size(), 2u);
  EXPECT_TRUE(two[0].sends && two[1].receives && two[1].has_head && !two[1].sends);
  // Both stages of one process: nothing travels.
  for (const StagePlan& s : plans_of(ScheduleKind::interleaved, 1, 2, 4, 0)) EXPECT_FALSE(s.receives || s.sends);
  EXPECT_EQ(describe(two), "layers 1-1 and 3-3");
}

// Every parameter is on exactly one pipeline rank, but for tied embeddings, which the head reads too.
TEST(PlanStages, ParametersLieWhereTheyAreUsed) {
  for (const bool tied : {false, true}) {
    RunSpec run = small_run();
    NativeModel native = small_native();
    native.layers = 5;
    native.tie_embeddings = tied;
    run.mesh.pp = 3;
    run.train.micro_batches = 4;
    std::map<std::string, int> held;
    for (int rank = 0; rank < 3; ++rank)
      for (const ParamRow& row : own_params(make_plan(build_native_model(native), run, 3, rank, Platform{})))
        ++held[row.name];
    for (const ParamRow& row : param_table(build_native_model(native)))
      EXPECT_EQ(held[row.name], tied && row.name == "embed" ? 2 : 1) << row.name;
  }
}

}  // namespace
}  // namespace mw::test
