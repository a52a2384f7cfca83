// The gradients of a step as data: for every pipeline rank the list of actions that the executor runs, the validator
// proves and the planner simulates. The update follows once the gradients are known to be finite.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/choices.h"

namespace mw {

// Within one stage and micro-batch the actions stand in this order; `backward` is whole or split in two.
enum class ActionKind : uint8_t {
  receive_activation,  // the input of the stage from the stage before, with the statistics that ride along
  forward,             // the layers of the stage
  reduce_statistics,   // load counts and score sums of the micro-batch over the stage's data-parallel replicas
  send_activation,     // the output of the stage, with the statistics so far, to the stage after
  receive_gradient,    // of the stage's output, from the stage after
  backward,            // the loss on the last stage, the layers in reverse: gradients of the input and of the weights
  backward_input,      // the part that the stage before waits for
  send_gradient,       // of the stage's input, to the stage before
  backward_weight,     // the rest, at any later time
  reduce_gradients,    // sums of the stage's weights over its replicas, once per step; micro_batch 0
};

struct Action {
  ActionKind kind = ActionKind::forward;
  int stage = 0;
  int64_t micro_batch = 0;
  bool operator==(const Action&) const = default;
};

struct PipelineShape {
  ScheduleKind kind = ScheduleKind::one_f_one_b;
  int ranks = 1;
  int chunks = 1;  // stages per rank: 2 for zb_v, 2 or more for interleaved, else 1
  int64_t micro_batches = 1;
  int stages() const { return ranks * chunks; }
  bool operator==(const PipelineShape&) const = default;
};

struct Schedule {
  PipelineShape shape;
  std::vector<std::vector<Action>> ranks;  // of each pipeline rank, in order
};

const char* name_of(ActionKind kind);
bool splits_backward(ScheduleKind kind);  // into backward_input and backward_weight
bool is_message(ActionKind kind);         // a send or a receive
// For words of a command line. Errors: config, with the nearest word.
ScheduleKind schedule_kind_of(const std::string& word);

// Stages of one rank: interleaved s, s + ranks, ...; zb_v s and its mirror image; else one.
int rank_of_stage(const PipelineShape& shape, int stage);
std::vector<int> stages_of_rank(const PipelineShape& shape, int rank);  // ascending
// Whether the output of `stage` travels to another rank: not out of the last stage, nor to a neighbour on one rank.
bool sends_activation(const PipelineShape& shape, int stage);
// Whether its input comes from another rank; gradients go the same way back.
bool receives_activation(const PipelineShape& shape, int stage);
// Messages to and from other ranks that the stages of the rank with the most of them have, of either direction: each
// has a queue of its own, so that none waits for another.
int most_links(const PipelineShape& shape);
// Of these, what a GPU's 32 hardware queues leave beside computing, other exchanges and checkpoints: two that share one
// may wait for each other for ever.
constexpr int kGpuLinks = 28;

// What every schedule keeps, and validate_schedule proves (layout/schedule/schedule_check.h):
// - a message exists only between stages on different ranks. A send stands behind its producer (and the statistics); it
//   starts a transfer and goes on. The transfer ends when the peer executes the matching receive.
// - each sending stage has one buffer per direction: the action that computes the next payload waits until the transfer
//   before has ended.
// - a receive stands right before the action that uses it or, where the sender needs its buffer earlier, some actions
//   before; but never before the last payload of that stage and direction was used.
// - micro-batches pass each stage in ascending order, so that sums over them do not depend on the schedule.
// - reduce_gradients of a stage stands right behind its last backward or backward_weight and that one's send. A rank's
//   stages end from the last to the first, so that all rows behind a layer are complete when it is.
// Errors: config (a shape that cannot be).
Schedule make_schedule(const PipelineShape& shape);

// Errors: config, with what would work.
void check_shape(const PipelineShape& shape);

std::string describe(const Action& action);  // "forward of micro-batch 3 in stage 1"
// One word per action. One stage without messages: "F0 S0 B0 F1 S1 B1 R". Else with stages, "F2:0" is micro-batch 0 in
// stage 2; ">A", "<A" send and receive activations, ">G", "<G" gradients; I and W are the input and weight parts.
std::string describe(const std::vector<Action>& actions);
std::string describe(const PipelineShape& shape);  // "1f1b, 4 ranks, 8 micro-batches"

}  // namespace mw
