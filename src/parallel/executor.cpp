#include "parallel/executor.h"

#include "base/error.h"

namespace mw {

void run_schedule(const std::vector<Action>& schedule, int stage, const ActionHandlers& handlers) {
  const auto call = [](const auto& handler, auto... arguments) {
    if (handler) handler(arguments...);
  };
  for (const Action& action : schedule) {
    if (action.stage != stage) continue;
    switch (action.kind) {
      case ActionKind::forward: call(handlers.forward, action.micro_batch); break;
      case ActionKind::reduce_statistics: call(handlers.reduce_statistics, action.micro_batch); break;
      case ActionKind::backward: call(handlers.backward, action.micro_batch); break;
      case ActionKind::reduce_gradients: call(handlers.reduce_gradients); break;
      default: MW_CHECK(false, "{}: only schedules of one stage run here", describe(action));
    }
  }
}

}  // namespace mw
