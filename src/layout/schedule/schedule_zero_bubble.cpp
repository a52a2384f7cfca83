// Schedules that split backward in two and use the weight part, which nobody waits for, to fill gaps.
#include <algorithm>
#include <initializer_list>
#include <utility>

#include "layout/schedule/schedule_order.h"

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

// One rank's list on the way: the next micro-batch of each kind in the stage going down the ranks and in the one going
// up again.
class VList {
 public:
  VList(const PipelineShape& shape, int rank) : shape_(shape), stages_{rank, shape.stages() - 1 - rank} {}

  // Repeats the steps in turn. Micro-batches that do not exist are counted but left out.
  struct Step {
    ActionKind kind;
    int way;  // 0 down, 1 up
  };
  void add(int64_t times, std::initializer_list<Step> steps) {
    for (int64_t i = 0; i < times; ++i)
      for (const Step& step : steps) {
        const int64_t j = done_[step.way][static_cast<size_t>(step.kind)]++;
        if (j < shape_.micro_batches) actions_.push_back({step.kind, stages_[step.way], j});
      }
  }

  std::vector<Action> take() { return std::move(actions_); }

 private:
  const PipelineShape& shape_;
  int stages_[2];
  int64_t done_[2][static_cast<size_t>(ActionKind::reduce_gradients)] = {};
  std::vector<Action> actions_;
};

}  // namespace

// With all parts one unit long, on rank r of P: micro-batch 0 comes down at r, up again at 2P-1-r, and its gradient
// at 2P+r on the way up. Until each of them comes, forwards fill the time; then all three parts of one way take turns
// with all three of the other. That leaves slack between neighbouring ranks, so that unequal parts lose little. A rank
// holds 2P half stages at most: what the first rank of 1F1B holds.
ComputeOrder zb_v_order(const PipelineShape& shape) {
  constexpr ActionKind F = ActionKind::forward, I = ActionKind::backward_input, W = ActionKind::backward_weight;
  ComputeOrder order;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const int64_t behind = shape.ranks - rank;  // this rank and those after it
    const int64_t count = std::max<int64_t>(shape.micro_batches, 2 * shape.ranks - 1);
    const int64_t first = 2 * behind - 1 + rank;  // forwards on the way down before the first gradient on it
    VList list(shape, rank);
    list.add(2 * behind - 1, {{F, 0}});
    list.add(rank, {{F, 1}, {F, 0}});
    list.add(behind, {{F, 1}, {I, 1}, {W, 1}});
    list.add(count - first, {{F, 0}, {I, 0}, {W, 0}, {F, 1}, {I, 1}, {W, 1}});
    list.add(first - shape.ranks, {{I, 0}, {W, 0}, {F, 1}, {I, 1}, {W, 1}});  // all forwards down are done
    list.add(rank, {{I, 0}, {I, 1}});
    list.add(behind, {{I, 0}, {W, 0}});
    list.add(rank, {{W, 1}});
    list.add(rank, {{W, 0}});
    order.push_back(list.take());
  }
  return order;
}

}  // namespace mw
