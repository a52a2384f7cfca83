#include "train/loop/train_step.h"

#include "comm/agreement.h"
#include "comm/cores.h"
#include "comm/watchdog/watchdog.h"
#include "config/batch_ramp.h"
#include "train/convert/hf_weights.h"
#include "train/loop/spikes.h"

namespace mw {

std::unique_ptr<Engine> make_engine(World& world, const RunSpec& run) {
  const NodePlace place = place_on_node(world, run.mesh);
  return std::make_unique<Engine>(load_model_spec(run), run, world.comm(),
                                  threads_per_rank(run.train.threads, place.ranks), place);
}

std::string set_first_weights(Engine& engine) {
  const RunSpec& run = engine.plan.run;
  if (!run.hf_dir.empty()) return import_hf_weights(engine, run.hf_dir);
  engine.params.initialise(static_cast<uint64_t>(run.train.seed), engine.stream);
  refresh_weights(engine);
  return "";
}

void require_finite(Engine& engine, const StepStats& stats, int64_t step) {
  // Sums are the same everywhere, a bad tensor may lie on one rank: it stops all before the weights are touched.
  const std::string bad = find_non_finite(engine, stats);
  if (on_any_rank(engine.world, !bad.empty()))
    fail(Exit::numeric,
         fmt::format("step {}: {}", step, bad.empty() ? "another rank found a value that is not finite" : bad),
         "lower train.lr, raise train.warmup, or resume from an earlier checkpoint; the weights of this step were not "
         "changed");
}

StepStats train_step(Engine& engine, const SampleOrder& samples, RunState& state) {
  const RunSpec& run = engine.plan.run;
  const int64_t step = state.step + 1;
  begin_step(engine.world, run, step);
  const std::vector<Batch> batches = stage(
      engine, read_step(samples, part_of_step(engine.plan, state.samples, micro_batches_of_step(run.train, step))));
  StepStats stats = accumulate_gradients(engine, batches, forced_taps(engine.plan, step));
  require_finite(engine, stats, step);
  update_unless_spike(engine, stats, state);
  state.step = step;
  state.samples += samples_of_step(run.train, step);
  state.loss = stats.loss;
  return stats;
}

}  // namespace mw
