// Comm: a group of ranks (a process group) and its collectives, on host memory, or on device memory in stream order.
// All members of a group must call its collectives in the same order. A rank in several groups makes the calls for all
// of them from one thread; ranks that share several groups must also agree on the order of calls between these groups.
// Zero-length messages are legal everywhere. Sums are deterministic for a fixed layout and equal on all members; the
// order in which members are added is the implementation's, where nothing else is said.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/stream.h"

namespace mw {

// An asynchronous communication, as returned by collectives. wait() of a communication on host memory returns when
// received data is valid and send buffers may be reused. wait() of one on a stream makes the stream wait: work enqueued
// afterwards on the stream may use the buffers, the host may not yet. Waiting twice is legal.
// The destructor waits too. Exception: when it runs because an exception was thrown, it waits only for an all-to-all on
// host memory over MPI. Every other communication is then abandoned, because other ranks may never take part in it.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual void wait() = 0;
};

// A communication that is already complete.
class DonePending : public Pending {
 public:
  void wait() override {}
};

// The arguments of an uneven all-to-all of rows. Counts and offsets are in rows of `row_bytes`, one per member.
struct RowExchange {
  const void* send = nullptr;
  std::vector<int64_t> send_counts, send_offsets;
  void* receive = nullptr;
  std::vector<int64_t> receive_counts, receive_offsets;
  int64_t row_bytes = 0;
};

class Comm {
 public:
  virtual ~Comm() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // In place, over all members. Errors (of all collectives): comm.
  virtual void all_reduce_sum(std::span<float> values) = 0;
  virtual void all_reduce_sum(std::span<double> values) = 0;
  virtual void all_reduce_sum(std::span<int64_t> values) = 0;
  virtual void all_reduce_max(std::span<double> values) = 0;
  virtual void all_reduce_max(std::span<int64_t> values) = 0;
  // In place: `root` gets the sum over all members, the others keep their values.
  virtual void reduce_sum(std::span<float> values, int root) = 0;
  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;
  virtual void barrier() = 0;
  // Starts an uneven all-to-all. Buffers must not be touched until wait().
  virtual std::unique_ptr<Pending> all_to_all(const RowExchange& exchange) = 0;
  // Start a point-to-point message. Messages match by order: the n-th send from rank a to rank b belongs to the n-th
  // receive of b from a, and both must have the same size. The buffer must not be touched until wait(). wait() of a
  // send may block until the other rank has called receive.
  virtual std::unique_ptr<Pending> send(std::span<const std::byte> bytes, int to) = 0;
  virtual std::unique_ptr<Pending> receive(std::span<std::byte> bytes, int from) = 0;

  // The following six work on memory of the stream's device, in stream order: each starts when the work enqueued before
  // is done, and its buffers must not be touched until wait(). The first four do what their forms without a stream do;
  // the last two exist with a stream only. The default implementation waits for the stream and runs the collective on
  // the host.
  virtual std::unique_ptr<Pending> all_reduce_sum(Stream& stream, std::span<float> values);
  // Starts several exchanges: the k-th of each member belong together; any may have no rows. `exchanges` need not
  // outlive the call; buffers must not overlap. On GPUs they are one group of NCCL calls.
  virtual std::unique_ptr<Pending> all_to_all(Stream& stream, std::span<const RowExchange> exchanges);
  std::unique_ptr<Pending> all_to_all(Stream& stream, const RowExchange& exchange) {
    return all_to_all(stream, std::span(&exchange, 1));
  }
  virtual std::unique_ptr<Pending> send(Stream& stream, std::span<const std::byte> bytes, int to);
  virtual std::unique_ptr<Pending> receive(Stream& stream, std::span<std::byte> bytes, int from);
  // `values` holds one part per member, in rank order; counts: elements of each part, 0 is legal. In place: this
  // member's part becomes the sum over all members; the other parts are undefined afterwards. On host memory, sums of
  // parts of about equal size are in rank order.
  virtual std::unique_ptr<Pending> reduce_scatter_sum(Stream& stream, std::span<float> values,
                                                      std::span<const int64_t> counts);
  // `bytes` holds one part per member, in rank order, and this member's part is filled in; counts: bytes of each part.
  // In place: fills in the parts of the others.
  virtual std::unique_ptr<Pending> all_gather(Stream& stream, std::span<std::byte> bytes,
                                              std::span<const int64_t> counts);

  // The stream on which all communication between devices of this group, and of others, runs in the order of the calls.
  // Operators that are enqueued on it after an exchange may read what that has received without waiting for it. Null
  // where communication goes through the host.
  virtual Stream* exchange_stream() { return nullptr; }

  // Collective. Members with the same color form a new group, ordered by key.
  virtual std::unique_ptr<Comm> split(int color, int key) = 0;

  // For code that waits for something else than a collective, such as a GPU: call it now and then. Not collective.
  // Throws when another rank is known to have ended the job or to be gone. Errors: what a collective with the lost rank
  // would throw. Over MPI it does nothing, because the launcher (mpirun, srun) ends the job when a rank is gone.
  virtual void check_peers() {}

  // The record of this rank's collectives in all its groups, which the watchdog reads (core/progress.h); null: none is
  // kept.
  virtual Progress* progress() { return nullptr; }
};

// Calls body(part, member) for every member's part of `whole` that is not empty. Errors: internal, when the counts do
// not add up to the size of `whole`.
template <class T, class Body>
void for_each_part(std::span<T> whole, std::span<const int64_t> counts, Body&& body) {
  size_t at = 0;
  for (size_t member = 0; member < counts.size(); ++member) {
    const auto count = static_cast<size_t>(counts[member]);
    MW_CHECK(count <= whole.size() - at, "parts of more than {} elements", whole.size());
    if (count > 0) body(whole.subspan(at, count), static_cast<int>(member));
    at += count;
  }
  MW_CHECK(at == whole.size(), "parts of {} elements in {}", at, whole.size());
}

// A group of one.
std::unique_ptr<Comm> make_self_comm();

// Collective. Returns the text of `root` on every member.
std::string broadcast_text(Comm& comm, const std::string& text, int root);

}  // namespace mw
