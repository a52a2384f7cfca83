// Learning rates: schedules over the steps of a run.
#pragma once

#include <cstdint>
#include <string>

#include "config/run_spec.h"

namespace mw {

// The learning rate of step 1, 2, ...: linear warm-up to train.lr, then as train.schedule says. With low = train.lr *
// train.min_lr_ratio and p = the share of the steps behind warm-up that are done:
//   cosine        low + (lr - low) (1 + cos(pi p)) / 2
//   linear        lr + (low - lr) p
//   constant      lr
//   inverse_sqrt  lr sqrt(warmup / step), at least low (a warm-up of 0 counts as 1)
//   wsd           lr; in the last train.decay_steps steps linear to low (Hu et al. 2024, MiniCPM)
//   piecewise     lr times the factors of train.lr_points, linear between points and constant beyond the first and last
// Beyond train.steps the rate of the last step remains (inverse_sqrt goes on). The values must have passed
// check_learning_rate.
double learning_rate(const TrainSpec& train, int64_t step);

// Errors: config, for a schedule whose keys are missing, malformed or do not fit train.steps and train.warmup, and for
// keys of another schedule.
void check_learning_rate(const TrainSpec& train);

// "2000 steps of warm-up to 0.0003, then cosine to 3e-05 at step 10000".
std::string describe_learning_rate(const TrainSpec& train);

}  // namespace mw
