// The gradients of a step as data: the list of actions that the executor runs and the planner simulates. The update
// follows once they are known to be finite.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mw {

enum class ActionKind : uint8_t {
  forward,            // layers of a stage on one micro-batch, with the loss on the last stage
  reduce_statistics,  // load counts and score sums of the micro-batch over the data-parallel world
  backward,           // layers in reverse
  reduce_gradients,   // sums over replicas
};

struct Action {
  ActionKind kind = ActionKind::forward;
  int stage = 0;
  int64_t micro_batch = 0;  // of forward, reduce_statistics and backward
  bool operator==(const Action&) const = default;
};

const char* name_of(ActionKind kind);

// One stage: forward and backward of each micro-batch in turn, so that one micro-batch's activations live at a time.
std::vector<Action> make_single_stage_schedule(int64_t micro_batches);

std::string describe(const std::vector<Action>& schedule);  // "F0 S0 B0 F1 S1 B1 R"

}  // namespace mw
