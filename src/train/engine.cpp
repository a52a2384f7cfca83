#include "train/engine.h"

#include "model/platform.h"

namespace mw {
namespace {

Plan plan_for_machine(const ModelSpec& model, const RunSpec& run, Comm& world, int threads) {
  const Mesh mesh = make_mesh(run.mesh, world.size());
  return make_plan(model, run, world.size(), world.rank(), measure_platform(model, run, mesh, threads));
}

}  // namespace

Engine::Engine(const ModelSpec& model_spec, const RunSpec& run, Comm& world_comm, int threads)
    : world(world_comm),
      plan(plan_for_machine(model_spec, run, world_comm, threads)),
      comms(make_mesh_comms(world_comm, plan.mesh)),
      stream(Device{}, threads),
      params(plan),
      model(plan, params, comms, stream) {}

}  // namespace mw
