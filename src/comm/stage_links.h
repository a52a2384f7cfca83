// The groups through which the stages of a pipeline speak to each other.
#pragma once

#include <memory>
#include <vector>

#include "comm/world.h"
#include "spec/schedule.h"

namespace mw {

// Between a stage and the next one on another rank: a group of two for either direction, so that messages of one never
// wait for those of another. Member 0 holds the stage, member 1 the next.
struct StageLink {
  std::unique_ptr<Comm> activations, gradients;
};

struct PipelineComms {
  std::vector<StageLink> after;  // by stage; empty where this rank is not concerned
  // The ranks of the first and of the last stage, for tied embeddings; alone where that is one rank, or neither.
  std::unique_ptr<Comm> ends;
};

// Collective over the pipeline `comms.pp`. Links move GPU memory themselves where the other groups do, each on a queue
// of its own. Errors: comm.
PipelineComms make_pipeline_comms(const MeshComms& comms, const PipelineShape& shape, bool tied_embeddings,
                                  Device device = {});

}  // namespace mw
