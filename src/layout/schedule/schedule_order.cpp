#include "layout/schedule/schedule_order.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace mw {
namespace {

struct Span {
  int64_t begin = -1, end = -1;  // -1: not run yet
};

struct Place {
  int rank = 0;
  size_t index = 0;
};

bool is_backward(ActionKind kind) { return kind == ActionKind::backward || kind == ActionKind::backward_input; }

// A whole backward takes longer here than a forward through all ranks: a receive that is early enough before such a
// backward is so before a shorter one too. The split kinds order their actions for equal parts.
int64_t duration(ActionKind kind) { return kind == ActionKind::backward ? 1000 : 1; }

// When each compute action runs if messages take no time and buffers never end, and where it stands.
class Clock {
 public:
  Clock(const PipelineShape& shape, const ComputeOrder& order) : shape_(shape), order_(order) {
    const size_t cells = static_cast<size_t>(shape.stages() * shape.micro_batches);
    forwards_.resize(cells);
    backwards_.resize(cells);
    for (const auto& actions : order) spans_.emplace_back(actions.size());
    for (int rank = 0; rank < shape.ranks; ++rank)
      for (size_t i = 0; i < order[rank].size(); ++i) {
        const Action& action = order[rank][i];
        if (action.kind == ActionKind::forward) forwards_[cell(action.stage, action.micro_batch)] = {rank, i};
        if (is_backward(action.kind)) backwards_[cell(action.stage, action.micro_batch)] = {rank, i};
      }
    run();
  }

  const Span& span(Place place) const { return spans_[place.rank][place.index]; }
  Place forward(int stage, int64_t micro_batch) const { return forwards_[cell(stage, micro_batch)]; }
  Place backward(int stage, int64_t micro_batch) const { return backwards_[cell(stage, micro_batch)]; }

 private:
  size_t cell(int stage, int64_t micro_batch) const {
    return static_cast<size_t>(stage * shape_.micro_batches + micro_batch);
  }

  // The end of what `action` needs from the neighbouring stage, -1 if that has not run.
  int64_t ready(const Action& action) const {
    if (action.kind == ActionKind::forward && action.stage > 0)
      return span(forward(action.stage - 1, action.micro_batch)).end;
    if (is_backward(action.kind) && action.stage + 1 < shape_.stages())
      return span(backward(action.stage + 1, action.micro_batch)).end;
    return 0;
  }

  void run() {
    std::vector<size_t> next(order_.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < order_.size(); ++rank)
        for (; next[rank] < order_[rank].size(); ++next[rank], moved = true) {
          const size_t i = next[rank];
          const int64_t inputs = ready(order_[rank][i]);
          if (inputs < 0) break;
          const int64_t begin = std::max(inputs, i == 0 ? 0 : spans_[rank][i - 1].end);
          spans_[rank][i] = {begin, begin + duration(order_[rank][i].kind)};
        }
    }
    for (size_t rank = 0; rank < order_.size(); ++rank)
      MW_CHECK(next[rank] == order_[rank].size(), "{}: rank {} would deadlock in its action {}", describe(shape_), rank,
               next[rank]);
  }

  const PipelineShape& shape_;
  const ComputeOrder& order_;
  std::vector<std::vector<Span>> spans_;
  std::vector<Place> forwards_, backwards_;  // by stage and micro-batch
};

struct Receive {
  Action action;
  int64_t arrival = 0;
};

// Receives that stand before each compute action, by rank and index.
using Receives = std::vector<std::vector<std::vector<Receive>>>;

struct Payload {
  Action receive;
  Place producer, user;
};

// The payloads that one stage sends in one direction, in order.
void place_channel(const Clock& clock, const std::vector<Payload>& payloads, Receives& receives) {
  size_t earliest = 0;  // the payload before must have been used
  for (size_t i = 0; i < payloads.size(); ++i) {
    const auto& [receive, producer, user] = payloads[i];
    const int64_t arrival = clock.span(producer).end;
    const bool last = i + 1 == payloads.size();
    const int64_t wanted = last ? std::numeric_limits<int64_t>::max() : clock.span(payloads[i + 1].producer).begin;
    size_t index = user.index;
    for (; index > earliest; --index) {
      const Span& before = clock.span({user.rank, index - 1});
      if (before.end <= wanted || before.begin < arrival) break;
    }
    receives[user.rank][index].push_back({receive, arrival});
    earliest = user.index + 1;
  }
}

Receives place_receives(const PipelineShape& shape, const ComputeOrder& order) {
  const Clock clock(shape, order);
  Receives receives;
  for (const auto& actions : order) receives.emplace_back(actions.size());
  for (int stage = 0; stage < shape.stages(); ++stage) {
    if (!sends_activation(shape, stage)) continue;
    std::vector<Payload> activations, gradients;
    for (int64_t j = 0; j < shape.micro_batches; ++j) {
      activations.push_back(
          {{ActionKind::receive_activation, stage + 1, j}, clock.forward(stage, j), clock.forward(stage + 1, j)});
      gradients.push_back(
          {{ActionKind::receive_gradient, stage, j}, clock.backward(stage + 1, j), clock.backward(stage, j)});
    }
    place_channel(clock, activations, receives);
    place_channel(clock, gradients, receives);
  }
  for (auto& rank : receives)
    for (auto& group : rank)
      std::stable_sort(group.begin(), group.end(),
                       [](const Receive& a, const Receive& b) { return a.arrival < b.arrival; });
  return receives;
}

}  // namespace

std::vector<std::vector<Action>> complete_order(const PipelineShape& shape, const ComputeOrder& order) {
  const Receives receives = place_receives(shape, order);
  std::vector<std::vector<Action>> ranks(order.size());
  for (size_t rank = 0; rank < order.size(); ++rank) {
    std::vector<Action>& actions = ranks[rank];
    for (size_t i = 0; i < order[rank].size(); ++i) {
      const Action& action = order[rank][i];
      const auto add = [&](ActionKind kind, int64_t micro_batch) {
        actions.push_back({kind, action.stage, micro_batch});
      };
      for (const Receive& receive : receives[rank][i]) actions.push_back(receive.action);
      actions.push_back(action);
      if (action.kind == ActionKind::forward) {
        add(ActionKind::reduce_statistics, action.micro_batch);
        if (sends_activation(shape, action.stage)) add(ActionKind::send_activation, action.micro_batch);
      } else if (action.kind != ActionKind::backward_weight && receives_activation(shape, action.stage)) {
        add(ActionKind::send_gradient, action.micro_batch);
      }
      const bool weights = action.kind == ActionKind::backward || action.kind == ActionKind::backward_weight;
      if (weights && action.micro_batch + 1 == shape.micro_batches) add(ActionKind::reduce_gradients, 0);
    }
  }
  return ranks;
}

}  // namespace mw
