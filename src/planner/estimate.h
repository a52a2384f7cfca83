// Memory and time of one layout on a platform: in closed form for searches over many, and by simulation of the schedule
// that a run would execute.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "layout/platform_profile.h"
#include "layout/schedule/schedule_simulation.h"
#include "planner/gather_rates.h"
#include "planner/layer_time.h"
#include "planner/layout.h"
#include "planner/memory.h"
#include "planner/pipelines.h"

namespace mw {

// Seconds of a step on the busiest pipeline rank; they add up to `total`.
struct StepTime {
  double compute = 0;
  double exchange = 0;  // rows, tokens over TP, messages and gradients, as far as they are waited for
  double bubble = 0;
  double optimizer = 0;
  double total() const { return compute + exchange + bubble + optimizer; }
};

// The largest rank of a pipeline coordinate, of those that may need most.
struct RankMemory {
  ByteSummary table;
  int64_t libraries = 0;
  // Of rows that depend on the load, on the fullest rank: on average, and at the 99th percentile.
  int64_t rows_fullest = 0, rows_p99 = 0;
  // Rows beyond what is committed at start are committed on demand.
  int64_t needed() const { return table.fixed + std::max(table.routed_committed, rows_p99) + libraries; }
};

struct Estimate {
  Layout layout;
  std::vector<RankMemory> memory;  // by pipeline rank
  int64_t needed = 0;              // of the largest
  StepTime time;
};

// Errors: config, where states are offloaded and the profile has no rate of that.
void check_offload(const RunSpec& run, const PlatformProfile& profile);

class Estimator {
 public:
  // References must outlive the estimator. Not for several threads at once: each takes its own. Errors: check_offload.
  Estimator(const ModelSpec& model, const RunSpec& run, const PlatformProfile& profile, const ExpertLoad& load,
            int ranks);
  // ExpertLoad is kept by reference, so it must outlive this object.
  Estimator(const ModelSpec&, const RunSpec&, const PlatformProfile&, ExpertLoad&&, int) = delete;
  ~Estimator();

  // The layout must be one that the ranks, the batch and the model allow (planner/search.h); all of one estimator have
  // the same `ted`.
  Estimate closed_form(const Layout& layout);
  // As closed_form, but with time by simulation.
  Estimate simulated(const Layout& layout, Timeline* timeline = nullptr);

  // The numerators of tokens/s, TFLOP/s and MFU.
  double model_flops_per_step() const { return flops_per_step_; }
  double tokens_per_step() const { return tokens_per_step_; }
  double peak_flops_per_s() const;  // of all ranks
  LoadModel& load() { return times_.load(); }

 private:
  struct StageTime;  // of one micro-batch in one stage
  // What ranks keep from step to step, and what that costs in each: the same for all micro-batches and ways to
  // recompute.
  struct States {
    std::vector<int> ranks;                       // of a stage, those that may need most
    std::vector<std::vector<ByteSummary>> bytes;  // by pipeline rank, and by those
    int64_t libraries = 0;
    RankLoad load;  // of the layer where it is most, over the rows of the rank with most experts when all are even
    std::vector<double> gradient_sums;  // seconds, by pipeline rank
    double optimizer = 0;               // seconds of the slowest
    double expert_squares = 0;          // the part that a step saves if its products add all squares
    double tied = 0;  // of tied embeddings on two pipeline ranks: gradients are summed, weights copied back
  };
  // The estimator of layouts with this layout's transport, and the shares that a run of it would measure: itself, or
  // one that it keeps.
  Estimator& of_run(const Layout& layout);
  const States& states_of(const Layout& layout, const Mesh& mesh);
  std::vector<StageTime> stage_times(const Layout& layout, const Mesh& mesh);
  void fill_memory(Estimate& estimate, const Mesh& mesh, const States& states);
  double replica_sums(const Layout& layout, const Mesh& mesh, const std::array<int64_t, kReplicas>& bytes) const;
  double weights_gather(const Mesh& mesh, const std::array<int64_t, kReplicas>& gradients) const;
  double tied_embeddings(const Layout& layout, const Mesh& mesh) const;
  double update_time(const ByteSummary& states) const;
  double expert_gradients_read(const Mesh& mesh, const std::array<int64_t, kReplicas>& gradients) const;
  static double optimizer_time(const Layout& layout, const States& states, const std::vector<StageTime>& times);
  double muon_time(const MuonWork& work) const;
  std::vector<StageCost> stage_costs(const Layout& layout, const std::vector<StageTime>& times, const States& states);

  const ModelSpec& model_;
  const RunSpec& run_;
  const PlatformProfile& profile_;
  const ExpertLoad& expert_load_;
  int ranks_;
  MemoryModel memory_;
  Pipelines pipelines_;
  GatherRates gather_rates_;
  LayerTimeModel times_;
  Transfers transfers_;
  double flops_per_step_, tokens_per_step_;
  // By schedule, stages a rank, PP, TP, EP, placement, ZeRO, and with mesh.shares micro-batches.
  std::map<std::tuple<ScheduleKind, int, int, int, int, RankPlacement, int, int64_t>, States> states_;
  // States::ranks, which do not depend on the schedule.
  std::map<std::tuple<int, int, int, RankPlacement, int, int64_t>, std::vector<int>> largest_ranks_;
  struct OtherRun;
  std::map<std::array<std::string, 5>, std::unique_ptr<OtherRun>> others_;  // by moe.transport and shares
};

}  // namespace mw
