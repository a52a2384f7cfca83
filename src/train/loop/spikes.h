// Steps whose loss or gradient norm is a spike change no weights (train.skip_spikes).
#pragma once

#include <string>

#include "engine/step.h"
#include "train/checkpoint/checkpoint.h"

namespace mw {

// "" unless loss or gradient norm of a step lie more than train.skip_spikes standard deviations above their means in
// `history`; then says which and how far. Nothing is a spike before the history has half of train.spike_window steps.
std::string find_spike(const TrainSpec& train, const StepHistory& history, const StepStats& stats);

// To be called between gradients and update, in place of apply_update. With train.skip_spikes, rank 0 decides for all
// whether step state.step + 1 is a spike, and state.history gets its loss and norm. Unless it is one, updates the
// weights; otherwise counts it in state.skipped and returns why. Of `state` changes nothing else. Collective over the
// world.
std::string update_unless_spike(Engine& engine, const StepStats& stats, RunState& state);

}  // namespace mw
