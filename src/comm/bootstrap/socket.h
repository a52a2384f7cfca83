// Non-blocking TCP sockets over IPv4, and helpers with deadlines.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

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
  int release() { return std::exchange(fd_, -1); }
  int fd_;
};

using Deadline = std::chrono::steady_clock::time_point;
Deadline after(double seconds);
// Seconds left; 0 after the deadline.
double seconds_until(Deadline end);

// One end of a connection: an IPv4 address as inet_ntoa takes it, and a port.
struct Endpoint {
  uint32_t host = 0;
  uint16_t port = 0;
  bool operator==(const Endpoint&) const = default;
};
std::string describe_host(uint32_t host);        // "10.0.0.7"
std::string describe(const Endpoint& endpoint);  // "10.0.0.7:29500"
bool is_loopback(uint32_t host);

// Throws comm with the system's reason (errno).
[[noreturn]] void fail_system(const char* call);

// Raises the limit of open files, if needed, to one per rank and some spare ones. Errors: comm.
void make_room_for(int ranks);

// Listens at an address. Port 0 lets the system choose; `port` returns the actual one. Errors: comm, naming the call.
Descriptor listen_at(uint32_t host, uint16_t& port);

// Connects. The result is invalid when this takes longer than `seconds` or `stop` becomes readable.
Descriptor connect_to(uint32_t host, uint16_t port, double seconds, int stop);
// Accepts a connection. The result is invalid when none is pending or accepting failed (see errno). `other_end`, if
// given, returns the address of the peer.
Descriptor accept_from(const Descriptor& listener, Endpoint* other_end = nullptr);

// Addresses of a connection's two ends; zeros when it is broken.
Endpoint local_end(const Descriptor& connection);
Endpoint remote_end(const Descriptor& connection);

// Block until all bytes are read or written. Return false when the other side has closed, `end` is reached, or `stop`
// becomes readable.
bool read_all(const Descriptor& from, std::span<std::byte> bytes, Deadline end, int stop = -1);
bool write_all(const Descriptor& to, std::span<const std::byte> bytes, Deadline end, int stop = -1);

// Waits until one of the two is readable, or for `seconds`. Negative descriptors are ignored.
void wait_readable(int one, int other, double seconds);
bool is_readable(int fd);
// Whether the connection is finished: the other side has closed it and everything it sent has been read, or it broke.
bool is_closed(const Descriptor& connection);

}  // namespace mw
