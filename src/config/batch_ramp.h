// The batch-size ramp: steps at the beginning of a run whose global batch is smaller than train.global_batch
// (Megatron-LM's --rampup-batch-size). The samples of a micro-batch stay the same, so that memory and the shares of
// ranks do, too: a step has fewer micro-batches.
#pragma once

#include <cstdint>
#include <string>

#include "config/run_spec.h"

namespace mw {

// All functions have errors: config, unless every point of train.batch_ramp is "STEP SAMPLES", with ascending steps,
// and with ascending numbers of samples that are less than train.global_batch. The ramp may be longer than the run.

// Errors: config, also for numbers of samples that are no multiples of train.global_batch / train.micro_batches.
void check_batch_ramp(const TrainSpec& train);
// Whether they are multiples where a step of train.global_batch has `micro_batches` micro-batches.
bool divides_batch_ramp(const TrainSpec& train, int64_t micro_batches);

// Micro-batches of step 1, 2, ..., and their samples on all ranks. A point of the ramp holds up to and including its
// step.
int64_t micro_batches_of_step(const TrainSpec& train, int64_t step);
int64_t samples_of_step(const TrainSpec& train, int64_t step);
// Samples of the steps after step `after`, up to and including step `last`.
double samples_of_steps(const TrainSpec& train, int64_t after, int64_t last);

// "64 samples until step 100, 128 until step 200, then 256"; "256 samples" without a ramp.
std::string describe_batch(const TrainSpec& train);

}  // namespace mw
