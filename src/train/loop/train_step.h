// For programs that embed Moewright: they make an engine for a run file, set its first weights, and call one optimizer
// step after the other. examples/embed is such a program.
#pragma once

#include <memory>

#include "comm/world.h"
#include "engine/engine.h"
#include "engine/step.h"
#include "train/checkpoint/checkpoint.h"
#include "train/data/data.h"

namespace mw {

// Makes the engine of this rank for the model of the run. The ranks of a node divide its CPU threads and GPUs evenly.
// Weights are not set yet. `world` must outlive it. Collective over the world. Errors: config, unsupported, memory.
std::unique_ptr<Engine> make_engine(World& world, const RunSpec& run);

// Sets the weights that a new run starts with: those of the model folder, if the run names one (hf:DIR), otherwise
// random ones that depend on train.seed alone and not on the layout. Returns a note for the log, or "". Collective over
// the world. Errors: as import_hf_weights.
std::string set_first_weights(Engine& engine);

// To be called between gradients and update; train_step does so. Throws on all ranks when loss, gradient norm or a
// gradient of any rank is not finite. Collective over the world. Errors: numeric, naming the step and the tensor.
void require_finite(Engine& engine, const StepStats& stats, int64_t step);

// One optimizer step: reads this rank's part of the next global batch (state.samples counts the samples consumed so
// far, by all ranks), computes gradients, updates the weights with the learning rate of this step (train.schedule)
// unless the step is a spike (train.skip_spikes), and counts the step in `state`. The result is bit-identical to that
// of `moewright train`. Collective over the world. Errors: data; numeric, as require_finite; comm.
StepStats train_step(Engine& engine, const SampleOrder& samples, RunState& state);

}  // namespace mw
