#include "layout/schedule/schedule_simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"

namespace mw {
namespace {

constexpr double kNotYet = -1;

// The messages that one stage sends in one direction.
struct Channel {
  std::vector<double> sent, arrived;  // by micro-batch: when the send was reached, when the transfer ended
  int64_t last_sent = -1;
};

class Simulation {
 public:
  Simulation(const Schedule& schedule, std::span<const StageCost> costs) : schedule_(schedule), costs_(costs) {
    const PipelineShape& shape = schedule.shape;
    MW_CHECK(std::ssize(costs) == shape.stages(), "costs of {} stages for {}", costs.size(), shape.stages());
    MW_CHECK(std::ssize(schedule.ranks) == shape.ranks, "{} lists for {} ranks", schedule.ranks.size(), shape.ranks);
    const std::vector<double> never(static_cast<size_t>(shape.micro_batches), kNotYet);
    activations_.assign(static_cast<size_t>(shape.stages()), {never, never});
    gradients_ = activations_;
    clock_.assign(schedule.ranks.size(), 0);
  }

  Timeline run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < clock_.size(); ++rank) moved = advance(rank) || moved;
    }
    for (size_t rank = 0; rank < clock_.size(); ++rank)
      if (timeline_actions_[rank].size() < schedule_.ranks[rank].size()) fail_stuck();
    return finish();
  }

 private:
  Channel& channel_of(const Action& action) {
    switch (action.kind) {
      case ActionKind::receive_activation: return activations_[at(action.stage - 1)];
      case ActionKind::receive_gradient: return gradients_[at(action.stage + 1)];
      case ActionKind::forward:
      case ActionKind::send_activation: return activations_[at(action.stage)];
      default: return gradients_[at(action.stage)];
    }
  }

  size_t at(int stage) const {
    MW_CHECK(stage >= 0 && stage < schedule_.shape.stages(), "stage {} of {}", stage, schedule_.shape.stages());
    return static_cast<size_t>(stage);
  }

  double duration(const Action& action) const {
    const StageCost& cost = costs_[at(action.stage)];
    switch (action.kind) {
      case ActionKind::forward: return cost.forward;
      case ActionKind::backward: return cost.backward_input + cost.backward_weight;
      case ActionKind::backward_input: return cost.backward_input;
      case ActionKind::backward_weight: return cost.backward_weight;
      case ActionKind::reduce_statistics: return cost.statistics;
      case ActionKind::reduce_gradients: return cost.gradients;
      default: return 0;
    }
  }

  // When `action` runs on a rank that is free at `now`; none while it depends on what another rank has not reached.
  std::optional<ActionTime> time_of(const Action& action, double now) {
    MW_CHECK(action.micro_batch >= 0 && action.micro_batch < schedule_.shape.micro_batches, "{}", describe(action));
    const auto j = static_cast<size_t>(action.micro_batch);
    Channel& channel = channel_of(action);
    switch (action.kind) {
      case ActionKind::receive_activation:
      case ActionKind::receive_gradient: {
        if (channel.sent[j] == kNotYet) return std::nullopt;
        const int sender = action.kind == ActionKind::receive_activation ? action.stage - 1 : action.stage + 1;
        channel.arrived[j] = std::max(now, channel.sent[j]) + costs_[at(sender)].latency;
        return ActionTime{now, channel.arrived[j]};
      }
      case ActionKind::send_activation:
      case ActionKind::send_gradient:
        channel.sent[j] = now;
        channel.last_sent = action.micro_batch;
        return ActionTime{now, now};
      case ActionKind::forward:
      case ActionKind::backward:
      case ActionKind::backward_input: {
        if (channel.last_sent >= 0) {  // its buffer must be free
          const double arrived = channel.arrived[static_cast<size_t>(channel.last_sent)];
          if (arrived == kNotYet) return std::nullopt;
          now = std::max(now, arrived);
        }
        return ActionTime{now, now + duration(action)};
      }
      default: return ActionTime{now, now + duration(action)};
    }
  }

  bool advance(size_t rank) {
    const std::vector<Action>& actions = schedule_.ranks[rank];
    std::vector<ActionTime>& times = timeline_actions_[rank];
    const size_t before = times.size();
    while (times.size() < actions.size()) {
      const std::optional<ActionTime> time = time_of(actions[times.size()], clock_[rank]);
      if (!time) break;
      times.push_back(*time);
      clock_[rank] = time->end;
    }
    return times.size() > before;
  }

  [[noreturn]] void fail_stuck() {
    std::string text = fmt::format("the schedule ({}) deadlocks", describe(schedule_.shape));
    for (size_t rank = 0; rank < clock_.size(); ++rank) {
      const size_t index = timeline_actions_[rank].size();
      if (index == schedule_.ranks[rank].size()) continue;
      const Action& action = schedule_.ranks[rank][index];
      text += fmt::format("; rank {} in action {}, {}, waits for ", rank, index, describe(action));
      if (is_message(action.kind)) text += "its send";
      else text += fmt::format("the receive of micro-batch {}", channel_of(action).last_sent);
    }
    fail(
        Exit::internal, text,
        "reorder the actions as src/layout/schedule/schedule.h describes; for a schedule of the program this is a bug");
  }

  Timeline finish() {
    Timeline timeline;
    for (size_t rank = 0; rank < clock_.size(); ++rank) {
      RankTime time;
      bool first = true;
      for (size_t i = 0; i < schedule_.ranks[rank].size(); ++i) {
        const Action& action = schedule_.ranks[rank][i];
        const double length = duration(action);
        if (length <= 0) continue;
        if (std::exchange(first, false)) time.begin = timeline_actions_[rank][i].begin;
        time.end = timeline_actions_[rank][i].end;
        if (action.kind != ActionKind::reduce_statistics && action.kind != ActionKind::reduce_gradients)
          time.busy += length;
      }
      timeline.ranks.push_back(time);
      timeline.makespan = std::max(timeline.makespan, clock_[rank]);
    }
    timeline.actions = std::move(timeline_actions_);
    return timeline;
  }

  const Schedule& schedule_;
  std::span<const StageCost> costs_;
  std::vector<Channel> activations_, gradients_;  // by sending stage
  std::vector<double> clock_;                     // by rank: when it is free
  std::vector<std::vector<ActionTime>> timeline_actions_{schedule_.ranks.size()};
};

}  // namespace

Timeline simulate(const Schedule& schedule, std::span<const StageCost> costs) {
  return Simulation(schedule, costs).run();
}

Timeline simulate(const Schedule& schedule, const StageCost& cost) {
  return simulate(schedule, std::vector<StageCost>(static_cast<size_t>(schedule.shape.stages()), cost));
}

}  // namespace mw
