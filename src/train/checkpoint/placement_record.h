// The placement of experts in the index of a checkpoint. It says where experts were when the checkpoint was written;
// its slices name global experts and load into any placement.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "layout/placement.h"

namespace mw {

// {"version": n, "layers": [...]}: of each layer one list for every expert-parallel rank, with its experts in the order
// of their slots; of dense layers an empty list.
nlohmann::json placement_record(const Placements& placements);

// Errors: checkpoint, naming `where` and the entry.
SharedPlacements parse_placement_record(const nlohmann::json& record, const std::string& where);

}  // namespace mw
