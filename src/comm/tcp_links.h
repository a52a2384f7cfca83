// Messages between the ranks of a world that is joined by TCP alone: one connection to every other rank. What arrives
// before it is asked for is kept, so that no order of sends and receives on the two sides can lock them.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "comm/socket.h"

namespace mw {

// One message under way, in either direction.
struct TcpTransfer {
  int peer = 0;
  bool done = false;
};

class TcpLinks {
 public:
  // connections[r] leads to rank r; that to `rank` itself is invalid.
  TcpLinks(int rank, std::vector<Descriptor> connections);
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }

  // The n-th message sent on a channel meets the n-th one received from that rank, of the same size. `bytes` must stay
  // untouched until wait(). Errors: comm, also when the sizes differ.
  std::shared_ptr<TcpTransfer> send(int to, uint64_t channel, std::span<const std::byte> bytes);
  std::shared_ptr<TcpTransfer> receive(int from, uint64_t channel, std::span<std::byte> bytes);
  // Until the message is received, or handed to the system. Errors: comm, when the other rank is lost; the exit code of
  // a rank that has ended the job.
  void wait(const TcpTransfer& transfer);

  // Without waiting. Errors: those of wait(), where any rank has ended the job or been lost for a while: one that had
  // done its part would not be missed so long.
  void check();

  // Tells all others that this rank ends the job, as far as they listen within a second. Nothing can be sent then.
  void announce_end(Exit code);

 private:
  struct Header {
    uint64_t channel = 0, number = 0, bytes = 0;
  };
  struct Outgoing {
    Header header;
    const std::byte* bytes = nullptr;
    size_t sent = 0;  // header included
    std::shared_ptr<TcpTransfer> transfer;
  };
  struct Posted {
    std::span<std::byte> bytes;
    std::shared_ptr<TcpTransfer> transfer;
  };
  struct Peer {
    Descriptor connection;
    std::string lost;  // why the connection is closed; "" while it is not
    std::chrono::steady_clock::time_point lost_at;
    std::deque<Outgoing> outgoing;
    Header header;        // of the message that is arriving
    size_t received = 0;  // of it, header included
    std::byte* into = nullptr;
    std::map<uint64_t, uint64_t> sent, asked;  // messages by channel
  };
  using Key = std::tuple<int, uint64_t, uint64_t>;  // rank, channel, number

  void progress(int milliseconds);
  [[noreturn]] void fail_lost(int rank) const;
  void write_to(int rank);
  void read_from(int rank);
  void begin_message(int rank);
  void end_message(int rank);
  static void lose(Peer& peer, const std::string& why);

  int rank_;
  std::vector<Peer> peers_;
  std::map<Key, Posted> posted_;
  std::map<Key, std::vector<std::byte>> early_;  // arriving or arrived, and not asked for yet
};

}  // namespace mw
