// Messages between ranks that are connected by TCP alone: one connection to every other rank. Messages that arrive
// before their receive is posted are buffered, so that no order of sends and receives can deadlock.
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
#include "comm/bootstrap/socket.h"

namespace mw {

// One message in flight, in either direction.
struct TcpTransfer {
  int peer = 0;
  bool done = false;
};

class TcpLinks {
 public:
  // connections[r] is the connection to rank r; that of `rank` itself is invalid.
  TcpLinks(int rank, std::vector<Descriptor> connections);
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }

  // Start a message. The n-th message sent on a channel matches the n-th one received from that rank, and must have the
  // same size. `bytes` must not be touched until wait(). Errors: comm, also when the sizes differ.
  std::shared_ptr<TcpTransfer> send(int to, uint64_t channel, std::span<const std::byte> bytes);
  std::shared_ptr<TcpTransfer> receive(int from, uint64_t channel, std::span<std::byte> bytes);
  // Waits until the message is received, or passed to the system. Errors: comm, when the other rank is lost; the exit
  // code of a rank that has ended the job.
  void wait(const TcpTransfer& transfer);

  // Checks for errors without waiting. Errors: those of wait(), when any rank has ended the job, or has been lost for a
  // while (a rank that had finished its work would not be missed for so long).
  void check();

  // Tells all other ranks that this rank ends the job, waiting at most a second. No messages can be sent afterwards.
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
    std::string lost;  // why the connection is closed; "" while it is open
    std::chrono::steady_clock::time_point lost_at;
    std::deque<Outgoing> outgoing;
    bool waits_to_write = false;  // epoll reports when more can be written
    Header header;                // of the message that is arriving
    size_t received = 0;          // of it, header included
    std::byte* into = nullptr;
    std::map<uint64_t, uint64_t> sent, asked;  // messages by channel
  };
  using Key = std::tuple<int, uint64_t, uint64_t>;  // rank, channel, number

  void progress(int milliseconds);
  void watch(int rank, int operation);
  [[noreturn]] void fail_lost(int rank) const;
  void write_to(int rank);
  void write_queued(int rank);
  void read_from(int rank);
  void begin_message(int rank);
  void end_message(int rank);
  void lose(int rank, const std::string& why);

  int rank_;
  Descriptor epoll_;  // of all open connections
  std::vector<Peer> peers_;
  std::vector<int> lost_;  // ranks whose connections are closed
  std::map<Key, Posted> posted_;
  std::map<Key, std::vector<std::byte>> early_;  // arriving or arrived before their receive was posted
};

}  // namespace mw
