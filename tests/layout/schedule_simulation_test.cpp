// Schedules against the closed forms of their idle time and their peak of live activations.
#include "layout/schedule/schedule_simulation.h"

#include <algorithm>

#include "layout/helpers.h"
#include "layout/schedule/schedule_check.h"

namespace mw::test {
namespace {

using enum ActionKind;

// Integers: all times are exact.
const StageCost kCosts[] = {{1, 1, 1}, {1, 2, 0}, {2, 3, 2}, {3, 2, 2}, {2, 2, 1},
                            {1, 4, 2}, {4, 1, 1}, {1, 1, 3}, {1, 5, 0}};

// In every rank: what the makespan has beyond the rank's work.
double idle_time(const PipelineShape& shape, const StageCost& cost) {
  const Timeline timeline = simulate(make_schedule(shape), cost);
  const double work = static_cast<double>(shape.chunks * shape.micro_batches) *
                      (cost.forward + cost.backward_input + cost.backward_weight);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    EXPECT_EQ(timeline.ranks[rank].busy, work);
    EXPECT_NEAR(timeline.bubble(rank), 1 - work / timeline.makespan, 1e-12);
  }
  return timeline.makespan - work;
}

template <class Body>
void for_ranks_and_costs(Body body) {
  for (const int ranks : {1, 2, 3, 4, 6, 8, 12, 24})
    for (const StageCost& cost : kCosts) body(ranks, cost);
}

// (P-1)(F+B): B is the whole backward. Also where there are fewer micro-batches than ranks.
TEST(ScheduleSimulation, GpipeAndOneForwardOneBackward) {
  for_ranks_and_costs([](int p, const StageCost& c) {
    for (const int64_t m : {int64_t{1}, int64_t{p}, int64_t{2 * p}, int64_t{3 * p + 1}})
      for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b})
        EXPECT_EQ(idle_time({kind, p, 1, m}, c), (p - 1) * (c.forward + c.backward_input + c.backward_weight))
            << describe(PipelineShape{kind, p, 1, m});
  });
}

// (P-1)(F+B)/v, where F and B are of all v stages of a rank together; costs here are of one.
TEST(ScheduleSimulation, Interleaved) {
  for_ranks_and_costs([](int p, const StageCost& c) {
    for (const int chunks : {2, 3, 4})
      for (const int rounds : {1, 2, 5}) {
        const PipelineShape shape{ScheduleKind::interleaved, p, chunks, int64_t{rounds} * p};
        EXPECT_EQ(idle_time(shape, c), (p - 1) * (c.forward + c.backward_input + c.backward_weight)) << describe(shape);
      }
  });
}

// (P-1)(F+B-2W) with the whole backward B: that is F plus input part less weight part. The gap of 1F1B that the weight
// part fills is as long as a forward: of a longer weight part no more than that is saved.
TEST(ScheduleSimulation, ZeroBubbleOne) {
  for_ranks_and_costs([](int p, const StageCost& c) {
    for (const int64_t m : {2 * p, 2 * p + 3, 4 * p})
      EXPECT_EQ(idle_time({ScheduleKind::zb_h1, p, 1, m}, c),
                (p - 1) * (c.forward + c.backward_input - std::min(c.forward, c.backward_weight)))
          << p << " ranks, " << m << " micro-batches, " << c.forward << c.backward_input << c.backward_weight;
  });
}

// With three equal parts nothing but the start of the last rank is lost: no schedule can be shorter.
TEST(ScheduleSimulation, ZeroBubbleV) {
  for (int p = 1; p <= 16; ++p)
    for (int64_t m = 2 * p; m <= 4 * p + 1; ++m)
      EXPECT_EQ(idle_time({ScheduleKind::zb_v, p, 2, m}, {1, 1, 1}), p - 1) << p << " ranks, " << m;
}

// Unequal parts cost something, but less than half of what 1F1B loses with the same layers.
TEST(ScheduleSimulation, ZeroBubbleVBearsUnequalParts) {
  for (const StageCost& c : {StageCost{2, 3, 2}, {3, 2, 2}, {2, 2, 1}, {4, 5, 3}, {2, 4, 1}})
    for (const int p : {2, 4, 8, 12})
      EXPECT_LT(idle_time({ScheduleKind::zb_v, p, 2, 4 * p}, c),
                (p - 1) * (c.forward + c.backward_input + c.backward_weight))
          << p << " ranks";
}

// A message that moves only when both ends are there delays the first micro-batch on its way there and back.
TEST(ScheduleSimulation, MessagesTakeTheSendersLatency) {
  const Schedule schedule = make_schedule({ScheduleKind::one_f_one_b, 2, 1, 1});
  const std::vector<StageCost> costs = {{1, 2, 3, 10}, {4, 5, 6, 20}};
  const Timeline timeline = simulate(schedule, costs);
  EXPECT_EQ(timeline.makespan, 1 + 10 + 4 + 5 + 6 + 20 + 2 + 3);
  EXPECT_EQ(timeline.ranks[1].begin, 11);
  EXPECT_EQ(timeline.ranks[0].gaps(), 10 + 15 + 20);
}

