#include <fmt/ranges.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "base/error.h"
#include "base/text.h"
#include "comm/bootstrap/guests.h"
#include "comm/bootstrap/join_secret.h"
#include "comm/bootstrap/join_sides.h"

namespace mw {
namespace {

constexpr double kAnswerSeconds = 10;  // for a rank to receive the answer

// The address of MASTER_ADDR, as soon as the name is known.
uint32_t find_own_address(const JoinSpec& spec, Deadline end, WaitNotice& notice) {
  do {
    if (notice.pause() == 0) notice.say("its own address: its name is not known");
    if (const uint32_t host = resolve(spec.host); host != 0) return host;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  } while (seconds_until(end) > 0);
  fail(Exit::comm, fmt::format("rank 0 does not know its own MASTER_ADDR={}", printable(spec.host)),
       "MASTER_ADDR must be a name or an IPv4 address of rank 0's node");
}

Descriptor listen_as_rank_zero(const JoinSpec& spec, uint32_t host) {
  uint16_t port = spec.port;
  try {
    return listen_at(host, port);
  } catch (const Error& error) {
    fail(Exit::comm,
         fmt::format("rank 0 cannot listen at MASTER_ADDR={}, MASTER_PORT={}: {}", printable(spec.host), spec.port,
                     error.what()),
         "MASTER_ADDR must be an address of rank 0's node. Take a free port; torchrun keeps its own MASTER_PORT to "
         "itself: give another one to its processes; and RANK=0 must be set once");
  }
}

// Who has come, and what is wrong.
class Meeting {
 public:
  explicit Meeting(const JoinSpec& spec)
      : spec_(spec),
        end_(after(spec.seconds)),
        notice_(spec),
        rows_(size()),
        connections_(size()),
        here_(size(), false) {
    rows_[0] = introduce();
    here_[0] = true;
  }

  JoinedRanks hold() {
    const uint32_t master = find_own_address(spec_, end_, notice_);
    check_secret(spec_, master);
    const uint32_t host = listening_host(spec_, master);
    Guests guests(listen_as_rank_zero(spec_, host), {Purpose::join, 0, key_of(spec_), spec_.secret.has_value()});
    if (!spec_.secret)
      std::fputs(fmt::format("moewright: warning: there is no join secret: any process of this machine can become a "
                             "rank of this job. To prevent it: {}\n",
                             kMakeSecret)
                     .c_str(),
                 stderr);
    wait_for_all(guests);
    if (problem_.empty() && any_missing()) {
      drop_lost();  // to name those too
      problem_ = fmt::format("{} of {} ranks did not come to {}:{} within {} s: {}", missing().size(), spec_.size,
                             spec_.host, spec_.port, spec_.seconds, fmt::join(missing(), ", "));
    }
    JoinedRanks joined;
    joined.key = answer();
    joined.host = host;
    if (!problem_.empty()) fail(Exit::comm, problem_, kJoinHint);
    for (const RankRow& row : rows_) joined.nodes.push_back(row.node);
    joined.connections = std::move(connections_);
    return joined;
  }

 private:
  size_t size() const { return static_cast<size_t>(spec_.size); }
  std::vector<std::string> missing() const {
    std::vector<std::string> ranks;
    for (size_t r = 0; r < size(); ++r) {
      if (here_[r]) continue;
      const bool came = rows_[r].at.port != 0;
      ranks.push_back(fmt::format("{}{}", r, came ? " (was lost on " + rows_[r].name + ")" : ""));
    }
    return ranks;
  }

  // Not thousands of numbers.
  std::string describe_missing() const {
    constexpr size_t kMost = 16;
    const std::vector<std::string> ranks = missing();
    const auto named = std::span(ranks).first(std::min(kMost, ranks.size()));
    return fmt::format("{} of {} ranks: {}{}", ranks.size(), spec_.size, fmt::join(named, ", "),
                       ranks.size() > kMost ? ", ..." : "");
  }

