#include "engine/executor.h"

#include <chrono>

#include "base/error.h"

namespace mw {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

std::vector<ActionRecord> run_schedule(const std::vector<Action>& schedule, const ActionHandlers& handlers,
                                       Trace& trace) {
  std::vector<ActionRecord> records;
  records.reserve(schedule.size());
  for (const Action& action : schedule) {
    const auto handler = handlers.find(action.kind);
    MW_CHECK(handler != handlers.end(), "nothing runs the {}", describe(action));
    const Work work = is_message(action.kind) ? Work::exchange : Work::other;
    const TraceScope scope(trace, work, name_of(action.kind), {"micro_batch", action.micro_batch});
    const int64_t begin = now_ns();
    handler->second(action);
    records.push_back({action, begin, now_ns()});
  }
  return records;
}

}  // namespace mw
