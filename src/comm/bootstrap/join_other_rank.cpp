#include <algorithm>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "base/text.h"
#include "comm/bootstrap/guests.h"
#include "comm/bootstrap/join_secret.h"
#include "comm/bootstrap/join_sides.h"

namespace mw {
namespace {

constexpr double kLinkSeconds = 60;  // for all connections between ranks
constexpr double kTrySeconds = 10;   // for one to rank 0, which a firewall may leave without an answer

void sleep_a_little() { std::this_thread::sleep_for(std::chrono::milliseconds(100)); }

// This rank at rank 0's door.
struct Arrival {
  Descriptor zero, listener;
  uint32_t master = 0;
};

Hello make_hello(const JoinSpec& spec, Purpose purpose, int to) {
  Hello hello;
  hello.purpose = purpose;
  hello.has_secret = spec.secret.has_value();
  hello.rank = spec.rank;
  hello.to = to;
  hello.size = spec.size;
  return hello;
}

[[noreturn]] void fail_refused(const JoinSpec& spec, Refusal refusal) {
  const std::string where = fmt::format("rank {}: rank 0 at {}:{}", spec.rank, printable(spec.host), spec.port);
  switch (refusal) {
    case Refusal::wrong_secret:
      fail(
          Exit::comm, where + " has another join secret than this rank",
          "give all ranks of a job the same MOEWRIGHT_JOIN_SECRET (or the same file in MOEWRIGHT_JOIN_SECRET_FILE); or "
          "another job listens at this port");
    case Refusal::secret_missing:
      fail(Exit::comm, where + " has a join secret, and this rank has none",
           "give all ranks of a job the same MOEWRIGHT_JOIN_SECRET (or the same file in MOEWRIGHT_JOIN_SECRET_FILE)");
    case Refusal::secret_unexpected:
      fail(Exit::comm, where + " has no join secret, and this rank has one",
           "give rank 0 the same MOEWRIGHT_JOIN_SECRET (or MOEWRIGHT_JOIN_SECRET_FILE)");
    case Refusal::other_addresses:
      fail(Exit::comm,
           where + " sees other addresses than this rank: a relay or an address translation is between them",
           "ranks must reach each other directly: let MASTER_ADDR be the address that rank 0's node itself has");
    case Refusal::none: break;
  }
  MW_CHECK(false, "refused without a reason");
}

// Tries until rank 0 is up and lets this rank in.
Arrival reach_rank_zero(const JoinSpec& spec, Deadline end) {
  std::string why = "its name is not known";
  Hello hello = make_hello(spec, Purpose::join, 0);
  const RankRow node = introduce();
  hello.node = node.node;
  hello.name = node.name;
  WaitNotice notice(spec);
  for (; seconds_until(end) > 0; sleep_a_little()) {
    if (notice.pause() == 0) notice.say("rank 0: " + why);
    Arrival arrival;
    arrival.master = resolve(spec.host);
    if (arrival.master == 0) continue;
    check_secret(spec, arrival.master);
    why = "nobody answers there";
    arrival.zero = connect_to(arrival.master, spec.port, std::min(kTrySeconds, seconds_until(end)), -1);
    if (!arrival.zero.valid()) continue;
    hello.port = 0;
    const uint32_t own = local_end(arrival.zero).host;
    const bool on_node_of_zero = is_loopback(own) || own == arrival.master;
    arrival.listener = listen_at(on_node_of_zero ? listening_host(spec, arrival.master) : own, hello.port);
    const EntryResult result = enter(arrival.zero, hello, key_of(spec), end, -1);
    if (result.entry == Entry::admitted) return arrival;
    if (result.entry == Entry::refused) fail_refused(spec, result.refusal);
    if (result.entry == Entry::foreign)
      fail(Exit::comm,
           fmt::format("rank {} reached {}:{}, but what answers there is no rank 0 of this job", spec.rank,
                       printable(spec.host), spec.port),
           "something else listens at MASTER_PORT; all ranks must run the same version of Moewright");
    why = "connections are accepted there, but no rank 0 answers on them";
  }
  fail(Exit::comm,
       fmt::format("rank {} did not reach rank 0 at MASTER_ADDR={}, MASTER_PORT={} within {} s: {}", spec.rank,
                   printable(spec.host), spec.port, spec.seconds, why),
       "rank 0 must be started with that address of its node; look whether a firewall closes the port");
}

// What rank 0 tells all when they have come.
struct Roster {
  Nonce token{};
  std::vector<RankRow> rows;
};

[[noreturn]] void fail_lost(const JoinSpec& spec) {
  fail(Exit::comm, fmt::format("rank {} lost rank 0 while ranks met", spec.rank), "look for the message of rank 0");
}

Roster read_answer(const JoinSpec& spec, const Descriptor& zero) {
  const Deadline last = after(spec.seconds + 30);  // rank 0 waits for so long at most, and then says whom it missed
  AnswerBytes head;
  if (!read_all(zero, head, last)) fail_lost(spec);
  const std::optional<Answer> answer = parse_answer(head);
  if (!answer || (answer->ranks != 0 && answer->ranks != static_cast<uint32_t>(spec.size))) fail_lost(spec);
  if (answer->reason_bytes > 0) {
    std::string reason(answer->reason_bytes, '\0');
    if (!read_all(zero, std::as_writable_bytes(std::span(reason.data(), reason.size())), last))
      reason = "rank 0 refuses, and is gone";
    fail(Exit::comm, fmt::format("rank {}: {}", spec.rank, printable(reason, kMostReasonBytes)), kJoinHint);
  }
  Roster roster{answer->token, {}};
  for (uint32_t r = 0; r < answer->ranks; ++r) {
    RowBytes bytes;
    if (!read_all(zero, bytes, last)) fail_lost(spec);
    roster.rows.push_back(parse_row(bytes).value());
  }
  return roster;
}

// Between this rank and all others but rank 0.
class Links {
 public:
  Links(const JoinSpec& spec, const Roster& roster, const JoinKey& key, uint32_t master,
        std::vector<Descriptor>& connections)
      : spec_(spec),
        roster_(roster),
        key_(key),
        master_(master),
        connections_(connections),
        end_(after(kLinkSeconds)) {}

