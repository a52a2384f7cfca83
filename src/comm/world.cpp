#include "comm/world.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace mw {

MeshComms make_mesh_comms(Comm& world, const Mesh& mesh) {
  MW_CHECK(world.size() == mesh.world, "a mesh of {} ranks in a world of {}", mesh.world, world.size());
  const MeshCoords c = coords_of(mesh, world.rank());
  MeshComms comms;
  // The lowest world rank of a group names it.
  comms.dp = world.split(group_of(mesh, MeshAxis::dp, world.rank()).front(), c.dp);
  comms.ep = world.split(group_of(mesh, MeshAxis::ep, world.rank()).front(), c.ep);
  comms.edp = world.split(group_of(mesh, MeshAxis::edp, world.rank()).front(), c.edp);
  return comms;
}

int ranks_per_node(const World& world, const MeshSpec& mesh) {
  return mesh.ranks_per_node > 0 ? static_cast<int>(mesh.ranks_per_node) : world.local_size();
}

int threads_per_rank(int64_t asked, int local_size) {
  if (asked > 0) return static_cast<int>(asked);
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  // A launcher that binds each rank to its own cores has already shared them out.
  const bool bound = sched_getaffinity(0, sizeof allowed, &allowed) == 0 && CPU_COUNT(&allowed) < cores;
  const int usable = bound ? CPU_COUNT(&allowed) : cores / std::max(1, local_size);
  return std::max(1, usable);
}

}  // namespace mw
