// TCP over IPv4, with descriptors that never block.
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
// 0 once it is over.
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

// Error: comm, with the reason of the system.
[[noreturn]] void fail_system(const char* call);

// Raises the limit of open files, if need be, to one for each of `ranks` and some to spare. Errors: comm.
void make_room_for(int ranks);

// Port 0 lets the system choose; the one taken is returned in `port`.
// Errors: comm, naming the call.
Descriptor listen_at(uint32_t host, uint16_t& port);

// Invalid: not within `seconds`, or `stop` became readable.
Descriptor connect_to(uint32_t host, uint16_t port, double seconds, int stop);
// Invalid: nobody waits to be accepted, or errno says why not. `other_end`, if given: where the connection comes from.
Descriptor accept_from(const Descriptor& listener, Endpoint* other_end = nullptr);

// Of a connection; zeros when it is broken.
Endpoint local_end(const Descriptor& connection);
Endpoint remote_end(const Descriptor& connection);

// Until all bytes are read or written. False: the other side has closed, `end` has come, or `stop` is readable.
bool read_all(const Descriptor& from, std::span<std::byte> bytes, Deadline end, int stop = -1);
bool write_all(const Descriptor& to, std::span<const std::byte> bytes, Deadline end, int stop = -1);

// Waits until one of both can be read, or for so long. Negative descriptors are passed over.
void wait_readable(int one, int other, double seconds);
bool is_readable(int fd);
// True: all that the other side sent has been read, and no more will come; or the connection broke.
bool is_closed(const Descriptor& connection);

}  // namespace mw
