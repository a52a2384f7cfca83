// What a run says of itself, beside its steps.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "comm/world.h"
#include "train/data.h"
#include "train/engine.h"
#include "train/step.h"

namespace mw {

// Which run it is: model, data, settings, machine, date and version, and the whole run file. Every field is a text for
// people to read (docs/formats.md, `run`). step: the last one that is done. For one rank.
nlohmann::ordered_json describe_run(const World& world, const Engine& engine, const SampleOrder& data,
                                    const std::string& version, int64_t step);

// That more rows met on a rank than the table of bytes had foreseen, with the fullest expert of the step. moe_layers:
// numbers of the layers that stats.load lists.
std::string describe_grown_rows(const Plan& plan, std::span<const int64_t> moe_layers, const StepStats& stats);

// Lines with the time of rank 0 by kind of work, since the trace was reset.
std::string describe_profile(Trace& trace);

}  // namespace mw
