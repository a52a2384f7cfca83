#include "comm/bootstrap/socket.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace mw {
namespace {

constexpr int kBacklog = 65535;  // the system cuts it to what it allows
constexpr rlim_t kSpareDescriptors = 256;

sockaddr_in socket_address(uint32_t host, uint16_t port) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = host;
  at.sin_port = htons(port);
  return at;
}

Descriptor open_socket() { return Descriptor(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

// Small messages go out at once, and a host that is gone without a word is noticed after a minute and a half.
void prepare_connection(const Descriptor& descriptor) {
  const int on = 1, idle_s = 30, interval_s = 10, probes = 6;
  setsockopt(descriptor.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(descriptor.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(descriptor.get(), IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  setsockopt(descriptor.get(), IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  setsockopt(descriptor.get(), IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

int to_milliseconds(double seconds) { return static_cast<int>(std::clamp(seconds * 1e3, 0.0, 1e6)) + 1; }

template <class Ask>
Endpoint end_of(const Descriptor& connection, Ask ask) {
  sockaddr_in at{};
  socklen_t size = sizeof at;
  if (ask(connection.get(), reinterpret_cast<sockaddr*>(&at), &size) != 0) return {};
  return {at.sin_addr.s_addr, ntohs(at.sin_port)};
}

// False: the time is over, or `stop` is readable.
bool wait_for(int fd, short event, Deadline end, int stop) {
  const double seconds = seconds_until(end);
  if (seconds <= 0) return false;
  pollfd wait[2] = {{fd, event, 0}, {stop, POLLIN, 0}};
  poll(wait, 2, to_milliseconds(seconds));
  return wait[1].revents == 0;
}

}  // namespace

Deadline after(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<Deadline::duration>(std::chrono::duration<double>(seconds));
}

double seconds_until(Deadline end) {
  return std::max(0.0, std::chrono::duration<double>(end - std::chrono::steady_clock::now()).count());
}

std::string describe_host(uint32_t host) {
  char text[INET_ADDRSTRLEN] = {};
  inet_ntop(AF_INET, &host, text, sizeof text);
  return text;
}

std::string describe(const Endpoint& endpoint) {
  return fmt::format("{}:{}", describe_host(endpoint.host), endpoint.port);
}

bool is_loopback(uint32_t host) { return (ntohl(host) >> 24) == IN_LOOPBACKNET; }

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  close();
  fd_ = other.release();
  return *this;
}

void Descriptor::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void fail_system(const char* call) { fail(Exit::comm, fmt::format("{}: {}", call, std::strerror(errno))); }

void make_room_for(int ranks) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) fail_system("getrlimit");
  const rlim_t wanted = static_cast<rlim_t>(ranks) + kSpareDescriptors;
  if (limit.rlim_cur >= wanted) return;
  if (limit.rlim_max < wanted)
    fail(Exit::comm,
         fmt::format("{} ranks need {} open files, this process may have {} (ulimit -Hn)", ranks, wanted,
                     limit.rlim_max),
         fmt::format("raise the limit of open files: ulimit -n {}", wanted));
  limit.rlim_cur = wanted;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) fail_system("setrlimit");
}

Descriptor listen_at(uint32_t host, uint16_t& port) {
  Descriptor listener = open_socket();
  if (!listener.valid()) fail_system("socket");
  sockaddr_in at = socket_address(host, port);
  socklen_t size = sizeof at;
  const int on = 1;  // a port that a job before this one has just left is free
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(listener.get(), reinterpret_cast<sockaddr*>(&at), size) != 0) fail_system("bind");
  if (listen(listener.get(), kBacklog) != 0) fail_system("listen");
  if (getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &size) != 0) fail_system("getsockname");
  port = ntohs(at.sin_port);
  return listener;
}

Descriptor connect_to(uint32_t host, uint16_t port, double seconds, int stop) {
  Descriptor descriptor = open_socket();
  if (!descriptor.valid()) return Descriptor();
  const sockaddr_in at = socket_address(host, port);
  if (connect(descriptor.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0) {
    if (errno != EINPROGRESS) return Descriptor();
    pollfd wait[2] = {{descriptor.get(), POLLOUT, 0}, {stop, POLLIN, 0}};
    if (poll(wait, 2, to_milliseconds(seconds)) <= 0 || wait[1].revents != 0) return Descriptor();
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(descriptor.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) return Descriptor();
  }
  // Where nobody listens yet, the system may choose that very port for this end, which then speaks to itself. A
  // connection that is broken already has no ends.
  if (local_end(descriptor) == remote_end(descriptor) || remote_end(descriptor) == Endpoint{}) return Descriptor();
  prepare_connection(descriptor);
  return descriptor;
}

Descriptor accept_from(const Descriptor& listener, Endpoint* other_end) {
  sockaddr_in at{};
  socklen_t size = sizeof at;
  Descriptor descriptor(accept4(listener.get(), reinterpret_cast<sockaddr*>(&at), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (descriptor.valid()) prepare_connection(descriptor);
  if (other_end != nullptr) *other_end = {at.sin_addr.s_addr, ntohs(at.sin_port)};
  return descriptor;
}

Endpoint local_end(const Descriptor& connection) { return end_of(connection, getsockname); }
Endpoint remote_end(const Descriptor& connection) { return end_of(connection, getpeername); }

bool read_all(const Descriptor& from, std::span<std::byte> bytes, Deadline end, int stop) {
  while (!bytes.empty()) {
    const ssize_t got = recv(from.get(), bytes.data(), bytes.size(), 0);
    if (got > 0) bytes = bytes.subspan(static_cast<size_t>(got));
    else if (got == 0 || (errno != EAGAIN && errno != EINTR) || !wait_for(from.get(), POLLIN, end, stop)) return false;
  }
  return true;
}

bool write_all(const Descriptor& to, std::span<const std::byte> bytes, Deadline end, int stop) {
  while (!bytes.empty()) {
    const ssize_t sent = send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) bytes = bytes.subspan(static_cast<size_t>(sent));
    else if ((errno != EAGAIN && errno != EINTR) || !wait_for(to.get(), POLLOUT, end, stop)) return false;
  }
  return true;
}

void wait_readable(int one, int other, double seconds) {
  pollfd wait[2] = {{one, POLLIN, 0}, {other, POLLIN, 0}};
  poll(wait, 2, to_milliseconds(seconds));
}

bool is_readable(int fd) {
  pollfd wait{fd, POLLIN, 0};
  return poll(&wait, 1, 0) > 0;
}

bool is_closed(const Descriptor& connection) {
  char next;
  const ssize_t got = recv(connection.get(), &next, 1, MSG_PEEK);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

}  // namespace mw
