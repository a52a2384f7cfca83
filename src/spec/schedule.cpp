#include "spec/schedule.h"

#include <fmt/format.h>

namespace mw {

const char* name_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward: return "forward";
    case ActionKind::reduce_statistics: return "reduce_statistics";
    case ActionKind::backward: return "backward";
    case ActionKind::reduce_gradients: return "reduce_gradients";
  }
  return "?";
}

std::vector<Action> make_single_stage_schedule(int64_t micro_batches) {
  std::vector<Action> schedule;
  for (int64_t j = 0; j < micro_batches; ++j) {
    schedule.push_back({ActionKind::forward, 0, j});
    schedule.push_back({ActionKind::reduce_statistics, 0, j});
    schedule.push_back({ActionKind::backward, 0, j});
  }
  schedule.push_back({ActionKind::reduce_gradients, 0, 0});
  return schedule;
}

std::string describe(const std::vector<Action>& schedule) {
  std::string text;
  for (const Action& action : schedule) {
    if (!text.empty()) text += ' ';
    switch (action.kind) {
      case ActionKind::forward: text += fmt::format("F{}", action.micro_batch); break;
      case ActionKind::reduce_statistics: text += fmt::format("S{}", action.micro_batch); break;
      case ActionKind::backward: text += fmt::format("B{}", action.micro_batch); break;
      case ActionKind::reduce_gradients: text += "R"; break;
    }
  }
  return text;
}

}  // namespace mw
