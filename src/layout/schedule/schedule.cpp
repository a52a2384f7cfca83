#include "layout/schedule/schedule.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "layout/schedule/schedule_order.h"

namespace mw {
namespace {

constexpr int64_t kMostCells = int64_t{1} << 24;  // stages x micro-batches: a list of every action must stay small

// `warmup` forwards, then one forward and one backward in turn, then the rest.
std::vector<Action> alternate(const std::vector<Action>& forwards, const std::vector<Action>& backwards,
                              int64_t warmup) {
  const auto first = forwards.begin() + std::min<int64_t>(warmup, std::ssize(forwards));
  std::vector<Action> actions(forwards.begin(), first);
  auto backward = backwards.begin();
  for (auto forward = first; forward != forwards.end(); ++forward) {
    actions.push_back(*forward);
    actions.push_back(*backward++);
  }
  actions.insert(actions.end(), backward, backwards.end());
  return actions;
}

// Each rank's forwards and backwards: as many micro-batches as there are ranks pass one stage, then the same ones the
// rank's next stage. With one stage per rank that is plainly one after the other. The last round is completed with
// micro-batches that do not exist and left out again: what remains is in an order that all ranks can keep.
std::vector<Action> alternating_order(const PipelineShape& shape, int rank, int64_t warmup) {
  std::vector<Action> forwards, backwards;
  const std::vector<int> stages = stages_of_rank(shape, rank);
  for (int64_t begin = 0; begin < shape.micro_batches; begin += shape.ranks) {
    for (int c = 0; c < shape.chunks; ++c)
      for (int64_t j = begin; j < begin + shape.ranks; ++j) {
        forwards.push_back({ActionKind::forward, stages[c], j});
        backwards.push_back({ActionKind::backward, stages[shape.chunks - 1 - c], j});
      }
  }
  std::vector<Action> actions = alternate(forwards, backwards, warmup);
  std::erase_if(actions, [&](const Action& action) { return action.micro_batch >= shape.micro_batches; });
  return actions;
}

// Forwards of one rank before its first backward.
int64_t warmup_of(const PipelineShape& shape, int rank) {
  const int64_t behind = shape.ranks - 1 - rank;
  if (shape.kind == ScheduleKind::gpipe) return shape.micro_batches;
  if (shape.kind == ScheduleKind::one_f_one_b) return behind;
  // The first round must pass all stages but the rank's last; twice as far ahead, so that nobody waits for a gradient.
  return 2 * behind + (shape.chunks - 1) * shape.ranks;
}

ComputeOrder compute_order(const PipelineShape& shape) {
  if (shape.kind == ScheduleKind::zb_h1) return zb_h1_order(shape);
  if (shape.kind == ScheduleKind::zb_v) return zb_v_order(shape);
  ComputeOrder order;
  for (int rank = 0; rank < shape.ranks; ++rank)
    order.push_back(alternating_order(shape, rank, warmup_of(shape, rank)));
  return order;
}

const char* letter_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::receive_activation: return "<A";
    case ActionKind::forward: return "F";
    case ActionKind::reduce_statistics: return "S";
    case ActionKind::send_activation: return ">A";
    case ActionKind::receive_gradient: return "<G";
    case ActionKind::backward: return "B";
    case ActionKind::backward_input: return "I";
    case ActionKind::send_gradient: return ">G";
    case ActionKind::backward_weight: return "W";
    case ActionKind::reduce_gradients: return "R";
  }
  return "?";
}

}  // namespace

const char* name_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::receive_activation: return "receive_activation";
    case ActionKind::forward: return "forward";
    case ActionKind::reduce_statistics: return "reduce_statistics";
    case ActionKind::send_activation: return "send_activation";
    case ActionKind::receive_gradient: return "receive_gradient";
    case ActionKind::backward: return "backward";
    case ActionKind::backward_input: return "backward_input";
    case ActionKind::send_gradient: return "send_gradient";
    case ActionKind::backward_weight: return "backward_weight";
    case ActionKind::reduce_gradients: return "reduce_gradients";
  }
  return "?";
}

bool splits_backward(ScheduleKind kind) { return kind == ScheduleKind::zb_h1 || kind == ScheduleKind::zb_v; }

bool is_message(ActionKind kind) {
  return kind == ActionKind::receive_activation || kind == ActionKind::send_activation ||
         kind == ActionKind::receive_gradient || kind == ActionKind::send_gradient;
}

