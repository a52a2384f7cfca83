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
// that was not waited for waits.
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

  // Members of the same color form a new group, ordered by key.
  virtual std::unique_ptr<Comm> split(int color, int key) = 0;
};

// A group of one.
std::unique_ptr<Comm> make_self_comm();

// The same text on every member, from `root`.
std::string broadcast_text(Comm& comm, const std::string& text, int root);

}  // namespace mw
