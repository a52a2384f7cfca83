// Texts about a run besides its steps: description, warnings, profile, trace file.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/machine_load.h"
#include "comm/world.h"
#include "engine/engine.h"
#include "engine/step.h"
#include "train/checkpoint/checkpoint.h"
#include "train/data/data.h"

namespace mw {

// Describes the run: model, data, settings, machine, date and version, and the whole run file. Every field is text for
// people (docs/formats.md, `run`). state: behind the last completed step. To be called on one rank.
nlohmann::ordered_json describe_run(const World& world, const Engine& engine, const SampleOrder& data,
                                    const std::string& version, const RunState& state);

// A line where steps before `state` had other batches than the run file gives them now, so that the run sees another
// number of samples than that of all its steps; else "".
std::string describe_other_samples(const TrainSpec& train, const RunState& state);

// Lines on the machine as the run uses it: nodes, threads, libraries, kernels, and warnings on a CPU that others use
// too. started: of the command. The same on all ranks, but for the kernels, which only rank 0 names. Collective.
std::vector<std::string> describe_machine(World& world, Engine& engine, const CpuTimes& started);

// "AdamW, learning rate ...": everything about the update.
std::string describe_optimizer(const TrainSpec& train);

// The warning that a rank received more rows than the byte table had foreseen, with the fullest expert of the step.
// moe_layers: the layer numbers of stats.load.
std::string describe_grown_rows(const Plan& plan, std::span<const int64_t> moe_layers, const StepStats& stats);

// The warning that the checkpoint of `step` could not be written, with the last complete one and the step of the next
// attempt. To be called on one rank.
std::string describe_failed_save(const RunSpec& run, int64_t step, const Error& error);

// Lines with the time of rank 0 by kind of work, since the trace was reset.
std::string describe_profile(Trace& trace);

// Writes the events of `trace` to log.trace, if the run has it. Returns a note for the log if there is no file for it,
// else "". To be called on one rank.
std::string write_trace(Trace& trace, const RunSpec& run, int rank);

}  // namespace mw