  // Connects to the ranks below, and waits for those above.
  void make(Descriptor listener) {
    for (int r = 1; r < spec_.rank; ++r) connect_to_rank(r);
    Guests guests(std::move(listener), {Purpose::link, spec_.rank, key_, spec_.secret.has_value()});
    for (int left = spec_.size - 1 - spec_.rank; left > 0;) {
      if (seconds_until(end_) <= 0) fail_missing();
      wait_readable(guests.get(), -1, std::min(seconds_until(end_), guests.pause()));
      for (AdmittedGuest& guest : guests.admit()) {
        if (guest.hello.size != spec_.size) continue;
        Descriptor& place = connections_[static_cast<size_t>(guest.hello.rank)];
        if (!place.valid()) --left;
        place = std::move(guest.connection);
      }
    }
  }

 private:
  void connect_to_rank(int rank) {
    const Endpoint& at = roster_.rows[static_cast<size_t>(rank)].at;
    const Hello hello = make_hello(spec_, Purpose::link, rank);
    for (; seconds_until(end_) > 0; sleep_a_little()) {
      Descriptor connection = connect_to(at.host == 0 ? master_ : at.host, at.port, seconds_until(end_), -1);
      if (!connection.valid()) continue;
      const EntryResult result = enter(connection, hello, key_, end_, -1);
      if (result.entry == Entry::closed) continue;
      if (result.entry != Entry::admitted) break;
      connections_[static_cast<size_t>(rank)] = std::move(connection);
      return;
    }
    fail_to(rank);
  }
  [[noreturn]] void fail_to(int rank) const {
    fail(Exit::comm,
         fmt::format("rank {} and rank {} on {} do not reach each other over TCP", spec_.rank, rank,
                     roster_.rows[static_cast<size_t>(rank)].name),
         "open all ports between the nodes of the job; ranks take any that is free");
  }
  [[noreturn]] void fail_missing() const {
    int rank = spec_.rank + 1;
    while (rank + 1 < spec_.size && connections_[static_cast<size_t>(rank)].valid()) ++rank;
    fail_to(rank);
  }

  const JoinSpec& spec_;
  const Roster& roster_;
  const JoinKey& key_;
  uint32_t master_;
  std::vector<Descriptor>& connections_;
  Deadline end_;
};

}  // namespace

JoinedRanks meet_rank_zero(const JoinSpec& spec) {
  Arrival arrival = reach_rank_zero(spec, after(spec.seconds));
  const Roster roster = read_answer(spec, arrival.zero);
  JoinedRanks joined;
  joined.key = world_key(spec, roster.token);
  for (const RankRow& row : roster.rows) joined.nodes.push_back(row.node);
  joined.connections.resize(roster.rows.size());
  joined.connections[0] = std::move(arrival.zero);
  Links(spec, roster, joined.key, arrival.master, joined.connections).make(std::move(arrival.listener));
  return joined;
}

}  // namespace mw
