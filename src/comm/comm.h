// Comm: one group of ranks and its collectives, over host memory or in the order of a stream. Every member calls the
// same collectives in the same order, over all of its groups, from one thread. Zero-length messages are legal
// everywhere. Sums are deterministic for a fixed layout and equal on all members.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/stream.h"

namespace mw {

// An exchange or a sum under way. After wait() what it receives is there and what it sends is free: for the host, or,
// where it was started on a stream, for what is enqueued there from then on. Waiting twice is legal; destroying one
// that was not waited for waits, unless an error unwinds and it is a message or on a stream.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual void wait() = 0;
};

// One that was over when it was asked for.
class DonePending : public Pending {
 public:
  void wait() override {}
};

// Rows to and from every member. Counts and offsets are in rows of `row_bytes`, one per member.
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

  // In place, over all members. Errors: comm.
  virtual void all_reduce_sum(std::span<float> values) = 0;
  virtual void all_reduce_sum(std::span<double> values) = 0;
  virtual void all_reduce_sum(std::span<int64_t> values) = 0;
  virtual void all_reduce_max(std::span<double> values) = 0;
  virtual void all_reduce_max(std::span<int64_t> values) = 0;
  // In place: `root` has the sum of all members, the others keep their values.
  virtual void reduce_sum(std::span<float> values, int root) = 0;
  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;
  virtual void barrier() = 0;
  // Starts an uneven all-to-all. The buffers must stay untouched until wait().
  virtual std::unique_ptr<Pending> all_to_all(const RowExchange& exchange) = 0;
  // Start a message to or from another member; the n-th one sent meets the n-th one received, of the same size. What
  // is sent must stay untouched until wait(), which may last until the other side receives.
  virtual std::unique_ptr<Pending> send(std::span<const std::byte> bytes, int to) = 0;
  virtual std::unique_ptr<Pending> receive(std::span<std::byte> bytes, int from) = 0;

  // The same over memory of the stream's device, in its order: they start when what was enqueued before is done, and
  // what they touch must be left alone until wait(). By default the host waits for the stream and does all of it
  // itself.
  virtual std::unique_ptr<Pending> all_reduce_sum(Stream& stream, std::span<float> values);
  virtual std::unique_ptr<Pending> all_to_all(Stream& stream, const RowExchange& exchange);
  virtual std::unique_ptr<Pending> send(Stream& stream, std::span<const std::byte> bytes, int to);
  virtual std::unique_ptr<Pending> receive(Stream& stream, std::span<std::byte> bytes, int from);
  // `values` is one part per member, in their order; counts: elements of each, none is legal. In place: this member's
  // part becomes the sum over all members; what the other parts hold is not defined.
  virtual std::unique_ptr<Pending> reduce_scatter_sum(Stream& stream, std::span<float> values,
                                                      std::span<const int64_t> counts);
  // `bytes` is one part per member, likewise, and each member holds its own. In place: the others' arrive.
  virtual std::unique_ptr<Pending> all_gather(Stream& stream, std::span<std::byte> bytes,
                                              std::span<const int64_t> counts);

  // Members of the same color form a new group, ordered by key.
  virtual std::unique_ptr<Comm> split(int color, int key) = 0;

  // For whoever waits elsewhere, without a collective: whether others of the world are known to have ended the job, or
  // to be gone. Errors: as of a collective with them. Where a launcher ends the job there is nothing to know.
  virtual void check_peers() {}

  // Where this rank's collectives are noted, over all of its groups; null: nowhere.
  virtual Progress* progress() { return nullptr; }
};

// Calls body(part, member) for every member's part of `whole` that is not empty. Errors: internal, when the counts are
// not those of `whole`.
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

// The same text on every member, from `root`.
std::string broadcast_text(Comm& comm, const std::string& text, int root);

}  // namespace mw
