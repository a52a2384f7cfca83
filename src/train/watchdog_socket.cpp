#include "train/watchdog_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace mw {
namespace {

constexpr int kBacklog = 65535;  // the system cuts it to what it allows
constexpr rlim_t kSpareDescriptors = 256;

[[noreturn]] void fail_system(const char* call) { fail(Exit::comm, fmt::format("{}: {}", call, std::strerror(errno))); }

void make_room_for(int ranks) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) fail_system("getrlimit");
  const rlim_t wanted = static_cast<rlim_t>(ranks) + kSpareDescriptors;
  if (limit.rlim_cur >= wanted) return;
  if (limit.rlim_max < wanted)
    fail(Exit::comm, fmt::format("{} ranks need {} open files, this process may have {} (ulimit -Hn)", ranks, wanted,
                                 limit.rlim_max));
  limit.rlim_cur = wanted;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) fail_system("setrlimit");
}

// Of this node's interfaces that are up.
void find_hosts(bool loopback, WatchAddress& address) {
  if (loopback) {
    address.hosts[address.count++] = htonl(INADDR_LOOPBACK);
    return;
  }
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) fail_system("getifaddrs");
  for (const ifaddrs* at = list; at != nullptr && address.count < address.hosts.size(); at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET) continue;
    if ((at->ifa_flags & IFF_UP) == 0 || (at->ifa_flags & IFF_LOOPBACK) != 0) continue;
    sockaddr_in host{};
    std::memcpy(&host, at->ifa_addr, sizeof host);
    address.hosts[address.count++] = host.sin_addr.s_addr;
  }
  freeifaddrs(list);
  if (address.count == 0) fail(Exit::comm, "this node has no IPv4 address that others could reach");
}

sockaddr_in socket_address(uint32_t host, uint16_t port) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = host;
  at.sin_port = htons(port);
  return at;
}

Descriptor open_socket() { return Descriptor(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

// Small messages go out at once.
void send_at_once(const Descriptor& descriptor) {
  const int on = 1;
  setsockopt(descriptor.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

int to_milliseconds(double seconds) { return static_cast<int>(std::clamp(seconds * 1e3, 0.0, 1e6)) + 1; }

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  close();
  fd_ = other.release();
  return *this;
}

void Descriptor::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

int Descriptor::release() { return std::exchange(fd_, -1); }

std::string describe(const WatchAddress& address) {
  std::string text;
  for (uint32_t i = 0; i < address.count; ++i) {
    char host[INET_ADDRSTRLEN] = {};
    inet_ntop(AF_INET, &address.hosts[i], host, sizeof host);
    text += fmt::format("{}{}:{}", i == 0 ? "" : ", ", host, address.port);
  }
  return text;
}

Descriptor listen_for_ranks(bool loopback, int ranks, WatchAddress& address) {
  make_room_for(ranks);
  find_hosts(loopback, address);
  if (getrandom(&address.token, sizeof address.token, 0) != sizeof address.token) fail_system("getrandom");
  Descriptor listener = open_socket();
  if (!listener.valid()) fail_system("socket");
  sockaddr_in at = socket_address(htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY), 0);
  socklen_t size = sizeof at;
  if (bind(listener.get(), reinterpret_cast<sockaddr*>(&at), size) != 0) fail_system("bind");
  if (listen(listener.get(), kBacklog) != 0) fail_system("listen");
  if (getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &size) != 0) fail_system("getsockname");
  address.port = ntohs(at.sin_port);
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
  send_at_once(descriptor);
  return descriptor;
}

Descriptor accept_from(const Descriptor& listener) {
  Descriptor descriptor(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (descriptor.valid()) send_at_once(descriptor);
  return descriptor;
}

bool BeatSocket::flush() {
  while (!unsent_.empty()) {
    const ssize_t sent = ::send(get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    unsent_.erase(unsent_.begin(), unsent_.begin() + sent);
  }
  return true;
}

bool BeatSocket::send(const BeatBytes& message) {
  if (!flush()) return false;
  if (unsent_.empty()) unsent_.assign(message.begin(), message.end());
  return flush();
}

bool BeatSocket::receive(std::vector<BeatBytes>& messages) {
  std::array<std::byte, 16 * kBeatBytes> buffer;
  while (true) {
    const ssize_t got = recv(get(), buffer.data(), buffer.size(), 0);
    if (got == 0) return false;
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    partial_.insert(partial_.end(), buffer.begin(), buffer.begin() + got);
    size_t taken = 0;
    for (; partial_.size() - taken >= kBeatBytes; taken += kBeatBytes)
      std::copy_n(partial_.begin() + static_cast<std::ptrdiff_t>(taken), kBeatBytes, messages.emplace_back().begin());
    partial_.erase(partial_.begin(), partial_.begin() + static_cast<std::ptrdiff_t>(taken));
    // What floods this side is not a rank: the rest is read when these have been looked at.
    if (static_cast<size_t>(got) < buffer.size() || messages.size() > 64) return true;
  }
}

void wait_readable(int one, int other, double seconds) {
  pollfd wait[2] = {{one, POLLIN, 0}, {other, POLLIN, 0}};
  poll(wait, 2, to_milliseconds(seconds));
}

bool is_readable(int fd) {
  pollfd wait{fd, POLLIN, 0};
  return poll(&wait, 1, 0) > 0;
}

}  // namespace mw
