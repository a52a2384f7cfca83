// Engine: one rank's model with everything it computes on.
#pragma once

#include <string>

#include "comm/stage_links.h"
#include "comm/world.h"
#include "core/stream.h"
#include "model/param_store.h"
#include "model/transformer.h"
#include "spec/plan.h"
#include "train/memory_meter.h"

namespace mw {

// Where a rank computes: train.device, with "auto" a GPU if the process sees one; ranks of a node take its GPUs in
// turn. Errors: unsupported.
Device choose_device(const std::string& wanted, int local_rank);

// What one of `sharers` ranks may take of the memory that is free now: of the node's that they share, or of the GPU's.
int64_t available_share(Device device, int sharers);

// The plan of this rank on its device. Refuses, before anything is allocated, what cannot fit when `local_ranks` share
// the node, or several the GPU. Collective over the world. Errors: config, unsupported; memory, with the largest part
// and what would help.
Plan plan_on_machine(const ModelSpec& model, const RunSpec& run, Comm& world, Device device, int threads,
                     int local_ranks);

// Queues of a GPU are waited for when they close, where a failure takes them down too, and what lies on them may then
// wait for peers that never come: that is ended first.
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
  // Collective over `world`, which must outlive it. Errors: config, unsupported, memory.
  Engine(const ModelSpec& model_spec, const RunSpec& run, Comm& world, int threads, NodePlace place = {});
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  Device device;
  std::string near_cores;  // those next to the GPU, where this rank was bound to them
  Comm& world;
  Plan plan;
  MemoryMeter memory;  // from here on
  MeshComms comms;
  PipelineComms pipeline;
  Stream stream;
  int64_t library_bytes;  // measured: what libraries, their kernels and connections take before there are tensors
  ParamStore params;
  Transformer model;
  ExchangesEnd exchanges_end;  // before all others
};

// After the master weights were set: refreshes all that forward reads beside them. Collective over the world.
void refresh_weights(Engine& engine);

}  // namespace mw
