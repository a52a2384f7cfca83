#include "comm/tcp_join.h"

#include <arpa/inet.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace mw {
namespace {

constexpr std::array<char, 8> kHelloMagic{'M', 'W', 'J', 'O', 'I', 'N', '0', '1'};
constexpr uint64_t kMaxText = 4096;
constexpr const char* kHint =
    "start every process with the same WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and a RANK of its own";

using Clock = std::chrono::steady_clock;

double seconds_until(Clock::time_point end) {
  return std::max(0.0, std::chrono::duration<double>(end - Clock::now()).count());
}
Clock::time_point after(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// What a rank says of itself to rank 0.
struct Hello {
  std::array<char, 8> magic = kHelloMagic;
  int32_t rank = 0, size = 0;
  uint64_t node = 0;
  uint32_t host = 0;  // where it listens for other ranks; 0: at MASTER_ADDR
  uint16_t port = 0;
  std::array<char, 66> name{};  // of its node, for messages
};
// What rank 0 answers: the table of all ranks follows, or why there will be none.
struct Answer {
  uint64_t token = 0;    // of this world
  uint64_t refused = 0;  // bytes of the reason; 0: the table
};
// What a rank says to one that is not rank 0.
struct Greeting {
  uint64_t token = 0;
  int64_t rank = 0;
};

// False: the other side has closed, or the time is over.
bool read_all(const Descriptor& from, void* to, size_t bytes, Clock::time_point end) {
  for (auto* at = static_cast<char*>(to); bytes > 0;) {
    const ssize_t got = recv(from.get(), at, bytes, 0);
    if (got > 0) at += got, bytes -= static_cast<size_t>(got);
    else if (got == 0 || (errno != EAGAIN && errno != EINTR) || Clock::now() >= end) return false;
    else wait_readable(from.get(), -1, seconds_until(end));
  }
  return true;
}

bool write_all(const Descriptor& to, const void* from, size_t bytes, Clock::time_point end) {
  for (const auto* at = static_cast<const char*>(from); bytes > 0;) {
    const ssize_t sent = send(to.get(), at, bytes, MSG_NOSIGNAL);
    if (sent > 0) at += sent, bytes -= static_cast<size_t>(sent);
    else if ((errno != EAGAIN && errno != EINTR) || Clock::now() >= end) return false;
    else std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

int64_t number_of(const char* name, int64_t lowest, int64_t highest) {
  const std::string text = variable(name);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < lowest || value > highest)
    fail(Exit::comm,
         fmt::format("{}={}: expected a whole number from {} to {}", name, printable(text), lowest, highest), kHint);
  return value;
}

std::string node_name() {
  char name[65] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

Hello introduce(const JoinSpec& spec) {
  Hello hello;
  hello.rank = spec.rank;
  hello.size = spec.size;
  const std::string name = node_name();
  hello.node = std::hash<std::string>()(name + read_text_file("/proc/sys/kernel/random/boot_id", 64));
  std::copy_n(name.begin(), std::min(name.size(), hello.name.size() - 1), hello.name.begin());
  return hello;
}

// Null: the name is not known, yet.
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

// Rank 0: who has come, and what is wrong.
class Meeting {
 public:
  explicit Meeting(const JoinSpec& spec) : spec_(spec), hellos_(size()), connections_(size()) {
    hellos_[0] = introduce(spec);
    here_.assign(size(), false);
    here_[0] = true;
  }

  JoinedRanks hold() {
    auto end = after(spec_.seconds);
    const Descriptor listener = listen();
    while ((!problem_.empty() || !complete()) && Clock::now() < end) {
      const bool refusing = !problem_.empty();
      wait_readable(listener.get(), -1, seconds_until(end));
      for (Descriptor guest = accept_from(listener); guest.valid(); guest = accept_from(listener))
        receive(std::move(guest));
      if (!refusing && !problem_.empty()) end = std::min(end, after(2));  // those that are about to come hear of it
    }
    if (problem_.empty() && any_missing()) {
      drop_lost();  // to name those too
      problem_ = fmt::format("{} of {} ranks did not come to {}:{} within {} s: {}", missing().size(), spec_.size,
                             spec_.host, spec_.port, spec_.seconds, fmt::join(missing(), ", "));
    }
    answer();
    if (!problem_.empty()) fail(Exit::comm, problem_, kHint);
    JoinedRanks joined;
    for (const Hello& hello : hellos_) joined.nodes.push_back(hello.node);
    joined.connections = std::move(connections_);
    return joined;
  }

 private:
  size_t size() const { return static_cast<size_t>(spec_.size); }
  std::vector<std::string> missing() const {
    std::vector<std::string> ranks;
    for (size_t r = 0; r < size(); ++r) {
      if (here_[r]) continue;
      const bool came = hellos_[r].port != 0;
      ranks.push_back(fmt::format("{}{}", r, came ? " (was lost on " + name_of(r) + ")" : ""));
    }
    return ranks;
  }
  std::string name_of(size_t rank) const { return printable(hellos_[rank].name.data()); }

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

  Descriptor listen() const {
    uint16_t port = spec_.port;
    try {
      return listen_at(htonl(INADDR_ANY), port);
    } catch (const Error& error) {
      fail(Exit::comm, fmt::format("rank 0 cannot listen at MASTER_PORT={}: {}", spec_.port, error.what()),
           "take a free port; torchrun keeps its own MASTER_PORT to itself: give another one to its processes; and "
           "RANK=0 must be set once");
    }
  }

  // What is no rank's hello is dropped: ports are scanned.
  void receive(Descriptor guest) {
    Hello hello;
    if (!read_all(guest, &hello, sizeof hello, after(5)) || hello.magic != kHelloMagic) return;
    hello.name.back() = '\0';
    if (hello.size == spec_.size && (hello.rank < 0 || hello.rank >= spec_.size)) return;
    if (hello.size == spec_.size) drop_if_lost(static_cast<size_t>(hello.rank));
    if (std::string why = why_not(hello); !why.empty()) {
      if (problem_.empty()) problem_ = std::move(why);
      refused_.push_back(std::move(guest));
      return;
    }
    const auto rank = static_cast<size_t>(hello.rank);
    here_[rank] = true;
    hellos_[rank] = hello;
    connections_[rank] = std::move(guest);
  }

  std::string why_not(const Hello& hello) const {
    const std::string node = printable(hello.name.data());
    if (hello.size != spec_.size)
      return fmt::format("rank {} on {} was started with WORLD_SIZE={}, rank 0 with {}", hello.rank, node, hello.size,
                         spec_.size);
    const auto rank = static_cast<size_t>(hello.rank);
    if (!here_[rank]) return "";
    return fmt::format("two processes have RANK={}: on {} and on {}", hello.rank, name_of(rank), node);
  }

  void answer() {
    Answer head;
    if (getrandom(&head.token, sizeof head.token, 0) != sizeof head.token) fail_system("getrandom");
    head.refused = std::min<uint64_t>(problem_.size(), kMaxText);
    const void* body = problem_.empty() ? static_cast<const void*>(hellos_.data()) : problem_.data();
    const size_t bytes = problem_.empty() ? hellos_.size() * sizeof(Hello) : head.refused;
    const auto tell = [&](const Descriptor& to) {
      return !to.valid() || (write_all(to, &head, sizeof head, after(10)) && write_all(to, body, bytes, after(10)));
    };
    for (const Descriptor& one : refused_) tell(one);
    for (size_t r = 1; r < size(); ++r)
      if (!tell(connections_[r]) && problem_.empty()) problem_ = fmt::format("rank {} came and was lost again", r);
  }

  const JoinSpec& spec_;
  std::vector<Hello> hellos_;
  std::vector<Descriptor> connections_;
  std::vector<bool> here_;
  std::vector<Descriptor> refused_;
  std::string problem_;
};

// Asks again until rank 0 is up.
Descriptor reach_rank_zero(const JoinSpec& spec, uint32_t& master, Clock::time_point end) {
  std::string why = "its name is not known";
  while (Clock::now() < end) {
    master = resolve(spec.host);
    if (master != 0) {
      why = "nobody answers there";
      Descriptor connection = connect_to(master, spec.port, seconds_until(end), -1);
      if (connection.valid()) return connection;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  fail(Exit::comm,
       fmt::format("rank {} did not reach rank 0 at MASTER_ADDR={}, MASTER_PORT={} within {} s: {}", spec.rank,
                   printable(spec.host), spec.port, spec.seconds, why),
       "rank 0 must be started with that address of its node; look whether a firewall closes the port");
}

// The address of this node that leads to rank 0; 0 on rank 0's own.
uint32_t own_host(const Descriptor& connection, uint32_t master) {
  sockaddr_in at{};
  socklen_t bytes = sizeof at;
  if (getsockname(connection.get(), reinterpret_cast<sockaddr*>(&at), &bytes) != 0) fail_system("getsockname");
  const uint32_t host = at.sin_addr.s_addr;
  const bool loopback = (ntohl(host) >> 24) == IN_LOOPBACKNET;
  return loopback || host == master ? 0 : host;
}

// Connects to the ranks below this one but rank 0, and waits for those above.
void connect_to_others(const JoinSpec& spec, const std::vector<Hello>& table, uint64_t token, uint32_t master,
                       const Descriptor& listener, std::vector<Descriptor>& connections) {
  const auto end = after(60);
  const auto fail_to = [&](int64_t other) {
    fail(Exit::comm,
         fmt::format("rank {} and rank {} on {} do not reach each other over TCP", spec.rank, other,
                     printable(table[static_cast<size_t>(other)].name.data())),
         "open all ports between the nodes of the job; ranks take any that is free");
  };
  for (int r = 1; r < spec.rank; ++r) {
    const Hello& other = table[static_cast<size_t>(r)];
    Descriptor connection = connect_to(other.host == 0 ? master : other.host, other.port, seconds_until(end), -1);
    const Greeting greeting{token, spec.rank};
    if (!connection.valid() || !write_all(connection, &greeting, sizeof greeting, end)) fail_to(r);
    connections[static_cast<size_t>(r)] = std::move(connection);
  }
  for (int left = spec.size - 1 - spec.rank; left > 0;) {
    wait_readable(listener.get(), -1, seconds_until(end));
    Descriptor guest = accept_from(listener);
    if (!guest.valid()) {
      for (int r = spec.rank + 1; Clock::now() >= end && r < spec.size; ++r)
        if (!connections[static_cast<size_t>(r)].valid()) fail_to(r);
      continue;
    }
    Greeting greeting;
    if (!read_all(guest, &greeting, sizeof greeting, after(5)) || greeting.token != token) continue;
    if (greeting.rank <= spec.rank || greeting.rank >= spec.size) continue;
    Descriptor& place = connections[static_cast<size_t>(greeting.rank)];
    if (!place.valid()) --left;
    place = std::move(guest);
  }
}

JoinedRanks join_rank_zero(const JoinSpec& spec) {
  uint16_t port = 0;
  const Descriptor listener = listen_at(htonl(INADDR_ANY), port);
  uint32_t master = 0;
  Descriptor zero = reach_rank_zero(spec, master, after(spec.seconds));
  Hello hello = introduce(spec);
  hello.host = own_host(zero, master);
  hello.port = port;
  Answer answer;
  const auto last = after(spec.seconds + 30);  // rank 0 waits for so long at most, and then says whom it missed
  if (!write_all(zero, &hello, sizeof hello, last) || !read_all(zero, &answer, sizeof answer, last))
    fail(Exit::comm,
         fmt::format("rank {} reached {}:{}, but gets no answer from a rank 0 there", spec.rank, printable(spec.host),
                     spec.port),
         "look for the message of rank 0; something else may listen at MASTER_PORT");
  if (answer.refused > 0) {
    std::string reason(std::min(answer.refused, kMaxText), '\0');
    if (!read_all(zero, reason.data(), reason.size(), last)) reason = "rank 0 refuses, and is gone";
    fail(Exit::comm, fmt::format("rank {}: {}", spec.rank, printable(reason, kMaxText)), kHint);
  }
  std::vector<Hello> table(static_cast<size_t>(spec.size));
  if (!read_all(zero, table.data(), table.size() * sizeof(Hello), last))
    fail(Exit::comm, fmt::format("rank {} lost rank 0 while ranks met", spec.rank), "look for the message of rank 0");
  JoinedRanks joined;
  joined.connections.resize(table.size());
  joined.connections[0] = std::move(zero);
  for (Hello& other : table) {
    other.name.back() = '\0';
    joined.nodes.push_back(other.node);
  }
  connect_to_others(spec, table, answer.token, master, listener, joined.connections);
  return joined;
}

// Devices and cores are given out by the place of a rank among those of its node.
void check_local_rank(const JoinSpec& spec, const std::vector<uint64_t>& nodes) {
  const uint64_t mine = nodes[static_cast<size_t>(spec.rank)];
  const auto on_node = std::count(nodes.begin(), nodes.end(), mine);
  if (spec.local_rank >= 0 && spec.local_rank != spec.rank % on_node)
    fail(Exit::comm,
         fmt::format("RANK={} has LOCAL_RANK={} on a node of {} ranks, expected {}", spec.rank, spec.local_rank,
                     on_node, spec.rank % on_node),
         "number the ranks node by node, with equally many on each");
}

}  // namespace

bool launched_by_mpi() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE", "PMI_RANK", "PMI_FD"})
    if (std::getenv(name) != nullptr) return true;
  return false;
}

std::optional<JoinSpec> read_join_environment() {
  if (launched_by_mpi() || variable("WORLD_SIZE") == nullptr) return std::nullopt;
  JoinSpec spec;
  spec.size = static_cast<int>(number_of("WORLD_SIZE", 1, 1 << 20));
  if (spec.size == 1) return std::nullopt;
  std::vector<std::string> missing;
  for (const char* name : {"RANK", "MASTER_ADDR", "MASTER_PORT"})
    if (variable(name) == nullptr) missing.emplace_back(name);
  if (!missing.empty())
    fail(Exit::comm, fmt::format("WORLD_SIZE={}, but {} is not set", spec.size, fmt::join(missing, ", ")),
         "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for every process; or unset WORLD_SIZE, or use mpirun or "
         "srun");
  spec.rank = static_cast<int>(number_of("RANK", 0, spec.size - 1));
  spec.port = static_cast<uint16_t>(number_of("MASTER_PORT", 1, 65535));
  spec.host = variable("MASTER_ADDR");
  if (variable("LOCAL_RANK") != nullptr) spec.local_rank = static_cast<int>(number_of("LOCAL_RANK", 0, 1 << 20));
  if (variable("MOEWRIGHT_JOIN_SECONDS") != nullptr)
    spec.seconds = static_cast<double>(number_of("MOEWRIGHT_JOIN_SECONDS", 1, 1 << 20));
  return spec;
}

JoinedRanks join_ranks(const JoinSpec& spec) {
  make_room_for(2 * spec.size);  // the watchdog connects all ranks to rank 0 once more
  JoinedRanks joined = spec.rank == 0 ? Meeting(spec).hold() : join_rank_zero(spec);
  check_local_rank(spec, joined.nodes);
  return joined;
}

}  // namespace mw
