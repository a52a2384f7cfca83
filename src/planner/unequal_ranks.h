// Ranks of several kinds (PlatformProfile::rank_kinds): the shares that a run of a layout would measure, and what
// uneven speeds and shares make of a step. Pure functions.
#pragma once

#include <string>

#include "config/model_spec.h"
#include "config/run_spec.h"
#include "layout/mesh.h"
#include "layout/platform_profile.h"
#include "planner/layout.h"

namespace mw {

// `run` with lists in place of the shares that are "measured", as `train` would choose them
// (train/loop/share_chooser.h) by the speeds of the profile where each rank has memory for any share. Without
// rank_kinds `run` as it is.
RunSpec with_shares_of(const PlatformProfile& profile, const ModelSpec& model, RunSpec run, const Layout& layout,
                       const Mesh& mesh);

// The shares in which `chosen` differs from `run`: "mesh.shares = 15,5; mesh.expert_shares = 12,4".
std::string describe_shares(const RunSpec& run, const RunSpec& chosen);

// Factors on the compute time of a pipeline stage. Each is what its slowest rank takes, over what a rank of the slowest
// kind would take for one part:
struct StagePace {
  double samples = 1;  // The most samples of a data-parallel rank. For what each rank computes for its own samples.
  double experts = 1;  // The experts of an equal division, rounded up. For layers whose rows travel to whole experts,
                       // as if router and shared experts were divided like them.
  double widths = 1;   // The widest slices. For layers with slices of experts, likewise.
  bool operator<(const StagePace& other) const;
};
// Of pipeline rank `pp`. run: with lists of shares. Without rank_kinds all are 1.
StagePace pace_of(const PlatformProfile& profile, const ModelSpec& model, const RunSpec& run, const Layout& layout,
                  const Mesh& mesh, int pp);

}  // namespace mw
