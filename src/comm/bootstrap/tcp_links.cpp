#include "comm/bootstrap/tcp_links.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace mw {
namespace {

constexpr uint64_t kEndChannel = ~uint64_t{0};  // `number` is the exit code of the rank that ends the job
constexpr uint64_t kMaxBytes = uint64_t{1} << 40;
constexpr int kForever = -1;
constexpr std::chrono::seconds kMissedAfter{2};

}  // namespace

TcpLinks::TcpLinks(int rank, std::vector<Descriptor> connections)
    : rank_(rank), epoll_(epoll_create1(EPOLL_CLOEXEC)), peers_(connections.size()) {
  if (!epoll_.valid()) fail_system("epoll_create1");
  for (int r = 0; r < size(); ++r) {
    Descriptor& connection = peers_[static_cast<size_t>(r)].connection;
    connection = std::move(connections[static_cast<size_t>(r)]);
    if (connection.valid()) watch(r, EPOLL_CTL_ADD);
  }
}

std::shared_ptr<TcpTransfer> TcpLinks::send(int to, uint64_t channel, std::span<const std::byte> bytes) {
  MW_CHECK(to != rank_, "a message between rank {} and itself", to);
  Peer& peer = peers_[static_cast<size_t>(to)];
  auto transfer = std::make_shared<TcpTransfer>(TcpTransfer{to, false});
  peer.outgoing.push_back({{channel, peer.sent[channel]++, bytes.size()}, bytes.data(), 0, transfer});
  if (peer.outgoing.size() == 1) write_to(to);
  return transfer;
}

std::shared_ptr<TcpTransfer> TcpLinks::receive(int from, uint64_t channel, std::span<std::byte> bytes) {
  MW_CHECK(from != rank_, "a message between rank {} and itself", from);
  Peer& peer = peers_[static_cast<size_t>(from)];
  const uint64_t number = peer.asked[channel]++;
  const Key key{from, channel, number};
  auto transfer = std::make_shared<TcpTransfer>(TcpTransfer{from, false});
  const auto early = early_.find(key);
  if (early == early_.end()) {
    posted_[key] = {bytes, transfer};
    return transfer;
  }
  const bool arriving = peer.into != nullptr && peer.header.channel == channel && peer.header.number == number;
  if (early->second.size() != bytes.size()) {
    fail(Exit::comm, fmt::format("rank {} sent a message of {} bytes, rank {} expected {}", from, early->second.size(),
                                 rank_, bytes.size()));
  }
  const size_t here = arriving ? peer.received - sizeof(Header) : bytes.size();
  if (here > 0) std::memcpy(bytes.data(), early->second.data(), here);
  early_.erase(early);
  if (arriving) {
    peer.into = bytes.data();
    posted_[key] = {bytes, transfer};
  } else {
    transfer->done = true;
  }
  return transfer;
}

void TcpLinks::wait(const TcpTransfer& transfer) {
  const Peer& peer = peers_[static_cast<size_t>(transfer.peer)];
  while (!transfer.done) {
    if (!peer.lost.empty()) fail_lost(transfer.peer);
    progress(kForever);
  }
}

void TcpLinks::check() {
  progress(0);
  const auto now = std::chrono::steady_clock::now();
  for (const int rank : lost_)
    if (now - peers_[static_cast<size_t>(rank)].lost_at > kMissedAfter) fail_lost(rank);
}

void TcpLinks::fail_lost(int rank) const {
  fail(Exit::comm, fmt::format("rank {} is lost: {}", rank, peers_[static_cast<size_t>(rank)].lost),
       "it may have died, or its node: look for its own message");
}

void TcpLinks::announce_end(Exit code) {
  std::vector<pollfd> open;
  for (Peer& peer : peers_) {
    if (!peer.connection.valid()) continue;
    // Behind a message that is half written it would be taken for a part of it: that rank sees the connection close.
    const Header header{kEndChannel, static_cast<uint64_t>(code), 0};
    if (peer.outgoing.empty() || peer.outgoing.front().sent == 0)
      (void)::send(peer.connection.get(), &header, sizeof header, MSG_NOSIGNAL);
    shutdown(peer.connection.get(), SHUT_WR);
    open.push_back({peer.connection.get(), POLLIN, 0});
  }
  // A connection that is closed with something unread takes back what was sent.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (std::chrono::steady_clock::now() < end && poll(open.data(), open.size(), 100) >= 0) {
    std::byte unread[4096];
    for (pollfd& one : open)
      if (one.revents != 0 && recv(one.fd, unread, sizeof unread, 0) <= 0) one.fd = -1;
  }
}

