// Comm: a group of ranks (a process group) and its collectives, on host memory, or on device memory in stream order.
// Every member must call the same collectives in one order for all of its groups together, from one thread. Zero-length
// messages are legal everywhere. Sums are deterministic for a fixed layout and equal on all members.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/stream.h"

namespace mw {

// An asynchronous communication, as returned by collectives. After wait(), received data is valid and send buffers may
// be reused: by the host, or, when it was started on a stream, by work enqueued on that stream afterwards. Waiting
// twice is legal. The destructor waits too, but if it runs because of an exception, it waits for host collectives over
// MPI only: all others, point-to-point messages, and anything on a stream, are abandoned.
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
  // Start a point-to-point message. The n-th message sent to a member matches the n-th one that it receives from this
  // rank, and must have the same size. The buffer must not be touched until wait(), which may block until the other
  // side has called receive.
  virtual std::unique_ptr<Pending> send(std::span<const std::byte> bytes, int to) = 0;
  virtual std::unique_ptr<Pending> receive(std::span<std::byte> bytes, int from) = 0;

  // The same on memory of the stream's device, in stream order: they start when the work enqueued before is done, and
  // their buffers must not be touched until wait(). The default implementation waits for the stream and runs the
  // collective on the host.
  virtual std::unique_ptr<Pending> all_reduce_sum(Stream& stream, std::span<float> values);
  virtual std::unique_ptr<Pending> all_to_all(Stream& stream, const RowExchange& exchange);
  virtual std::unique_ptr<Pending> send(Stream& stream, std::span<const std::byte> bytes, int to);
  virtual std::unique_ptr<Pending> receive(Stream& stream, std::span<std::byte> bytes, int from);
  // `values` holds one part per member, in rank order; counts: elements of each part, 0 is legal. In place: this
  // member's part becomes the sum over all members; the other parts are undefined afterwards.
  virtual std::unique_ptr<Pending> reduce_scatter_sum(Stream& stream, std::span<float> values,
                                                      std::span<const int64_t> counts);
  // `bytes` holds one part per member, in rank order, and this member's part is filled in; counts: bytes of each part.
  // In place: fills in the parts of the others.
  virtual std::unique_ptr<Pending> all_gather(Stream& stream, std::span<std::byte> bytes,
                                              std::span<const int64_t> counts);

  // Collective. Members with the same color form a new group, ordered by key.
  virtual std::unique_ptr<Comm> split(int color, int key) = 0;

  // To be called now and then by code that waits for something else; not collective. Throws when other ranks are known
  // to have ended the job or to be gone. Errors: the error that a collective with these ranks would throw. Does nothing
  // where a launcher ends the job itself.
  virtual void check_peers() {}

  // Where this rank's collectives, of all its groups, are recorded for the watchdog; null: nowhere.
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