ScheduleKind schedule_kind_of(const std::string& word) {
  if (const std::optional<ScheduleKind> kind = enum_of<ScheduleKind>(word)) return *kind;
  const std::vector<std::string> words = enum_words<ScheduleKind>();
  fail(Exit::config, fmt::format("schedule \"{}\" is not known{}", printable(word), did_you_mean(word, words)),
       fmt::format("use one of: {}", fmt::join(words, ", ")));
}

int rank_of_stage(const PipelineShape& shape, int stage) {
  if (shape.kind == ScheduleKind::zb_v) return std::min(stage, 2 * shape.ranks - 1 - stage);
  return stage % shape.ranks;
}

std::vector<int> stages_of_rank(const PipelineShape& shape, int rank) {
  std::vector<int> stages;
  for (int stage = 0; stage < shape.stages(); ++stage)
    if (rank_of_stage(shape, stage) == rank) stages.push_back(stage);
  return stages;
}

bool sends_activation(const PipelineShape& shape, int stage) {
  return stage + 1 < shape.stages() && rank_of_stage(shape, stage) != rank_of_stage(shape, stage + 1);
}

bool receives_activation(const PipelineShape& shape, int stage) {
  return stage > 0 && sends_activation(shape, stage - 1);
}

int most_links(const PipelineShape& shape) {
  std::vector<int> links(static_cast<size_t>(shape.ranks));
  for (int stage = 0; stage < shape.stages(); ++stage)
    links[static_cast<size_t>(rank_of_stage(shape, stage))] +=
        2 * (int{sends_activation(shape, stage)} + int{receives_activation(shape, stage)});
  return *std::max_element(links.begin(), links.end());
}

void check_shape(const PipelineShape& shape) {
  if (shape.ranks < 1 || shape.micro_batches < 1 || shape.chunks < 1)
    fail(Exit::config,
         fmt::format("a pipeline needs at least 1 rank, stage per rank and micro-batch, got {}, {} and {}", shape.ranks,
                     shape.chunks, shape.micro_batches),
         "set mesh.pp, mesh.chunks and train.micro_batches to at least 1");
  const bool zb_v = shape.kind == ScheduleKind::zb_v;
  if (zb_v && shape.chunks != 2)
    fail(Exit::config, fmt::format("mesh.schedule = \"zb_v\" has 2 stages per rank, got {}", shape.chunks),
         "set mesh.chunks = 2 (--chunks 2)");
  if (shape.kind == ScheduleKind::interleaved && shape.chunks < 2)
    fail(Exit::config, "mesh.schedule = \"interleaved\" needs at least 2 stages per rank, got 1",
         "set mesh.chunks = 2 (--chunks 2), or mesh.schedule = \"1f1b\"");
  if (!zb_v && shape.kind != ScheduleKind::interleaved && shape.chunks != 1)
    fail(Exit::config,
         fmt::format("mesh.schedule = \"{}\" has 1 stage per rank, got {}", word_of(shape.kind), shape.chunks),
         "leave mesh.chunks (--chunks) out, or set mesh.schedule = \"interleaved\"");
  if (shape.micro_batches > kMostCells / shape.ranks / shape.chunks)
    fail(Exit::config,
         fmt::format("{} stages x {} micro-batches exceed the limit of 2^24", int64_t{shape.ranks} * shape.chunks,
                     shape.micro_batches),
         fmt::format("set train.micro_batches to at most {}", kMostCells / shape.ranks / shape.chunks));
}

Schedule make_schedule(const PipelineShape& shape) {
  check_shape(shape);
  return {shape, complete_order(shape, compute_order(shape))};
}

std::string describe(const Action& action) {
  if (action.kind == ActionKind::reduce_gradients)
    return fmt::format("{} of stage {}", name_of(action.kind), action.stage);
  return fmt::format("{} of micro-batch {} in stage {}", name_of(action.kind), action.micro_batch, action.stage);
}

std::string describe(const std::vector<Action>& actions) {
  const bool one_stage = std::all_of(actions.begin(), actions.end(), [](const Action& action) {
    return action.stage == 0 && !is_message(action.kind);
  });
  std::string text;
  for (const Action& action : actions) {
    if (!text.empty()) text += ' ';
    text += letter_of(action.kind);
    const bool sums = action.kind == ActionKind::reduce_gradients;
    if (!one_stage) text += std::to_string(action.stage);
    if (!one_stage && !sums) text += ':';
    if (!sums) text += std::to_string(action.micro_batch);
  }
  return text;
}

std::string describe(const PipelineShape& shape) {
  std::string text = fmt::format("{}, {}", word_of(shape.kind), counted(shape.ranks, "rank"));
  if (shape.chunks > 1) text += fmt::format(" x {} stages", shape.chunks);
  return text + ", " + counted(shape.micro_batches, "micro-batch");
}

}  // namespace mw
