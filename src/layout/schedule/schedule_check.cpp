#include "layout/schedule/schedule_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "layout/schedule/schedule_simulation.h"

namespace mw {
namespace {

constexpr const char* kHint =
    "this is a bug in Moewright or in a new schedule; src/layout/schedule/schedule.h lists the rules";

constexpr int kKindCount = static_cast<int>(ActionKind::reduce_gradients) + 1;

struct Count {
  int64_t now = 0, peak = 0;
  void add(int64_t change) { peak = std::max(peak, now += change); }
};

// What one stage has done so far. Micro-batches pass in ascending order, so that counts say it all.
struct StageState {
  int64_t done[kKindCount] = {};  // by kind: how many micro-batches
  Count live;
  int64_t of(ActionKind kind) const { return done[static_cast<int>(kind)]; }
  int64_t& of(ActionKind kind) { return done[static_cast<int>(kind)]; }
  // Either kind: a stage may split one backward and not another.
  int64_t backwards() const { return of(ActionKind::backward) + of(ActionKind::backward_input); }
  int64_t weights() const { return of(ActionKind::backward) + of(ActionKind::backward_weight); }
};

class Check {
 public:
  explicit Check(const Schedule& schedule) : schedule_(schedule), shape_(schedule.shape) {
    check_shape(shape_);
    if (std::ssize(schedule.ranks) != shape_.ranks)
      fail(Exit::internal,
           fmt::format("a schedule has {} lists of actions for {}", schedule.ranks.size(), describe(shape_)), kHint);
    stages_.resize(static_cast<size_t>(shape_.stages()));
  }

  ScheduleReport run() {
    ScheduleReport report;
    for (rank_ = 0; rank_ < shape_.ranks; ++rank_) {
      Count live;
      for (index_ = 0; index_ < schedule_.ranks[rank_].size(); ++index_) {
        const Action& action = schedule_.ranks[rank_][index_];
        check_place(action);
        check_order(action);
        live.add(apply(action));
      }
      report.rank_peak.push_back(live.peak);
    }
    for (int s = 0; s < shape_.stages(); ++s) check_complete(s);
    for (const StageState& stage : stages_) report.stage_peak.push_back(stage.live.peak);
    simulate(schedule_);  // refuses deadlocks
    return report;
  }

 private:
  [[noreturn]] void refuse(const Action& action, const std::string& why) const {
    fail(Exit::internal,
         fmt::format("the schedule ({}) cannot run: rank {}, action {}, {}: {}", describe(shape_), rank_, index_,
                     describe(action), why),
         kHint);
  }

  // Makes the text only when it is needed: there are many actions.
  template <class... Values>
  void require(bool holds, const Action& action, fmt::format_string<Values...> why, Values&&... values) const {
    if (!holds) refuse(action, fmt::format(why, std::forward<Values>(values)...));
  }

  StageState& stage(int s) { return stages_[static_cast<size_t>(s)]; }

  void check_place(const Action& action) const {
    require(action.stage >= 0 && action.stage < shape_.stages(), action, "there are {} stages", shape_.stages());
    require(rank_of_stage(shape_, action.stage) == rank_, action, "that stage is on rank {}",
            rank_of_stage(shape_, action.stage));
    require(action.micro_batch >= 0 && action.micro_batch < shape_.micro_batches, action, "there are {} micro-batches",
            shape_.micro_batches);
    const bool forwards = action.kind == ActionKind::receive_activation || action.kind == ActionKind::send_gradient;
    const bool channel = forwards ? receives_activation(shape_, action.stage) : sends_activation(shape_, action.stage);
    require(!is_message(action.kind) || channel, action, "there is no message between these stages");
  }

  // The `next` of a kind must be this action's micro-batch.
  void require_next(int64_t next, const Action& action) const {
    require(action.micro_batch >= next, action, "it was done before");
    require(action.micro_batch == next, action, "micro-batch {} comes first", next);
  }

  void require_done(int64_t count, const Action& action, const char* what) const {
    require(action.micro_batch < count, action, "its {} must come before", what);
  }

  void check_order(const Action& action) const {
    const StageState& own = stages_[static_cast<size_t>(action.stage)];
    switch (action.kind) {
      case ActionKind::forward: return check_forward(own, action);
      case ActionKind::backward:
      case ActionKind::backward_input: return check_backward(own, action);
      case ActionKind::backward_weight:
        require_next(own.weights(), action);
        return require_done(own.backwards(), action, "backward_input");
      case ActionKind::reduce_gradients: return check_gradients(own, action);
      case ActionKind::reduce_statistics:
        require_next(own.of(action.kind), action);
        return require_done(own.of(ActionKind::forward), action, "forward");
      case ActionKind::send_activation:
        require_next(own.of(action.kind), action);
        return require_done(own.of(ActionKind::reduce_statistics), action, "reduce_statistics");
      case ActionKind::send_gradient:
        require_next(own.of(action.kind), action);
        return require_done(own.backwards(), action, "backward");
      case ActionKind::receive_activation:
        require_next(own.of(action.kind), action);
        return require_used(own.of(ActionKind::forward), action);
      case ActionKind::receive_gradient:
        require_next(own.of(action.kind), action);
        require_done(own.of(ActionKind::send_activation), action, "send_activation");
        return require_used(own.backwards(), action);
    }
  }

