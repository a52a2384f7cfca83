#include "comm/world.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <thread>

#include "base/file.h"
#include "comm/gpu_comm.h"
#include "ops/device.h"

namespace mw {
namespace {

// A name for each rank's GPU, 0 for a CPU.
std::vector<int64_t> gpus_of_ranks(Comm& world, Device device) {
  std::vector<int64_t> gpus(static_cast<size_t>(world.size()));
  if (device.kind != DeviceKind::cpu) {
    const std::string machine = read_text_file("/proc/sys/kernel/random/boot_id", 64);
    const auto name = static_cast<int64_t>(std::hash<std::string>()(machine + address_of(device)));
    gpus[static_cast<size_t>(world.rank())] = name == 0 ? 1 : name;
  }
  world.all_reduce_sum(std::span(gpus));
  return gpus;
}

bool each_has_a_gpu(Comm& world, Device device) {
  std::vector<int64_t> gpus = gpus_of_ranks(world, device);
  std::sort(gpus.begin(), gpus.end());
  return std::count(gpus.begin(), gpus.end(), 0) == 0 && std::adjacent_find(gpus.begin(), gpus.end()) == gpus.end();
}

}  // namespace

Comm& MeshComms::of(Replicas replicas) const {
  switch (replicas) {
    case Replicas::dp: return *dp;
    case Replicas::stage: return *stage;
    case Replicas::edp: return *edp;
  }
  MW_CHECK(false, "no such replicas");
}

MeshComms make_mesh_comms(Comm& world, const Mesh& mesh, Device device) {
  MW_CHECK(world.size() == mesh.world, "a mesh of {} ranks in a world of {}", mesh.world, world.size());
  const MeshCoords c = coords_of(mesh, world.rank());
  MeshComms comms;
  comms.cuts_experts = mesh.ted;
  // The lowest world rank of a group names it.
  comms.dp = world.split(group_of(mesh, MeshAxis::dp, world.rank()).front(), c.dp);
  comms.tp = world.split(group_of(mesh, MeshAxis::tp, world.rank()).front(), c.tp);
  comms.stage = world.split(c.pp, world.rank());
  comms.ep = world.split(group_of(mesh, MeshAxis::ep, world.rank()).front(), c.ep);
  comms.edp = world.split(group_of(mesh, MeshAxis::edp, world.rank()).front(), c.edp);
  comms.pp = world.split(group_of(mesh, MeshAxis::pp, world.rank()).front(), c.pp);  // the host's: for small sums
  if (world.size() == 1 || gpu_library().empty() || !each_has_a_gpu(world, device)) return comms;
  comms.gpu_library = gpu_library();
  comms.gpu_link = open_gpu_link(device, world);
  const auto move_to_link = [&](std::unique_ptr<Comm>& group) {
    group = make_gpu_comm(std::move(group), comms.gpu_link);
  };
  for (std::unique_ptr<Comm>* group : {&comms.dp, &comms.tp, &comms.ep, &comms.edp}) move_to_link(*group);
  if (mesh.tp > 1) move_to_link(comms.stage);  // else it has no gradients to sum
  return comms;
}

void wait_until_output_is_read() {
  const auto pause = std::chrono::milliseconds(10);
  for (const int output : {STDOUT_FILENO, STDERR_FILENO}) {
    for (int unread = 0, tries = 0; tries < 100; ++tries) {
      if (ioctl(output, FIONREAD, &unread) != 0 || unread == 0) break;
      std::this_thread::sleep_for(pause);
    }
    std::this_thread::sleep_for(5 * pause);  // and forwarded
  }
}

double seconds_until_turn(int turn, int turns) {
  // With a launcher's daemons on other nodes, or GPUs to let go of, the end of a job takes a second and more.
  constexpr double kFirst = 3, kPerTurn = 0.01, kMost = 30;
  if (turn == 0) return 0;
  return kFirst + std::min(kPerTurn * turns, kMost) * std::log2(turn) / std::log2(turns);
}

NodePlace place_on_node(const World& world, const MeshSpec& mesh) {
  NodePlace place = world.place();
  if (mesh.ranks_per_node == 0) return place;
  place.ranks = static_cast<int>(mesh.ranks_per_node);
  place.nodes = {mesh.ranks_per_node, {}};
  return place;
}

int ranks_on_gpu(Comm& world, Device device) {
  const std::vector<int64_t> gpus = gpus_of_ranks(world, device);
  const int64_t own = gpus[static_cast<size_t>(world.rank())];
  return own == 0 ? 0 : static_cast<int>(std::count(gpus.begin(), gpus.end(), own));
}

}  // namespace mw
