// Incoming connections that have not yet proved that they belong to the job ("guests"). One event loop serves all of
// them, never blocks on one, and bounds their number and time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "comm/bootstrap/handshake.h"
#include "comm/bootstrap/socket.h"
#include "comm/bootstrap/stranger_log.h"

namespace mw {

// A guest that proved that it knows the secret. Nothing that it sent after its proof has been read yet.
struct AdmittedGuest {
  Descriptor connection;
  Hello hello;
};

struct GuestLimits {
  size_t guests = 128;    // open at the same time
  double seconds = 5;     // for a whole handshake
  double patience = 0.1;  // seconds after which a guest may be dropped to make room for another
};

class Guests {
 public:
  Guests(Descriptor listener, const HandshakeHost& host, const GuestLimits& limits = {});
  // Prints the pending summary of rejected connections.
  ~Guests();
  Guests(const Guests&) = delete;
  Guests& operator=(const Guests&) = delete;

  // A descriptor that becomes readable when admit() has something to do.
  int get() const { return epoll_.get(); }
  // Seconds after which admit() must be called even if get() did not become readable.
  double pause() const;

  // Advances all handshakes as far as possible without blocking, and returns the guests that were admitted. Drops
  // guests that take too long. When there are too many, drops the oldest guest that has sent nothing, or else the
  // oldest, for a new one; a rank that this hits tries again. Reports rejected connections on stderr.
  std::vector<AdmittedGuest> admit();

 private:
  struct Guest {
    Descriptor connection;
    HostHandshake handshake;
    Endpoint at;
    double since = 0;
  };
  using Table = std::map<uint64_t, Guest>;  // by number of arrival, so that the oldest comes first

  void accept_all(std::vector<AdmittedGuest>& admitted, double now);
  bool make_room(double now);
  Table::iterator find_victim();
  void listen(bool on, double now);
  void serve(uint64_t number, std::vector<AdmittedGuest>& admitted, double now);
  void drop_late(double now);
  void drop(Table::iterator guest, const std::string& why, const std::string& details, double now);
  void print(const std::optional<std::string>& line) const;

  Descriptor listener_, epoll_;
  HandshakeHost host_;
  GuestLimits limits_;
  Table guests_;
  uint64_t next_number_ = 1;  // 0 is the listener
  bool listening_ = false;
  double stopped_ = 0;  // when listening_ became false
  StrangerLog log_;
};

}  // namespace mw
