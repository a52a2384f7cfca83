// What ranks of unequal speed share in whole units (layout/shares.h): samples, experts or their width, layers, and how
// many units of it a rank has memory for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layout/plan.h"

namespace mw {

struct Divided {
  std::string MeshSpec::*key;  // what says how it is shared: a list of units for each part
  const char* name;            // of the key
  int64_t units;               // of all parts
  int parts, part;             // part: of the plan's rank
  std::vector<int64_t> equal() const;
};

// The samples of a micro-batch, over data-parallel ranks.
Divided divided_samples(const Plan& plan);
// The width of experts, over expert-parallel ranks: that of the first layer that has slices. Other layers are divided
// in the same proportion. Requires a layer with slices.
Divided divided_width(const Plan& plan);

// Whether rows travel to whole experts, which mesh.expert_shares divides over the ranks.
bool divides_experts(TransportKind transport);
// The experts of a layer, over expert-parallel ranks: those of the first layer whose rows travel. Other layers are
// divided in the same proportion. Requires a layer whose rows travel.
Divided divided_experts(const Plan& plan);

// The layers of the model, over pipeline stages of one rank each.
Divided divided_layers(const Plan& plan);

// "13,7".
std::string list_of_shares(const std::vector<int64_t>& shares);
// For the log, a number of each part. "13,7", and of more than 16 parts "least 5 (rank 3), median 7, most 9 (rank 17)":
// ranks along the axis that has the parts.
std::string describe_parts(const std::vector<int64_t>& values);
std::string describe_parts(const std::vector<double>& values);  // to three digits

// The most units of its part with which the plan's rank would need at most `bytes` in the run `run`, while the other
// parts share the rest equally; at least those of equal parts.
int64_t units_that_fit(const Divided& divided, RunSpec run, const Plan& plan, int64_t bytes);

}  // namespace mw
