#include "comm/watchdog/watchdog_socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace mw {
namespace {

// Of this node's interfaces that are up.
void find_hosts(WatchAddress& address) {
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
  if (address.count == 0)
    fail(Exit::comm, "this node has no IPv4 address that others could reach",
         "give an interface an IPv4 address (`ip -4 address` lists them), or set watchdog.seconds=0");
}

}  // namespace

std::string describe(const WatchAddress& address) {
  std::string text;
  for (uint32_t i = 0; i < address.count; ++i)
    text += (i == 0 ? "" : ", ") + describe(Endpoint{address.hosts[i], address.port});
  return text;
}

Descriptor listen_for_ranks(uint32_t host, int ranks, WatchAddress& address) {
  make_room_for(ranks);
  if (host == htonl(INADDR_ANY)) find_hosts(address);
  else address.hosts[address.count++] = host;
  return listen_at(host, address.port);
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

}  // namespace mw
