#include "train/engine.h"

#include <algorithm>

#include "base/text.h"
#include "model/platform.h"
#include "train/memory_meter.h"

namespace mw {
namespace {

Plan plan_for_machine(const ModelSpec& model, const RunSpec& run, Comm& world, int threads, int local_ranks) {
  const Mesh mesh = make_mesh(run.mesh, world.size());
  Plan plan = make_plan(model, run, world.size(), world.rank(), measure_platform(model, run, mesh, threads));
  check_memory(plan, local_ranks);
  return plan;
}

}  // namespace

void check_memory(const Plan& plan, int local_ranks) {
  const ByteSummary s = summarise(all_rows(plan));
  const int64_t available = available_bytes() / std::max(1, local_ranks);
  if (s.total() <= available) return;
  int largest = 0;
  for (int kind = 1; kind < kByteKinds; ++kind)
    if (s.by_kind[kind] > s.by_kind[largest]) largest = kind;
  const bool state = static_cast<ByteKind>(largest) <= ByteKind::packed;
  fail(Exit::memory,
       fmt::format("rank {} needs {}, its share of this node's free memory is {}; the largest part is {} with {}",
                   plan.rank, format_bytes(s.total()), format_bytes(available), name_of(static_cast<ByteKind>(largest)),
                   format_bytes(s.by_kind[largest])),
       state ? "use more ranks with a larger mesh.ep, more nodes, or a smaller model"
             : "raise train.micro_batches or shorten train.seq_len");
}

Engine::Engine(const ModelSpec& model_spec, const RunSpec& run, Comm& world_comm, int threads, int local_ranks)
    : world(world_comm),
      plan(plan_for_machine(model_spec, run, world_comm, threads, local_ranks)),
      comms(make_mesh_comms(world_comm, plan.mesh)),
      stream(Device{}, threads),
      params(plan),
      model(plan, params, comms, stream) {}

}  // namespace mw
