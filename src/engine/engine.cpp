#include "engine/engine.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/text.h"
#include "comm/cores.h"
#include "comm/gpu_comm.h"
#include "engine/libraries.h"
#include "engine/replicas.h"
#include "engine/zero.h"
#include "layout/shares.h"
#include "model/platform.h"
#include "moe/forced_load.h"
#include "ops/device.h"

namespace mw {
namespace {

void check_memory(const Plan& plan, Device device, int local_ranks, int gpu_ranks) {
  const ByteSummary s = summarise(all_rows(plan));
  if (plan.run.offload != Offload::none && device.kind == DeviceKind::cpu)
    fail(
        Exit::config,
        fmt::format("memory.offload = \"{}\" needs a GPU, but this run computes on the CPU", word_of(plan.run.offload)),
        "set memory.offload = \"none\", or train.device = \"cuda\"");
  if (const int64_t share = available_share({}, std::max(1, local_ranks)); s.on_host > share)
    fail(Exit::memory,
         fmt::format(
             "rank {} needs {} of host memory for memory.offload, but its share of this node's free memory is {}",
             plan.rank, format_bytes(s.on_host), format_bytes(share)),
         "use more ranks, or set mesh.zero = 1 or memory.offload = \"none\"");
  const int64_t available =
      available_share(device, std::max(1, device.kind == DeviceKind::cpu ? local_ranks : gpu_ranks));
  if (s.total() <= available) return;
  int largest = 0;
  for (int kind = 1; kind < kByteKinds; ++kind)
    if (s.by_kind[kind] > s.by_kind[largest]) largest = kind;
  const bool state = static_cast<ByteKind>(largest) <= ByteKind::packed;
  fail(Exit::memory,
       fmt::format("rank {} needs {}, but its share of {} free memory is {}; the largest part is {} with {}", plan.rank,
                   format_bytes(s.total()), device.kind == DeviceKind::cpu ? "this node's" : "the GPU's",
                   format_bytes(available), name_of(static_cast<ByteKind>(largest)), format_bytes(s.by_kind[largest])),
       state ? "use more ranks with a larger mesh.ep, mesh.tp or mesh.pp, set mesh.zero = 1, or use a smaller model"
             : "raise train.micro_batches, set memory.recompute = \"moe\" or \"full\", or lower train.seq_len");
}

// Ranks that share a GPU see what all of them take: none goes on to its arenas before all have looked.
int64_t measure_libraries(Engine& engine) {
  const int64_t buffers =
      start_libraries(engine.plan, engine.comms, engine.pipeline, engine.stream, arenas_of(engine.device));
  engine.world.barrier();
  // On a shared GPU, memory that others free meanwhile can make this negative.
  const int64_t taken = std::max<int64_t>(0, engine.memory.taken_now()) + buffers;
  engine.memory.forget_peak();  // of products whose operands are gone
  engine.world.barrier();
  return taken;
}

// On a platform measured for this run.
Plan make_measured_plan(const ModelSpec& model, const RunSpec& run, const Comm& world, Device device, int threads,
                        const NodePlace& place, SharedPlacements placements) {
  const Mesh mesh = make_mesh(run.mesh, world.size(), run.moe.tp_mode);
  Platform platform = measure_platform(model, run, mesh, threads, device.kind);
  platform.nodes = place.nodes;
  return make_plan(model, run, world.size(), world.rank(), platform, std::move(placements));
}

// Only this stream is limited: NCCL's kernels, and those that gateways run between two exchanges, have a queue of their
// own (comm/gpu_comm_nccl.cpp), so that ranks of unequal speed have equal links.
Stream open_stream_of(const RunSpec& run, const Comm& world, Device device, int threads) {
  Stream stream = open_stream(device, threads, {.processors = processors_of(run, world.rank(), world.size(), device)});
  stream.set_deterministic(run.train.deterministic);
  return stream;
}

}  // namespace

int64_t available_share(Device device, int sharers) {
  return (device.kind == DeviceKind::cpu ? available_bytes() : free_bytes(device)) / sharers;
}

int64_t available_share(Comm& world, Device device, const NodePlace& place) {
  return available_share(device,
                         std::max(1, device.kind == DeviceKind::cpu ? place.ranks : ranks_on_gpu(world, device)));
}

Device choose_device(DeviceChoice wanted, int local_rank) {
  if (wanted == DeviceChoice::cpu) return {};
  const int count = count_gpus();
  if (count == 0) {
    if (wanted == DeviceChoice::automatic) return {};
    fail(Exit::unsupported, fmt::format("train.device = \"{}\", but this process sees no GPU", word_of(wanted)),
         "check the driver and CUDA_VISIBLE_DEVICES, use a build of the preset cuda-sm90 or hip-gfx90a, or set "
         "train.device = \"cpu\"");
  }
  const DeviceChoice built = gpu_kind() == DeviceKind::cuda ? DeviceChoice::cuda : DeviceChoice::hip;
  if (wanted != DeviceChoice::automatic && wanted != built)
    fail(Exit::unsupported,
         fmt::format("train.device = \"{}\", but this build is for {}", word_of(wanted), word_of(built)),
         fmt::format("set train.device = \"{}\" or \"auto\"", word_of(built)));
  return {gpu_kind(), local_rank % count};
}

int processors_of(const RunSpec& run, int rank, int ranks, Device device) {
  if (run.processors.empty()) return 0;
  const std::vector<int64_t> all =
      parse_shares(run.processors, "debug.processors", "write for example \"88,48\" for two ranks");
  if (std::ssize(all) != ranks)
    fail(Exit::config,
         fmt::format("debug.processors = \"{}\" has {} numbers, expected {}", run.processors, all.size(), ranks),
         "list one number for each rank, or leave debug.processors empty");
  if (device.kind == DeviceKind::cpu)
    fail(Exit::config, "debug.processors limits GPUs, but this run computes on the CPU",
         "leave it empty, or set train.device = \"cuda\"; debug.slow slows ranks of CPUs down");
  return static_cast<int>(all[static_cast<size_t>(rank)]);
}

Plan plan_on_machine(const ModelSpec& model, const RunSpec& run, Comm& world, Device device, int threads,
                     const NodePlace& place, SharedPlacements placements) {
  check_forced_load(run, model);
  (void)processors_of(run, world.rank(), world.size(), device);
  Plan plan = make_measured_plan(model, run, world, device, threads, place, std::move(placements));
  check_memory(plan, device, place.ranks, ranks_on_gpu(world, device));
  return plan;
}

ExchangesEnd::~ExchangesEnd() {
  if (comms_.gpu_link != nullptr && std::uncaught_exceptions() > 0) abort_exchanges(*comms_.gpu_link);
}

Engine::Engine(const ModelSpec& model_spec, const RunSpec& run, Comm& world_comm, int threads,
               const NodePlace& node_place, SharedPlacements placements)
    : place(node_place),
      device(choose_device(run.train.device, place.rank)),
      near_cores(stay_near(device)),
      world(world_comm),
      plan(plan_on_machine(model_spec, run, world_comm, device, threads, place, std::move(placements))),
      memory(device),
      comms(make_mesh_comms(world_comm, plan.mesh, device)),
      pipeline(make_pipeline_comms(comms, plan.pipeline, plan.model.tie_embeddings, device)),
      stream(open_stream_of(run, world_comm, device, threads)),
      library_bytes(measure_libraries(*this)),
      params(plan, arenas_of(device), host_arenas_of(device)),
      model(std::in_place, plan, params, comms, stream, arenas_of(device)),
      exchanges_end(comms) {
  stream.trace().note_phases(world.progress());
}

Engine::~Engine() = default;

void place_experts(Engine& engine, SharedPlacements placements) {
  place_experts(engine.plan, std::move(placements));
  engine.muon.reset();
  engine.params.place_experts(engine.plan);
  engine.model->place_experts(engine.plan.placements);
}

std::optional<Plan> plan_change(Engine& engine, const RunSpec& run, SharedPlacements placements) {
  Plan plan = make_measured_plan(engine.plan.model, run, engine.world, engine.device, engine.stream.threads(),
                                 engine.place, std::move(placements));
  int64_t lacking = summarise(all_rows(plan)).total() - summarise(all_rows(engine.plan)).total() -
                    available_share(engine.world, engine.device, engine.place);
  if (engine.device.kind == DeviceKind::cpu && !packs_alike(plan, *engine.comms.ep, engine.stream)) lacking = 1;
  engine.world.all_reduce_max(std::span(&lacking, 1));
  if (lacking > 0) return std::nullopt;
  return plan;
}

bool change_run(Engine& engine, const RunSpec& run) {
  std::optional<Plan> plan = plan_change(engine, run, engine.plan.placements);
  if (!plan) return false;
  engine.stream.wait();
  engine.model.reset();
  engine.plan = std::move(*plan);
  engine.model.emplace(engine.plan, engine.params, engine.comms, engine.stream, arenas_of(engine.device));
  return true;
}

void refresh_weights(Engine& engine) {
  finish_writes(engine.device);
  refresh_weights(engine.params, engine.comms, engine.stream);
  refresh_replicas(engine);
}

}  // namespace mw
