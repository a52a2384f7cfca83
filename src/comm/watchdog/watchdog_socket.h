// TCP for the watchdog: where rank 0 listens, and connections that carry beats and never block.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/bootstrap/socket.h"
#include "comm/watchdog/watchdog_message.h"

namespace mw {

// The addresses of rank 0: plain bytes, so that one broadcast distributes them.
struct WatchAddress {
  uint32_t count = 0;  // of addresses; 0: rank 0 could not listen
  uint16_t port = 0;
  std::array<uint32_t, 16> hosts{};  // IPv4, as inet_ntoa takes them
};
std::string describe(const WatchAddress& address);

// Listens at `host`, or, for INADDR_ANY, at all IPv4 addresses of this node that others can reach. Raises the limit of
// open files for a connection from each of `ranks`. Errors: comm.
Descriptor listen_for_ranks(uint32_t host, int ranks, WatchAddress& address);

// One connection.
class BeatSocket {
 public:
  explicit BeatSocket(Descriptor descriptor = Descriptor()) : descriptor_(std::move(descriptor)) {}
  int get() const { return descriptor_.get(); }
  bool valid() const { return descriptor_.valid(); }
  // Returns false when the connection is broken. A message that does not fit into the connection's buffer is dropped.
  bool send(const BeatBytes& message);
  // Appends the messages that have arrived completely. Returns false when the other side has closed, or the connection
  // is broken.
  bool receive(std::vector<BeatBytes>& messages);

 private:
  bool flush();
  Descriptor descriptor_;
  std::vector<std::byte> unsent_, partial_;
};

}  // namespace mw
