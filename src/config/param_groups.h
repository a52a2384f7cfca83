// How a run updates each parameter: by AdamW or Muon, and with which share of the learning rate.
#pragma once

#include <vector>

#include "config/param_table.h"
#include "config/run_spec.h"

namespace mw {

// param_table with ParamRow::muon and lr_scale as the run says. With train.optimizer = "muon", Muon updates the
// matrices of layers, with train.muon_router also routers; AdamW embedding, head, norms and the rest. lr_scale: the
// factor of the first pattern of train.lr_scales ("PATTERN FACTOR", where * stands for any characters) that matches the
// name, and for Muon train.muon_lr / train.lr. Errors: config, for an item that is malformed.
std::vector<ParamRow> run_params(const ModelSpec& model, const TrainSpec& train);

// Errors: config, when a key of Muon is set without Muon or muon_lr is a multiple of no rate, or when a
// pattern of train.lr_scales matches no trained parameter, or only such that earlier patterns match.
void check_param_groups(const std::vector<ParamRow>& rows, const TrainSpec& train);

}  // namespace mw
