#include "layout/schedule/schedule.h"

#include "layout/helpers.h"

namespace mw::test {
namespace {

std::string rank_text(const PipelineShape& shape, int rank) { return describe(make_schedule(shape).ranks[rank]); }

TEST(Schedule, OneStage) {
  EXPECT_EQ(rank_text({ScheduleKind::one_f_one_b, 1, 1, 1}, 0), "F0 S0 B0 R");
  EXPECT_EQ(rank_text({ScheduleKind::one_f_one_b, 1, 1, 3}, 0), "F0 S0 B0 F1 S1 B1 F2 S2 B2 R");
  EXPECT_EQ(rank_text({ScheduleKind::gpipe, 1, 1, 2}, 0), "F0 S0 F1 S1 B0 B1 R");
}

TEST(Schedule, MessagesStandAroundTheirStage) {
  const PipelineShape shape{ScheduleKind::one_f_one_b, 2, 1, 2};
  EXPECT_EQ(rank_text(shape, 0), "F0:0 S0:0 >A0:0 F0:1 S0:1 >A0:1 <G0:0 B0:0 <G0:1 B0:1 R0");
  EXPECT_EQ(rank_text(shape, 1), "<A1:0 F1:0 S1:0 B1:0 >G1:0 <A1:1 F1:1 S1:1 B1:1 >G1:1 R1");
}

TEST(Schedule, GpipeRunsAllForwardsFirst) {
  EXPECT_EQ(rank_text({ScheduleKind::gpipe, 2, 1, 2}, 1), "<A1:0 F1:0 S1:0 <A1:1 F1:1 S1:1 B1:0 >G1:0 B1:1 >G1:1 R1");
}

TEST(Schedule, InterleavedDealsStagesRound) {
  const PipelineShape shape{ScheduleKind::interleaved, 2, 2, 2};
  EXPECT_EQ(stages_of_rank(shape, 0), (std::vector<int>{0, 2}));
  EXPECT_EQ(stages_of_rank(shape, 1), (std::vector<int>{1, 3}));
  EXPECT_EQ(rank_text({ScheduleKind::interleaved, 1, 2, 1}, 0), "F0:0 S0:0 F1:0 S1:0 B1:0 R1 B0:0 R0");
}

TEST(Schedule, ZbVGoesDownAndUpAgain) {
  const PipelineShape shape{ScheduleKind::zb_v, 3, 2, 2};
  EXPECT_EQ(stages_of_rank(shape, 0), (std::vector<int>{0, 5}));
  EXPECT_EQ(stages_of_rank(shape, 2), (std::vector<int>{2, 3}));
  EXPECT_TRUE(sends_activation(shape, 1));
  EXPECT_FALSE(sends_activation(shape, 2));  // the turn lies on one rank
  EXPECT_FALSE(receives_activation(shape, 3));
  EXPECT_FALSE(sends_activation(shape, 5));
}

TEST(Schedule, NamesAreThoseOfRunFiles) {
  for (const char* name : {"gpipe", "1f1b", "interleaved", "zb_h1", "zb_v"})
    EXPECT_STREQ(word_of(schedule_kind_of(name)), name);
  const std::string error = error_of([] { schedule_kind_of("zb_h2"); }, Exit::config);
  EXPECT_TRUE(contains(error, "did you mean \"zb_h1\"")) << error;
  EXPECT_STREQ(name_of(ActionKind::reduce_gradients), "reduce_gradients");
  EXPECT_EQ(describe(Action{ActionKind::send_gradient, 2, 3}), "send_gradient of micro-batch 3 in stage 2");
  EXPECT_EQ(describe(PipelineShape{ScheduleKind::zb_v, 4, 2, 1}), "zb_v, 4 ranks x 2 stages, 1 micro-batch");
}

TEST(Schedule, RefusesShapesThatCannotBe) {
  const auto refuse = [](PipelineShape shape, const char* why) {
    const std::string error = error_of([&] { make_schedule(shape); }, Exit::config);
    EXPECT_TRUE(contains(error, why)) << error;
  };
  refuse({ScheduleKind::gpipe, 0, 1, 1}, "got 0, 1 and 1");
  refuse({ScheduleKind::gpipe, 1, 1, 0}, "got 1, 1 and 0");
  refuse({ScheduleKind::gpipe, 2, 2, 4}, "mesh.schedule = \"gpipe\" has 1 stage per rank, got 2");
  refuse({ScheduleKind::interleaved, 2, 1, 4}, "at least 2 stages per rank, got 1");
  refuse({ScheduleKind::zb_v, 2, 3, 4}, "2 stages per rank, got 3");
  refuse({ScheduleKind::one_f_one_b, 1 << 20, 1, 1 << 20}, "2^24");
}

}  // namespace
}  // namespace mw::test
