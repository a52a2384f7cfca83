// TCP for the watchdog: where rank 0 listens, and connections that carry beats and never block.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "train/watchdog_message.h"

namespace mw {

// Owns one file descriptor; -1: none.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void close();

 private:
  int release();
  int fd_;
};

// Where rank 0 is found: plain bytes, so that one broadcast tells all.
struct WatchAddress {
  uint64_t token = 0;
  uint32_t count = 0;  // of addresses; 0: rank 0 could not listen
  uint16_t port = 0;
  std::array<uint32_t, 16> hosts{};  // IPv4, as inet_ntoa takes them
};
std::string describe(const WatchAddress& address);

// Listens on the loopback address alone, or on all IPv4 addresses of this node that others may reach, with a fresh
// token. Makes room for a connection from each of `ranks`. Errors: comm.
Descriptor listen_for_ranks(bool loopback, int ranks, WatchAddress& address);

// Invalid: not within `seconds`, or `stop` became readable.
Descriptor connect_to(uint32_t host, uint16_t port, double seconds, int stop);
// Invalid: nobody waits to be accepted.
Descriptor accept_from(const Descriptor& listener);

// One connection.
class BeatSocket {
 public:
  explicit BeatSocket(Descriptor descriptor = Descriptor()) : descriptor_(std::move(descriptor)) {}
  int get() const { return descriptor_.get(); }
  bool valid() const { return descriptor_.valid(); }
  // False: the connection is broken. A message that does not fit into the connection's buffer is dropped.
  bool send(const BeatBytes& message);
  // Appends the messages that have come in full. False: the other side has closed, or the connection is broken.
  bool receive(std::vector<BeatBytes>& messages);

 private:
  bool flush();
  Descriptor descriptor_;
  std::vector<std::byte> unsent_, partial_;
};

// Waits until one of both can be read, or for so long. Negative descriptors are passed over.
void wait_readable(int one, int other, double seconds);
bool is_readable(int fd);

}  // namespace mw