  void wait_for_all(Guests& guests) {
    while ((!problem_.empty() || !complete()) && seconds_until(end_) > 0) {
      const bool refusing = !problem_.empty();
      if (notice_.pause() == 0 && !refusing) notice_.say(describe_missing());
      wait_readable(guests.get(), -1, std::min({seconds_until(end_), guests.pause(), std::max(0.1, notice_.pause())}));
      for (AdmittedGuest& guest : guests.admit()) receive(std::move(guest));
      if (!refusing && !problem_.empty()) end_ = std::min(end_, after(2));  // those that are about to come hear of it
    }
  }

  bool any_missing() const { return std::find(here_.begin(), here_.end(), false) != here_.end(); }

  // All ranks have come, and none of them has died since.
  bool complete() {
    if (any_missing()) return false;
    drop_lost();
    return !any_missing();
  }
  void drop_lost() {
    for (size_t r = 1; r < size(); ++r) drop_if_lost(r);
  }

  // A rank that waits says nothing more. One that died leaves its place to the process that is started again.
  void drop_if_lost(size_t rank) {
    if (rank == 0 || !here_[rank] || !is_closed(connections_[rank])) return;
    here_[rank] = false;
    connections_[rank].close();
  }

  void receive(AdmittedGuest guest) {
    const Hello& hello = guest.hello;
    if (hello.size == spec_.size) drop_if_lost(static_cast<size_t>(hello.rank));
    if (std::string why = why_not(hello); !why.empty()) {
      if (problem_.empty()) problem_ = std::move(why);
      refused_.push_back(std::move(guest.connection));
      return;
    }
    const auto rank = static_cast<size_t>(hello.rank);
    const bool here = is_loopback(hello.guest.host) || hello.guest.host == hello.host.host;  // on this node
    here_[rank] = true;
    rows_[rank] = {hello.node, {here ? 0 : hello.guest.host, hello.port}, hello.name};
    connections_[rank] = std::move(guest.connection);
  }

  std::string why_not(const Hello& hello) const {
    if (hello.size != spec_.size)
      return fmt::format("rank {} on {} was started with WORLD_SIZE={}, rank 0 with {}", hello.rank, hello.name,
                         hello.size, spec_.size);
    const auto rank = static_cast<size_t>(hello.rank);
    if (!here_[rank]) return "";
    return fmt::format("two processes have RANK={}: on {} and on {}", hello.rank, rows_[rank].name, hello.name);
  }

  // Tells all what came of it, and returns the key of this world.
  JoinKey answer() {
    Answer head;
    fill_random(head.token);
    std::vector<std::byte> message;
    const auto append = [&](std::span<const std::byte> bytes) {
      message.insert(message.end(), bytes.begin(), bytes.end());
    };
    if (problem_.empty()) {
      head.ranks = static_cast<uint32_t>(size());
      append(encode(head));
      for (const RankRow& row : rows_) append(encode(row));
    } else {
      const std::string_view reason = std::string_view(problem_).substr(0, kMostReasonBytes);
      head.reason_bytes = static_cast<uint32_t>(reason.size());
      append(encode(head));
      append(std::as_bytes(std::span(reason)));
    }
    for (const Descriptor& one : refused_) write_all(one, message, after(kAnswerSeconds));
    for (size_t r = 1; r < size(); ++r) {
      if (!connections_[r].valid() || write_all(connections_[r], message, after(kAnswerSeconds))) continue;
      if (problem_.empty()) problem_ = fmt::format("rank {} came and was lost again", r);
    }
    return world_key(spec_, head.token);
  }

  const JoinSpec& spec_;
  Deadline end_;
  WaitNotice notice_;
  std::vector<RankRow> rows_;
  std::vector<Descriptor> connections_;
  std::vector<bool> here_;
  std::vector<Descriptor> refused_;
  std::string problem_;
};

}  // namespace

JoinedRanks meet_ranks(const JoinSpec& spec) { return Meeting(spec).hold(); }

}  // namespace mw
