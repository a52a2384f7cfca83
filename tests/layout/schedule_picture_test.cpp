#include "layout/schedule/schedule_picture.h"

#include "layout/helpers.h"

namespace mw::test {
namespace {

struct Drawn {
  Schedule schedule;
  Timeline timeline;
  ScheduleReport report;
};

Drawn drawn(const PipelineShape& shape, const StageCost& cost = {}) {
  const Schedule schedule = make_schedule(shape);
  return {schedule, simulate(schedule, cost), validate_schedule(schedule)};
}

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(SchedulePicture, TextHasAColumnPerUnit) {
  const Drawn d = drawn({ScheduleKind::one_f_one_b, 2, 1, 3});
  EXPECT_EQ(draw_schedule_text(d.schedule, d.timeline),
            "rank 0  | F0 F1 .  .  B0 -- F2 B1 -- .  B2 --\n"
            "rank 1  | .  F0 B0 -- F1 B1 -- F2 B2 -- .  .\n"
            "a column is 1 of the 12 that all takes\n");
}

TEST(SchedulePicture, TextNamesStagesAndParts) {
  const Drawn d = drawn({ScheduleKind::zb_v, 1, 2, 1}, {2, 3, 1});
  EXPECT_EQ(draw_schedule_text(d.schedule, d.timeline),
            "rank 0  | F0  --  F0b --  I0b --  --  W0b I0  --  --  W0\n"
            "a column is 1 of the 12 that all takes\n");
}

// Costs far apart must not make a picture of a billion columns.
TEST(SchedulePicture, TextStaysBounded) {
  const Drawn d = drawn({ScheduleKind::gpipe, 2, 1, 4}, {1, 1e-9, 0});
  EXPECT_LT(draw_schedule_text(d.schedule, d.timeline).size(), 20000u);
}

TEST(SchedulePicture, RanksHaveTheirPeakAndBubble) {
  const Drawn d = drawn({ScheduleKind::zb_v, 2, 2, 4});
  EXPECT_EQ(describe_ranks(d.schedule, d.timeline, d.report),
            "rank  stages  peak live  busy      bubble\n"
            "0     0 3     4          24        4.0 %\n"
            "1     1 2     4          24        4.0 %\n");
}

TEST(SchedulePicture, SvgHasABoxPerAction) {
  const Drawn plain = drawn({ScheduleKind::one_f_one_b, 3, 1, 4});
  const std::string svg = draw_schedule_svg(plain.schedule, plain.timeline, plain.report);
  EXPECT_EQ(count(svg, "stroke=\"#ffffff\""), 3 * 4 * 2);
  EXPECT_TRUE(contains(svg, "1f1b, 3 ranks, 4 micro-batches; all takes 18")) << svg;
  EXPECT_TRUE(contains(svg, "peak 3 live, bubble 33.3 %")) << svg;
  EXPECT_FALSE(contains(svg, "weight part"));
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
  const Drawn split = drawn({ScheduleKind::zb_v, 2, 2, 4});
  const std::string v = draw_schedule_svg(split.schedule, split.timeline, split.report);
  EXPECT_EQ(count(v, "stroke=\"#ffffff\""), 4 * 4 * 3);
  EXPECT_EQ(count(v, "height=\"2\""), 2 * 4 * 3);  // the second stage of each rank
  EXPECT_TRUE(contains(v, ">3b</text>"));
  EXPECT_TRUE(contains(v, "backward, weight part"));
}

}  // namespace
}  // namespace mw::test
