// Engine: one rank's model with everything it computes on.
#pragma once

#include "comm/world.h"
#include "core/stream.h"
#include "model/param_store.h"
#include "model/transformer.h"
#include "spec/plan.h"

namespace mw {

struct Engine {
  // Collective over `world`, which must outlive it. Errors: config, unsupported, memory.
  Engine(const ModelSpec& model_spec, const RunSpec& run, Comm& world, int threads);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Comm& world;
  Plan plan;
  MeshComms comms;
  Stream stream;
  ParamStore params;
  Transformer model;
};

}  // namespace mw
