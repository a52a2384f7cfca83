// A world of processes that somebody else has started one by one, as torchrun and Kubernetes operators do: each knows
// its rank, the number of ranks, where rank 0 listens and the secret of the job. They meet there and connect to one
// another. Every connection begins with a handshake in which both sides prove that they know the secret
// (comm/handshake.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/mac.h"
#include "comm/socket.h"

namespace mw {

// What the environment says of it.
struct JoinSpec {
  int rank = 0, size = 1;
  int local_rank = -1;            // among the ranks of its node; -1: not said
  std::string host;               // MASTER_ADDR
  uint16_t port = 0;              // MASTER_PORT
  double seconds = 300;           // how long ranks wait for one another: MOEWRIGHT_JOIN_SECONDS
  std::optional<JoinKey> secret;  // of the job (comm/join_secret.h); none: on loopback addresses only
};

// Whether a launcher of MPI has started this process, mpirun or srun with PMI.
bool launched_by_mpi();

// From RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and the variables of the secret. None where WORLD_SIZE is
// not above 1, or where a launcher of MPI is at work. Errors: comm, when a variable is missing or no number in its
// range, and those of read_join_secret().
std::optional<JoinSpec> read_join_environment();

struct JoinedRanks {
  std::vector<Descriptor> connections;  // by rank; that to itself is invalid
  std::vector<uint64_t> nodes;          // by rank: equal for ranks of one node
  JoinKey key{};                        // the same on all ranks of this world; nobody without the secret can compute it
  uint32_t host = 0;                    // on rank 0: the address at which it listened; 0: all
};

// Collective over the ranks to be. Errors: comm, on all that came, the same: ranks that did not come in time, two with
// one number, several ideas of WORLD_SIZE; an address that nobody can listen at or connect to; no secret although
// MASTER_ADDR is no loopback address. On the rank alone: it has another secret than rank 0. Strangers who connect do
// not matter; rank 0 warns of them on stderr.
JoinedRanks join_ranks(const JoinSpec& spec);

}  // namespace mw
