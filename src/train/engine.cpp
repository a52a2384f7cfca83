#include "train/engine.h"

#include <algorithm>

#include "base/text.h"
#include "model/platform.h"
#include "ops/device.h"
#include "train/memory_meter.h"

namespace mw {
namespace {

Plan plan_for_machine(const ModelSpec& model, const RunSpec& run, Comm& world, int threads, int local_ranks,
                      DeviceKind device) {
  const Mesh mesh = make_mesh(run.mesh, world.size());
  Plan plan = make_plan(model, run, world.size(), world.rank(), measure_platform(model, run, mesh, threads, device));
  if (device == DeviceKind::cpu) check_memory(plan, local_ranks);
  return plan;
}

Stream open_stream(Device device, int threads) {
  if (device.kind == DeviceKind::cpu) return Stream(threads);
  return Stream(device, threads, open_queue(device));
}

Reserve arenas_of(Device device) { return device.kind == DeviceKind::cpu ? Reserve(reserve_host) : reserve_on(device); }

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

Device choose_device(const std::string& wanted, int local_rank) {
  if (wanted == "cpu") return {};
  const int count = count_gpus();
  if (count == 0) {
    if (wanted == "auto") return {};
    fail(Exit::unsupported, fmt::format("train.device = \"{}\", but this process sees no GPU", wanted),
         "it takes a build with the preset cuda-sm90 or hip-gfx90a, and a driver; or set train.device = \"cpu\"");
  }
  const char* built = gpu_kind() == DeviceKind::cuda ? "cuda" : "hip";
  if (wanted != "auto" && wanted != built)
    fail(Exit::unsupported, fmt::format("train.device = \"{}\" in a build for {}", wanted, built),
         fmt::format("set train.device = \"{}\" or \"auto\"", built));
  return {gpu_kind(), local_rank % count};
}

Engine::Engine(const ModelSpec& model_spec, const RunSpec& run, Comm& world_comm, int threads, int local_ranks)
    : device(choose_device(run.train.device, world_comm.rank() % std::max(1, local_ranks))),
      world(world_comm),
      plan(plan_for_machine(model_spec, run, world_comm, threads, local_ranks, device.kind)),
      comms(make_mesh_comms(world_comm, plan.mesh)),
      stream(open_stream(device, threads)),
      params(plan, arenas_of(device)),
      model(plan, params, comms, stream, arenas_of(device)) {}

}  // namespace mw
