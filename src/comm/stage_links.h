// Communication groups between the stages of a pipeline.
#pragma once

#include <memory>
#include <vector>

#include "comm/world.h"
#include "layout/schedule/schedule.h"

namespace mw {

// The link between a stage and the next one on another rank: one group of two for each direction, so that messages of
// one never wait for the other. Member 0 holds the stage, member 1 the next.
struct StageLink {
  std::unique_ptr<Comm> activations, gradients;
};

struct PipelineComms {
  std::vector<StageLink> after;  // by stage; empty where this rank has neither end of the link
  // The ranks of the first and the last stage, for tied embeddings; a group of one where that is the same rank, or this
  // rank holds neither.
  std::unique_ptr<Comm> ends;
};

// Collective over the pipeline `comms.pp`. Links move GPU memory directly where the other groups do, each on a queue of
// its own. Links that have no rank in common are opened together. Errors: comm.
PipelineComms make_pipeline_comms(const MeshComms& comms, const PipelineShape& shape, bool tied_embeddings,
                                  Device device = {});

}  // namespace mw
