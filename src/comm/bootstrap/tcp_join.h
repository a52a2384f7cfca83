// Rendezvous over TCP, for processes that were started one by one, as torchrun and Kubernetes operators do. Each
// process knows its rank, the number of ranks, where rank 0 listens, and the secret of the job. All connect to rank 0
// and then to one another. Every connection begins with a handshake in which both sides prove that they know the secret
// (comm/bootstrap/handshake.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/bootstrap/mac.h"
#include "comm/bootstrap/socket.h"

namespace mw {

// The environment variables of the rendezvous.
struct JoinSpec {
  int rank = 0, size = 1;
  int local_rank = -1;            // LOCAL_RANK; -1: not set
  std::string host;               // MASTER_ADDR
  uint16_t port = 0;              // MASTER_PORT
  double seconds = 300;           // MOEWRIGHT_JOIN_SECONDS: how long ranks wait for each other
  std::optional<JoinKey> secret;  // see comm/bootstrap/join_secret.h; none is allowed on loopback only
};

// Whether an MPI launcher (mpirun, or srun with PMI) has started this process.
bool launched_by_mpi();

// The number of this process among those that a launcher started, as its environment says, which needs no
// communication; 0 where it says nothing.
int launched_rank();

// Reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and the variables of the secret. None where WORLD_SIZE
// is at most 1, or an MPI launcher started the process. Errors: comm, when a variable is missing or is not a number in
// its range, and those of read_join_secret().
std::optional<JoinSpec> read_join_environment();

struct JoinedRanks {
  std::vector<Descriptor> connections;  // by rank; its own is invalid
  std::vector<uint64_t> nodes;          // by rank: equal for ranks of one node
  JoinKey key{};                        // the same on all ranks of this world; nobody without the secret can compute it
  uint32_t host = 0;                    // on rank 0: the address on which it listened; 0: all
};

// Collective over the future ranks. Errors: comm, the same on all ranks that connected: missing ranks after the
// timeout, duplicate ranks, different values of WORLD_SIZE, an address that cannot be listened on or connected to, no
// secret although MASTER_ADDR is not a loopback address. Only on the rank concerned: its secret differs from rank 0's.
// Connections of strangers do no harm; rank 0 warns about them on stderr.
JoinedRanks join_ranks(const JoinSpec& spec);

}  // namespace mw
