// The two sides of joining a job over TCP: rank 0, to which all ranks connect, and every other rank; and helpers of
// both.
#pragma once

#include <algorithm>
#include <limits>
#include <string>

#include "comm/bootstrap/join_messages.h"
#include "comm/bootstrap/tcp_join.h"

namespace mw {

inline constexpr const char* kJoinHint =
    "start every process with the same WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and a RANK of its own";

// The key of the job's secret; zeros where it has none.
JoinKey key_of(const JoinSpec& spec);
// A key for this world only. `token` is drawn at random by its rank 0.
JoinKey world_key(const JoinSpec& spec, const Nonce& token);

// Resolves MASTER_ADDR to an IPv4 address; 0: the name cannot be resolved (yet).
uint32_t resolve(const std::string& host);

// Errors: comm, where the job has no secret although MASTER_ADDR is another machine, or an address of this one that
// others can reach.
void check_secret(const JoinSpec& spec, uint32_t master);

// The address on which rank 0, and every rank on its node, listens: `master` alone, or all addresses when a name other
// than localhost resolves to the loopback interface (as /etc/hosts of many systems does for the machine's own name),
// because other nodes then know this one by another address.
uint32_t listening_host(const JoinSpec& spec, uint32_t master);

// Describes the node of this process, without an address.
RankRow introduce();

// Says on stderr, once, what a rank waits for: after ten seconds, or half of the time that it has. Of the ranks of a
// node only the first does.
class WaitNotice {
 public:
  explicit WaitNotice(const JoinSpec& spec) : spec_(spec), due_(after(std::min(10.0, spec.seconds / 2))) {}
  // Seconds until say() is to be called; 0: now.
  double pause() const {
    const bool says = !said_ && spec_.local_rank <= 0;
    return says ? std::max(0.0, seconds_until(due_)) : std::numeric_limits<double>::infinity();
  }
  void say(const std::string& waits_for);

 private:
  const JoinSpec& spec_;
  Deadline due_;
  bool said_ = false;
};

// Collective. Errors: those of join_ranks().
JoinedRanks meet_ranks(const JoinSpec& spec);      // on rank 0
JoinedRanks meet_rank_zero(const JoinSpec& spec);  // on the others

}  // namespace mw