  void check_forward(const StageState& own, const Action& action) const {
    require_next(own.of(ActionKind::forward), action);
    if (receives_activation(shape_, action.stage))
      require_done(own.of(ActionKind::receive_activation), action, "receive_activation");
    else if (action.stage > 0)
      require_done(stages_[action.stage - 1].of(ActionKind::reduce_statistics), action, "input from the stage before");
    if (sends_activation(shape_, action.stage)) require_sent(own.of(ActionKind::send_activation), action);
  }

  void check_backward(const StageState& own, const Action& action) const {
    require_next(own.backwards(), action);
    require_done(own.of(ActionKind::reduce_statistics), action, "reduce_statistics");
    if (sends_activation(shape_, action.stage))
      require_done(own.of(ActionKind::receive_gradient), action, "receive_gradient");
    else if (action.stage + 1 < shape_.stages())
      require_done(stages_[action.stage + 1].backwards(), action, "gradient from the stage after");
    if (receives_activation(shape_, action.stage)) require_sent(own.of(ActionKind::send_gradient), action);
    require(action.kind == ActionKind::backward_input || own.weights() == own.backwards(), action,
            "backward_weight of micro-batch {} comes first", own.weights());
  }

  void check_gradients(const StageState& own, const Action& action) const {
    require(own.of(ActionKind::reduce_gradients) == 0, action, "it was done before");
    require(own.weights() == shape_.micro_batches, action, "the weight gradients of micro-batch {} are missing",
            own.weights());
    for (int later = action.stage + 1; later < shape_.stages(); ++later)
      require(rank_of_stage(shape_, later) != rank_ || stages_[static_cast<size_t>(later)].of(action.kind) == 1, action,
              "stage {} comes first", later);
    const Action& before = schedule_.ranks[rank_][index_ - 1];
    const bool weights = before.kind == ActionKind::backward || before.kind == ActionKind::backward_weight;
    require(before.stage == action.stage && (weights || before.kind == ActionKind::send_gradient), action,
            "it must directly follow the last backward and its send");
    if (receives_activation(shape_, action.stage))  // ranks that meet in the sums would wait for a message never sent
      require(own.of(ActionKind::send_gradient) == shape_.micro_batches, action,
              "send_gradient of micro-batch {} must come before", own.of(ActionKind::send_gradient));
  }

  // One buffer to send from: the payload of the micro-batch before must be on its way.
  void require_sent(int64_t sent, const Action& action) const {
    require(sent == action.micro_batch, action, "the output of micro-batch {} has not been sent yet", sent);
  }

  // One buffer to receive into.
  void require_used(int64_t used, const Action& action) const {
    require(used == action.micro_batch, action, "the input of micro-batch {} has not been used yet", used);
  }

  // Returns by how much the live activations of the rank change.
  int64_t apply(const Action& action) {
    StageState& own = stage(action.stage);
    ++own.of(action.kind);
    switch (action.kind) {
      case ActionKind::receive_activation: own.live.add(1); return 1;
      case ActionKind::forward:
        if (action.stage == 0) own.live.add(1);
        if (action.stage + 1 < shape_.stages() && !sends_activation(shape_, action.stage))
          stage(action.stage + 1).live.add(1);
        return receives_activation(shape_, action.stage) ? 0 : 1;
      case ActionKind::backward:
      case ActionKind::backward_weight: own.live.add(-1); return -1;
      default: return 0;
    }
  }

  void check_complete(int s) {
    const StageState& own = stage(s);
    const auto require_all = [&](int64_t count, const char* what) {
      if (count != shape_.micro_batches)
        fail(Exit::internal,
             fmt::format("the schedule ({}) cannot run: rank {} lacks {} of micro-batch {} in stage {}",
                         describe(shape_), rank_of_stage(shape_, s), what, count, s),
             kHint);
    };
    require_all(own.of(ActionKind::forward), "forward");
    require_all(own.of(ActionKind::reduce_statistics), "reduce_statistics");
    require_all(own.backwards(), "backward");
    require_all(own.weights(), "backward_weight");
    if (sends_activation(shape_, s)) require_all(own.of(ActionKind::send_activation), "send_activation");
    if (receives_activation(shape_, s)) require_all(own.of(ActionKind::send_gradient), "send_gradient");
    if (own.of(ActionKind::reduce_gradients) == 0)
      fail(Exit::internal,
           fmt::format("the schedule ({}) cannot run: rank {} lacks reduce_gradients of stage {}", describe(shape_),
                       rank_of_stage(shape_, s), s),
           kHint);
  }

  const Schedule& schedule_;
  const PipelineShape& shape_;
  std::vector<StageState> stages_;
  int rank_ = 0;
  size_t index_ = 0;
};

}  // namespace

ScheduleReport validate_schedule(const Schedule& schedule) { return Check(schedule).run(); }

}  // namespace mw
