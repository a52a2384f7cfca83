// Each rule of a schedule broken once: the validator must say where and why.
#include "layout/schedule/schedule_check.h"

#include <algorithm>

#include "layout/helpers.h"

namespace mw::test {
namespace {

using enum ActionKind;

const PipelineShape kTwoRanks{ScheduleKind::one_f_one_b, 2, 1, 4};

std::string refusal_text(const Schedule& schedule) {
  return error_of([&] { validate_schedule(schedule); }, Exit::internal);
}

size_t place_of(const Schedule& schedule, int rank, const Action& action) {
  const auto& actions = schedule.ranks[rank];
  const auto found = std::find(actions.begin(), actions.end(), action);
  EXPECT_NE(found, actions.end()) << describe(action);
  return static_cast<size_t>(found - actions.begin());
}

void erase(Schedule& schedule, int rank, const Action& action) {
  schedule.ranks[rank].erase(schedule.ranks[rank].begin() + static_cast<long>(place_of(schedule, rank, action)));
}

void insert_before(Schedule& schedule, int rank, const Action& place, const Action& action) {
  const auto at = static_cast<long>(place_of(schedule, rank, place));
  schedule.ranks[rank].insert(schedule.ranks[rank].begin() + at, action);
}

void move_before(Schedule& schedule, int rank, const Action& place, const Action& action) {
  erase(schedule, rank, action);
  insert_before(schedule, rank, place, action);
}

// Moves, erases or adds in a good schedule, and expects all of the texts in the refusal.
template <class Change>
void expect_refusal(const PipelineShape& shape, Change change, std::initializer_list<const char*> texts) {
  Schedule schedule = make_schedule(shape);
  validate_schedule(schedule);
  change(schedule);
  const std::string error = refusal_text(schedule);
  for (const char* text : texts) EXPECT_TRUE(contains(error, text)) << "no \"" << text << "\" in: " << error;
}

TEST(ScheduleCheck, RefusesAReceiveBehindItsUse) {
  expect_refusal(kTwoRanks,
                 [](Schedule& s) {
                   move_before(s, 1, {receive_activation, 1, 1}, {forward, 1, 1});
                 },
                 {"rank 1, action 5", "forward of micro-batch 1 in stage 1", "receive_activation must come before"});
}

TEST(ScheduleCheck, RefusesAMissingReceive) {
  expect_refusal(kTwoRanks,
                 [](Schedule& s) {
                   erase(s, 0, {receive_gradient, 0, 3});
                 },
                 {"rank 0", "backward of micro-batch 3 in stage 0", "receive_gradient must come before"});
}

TEST(ScheduleCheck, RefusesAMissingSend) {
  expect_refusal(kTwoRanks,
                 [](Schedule& s) {
                   erase(s, 1, {send_gradient, 1, 3});
                 },
                 {"rank 1", "reduce_gradients of stage 1", "send_gradient of micro-batch 3 must come before"});
  expect_refusal(kTwoRanks,
                 [](Schedule& s) {
                   erase(s, 0, {send_activation, 0, 0});
                 },
                 {"forward of micro-batch 1 in stage 0", "the output of micro-batch 0 has not been sent yet"});
}

TEST(ScheduleCheck, RefusesTheSameTwice) {
  for (const ActionKind kind : {forward, backward, reduce_statistics, send_gradient, receive_activation})
    expect_refusal(kTwoRanks,
                   [&](Schedule& s) {
                     insert_before(s, 1, {reduce_gradients, 1, 0}, {kind, 1, 2});
                   },
                   {"of micro-batch 2 in stage 1: it was done before"});
}

TEST(ScheduleCheck, RefusesWhatIsMissing) {
  expect_refusal(kTwoRanks,
                 [](Schedule& s) {
                   erase(s, 1, {reduce_statistics, 1, 2});
                 },
                 {"reduce_statistics must come before", "backward of micro-batch 2 in stage 1"});
  expect_refusal(kTwoRanks,
                 [](Schedule& s) {
                   erase(s, 0, {reduce_gradients, 0, 0});
                 },
                 {"rank 0 lacks reduce_gradients of stage 0"});
  expect_refusal({ScheduleKind::one_f_one_b, 1, 1, 2}, [](Schedule& s) { s.ranks[0].resize(3); },
                 {"rank 0 lacks forward of micro-batch 1 in stage 0"});
  expect_refusal(kTwoRanks, [](Schedule& s) { s.ranks.pop_back(); }, {"1 lists of actions for 1f1b, 2 ranks"});
}

TEST(ScheduleCheck, RefusesMicroBatchesOutOfOrder) {
  expect_refusal(kTwoRanks,
                 [](Schedule& s) {
                   std::swap(s.ranks[1][place_of(s, 1, {receive_activation, 1, 1})],
                             s.ranks[1][place_of(s, 1, {receive_activation, 1, 2})]);
                 },
                 {"receive_activation of micro-batch 2 in stage 1", "micro-batch 1 comes first"});
  expect_refusal({ScheduleKind::gpipe, 1, 1, 2},
                 [](Schedule& s) {
                   move_before(s, 0, {backward, 0, 0}, {backward, 0, 1});
                 },
                 {"action 4", "micro-batch 0 comes first"});
}

TEST(ScheduleCheck, RefusesStatisticsThatMissTheirMessage) {
  expect_refusal(kTwoRanks,
                 [](Schedule& s) {
                   move_before(s, 0, {reduce_statistics, 0, 1}, {send_activation, 0, 1});
                 },
                 {"send_activation of micro-batch 1", "reduce_statistics must come before"});
}

TEST(ScheduleCheck, RefusesASecondPayloadInOneBuffer) {
  expect_refusal(
      kTwoRanks,
      [](Schedule& s) {
        move_before(s, 1, {forward, 1, 1}, {receive_activation, 1, 2});
      },
      {"receive_activation of micro-batch 2 in stage 1", "the input of micro-batch 1 has not been used yet"});
  expect_refusal({ScheduleKind::gpipe, 2, 1, 3},
                 [](Schedule& s) {
                   move_before(s, 1, {send_gradient, 1, 0}, {backward, 1, 1});
                 },
                 {"backward of micro-batch 1 in stage 1", "the output of micro-batch 0 has not been sent yet"});
}

TEST(ScheduleCheck, RefusesActionsThatLieElsewhere) {
  const auto added = [](int rank, Action action, std::initializer_list<const char*> texts) {
    expect_refusal(
        {ScheduleKind::zb_v, 2, 2, 4}, [&](Schedule& s) { s.ranks[rank].insert(s.ranks[rank].begin(), action); },
        texts);
  };
  added(0, {forward, 1, 0}, {"rank 0, action 0", "that stage is on rank 1"});
  added(0, {forward, 4, 0}, {"there are 4 stages"});
  added(0, {forward, -1, 0}, {"there are 4 stages"});
  added(0, {forward, 0, 4}, {"there are 4 micro-batches"});
  added(1, {send_activation, 1, 0}, {"no message between these stages"});  // the turn lies on one rank
  added(1, {receive_gradient, 1, 0}, {"no message between these stages"});
  added(0, {receive_activation, 0, 0}, {"no message between these stages"});
  added(0, {receive_gradient, 3, 0}, {"no message between these stages"});
}

TEST(ScheduleCheck, RefusesWeightsBeforeInputs) {
  expect_refusal({ScheduleKind::zb_h1, 2, 1, 4},
                 [](Schedule& s) {
                   move_before(s, 0, {backward_input, 0, 2}, {backward_weight, 0, 2});
                 },
                 {"rank 0", "backward_weight of micro-batch 2", "backward_input must come before"});
  expect_refusal({ScheduleKind::zb_h1, 2, 1, 4},
                 [](Schedule& s) {
                   erase(s, 1, {backward_weight, 1, 3});
                 },
                 {"rank 1", "weight gradients of micro-batch 3 are missing"});
  expect_refusal({ScheduleKind::zb_h1, 2, 1, 4},
                 [](Schedule& s) {
                   s.ranks[1][place_of(s, 1, {backward_input, 1, 1})].kind = backward;
                 },
                 {"backward of micro-batch 1 in stage 1", "backward_weight of micro-batch 0 comes first"});
}

TEST(ScheduleCheck, RefusesNeighboursOnOneRankOutOfOrder) {
  expect_refusal({ScheduleKind::zb_v, 1, 2, 1},
                 [](Schedule& s) {
                   move_before(s, 0, {forward, 0, 0}, {forward, 1, 0});
                 },
                 {"forward of micro-batch 0 in stage 1", "input from the stage before"});
  expect_refusal({ScheduleKind::zb_v, 1, 2, 1},
                 [](Schedule& s) {
                   move_before(s, 0, {backward_input, 1, 0}, {backward_input, 0, 0});
                 },
                 {"backward_input of micro-batch 0 in stage 0", "gradient from the stage after"});
}

TEST(ScheduleCheck, RefusesSumsAtTheWrongTime) {
  expect_refusal(kTwoRanks,
                 [](Schedule& s) {
                   move_before(s, 1, {backward, 1, 3}, {reduce_gradients, 1, 0});
                 },
                 {"reduce_gradients of stage 1", "weight gradients of micro-batch 3 are missing"});
  expect_refusal(kTwoRanks,
                 [](Schedule& s) {
                   s.ranks[1].push_back({reduce_gradients, 1, 0});
                 },
                 {"it was done before"});
  expect_refusal({ScheduleKind::interleaved, 2, 2, 2},
                 [](Schedule& s) {
                   move_before(s, 0, {backward, 0, 1}, {reduce_gradients, 2, 0});
                 },
                 {"directly follow the last backward"});
  // The last stage would meet the first one, which waits for the message, in the sum of tied embeddings.
  for (const ScheduleKind kind : {ScheduleKind::one_f_one_b, ScheduleKind::zb_h1})
    expect_refusal({kind, 2, 1, 4},
                   [](Schedule& s) {
                     move_before(s, 1, {reduce_gradients, 1, 0}, {send_gradient, 1, 3});
                     std::swap(s.ranks[1].back(), s.ranks[1][s.ranks[1].size() - 2]);
                   },
                   {"reduce_gradients of stage 1", "send_gradient of micro-batch 3 must come before"});
  // The sums go through the rows from the last stage to the first.
  expect_refusal({ScheduleKind::zb_v, 1, 2, 1},
                 [](Schedule& s) {
                   const std::vector<Action> late = {{backward_weight, 1, 0}, {reduce_gradients, 1, 0}};
                   for (const Action& a : late) erase(s, 0, a);
                   s.ranks[0].insert(s.ranks[0].end(), late.begin(), late.end());
                 },
                 {"reduce_gradients of stage 0", "stage 1 comes first"});
}

// Rank 0 wants micro-batch 0 back before it sends the next; rank 1 wants the next before it gives that back.
TEST(ScheduleCheck, NamesRanksThatWaitForEachOther) {
  expect_refusal({ScheduleKind::one_f_one_b, 2, 1, 2},
                 [](Schedule& s) {
                   s.ranks[0] = {{forward, 0, 0},           {reduce_statistics, 0, 0}, {send_activation, 0, 0},
                                 {receive_gradient, 0, 0},  {backward, 0, 0},          {forward, 0, 1},
                                 {reduce_statistics, 0, 1}, {send_activation, 0, 1},   {receive_gradient, 0, 1},
                                 {backward, 0, 1},          {reduce_gradients, 0, 0}};
                   move_before(s, 1, {backward, 1, 0}, {receive_activation, 1, 1});
                 },
                 {"deadlocks", "rank 0 in action 3, receive_gradient of micro-batch 0 in stage 0, waits for its send",
                  "rank 1 in action 3, receive_activation of micro-batch 1 in stage 1, waits for its send"});
}

// Two forwards more than 1F1B before the first backward: with a buffer for every message this would run.
TEST(ScheduleCheck, RefusesWhatNeedsEagerSends) {
  expect_refusal(
      kTwoRanks,
      [](Schedule& s) {
        for (const int64_t j : {2, 3})
          for (const ActionKind kind : {forward, reduce_statistics, send_activation})
            move_before(s, 0, {receive_gradient, 0, 0}, {kind, 0, j});
      },
      {"deadlocks", "rank 0 in action 9, forward of micro-batch 3 in stage 0, waits for the receive of micro-batch 2",
       "rank 1 in action 8, backward of micro-batch 1 in stage 1, waits for the receive of micro-batch 0"});
}

// Whatever the lists hold: an error of ours or a proof, never a crash. What is doubled or gone is always refused.
TEST(ScheduleCheck, RandomDamage) {
  uint64_t state = 1;
  const auto random = [&](size_t bound) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<size_t>(state >> 33) % bound;
  };
  const PipelineShape shapes[] = {{ScheduleKind::one_f_one_b, 3, 1, 4},
                                  {ScheduleKind::interleaved, 2, 2, 4},
                                  {ScheduleKind::zb_h1, 3, 1, 4},
                                  {ScheduleKind::zb_v, 2, 2, 3}};
  int refused = 0;
  for (int round = 0; round < 8000; ++round) {
    Schedule schedule = make_schedule(shapes[round % 4]);
    auto& actions = schedule.ranks[random(schedule.ranks.size())];
    const size_t a = random(actions.size()), b = random(actions.size());
    const size_t damage = random(4);
    if (damage == 0) actions.erase(actions.begin() + static_cast<long>(a));
    else if (damage == 1) actions.insert(actions.begin() + static_cast<long>(b), Action(actions[a]));
    else if (damage == 2) std::swap(actions[a], actions[b]);
    else
      actions[a] = {static_cast<ActionKind>(random(10)), static_cast<int>(random(7)) - 1,
                    static_cast<int64_t>(random(7)) - 1};
    const auto error = refusal_of([&] { validate_schedule(schedule); }, {Exit::internal}, describe(actions));
    EXPECT_TRUE(error || damage >= 2) << describe(actions);
    refused += error.has_value();
  }
  EXPECT_GT(refused, 7000);
}

TEST(ScheduleCheck, CountsLiveActivations) {
  EXPECT_EQ(validate_schedule(make_schedule({ScheduleKind::one_f_one_b, 4, 1, 8})).stage_peak,
            (std::vector<int64_t>{4, 3, 2, 1}));
  EXPECT_EQ(validate_schedule(make_schedule({ScheduleKind::one_f_one_b, 4, 1, 2})).rank_peak,
            (std::vector<int64_t>{2, 2, 2, 1}));
  EXPECT_EQ(validate_schedule(make_schedule({ScheduleKind::gpipe, 3, 1, 5})).rank_peak,
            (std::vector<int64_t>{5, 5, 5}));
  EXPECT_EQ(validate_schedule(make_schedule({ScheduleKind::zb_h1, 3, 1, 6})).rank_peak,
            (std::vector<int64_t>{3, 3, 3}));
  const ScheduleReport report = validate_schedule(make_schedule({ScheduleKind::interleaved, 2, 2, 4}));
  EXPECT_EQ(report.rank_peak[0], 5);  // ranks x chunks + ranks - 1
  EXPECT_EQ(report.stage_peak.size(), 4u);
}

}  // namespace
}  // namespace mw::test
