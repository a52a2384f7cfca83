#include "train/loop/transport_chooser.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "comm/agreement.h"
#include "planner/auto_transport.h"
#include "train/loop/loads.h"
#include "train/loop/train_step.h"

namespace mw {
namespace {

// 16, 64, 256, ...
bool is_time_after(int64_t step) {
  int64_t due = 16;
  while (due < step) due *= 4;
  return due == step;
}

}  // namespace

TransportChooser::TransportChooser(RunSpec& run, Comm& world, const NodeMap& nodes, const std::string& before,
                                   bool resumes, bool on_nvidia)
    : asked_(run), nodes_(nodes), resumes_(on_any_rank(world, resumes)) {
  TransportChoice choice;
  choice.name = run.moe.transport;
  if (world.rank() == 0) {
    choice = choose_auto_transport(run, world.size(), nodes, before, {}, on_nvidia);
    note_ = describe(choice, run.plan.platform);
  }
  chosen_ = on_any_rank(world, choice.seconds > 0);
  run.moe.transport = broadcast_text(world, choice.name, 0);
}

bool TransportChooser::choose_by_first_batch(RunSpec& run, const ModelSpec& model, Comm& world, int threads,
                                             const NodePlace& place, const SampleOrder& samples) {
  if (!chosen_ || resumes_) return false;
  Engine engine(model, run, world, threads, place);
  set_first_weights(engine);
  const std::vector<Batch> batch =
      stage(engine, read_step(samples, part_of_step(engine.plan, 0, engine.plan.run.train.micro_batches)));
  const StepStats stats = accumulate_gradients(engine, batch, forced_taps(engine.plan, 1));
  TransportChoice choice;
  if (world.rank() == 0)
    choice = choose_auto_transport(asked_, world.size(), nodes_, "", loads_by_place(engine, stats));
  RunSpec next = run;
  next.moe.transport = broadcast_text(world, choice.seconds > 0 ? choice.name : run.moe.transport, 0);
  const bool changes = next.moe.transport != run.moe.transport, fits = !changes || plan_change(engine, next, nullptr);
  if (choice.seconds > 0)
    note_ = describe(choice, fmt::format("{} and the loads of the first batch", run.plan.platform)) +
            (fits ? "" : fmt::format("; but some rank has too little memory for it, and {} stays", run.moe.transport));
  if (fits) run = next;
  return changes && fits;
}

std::string TransportChooser::after_step(Engine& engine, const StepStats& stats, int64_t step) {
  if (!chosen_ || !is_time_after(step)) return "";
  const std::string now = engine.plan.run.moe.transport;
  TransportChoice choice;
  choice.name = now;
  if (engine.world.rank() == 0)
    choice = choose_transport_again(asked_, engine.world.size(), nodes_, now, loads_by_place(engine, stats));
  if (!choice.why_none.empty()) choice.name = now;
  const std::string next = broadcast_text(engine.world, choice.name, 0);
  if (!choice.why_none.empty())
    return fmt::format("warning: step {}: moe.transport stays {}, because {} predicts no time: {}", step, now,
                       asked_.plan.platform, choice.why_none);
  if (next == now) return "";
  RunSpec changed = engine.plan.run;
  changed.moe.transport = next;
  if (!change_run(engine, changed))
    return fmt::format(
        "step {}: moe.transport stays {}: some rank has too little memory for {}, or packs weights in another way",
        step, now, next);
  return fmt::format(
      "step {}: moe.transport = \"auto\": {} in place of {}, by the loads of this step: {:.3g} ms a step is predicted",
      step, next, now, 1e3 * choice.seconds);
}

}  // namespace mw
