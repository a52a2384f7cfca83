// The transport of a run with moe.transport = "auto": chosen before the first step, and again from the loads of some
// later steps (planner/auto_transport.h).
#pragma once

#include <cstdint>
#include <string>

#include "config/run_spec.h"
#include "engine/engine.h"
#include "engine/step.h"
#include "train/data/data.h"

namespace mw {

class TransportChooser {
 public:
  // Sets run.moe.transport to what rank 0 chooses; the others may see another profile. before: the transport of the
  // checkpoint that the run resumes from, where its layout is the same; or "". resumes: whether there is a checkpoint.
  // on_nvidia: ranks compute on NVIDIA GPUs. These three count on rank 0 only. Collective over the world.
  TransportChooser(RunSpec& run, Comm& world, const NodeMap& nodes, const std::string& before, bool resumes,
                   bool on_nvidia = false);

  // Chooses again by the loads of the first step's batch, for a run that does not resume, and sets
  // run.moe.transport where every rank has memory for the transport. For that it makes an engine with the transport
  // chosen so far, and computes the batch's gradients without an update. Returns whether it is another one. Collective
  // over the world. Errors: as Engine and accumulate_gradients.
  bool choose_by_first_batch(RunSpec& run, const ModelSpec& model, Comm& world, int threads, const NodePlace& place,
                             const SampleOrder& samples);

  // One line on the choice before the first step, on rank 0; or "".
  const std::string& note() const { return note_; }

  // To be called between two steps. After steps 16, 64, 256, ... it chooses again, from this step's loads alone, so
  // that equal runs choose equally, and changes the engine's transport. Returns a line for the log, on rank 0; "" where
  // the choice is the same. Collective over the world.
  std::string after_step(Engine& engine, const StepStats& stats, int64_t step);

 private:
  RunSpec asked_;  // the run file's
  NodeMap nodes_;
  std::string note_;
  bool chosen_ = false;   // whether a profile chose, on all ranks
  bool resumes_ = false;  // likewise
};

}  // namespace mw
