// The shares of a run with mesh.shares, mesh.expert_shares, mesh.width_shares or mesh.stage_layers = "measured": by the
// speeds of the ranks before the first step, and with mesh.adapt_every again while it goes on (layout/share_watch.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "layout/share_watch.h"
#include "train/data/data.h"

namespace mw {

// Seconds of a rank's forward and backward passes without waits.
struct ComputeSeconds {
  double all = 0, experts = 0;  // experts: the part of `all` in products and activations of routed experts
};
// events: of one thread or queue (`lane`); others are left out.
ComputeSeconds compute_seconds(std::vector<TraceEvent> events, Lane lane);

class ShareChooser {
 public:
  // Puts shares in place of "measured" in `run`: those of `before`, a run of the same layout, where it has them and the
  // same transport. Otherwise it makes an engine with equal shares, computes the gradients of the first step 4 to 16
  // times without an update, and shares so that the slowest rank takes the least time: the samples by the seconds that
  // each data-parallel rank computes for one of its own, the width of experts by those of the experts, the experts by
  // those of their rows, and the layers by all seconds of each stage over its FLOPs. No rank gets more than its memory
  // has room for. plan: of this rank, with equal shares in place of "measured". `before` counts on rank 0 only.
  // Collective over the world. Errors: as Engine and accumulate_gradients.
  ShareChooser(RunSpec& run, const Plan& plan, Comm& world, int threads, const NodePlace& place,
               const SampleOrder& samples, const std::optional<RunSpec>& before);

  // Lines on the choice before the first step, the same on all ranks.
  const std::vector<std::string>& notes() const { return notes_; }

  // Whether the compute of `step` is timed: of every step, but on GPUs, which it makes slower, of those before a look.
  bool times(const Engine& engine, int64_t step) const;
  // To be called where a step begins and where it ends, after Trace::settle.
  void begin_step(Engine& engine, int64_t step);
  void end_step(Engine& engine, double seconds, int64_t step);
  // Begins to measure anew, where other work than before counts for the shares.
  void forget();
  // To be called between two steps. Every mesh.adapt_every steps it looks whether to share the samples anew, and does
  // so. Returns a line for the log where it did. Collective over the world.
  std::string after_step(Engine& engine, int64_t step);

 private:
  std::vector<std::string> notes_;
  std::vector<int64_t> most_;  // units of the samples that each data-parallel rank has memory for
  std::optional<ShareWatch> watch_;
  // Since the last look.
  double own_seconds_ = 0, step_seconds_ = 0;
  int64_t timed_steps_ = 0;
};

}  // namespace mw