// Moves what can be moved, after waiting so long until something can.
void TcpLinks::progress(int milliseconds) {
  std::array<epoll_event, 64> events;
  const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), milliseconds);
  if (count < 0 && errno != EINTR) fail_system("epoll_wait");
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<size_t>(i)];
    const auto rank = static_cast<int>(event.data.u32);
    if ((event.events & ~uint32_t{EPOLLOUT}) != 0) read_from(rank);
    if ((event.events & EPOLLOUT) != 0) write_to(rank);
  }
}

// Has epoll report what can be read from a rank, and written where something is queued for it.
void TcpLinks::watch(int rank, int operation) {
  const Peer& peer = peers_[static_cast<size_t>(rank)];
  const uint32_t writing = peer.waits_to_write ? EPOLLOUT : uint32_t{0};
  epoll_event event{EPOLLIN | writing, {.u32 = static_cast<uint32_t>(rank)}};
  if (epoll_ctl(epoll_.get(), operation, peer.connection.get(), &event) != 0) fail_system("epoll_ctl");
}

void TcpLinks::write_to(int rank) {
  write_queued(rank);
  Peer& peer = peers_[static_cast<size_t>(rank)];
  const bool waits = !peer.outgoing.empty();
  if (!peer.connection.valid() || waits == peer.waits_to_write) return;
  peer.waits_to_write = waits;
  watch(rank, EPOLL_CTL_MOD);
}

void TcpLinks::write_queued(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  while (peer.connection.valid() && !peer.outgoing.empty()) {
    Outgoing& message = peer.outgoing.front();
    const size_t total = sizeof(Header) + message.header.bytes;
    while (message.sent < total) {
      const bool in_header = message.sent < sizeof(Header);
      const auto* from = in_header ? reinterpret_cast<const std::byte*>(&message.header) + message.sent
                                   : message.bytes + (message.sent - sizeof(Header));
      const size_t left = (in_header ? sizeof(Header) : total) - message.sent;
      const int more = in_header && message.header.bytes > 0 ? MSG_MORE : 0;
      const ssize_t sent = ::send(peer.connection.get(), from, left, MSG_NOSIGNAL | more);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && errno == EAGAIN) return;
      if (sent < 0) {
        const std::string why = std::strerror(errno);
        read_from(rank);  // perhaps it has said more
        return lose(rank, why);
      }
      message.sent += static_cast<size_t>(sent);
    }
    message.transfer->done = true;
    peer.outgoing.pop_front();
  }
}

void TcpLinks::read_from(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  while (peer.connection.valid()) {
    const bool in_header = peer.received < sizeof(Header);
    std::byte* to = in_header ? reinterpret_cast<std::byte*>(&peer.header) + peer.received
                              : peer.into + (peer.received - sizeof(Header));
    const size_t left = sizeof(Header) + (in_header ? 0 : peer.header.bytes) - peer.received;
    const ssize_t got = recv(peer.connection.get(), to, left, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return lose(rank, got == 0 ? "its connection is closed" : std::strerror(errno));
    peer.received += static_cast<size_t>(got);
    if (in_header && peer.received == sizeof(Header)) begin_message(rank);
    if (peer.received >= sizeof(Header) && peer.received == sizeof(Header) + peer.header.bytes) end_message(rank);
  }
}

void TcpLinks::begin_message(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  const Header& header = peer.header;
  if (header.channel == kEndChannel) {
    fail(static_cast<Exit>(header.number),
         fmt::format("rank {} has ended the job with exit code {}", rank, header.number),
         "what it says itself is the reason");
  }
  const Key key{rank, header.channel, header.number};
  const auto posted = posted_.find(key);
  if (header.bytes > kMaxBytes || (posted != posted_.end() && posted->second.bytes.size() != header.bytes)) {
    fail(Exit::comm, fmt::format("rank {} sent a message of {} bytes, rank {} expected {}", rank, header.bytes, rank_,
                                 posted == posted_.end() ? 0 : posted->second.bytes.size()));
  }
  if (posted != posted_.end()) {
    peer.into = posted->second.bytes.data();
    return;
  }
  std::vector<std::byte>& early = early_[key];
  early.resize(header.bytes);
  peer.into = early.data();
}

void TcpLinks::end_message(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  if (const auto posted = posted_.find({rank, peer.header.channel, peer.header.number}); posted != posted_.end()) {
    posted->second.transfer->done = true;
    posted_.erase(posted);
  }
  peer.received = 0;
  peer.into = nullptr;
}

// That matters to whoever waits for it: a rank that has done its part may leave before the others.
void TcpLinks::lose(int rank, const std::string& why) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  if (!peer.connection.valid()) return;
  peer.lost = why;
  peer.lost_at = std::chrono::steady_clock::now();
  lost_.push_back(rank);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, peer.connection.get(), nullptr);
  peer.connection.close();
}

}  // namespace mw
