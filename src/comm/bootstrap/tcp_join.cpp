#include "comm/bootstrap/tcp_join.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "comm/bootstrap/join_secret.h"
#include "comm/bootstrap/join_sides.h"

namespace mw {
namespace {

bool is_literal(const std::string& host) {
  in_addr address{};
  return inet_pton(AF_INET, host.c_str(), &address) == 1;
}

// Devices and cores are given out by the place of a rank among those of its node.
void check_local_rank(const JoinSpec& spec, const std::vector<uint64_t>& nodes) {
  const uint64_t mine = nodes[static_cast<size_t>(spec.rank)];
  const auto on_node = std::count(nodes.begin(), nodes.end(), mine);
  // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): `mine` is one of them
  if (spec.local_rank >= 0 && spec.local_rank != spec.rank % on_node)
    fail(Exit::comm,
         fmt::format("RANK={} has LOCAL_RANK={} on a node of {} ranks, expected {}", spec.rank, spec.local_rank,
                     on_node, spec.rank % on_node),
         "number the ranks node by node, with equally many on each");
}

}  // namespace

JoinKey key_of(const JoinSpec& spec) { return spec.secret.value_or(JoinKey{}); }

JoinKey world_key(const JoinSpec& spec, const Nonce& token) { return derive_key(key_of(spec), token); }

uint32_t resolve(const std::string& host) {
  addrinfo wanted{};
  wanted.ai_family = AF_INET;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &wanted, &found) != 0 || found == nullptr) return 0;
  sockaddr_in at{};
  std::memcpy(&at, found->ai_addr, sizeof at);
  freeaddrinfo(found);
  return at.sin_addr.s_addr;
}

void WaitNotice::say(const std::string& waits_for) {
  said_ = true;
  std::fputs(fmt::format("moewright: rank {} waits for {} (MASTER_ADDR={}, MASTER_PORT={}; {} s at most)\n", spec_.rank,
                         waits_for, printable(spec_.host), spec_.port, spec_.seconds)
                 .c_str(),
             stderr);
}

void check_secret(const JoinSpec& spec, uint32_t master) {
  if (spec.secret || is_loopback(master)) return;
  fail(Exit::comm,
       fmt::format("MASTER_ADDR={} ({}) can be reached from other machines, and the job has no join secret: whoever "
                   "connects to port {} could become a rank",
                   printable(spec.host), describe_host(master), spec.port),
       kMakeSecret);
}

uint32_t listening_host(const JoinSpec& spec, uint32_t master) {
  const bool loopback_meant = !spec.secret || is_literal(spec.host) || spec.host == "localhost";
  return is_loopback(master) && !loopback_meant ? htonl(INADDR_ANY) : master;
}

RankRow introduce() {
  char name[65] = {};
  gethostname(name, sizeof name - 1);
  RankRow row;
  row.name = name;
  row.node = std::hash<std::string>()(row.name + read_text_file("/proc/sys/kernel/random/boot_id", 64));
  return row;
}

JoinedRanks join_ranks(const JoinSpec& spec) {
  make_room_for(2 * spec.size);  // the watchdog connects all ranks to rank 0 once more
  JoinedRanks joined = spec.rank == 0 ? meet_ranks(spec) : meet_rank_zero(spec);
  check_local_rank(spec, joined.nodes);
  return joined;
}

}  // namespace mw
