// The world of one process: how it was launched, its ranks and nodes, and the groups of the mesh.
#pragma once

#include <memory>
#include <string>

#include "base/error.h"
#include "comm/comm.h"
#include "comm/mac.h"
#include "spec/mesh.h"

namespace mw {

// A rank among those of its node: it takes a GPU by `rank`, and shares cores and memory with all `ranks`.
struct NodePlace {
  int rank = 0, ranks = 1;
};

// Made once per process; ends the message library when destroyed. A process started without a launcher is a world of
// one, unless its environment says how to join others (comm/tcp_join.h).
class World {
 public:
  virtual ~World() = default;
  virtual Comm& comm() = 0;
  virtual std::string library() const = 0;  // "Open MPI 4.1.4", "none (built without MPI)"
  virtual NodePlace place() const = 0;
  int local_size() const { return place().ranks; }
  virtual int nodes() const = 0;
  // For handshakes of further connections between the ranks: the same on all of them, and known to no one else.
  virtual JoinKey key() const = 0;
  // The IPv4 address, as inet_ntoa takes it, at which the other ranks reach rank 0, on rank 0; 0: not known.
  virtual uint32_t host() const { return 0; }
  // Takes the whole job down with this exit code, after the caller has written its reason. Does not return.
  [[noreturn]] virtual void abort(Exit code) = 0;
};

// A launcher that is told to abort may drop what it has not read yet from a rank's output, and with it the reason.
// Waits until it has read all, for two seconds at most.
void wait_until_output_is_read();

// Errors: comm; unsupported, when a launcher started several ranks of a build without MPI.
std::unique_ptr<World> start_world(int* argc, char*** argv);

// The groups of one rank, by mesh axis.
struct MeshComms {
  std::unique_ptr<Comm> dp, tp, ep, edp, pp;
  std::unique_ptr<Comm> stage;  // DP x TP: all ranks that work on the same layers
  Comm& of(Replicas replicas) const;
  bool cuts_experts = false;                 // over TP (Mesh::ted)
  std::shared_ptr<struct GpuLink> gpu_link;  // of the groups that move GPU memory (comm/gpu_comm.h)
  std::string gpu_library;                   // what moves GPU memory between ranks; "": the host does
};
// Where every rank computes on a GPU of its own, the groups move GPU memory directly. Collective over the world, whose
// size the mesh must have. Errors: comm.
MeshComms make_mesh_comms(Comm& world, const Mesh& mesh, Device device = {});

// What the launcher did, with as many ranks as mesh.ranks_per_node says where the run sets it.
NodePlace place_on_node(const World& world, const MeshSpec& mesh);

// Ranks of the world that compute on this rank's GPU, itself included, whatever each process calls it; 0 on a CPU.
// Collective over the world.
int ranks_on_gpu(Comm& world, Device device);

}  // namespace mw
