// TCP over IPv4, with descriptors that never block.
#pragma once

#include <cstdint>
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

// Error: comm, with the reason of the system.
[[noreturn]] void fail_system(const char* call);

// Raises the limit of open files, if need be, to one for each of `ranks` and some to spare. Errors: comm.
void make_room_for(int ranks);

// Hosts are IPv4 addresses as inet_ntoa takes them. Port 0 lets the system choose; the one taken is returned in `port`.
// Errors: comm, naming the call.
Descriptor listen_at(uint32_t host, uint16_t& port);

// Invalid: not within `seconds`, or `stop` became readable.
Descriptor connect_to(uint32_t host, uint16_t port, double seconds, int stop);
// Invalid: nobody waits to be accepted.
Descriptor accept_from(const Descriptor& listener);

// Waits until one of both can be read, or for so long. Negative descriptors are passed over.
void wait_readable(int one, int other, double seconds);
bool is_readable(int fd);
// True: all that the other side sent has been read, and no more will come; or the connection broke.
bool is_closed(const Descriptor& connection);

}  // namespace mw
