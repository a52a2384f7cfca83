// The executor runs the list that it is given: in order, each action once and by its own handler, with its times.
#include "engine/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"

namespace mw::test {
namespace {

const ActionKind kKinds[] = {ActionKind::receive_activation, ActionKind::forward,
                             ActionKind::reduce_statistics,  ActionKind::send_activation,
                             ActionKind::receive_gradient,   ActionKind::backward,
                             ActionKind::backward_input,     ActionKind::send_gradient,
                             ActionKind::backward_weight,    ActionKind::reduce_gradients};

// Handlers that do nothing but say that they were called.
ActionHandlers handlers_that_note(std::vector<Action>& called) {
  ActionHandlers handlers;
  for (const ActionKind kind : kKinds)
    handlers[kind] = [kind, &called](const Action& a) {
      EXPECT_EQ(a.kind, kind) << describe(a);
      called.push_back(a);
    };
  return handlers;
}

std::vector<Action> actions_of(const std::vector<ActionRecord>& records) {
  std::vector<Action> actions;
  for (const ActionRecord& record : records) actions.push_back(record.action);
  return actions;
}

TEST(Executor, RecordsAreThePlanOfEverySchedule) {
  for (const PipelineShape& shape : {PipelineShape{ScheduleKind::gpipe, 3, 1, 5},
                                     {ScheduleKind::one_f_one_b, 4, 1, 8},
                                     {ScheduleKind::interleaved, 2, 3, 4},
                                     {ScheduleKind::zb_h1, 3, 1, 7},
                                     {ScheduleKind::zb_v, 3, 2, 6}})
    for (const std::vector<Action>& plan : make_schedule(shape).ranks) {
      Trace trace;
      std::vector<Action> called;
      const std::vector<ActionRecord> records = run_schedule(plan, handlers_that_note(called), trace);
      EXPECT_EQ(called, plan) << describe(shape);
      EXPECT_EQ(actions_of(records), plan) << describe(shape);
      int64_t now = 0;
      for (const ActionRecord& record : records) {
        EXPECT_GE(record.begin_ns, now);
        EXPECT_GE(record.end_ns, record.begin_ns);
        now = record.end_ns;
      }
    }
}

// What was run is told, not what was to be run: any two actions that change places show.
TEST(Executor, RecordsOfAPermutedScheduleDiffer) {
  const std::vector<Action> plan = make_schedule({ScheduleKind::one_f_one_b, 2, 1, 4}).ranks[0];
  for (size_t a = 0; a < plan.size(); ++a)
    for (size_t b = a + 1; b < plan.size(); ++b) {
      std::vector<Action> permuted = plan, called;
      std::swap(permuted[a], permuted[b]);
      Trace trace;
      const std::vector<Action> ran = actions_of(run_schedule(permuted, handlers_that_note(called), trace));
      EXPECT_EQ(ran, permuted);
      EXPECT_NE(ran, plan) << describe(plan[a]) << " and " << describe(plan[b]);
    }
}

TEST(Executor, TimesAreThoseOfTheHandler) {
  Trace trace;
  const auto records = run_schedule(
      {{ActionKind::forward, 0, 0}, {ActionKind::backward, 0, 0}},
      {{ActionKind::forward, [](const Action&) {}},
       {ActionKind::backward, [](const Action&) { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }}},
      trace);
  EXPECT_GE(records[1].end_ns - records[1].begin_ns, 5'000'000);
}

TEST(Executor, EveryActionIsAScopeOfTheTrace) {
  const std::vector<Action> plan = make_schedule({ScheduleKind::zb_h1, 2, 1, 4}).ranks[1];
  Trace trace;
  trace.keep_events(true);
  std::vector<Action> called;
  run_schedule(plan, handlers_that_note(called), trace);
  ASSERT_EQ(trace.events().size(), plan.size());
  for (size_t i = 0; i < plan.size(); ++i) {
    EXPECT_STREQ(trace.events()[i].label, name_of(plan[i].kind));
    EXPECT_STREQ(trace.events()[i].argument.name, "micro_batch");
    EXPECT_EQ(trace.events()[i].argument.value, plan[i].micro_batch);
  }
}

TEST(Executor, RefusesAnActionThatNothingRuns) {
  Trace trace;
  std::vector<Action> called;
  ActionHandlers handlers = handlers_that_note(called);
  handlers.erase(ActionKind::backward_weight);
  try {
    run_schedule(make_schedule({ScheduleKind::zb_h1, 2, 1, 4}).ranks[0], handlers, trace);
    FAIL() << "it ran";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::internal);
    EXPECT_NE(std::string(error.what()).find("backward_weight of micro-batch 0 in stage 0"), std::string::npos)
        << error.what();
  }
}

TEST(Executor, StopsAtTheFirstError) {
  Trace trace;
  std::vector<Action> called;
  ActionHandlers handlers = handlers_that_note(called);
  handlers[ActionKind::backward] = [](const Action&) { throw std::runtime_error("a handler's own"); };
  EXPECT_THROW(run_schedule(make_schedule({ScheduleKind::gpipe, 1, 1, 2}).ranks[0], handlers, trace),
               std::runtime_error);
  EXPECT_EQ(describe(called), "F0 S0 F1 S1");
}

}  // namespace
}  // namespace mw::test
