// Engine: everything that one rank trains with: device, plan (what the rank holds and does; layout/plan.h), process
// groups, stream, parameters and model.
#pragma once

#include <optional>
#include <string>

#include "comm/stage_links.h"
#include "comm/world.h"
#include "core/stream.h"
#include "engine/memory_meter.h"
#include "layout/muon_plan.h"
#include "layout/plan.h"
#include "model/param_store.h"
#include "model/transformer.h"

namespace mw {

// Selects the device of a rank: train.device; "auto" is a GPU if the process sees one. Ranks of a node take its GPUs in
// turn. Errors: unsupported.
Device choose_device(DeviceChoice wanted, int local_rank);

// The number of processors (SMs) that `rank` may compute on (debug.processors); 0: all. Errors: config, unless the key
// is empty or has one number for each of `ranks`, which compute on GPUs.
int processors_of(const RunSpec& run, int rank, int ranks, Device device);

// The share of the currently free memory (of the node, or of the GPU) for one of `sharers` ranks that share it.
int64_t available_share(Device device, int sharers);
// The same for this rank, which shares it with the ranks of its machine, or with those of its GPU. Collective over the
// world.
int64_t available_share(Comm& world, Device device, const NodePlace& place);

// Makes the Plan of this rank on its device. Refuses, before anything
// is allocated, runs that do not fit into the memory that place.ranks ranks share on the node, or several on a GPU.
// Collective over the world. Errors: config, unsupported; memory, naming the largest part and remedies.
Plan plan_on_machine(const ModelSpec& model, const RunSpec& run, Comm& world, Device device, int threads,
                     const NodePlace& place, SharedPlacements placements = nullptr);

// Aborts communication when an exception destroys an Engine. Queues of a GPU wait for their work when they are
// destroyed, and that work may wait for peers that never come.
class ExchangesEnd {
 public:
  explicit ExchangesEnd(const MeshComms& comms) : comms_(comms) {}
  ~ExchangesEnd();
  ExchangesEnd(const ExchangesEnd&) = delete;
  ExchangesEnd& operator=(const ExchangesEnd&) = delete;

 private:
  const MeshComms& comms_;
};

struct Engine {
  // placements: as in make_plan. Collective over `world`, which must outlive it. Errors: config; memory; unsupported.
  // Replicas in it have weights after refresh_weights.
  Engine(const ModelSpec& model_spec, const RunSpec& run, Comm& world, int threads, const NodePlace& place = {},
         SharedPlacements placements = nullptr);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  NodePlace place;
  Device device;
  std::string near_cores;  // the cores next to the GPU, if this rank was bound to them
  Comm& world;
  Plan plan;
  MemoryMeter memory;  // memory taken since it was created, which is before comms and tensors
  MeshComms comms;
  PipelineComms pipeline;
  Stream stream;
  int64_t library_bytes;  // measured: memory of libraries, kernels and connections before tensors are allocated
  ParamStore params;
  std::optional<Transformer> model;  // never empty, except in change_run
  bool gradients_are_zero = false;   // those that accumulate: since the last update
  std::optional<MuonPlan> muon;  // what Muon's updates exchange; made by the first one, empty again when experts move
  ExchangesEnd exchanges_end;    // destroyed before all others
};

// Tells plan, parameters and transports that experts are elsewhere; moves no state (engine/migration.h). Errors:
// config, as place_experts (layout/plan.h).
void place_experts(Engine& engine, SharedPlacements placements);

// The plan of this rank for `run`, which may differ from the engine's in moe.transport and shares, with these
// placements (null: those of a new run). None if some rank lacks memory for what it takes beyond the engine's plan, or
// if ranks that would gather packed weights from each other pack them in different ways. Collective over the world.
// Errors: config, as make_plan.
std::optional<Plan> plan_change(Engine& engine, const RunSpec& run, SharedPlacements placements);

// Computes from now on as an engine that was made with `run` would, which may differ from the engine's in moe.transport
// and mesh.shares only: weights, optimizer state and placements stay, and what the model keeps of micro-batches, of
// which none may be in flight, is allocated again. Returns false and changes nothing where plan_change has no plan.
// Collective over the world. Errors: config, as make_plan, also where ranks would hold other parts of the experts
// (gather_tokens); memory.
bool change_run(Engine& engine, const RunSpec& run);

// To be called after the master weights were set: refreshes all copies that forward reads. Collective over the world.
void refresh_weights(Engine& engine);

}  // namespace mw
