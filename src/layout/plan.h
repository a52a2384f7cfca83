// Plan: ModelSpec x RunSpec x Platform -> everything a run will do, as data. The run obeys it.
#pragma once

#include <string>
#include <vector>

#include "config/model_spec.h"
#include "config/param_table.h"
#include "config/run_spec.h"
#include "layout/byte_table.h"
#include "layout/mesh.h"
#include "layout/placement.h"
#include "layout/schedule/schedule.h"
#include "layout/stages.h"

namespace mw {

struct Plan {
  ModelSpec model;
  RunSpec run;
  Mesh mesh;
  int rank = 0;
  MeshCoords coords;
  LocalBatch batch;
  Platform platform;                      // that it is made for
  NodeMap nodes;                          // of the ranks of the world
  std::vector<TransportKind> transports;  // by layer; in_place for dense layers
  std::vector<WeightGather> gathers;      // by layer; without pieces where the transport gathers no weights
  WeightCachePlan weight_cache;           // of what this rank gathers
  SharedPlacements placements;            // of the experts of all layers; never null in a plan of make_plan
  std::vector<ParamRow> params;           // of the whole model
  PipelineShape pipeline;
  std::vector<Action> schedule;   // of this rank
  std::vector<StagePlan> stages;  // that this rank holds
  std::vector<ByteRow> parameter_rows, activation_rows;
};

// Layer `index` as this rank computes it.
LayerSpec local_layer(const Plan& plan, int64_t index);

// Index of the first token that this rank routes, in the micro-batch of all ranks.
int64_t first_routed_token(const Plan& plan);

// The model a run names: its [model] table or hf:DIR/config.json.
ModelSpec load_model_spec(const RunSpec& run);

constexpr int64_t kMostTokens = int64_t{1} << 30;  // of a rank and micro-batch
// Whether rows of a layer can be counted in 32 bits, as many of `tokens` of each of `ep` ranks as may meet on one rank,
// which has `rank_experts` experts, replicas included.
bool are_rows_countable(int64_t tokens, const MoeSpec& moe, int64_t ep, int64_t rank_experts, TransportKind transport);

// Errors: config, unsupported, for memory.expert_gradients or memory.logits that the run's dtype or the transports do
// not allow.
void check_dtypes(const RunSpec& run, const std::vector<TransportKind>& transports);

// Errors: unsupported, for moe.replica_slots with transports that do not split rows.
void check_replicas(const RunSpec& run, int64_t ep, const std::vector<TransportKind>& transports);

// Errors: config, for keys that only training obeys and that contradict others: mesh.adapt_every without measured
// mesh.shares, moe.replica_slots that nothing fills.
void check_training(const RunSpec& run);

// Where experts are from the start: blocks, or slices of expert_widths where the layer's transport computes with
// slices. transports: by layer. Errors: config.
Placements start_placements(const ModelSpec& model, const RunSpec& run, const std::vector<TransportKind>& transports,
                            int ep);

// The plan of one rank. Pure: reads no file, asks no machine. placements: where experts are, the same on all ranks;
// null: those of start_placements. Errors: config, unsupported.
Plan make_plan(const ModelSpec& model, const RunSpec& run, int world, int rank, const Platform& platform,
               SharedPlacements placements = nullptr);

// Overwrites the schedule, and the gathers of weights that follow from it, with those of steps that have so many
// micro-batches, at most train.micro_batches (config/batch_ramp.h). Memory is planned for train.micro_batches.
void plan_steps(Plan& plan, int64_t micro_batches);

// Whether experts can be where `placements` says with nothing else of the plan changed: every rank is the home of as
// many of each layer as now, replicas fit into their slots, and slices stay slices. Requires valid tables.
bool can_place_experts(const Plan& plan, const Placements& placements);
// Overwrites the placements, and what follows from them. Errors: config, if the placements are not valid, or unless
// can_place_experts.
void place_experts(Plan& plan, SharedPlacements placements);

// The rows of plan.params that this rank holds, in their order.
std::vector<ParamRow> own_params(const Plan& plan);

// Every byte of the plan, parameters then activations.
std::vector<ByteRow> all_rows(const Plan& plan);

// A few lines for the log: mesh, batch, bytes by kind.
std::string describe(const Plan& plan);

}  // namespace mw
