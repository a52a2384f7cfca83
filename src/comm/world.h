// The world of one process: how it was launched, its ranks and nodes, and the process groups of the mesh.
#pragma once

#include <memory>
#include <string>

#include "base/error.h"
#include "comm/bootstrap/mac.h"
#include "comm/comm.h"
#include "layout/islands.h"
#include "layout/mesh.h"

namespace mw {

// The place of a rank among the ranks of its node: `rank` selects its GPU, and all `ranks` share cores and memory.
struct NodePlace {
  int rank = 0, ranks = 1;
  NodeMap nodes = {};  // of all ranks of the world
};

// Created once per process; finalizes the message library when destroyed. A process started without a launcher is a
// world of one, unless its environment says how to join others (comm/bootstrap/tcp_join.h).
class World {
 public:
  virtual ~World() = default;
  virtual Comm& comm() = 0;
  virtual std::string library() const = 0;  // "Open MPI 4.1.4", "none (built without MPI)"
  virtual NodePlace place() const = 0;
  int local_size() const { return place().ranks; }
  virtual int nodes() const = 0;
  // A key for handshakes of further connections between the ranks: the same on all ranks, and unknown to anyone else.
  virtual JoinKey key() const = 0;
  // On rank 0, the IPv4 address (as in inet_ntoa) at which other ranks reach it; 0: unknown.
  virtual uint32_t host() const { return 0; }
  // Ends the whole job with this exit code, after the caller has printed the reason. Does not return.
  [[noreturn]] virtual void abort(Exit code) = 0;
};

// Waits, for two seconds at most, until the launcher has read all output: a launcher that is told to abort may drop
// unread output of a rank, and with it the reason.
void wait_until_output_is_read();

// Seconds after which a rank reports an error that others probably report too, when it is the turn-th of so many to do
// so: the first at once, the next after 3 s, in which the launcher normally ends it. For what the others wait beyond
// that, the first turns are the farthest apart. It grows with the number of turns, up to 30 s.
double seconds_until_turn(int turn, int turns);

// Errors: comm; unsupported, when a launcher started several ranks of a build without MPI.
std::unique_ptr<World> start_world(int* argc, char*** argv);

// The process groups of one rank, by mesh axis.
struct MeshComms {
  std::unique_ptr<Comm> dp, tp, ep, edp, pp;
  std::unique_ptr<Comm> stage;  // DP x TP: all ranks that work on the same layers
  Comm& of(Replicas replicas) const;
  bool cuts_experts = false;                 // experts are sharded over TP (Mesh::ted)
  std::shared_ptr<struct GpuLink> gpu_link;  // null unless groups move GPU memory directly (comm/gpu_comm.h)
  std::string gpu_library;                   // the library that moves GPU memory; "": through the host
};
// If every rank has a GPU of its own, the groups move GPU memory directly. Collective over the world, whose size must
// match the mesh. Errors: comm.
MeshComms make_mesh_comms(Comm& world, const Mesh& mesh, Device device = {});

// The rank's place on its node as the launcher set it up, with mesh.ranks_per_node ranks where the run file sets that
// key.
NodePlace place_on_node(const World& world, const MeshSpec& mesh);

// The number of ranks of the world on this rank's GPU, including itself, by bus address rather than by each process's
// numbering; 0 on a CPU. Collective over the world.
int ranks_on_gpu(Comm& world, Device device);

}  // namespace mw
