// How a run updates each parameter: groups of parameters by name, with learning rates of their own.
#pragma once

#include <vector>

#include "config/param_table.h"
#include "config/run_spec.h"

namespace mw {

// param_table with ParamRow::lr_scale as train.lr_scales says: "PATTERN FACTOR", where * stands for any characters. The
// first pattern that matches a name counts. Errors: config, for an item that is malformed.
std::vector<ParamRow> run_params(const ModelSpec& model, const TrainSpec& train);

// Errors: config, when a pattern of train.lr_scales matches no trained parameter, or only such that earlier patterns
// match.
void check_lr_scales(const std::vector<ParamRow>& rows, const TrainSpec& train);

}  // namespace mw