// One buffer per channel: the third forward waits until the second payload is received.
TEST(ScheduleSimulation, ASenderWaitsForItsBuffer) {
  const Schedule schedule = make_schedule({ScheduleKind::gpipe, 2, 1, 3});
  const std::vector<StageCost> costs = {{1, 1, 1}, {5, 1, 1}};
  const Timeline timeline = simulate(schedule, costs);
  std::vector<double> begins;
  for (size_t i = 0; i < schedule.ranks[0].size(); ++i)
    if (schedule.ranks[0][i].kind == forward) begins.push_back(timeline.actions[0][i].begin);
  EXPECT_EQ(begins, (std::vector<double>{0, 1, 6}));
}

TEST(ScheduleSimulation, CollectivesTakeTimeButAreNotBusy) {
  const Timeline timeline = simulate(make_schedule({ScheduleKind::one_f_one_b, 1, 1, 2}), {1, 1, 1, 0, 0.5, 4});
  EXPECT_EQ(timeline.makespan, 6 + 1 + 4);
  EXPECT_EQ(timeline.ranks[0].busy, 6);
}

struct Spans {
  const Schedule& schedule;
  const Timeline& timeline;
  // Begin and end by kind, stage and micro-batch; {0, 0} for what is not there.
  ActionTime of(ActionKind kind, int stage, int64_t j) const {
    const size_t rank = static_cast<size_t>(rank_of_stage(schedule.shape, stage));
    const auto& actions = schedule.ranks[rank];
    const auto found = std::find(actions.begin(), actions.end(), Action{kind, stage, j});
    return found == actions.end() ? ActionTime{} : timeline.actions[rank][static_cast<size_t>(found - actions.begin())];
  }
};

// Every small shape: valid, within the bound of its memory, and simulated in an order that data can flow in.
void check_shape_fully(const PipelineShape& shape) {
  SCOPED_TRACE(describe(shape));
  const Schedule schedule = make_schedule(shape);
  const ScheduleReport report = validate_schedule(schedule);
  const int64_t m = shape.micro_batches, p = shape.ranks, v = shape.chunks;
  for (int rank = 0; rank < p; ++rank) {
    const int64_t peak = report.rank_peak[rank];
    switch (shape.kind) {
      case ScheduleKind::gpipe: EXPECT_EQ(peak, m); break;
      case ScheduleKind::one_f_one_b: EXPECT_EQ(peak, std::min(p - rank, m)); break;
      case ScheduleKind::interleaved: EXPECT_LE(peak, std::min(p * v + p - 1, m * v)); break;
      case ScheduleKind::zb_h1: EXPECT_EQ(peak, std::min(p, m)); break;
      case ScheduleKind::zb_v: EXPECT_LE(peak, std::min(2 * p, 2 * m)); break;
    }
  }
  if (shape.kind == ScheduleKind::interleaved && m % p == 0 && m >= 2 * p) {
    EXPECT_EQ(report.rank_peak[0], p * v + p - 1);
  }
  const Timeline timeline = simulate(schedule, {2, 3, 2});
  const Spans spans{schedule, timeline};
  for (int s = 0; s + 1 < shape.stages(); ++s) {
    const int64_t j = (s * 7) % m;  // one of each stage is enough, in turn
    EXPECT_LE(spans.of(forward, s, j).end, spans.of(forward, s + 1, j).begin);
    const ActionKind kind = spans.of(backward, s, j).end > 0 ? backward : backward_input;
    EXPECT_GT(spans.of(kind, s, j).end, 0);
    EXPECT_LE(spans.of(kind, s + 1, j).end, spans.of(kind, s, j).begin);
  }
}

TEST(ScheduleSimulation, EverySmallShape) {
  int shapes = 0;
  for (const char* name : {"gpipe", "1f1b", "interleaved", "zb_h1", "zb_v"})
    for (int ranks = 1; ranks <= 8; ++ranks)
      for (int64_t m = 1; m <= 20; ++m)
        for (int chunks = 1; chunks <= 4; ++chunks) {
          const ScheduleKind kind = schedule_kind_of(name);
          const bool one = kind != ScheduleKind::interleaved && kind != ScheduleKind::zb_v;
          if (one ? chunks > 1 : kind == ScheduleKind::zb_v ? chunks != 2 : chunks < 2) continue;
          check_shape_fully({kind, ranks, chunks, m});
          ++shapes;
        }
  EXPECT_EQ(shapes, 160 * 7);
}

TEST(ScheduleSimulation, SomeLargeShapes) {
  for (const int ranks : {16, 31})
    for (const int64_t m : {1, 40, 128}) {
      for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::zb_h1})
        check_shape_fully({kind, ranks, 1, m});
      check_shape_fully({ScheduleKind::interleaved, ranks, 3, m});
      check_shape_fully({ScheduleKind::zb_v, ranks, 2, m});
    }
  check_shape_fully({ScheduleKind::interleaved, 32, 2, 256});
}

}  // namespace
}  // namespace mw::test
