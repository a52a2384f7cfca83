// Schedules that split backward in two and use the weight part, which nobody waits for, to fill gaps.
#include <algorithm>

#include "base/error.h"
#include "spec/schedule_order.h"

namespace mw {

// 1F1B, but rank r runs r weight parts late: in the end, when 1F1B would wait for gradients, it has them left to do.
// Its r fewer live micro-batches make room for that, so that every rank holds as many as the first one of 1F1B.
ComputeOrder zb_h1_order(const PipelineShape& shape) {
  ComputeOrder order(static_cast<size_t>(shape.ranks));
  const int64_t count = shape.micro_batches;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const auto add = [&](ActionKind kind, int64_t j) { order[rank].push_back({kind, rank, j}); };
    int64_t forwards = 0, weights = 0;
    while (forwards < std::min<int64_t>(shape.ranks - 1 - rank, count)) add(ActionKind::forward, forwards++);
    for (int64_t j = 0; j < count; ++j) {
      if (forwards < count) add(ActionKind::forward, forwards++);
      add(ActionKind::backward_input, j);
      if (j >= rank) add(ActionKind::backward_weight, weights++);
    }
    while (weights < count) add(ActionKind::backward_weight, weights++);
  }
  return order;
}

namespace {

// Lets all ranks choose their next action step by step, as if forward, input part and weight part took the same time.
class VShape {
 public:
  explicit VShape(const PipelineShape& shape) : shape_(shape), stages_(static_cast<size_t>(shape.stages())) {}

  ComputeOrder run() {
    ComputeOrder order(static_cast<size_t>(shape_.ranks));
    const int64_t all = 3 * shape_.stages() * shape_.micro_batches;
    for (int64_t chosen = 0; chosen < all;) {
      std::vector<Action> step;
      for (int rank = 0; rank < shape_.ranks; ++rank) choose(rank, step);
      MW_CHECK(!step.empty(), "{}: no rank finds an action", describe(shape_));
      for (const Action& action : step) {  // from here on others may use what this step gives
        order[rank_of_stage(shape_, action.stage)].push_back(action);
        StageState& own = stages_[action.stage];
        ++(action.kind == ActionKind::forward          ? own.forwards
           : action.kind == ActionKind::backward_input ? own.inputs
                                                       : own.weights);
      }
      chosen += std::ssize(step);
    }
    return order;
  }

 private:
  struct StageState {
    int64_t forwards = 0, inputs = 0, weights = 0;  // micro-batches done
    int64_t live() const { return forwards - weights; }
  };

  bool can_forward(int stage) const {
    return stages_[stage].forwards < (stage == 0 ? shape_.micro_batches : stages_[stage - 1].forwards);
  }
  bool can_backward(int stage) const {
    const bool last = stage + 1 == shape_.stages();
    return stages_[stage].inputs < (last ? stages_[stage].forwards : stages_[stage + 1].inputs);
  }
  bool can_weigh(int stage) const { return stages_[stage].weights < stages_[stage].inputs; }

  // Forwards first, to keep the ranks behind busy, then gradients for the ranks before. The way up goes first: it leads
  // to the first backwards. Memory bounds the forwards: as many as 1F1B's first rank holds, two half stages for one;
  // the way down leaves one of them to the way up, which could else never begin.
  void choose(int rank, std::vector<Action>& step) const {
    const int down = rank, up = shape_.stages() - 1 - rank;
    const auto& d = stages_[down];
    const auto& u = stages_[up];
    const int64_t room = shape_.stages() - d.live() - u.live();
    if (can_forward(up) && room > 0) step.push_back({ActionKind::forward, up, u.forwards});
    else if (can_forward(down) && room > (u.live() == 0 ? 1 : 0))
      step.push_back({ActionKind::forward, down, d.forwards});
    else if (can_backward(down)) step.push_back({ActionKind::backward_input, down, d.inputs});
    else if (can_backward(up)) step.push_back({ActionKind::backward_input, up, u.inputs});
    else if (can_weigh(down) && (!can_weigh(up) || d.weights <= u.weights))
      step.push_back({ActionKind::backward_weight, down, d.weights});
    else if (can_weigh(up)) step.push_back({ActionKind::backward_weight, up, u.weights});
  }

  const PipelineShape& shape_;
  std::vector<StageState> stages_;
};

}  // namespace

ComputeOrder zb_v_order(const PipelineShape& shape) { return VShape(shape).run(); }

}  // namespace mw
