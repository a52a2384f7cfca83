// The two sides of a join: rank 0, where all meet, and every other rank, which comes to it. And what both need.
#pragma once

#include "comm/join_messages.h"
#include "comm/tcp_join.h"

namespace mw {

inline constexpr const char* kJoinHint =
    "start every process with the same WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and a RANK of its own";

// A key of zeros where the job has no secret.
JoinKey key_of(const JoinSpec& spec);
// Of this world alone. `token` is drawn by its rank 0.
JoinKey world_key(const JoinSpec& spec, const Nonce& token);

// MASTER_ADDR as an IPv4 address; 0: the name is not known, yet.
uint32_t resolve(const std::string& host);

// Error: comm, where MASTER_ADDR leads to another machine, or to this one by an address that others reach, and the job
// has no secret.
void check_secret(const JoinSpec& spec, uint32_t master);

// At which address rank 0 listens, and every rank on its node: at `master` alone, but for a name other than localhost
// that leads to the loopback interface, as /etc/hosts of many systems has it for the machine's own name. Other nodes
// then know this one by another address, and it listens at all of them.
uint32_t listening_host(const JoinSpec& spec, uint32_t master);

// The node of this process, without an address.
RankRow introduce();

// Collective. Errors: those of join_ranks().
JoinedRanks meet_ranks(const JoinSpec& spec);      // on rank 0
JoinedRanks meet_rank_zero(const JoinSpec& spec);  // on the others

}  // namespace mw
