#include "comm/stage_links.h"

#include <gtest/gtest.h>

#include <array>

#include "support/thread_comm.h"

namespace mw::test {
namespace {

const std::vector<PipelineShape> kShapes = {{ScheduleKind::one_f_one_b, 1, 1, 4}, {ScheduleKind::one_f_one_b, 2, 1, 4},
                                            {ScheduleKind::one_f_one_b, 7, 1, 4}, {ScheduleKind::interleaved, 2, 3, 4},
                                            {ScheduleKind::interleaved, 5, 2, 5}, {ScheduleKind::zb_v, 4, 2, 4}};

MeshComms line_of(Comm& world) {
  MeshComms comms;
  comms.pp = world.split(0, world.rank());
  return comms;
}

// Tells the other member of a link the stage and which of its two groups it is.
void exchange_names(Comm& link, int stage, int direction) {
  ASSERT_EQ(link.size(), 2);
  const std::array<int, 3> sent = {stage, direction, link.rank()};
  std::array<int, 3> got = {};
  const auto sending = link.send(std::as_bytes(std::span(sent)), 1 - link.rank());
  link.receive(std::as_writable_bytes(std::span(got)), 1 - link.rank())->wait();
  sending->wait();
  EXPECT_EQ(got, (std::array<int, 3>{stage, direction, 1 - link.rank()}));
}

TEST(StageLinks, JoinTheRanksOfNeighbouringStages) {
  for (const PipelineShape& shape : kShapes)
    run_ranks(shape.ranks, [&](Comm& world, Stream&) {
      const PipelineComms links = make_pipeline_comms(line_of(world), shape, true);
      ASSERT_EQ(std::ssize(links.after), shape.stages());
      for (int s = 0; s < shape.stages(); ++s) {
        const StageLink& link = links.after[static_cast<size_t>(s)];
        const bool holds = rank_of_stage(shape, s) == world.rank(),
                   holds_next = s + 1 < shape.stages() && rank_of_stage(shape, s + 1) == world.rank();
        const bool has_end = sends_activation(shape, s) && (holds || holds_next);
        ASSERT_EQ(link.activations != nullptr, has_end) << describe(shape) << ", stage " << s;
        ASSERT_EQ(link.gradients != nullptr, has_end) << describe(shape) << ", stage " << s;
        if (!has_end) continue;
        EXPECT_EQ(link.activations->rank(), holds ? 0 : 1);
        exchange_names(*link.activations, s, 0);
        exchange_names(*link.gradients, s, 1);
      }
      const int last = rank_of_stage(shape, shape.stages() - 1);
      const bool is_end = last != 0 && (world.rank() == 0 || world.rank() == last);
      ASSERT_EQ(links.ends->size(), is_end ? 2 : 1) << describe(shape);
      if (is_end) exchange_names(*links.ends, 0, 2);
    });
}

TEST(StageLinks, OpenInAsManyCallsForAnyNumberOfStages) {
  const auto calls = [](int ranks) {
    int64_t count = 0;
    run_ranks(ranks, [&](Comm& world, Stream&) {
      const MeshComms comms = line_of(world);
      const int64_t before = world.progress()->read().collectives;
      make_pipeline_comms(comms, {ScheduleKind::one_f_one_b, ranks, 1, 4}, false);
      if (world.rank() == 0) count = world.progress()->read().collectives - before;
    });
    return count;
  };
  EXPECT_GT(calls(3), 0);
  EXPECT_EQ(calls(16), calls(3));
}

}  // namespace
}  // namespace mw::test
