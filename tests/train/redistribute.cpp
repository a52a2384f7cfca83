#include "train/redistribute.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include "engine/state_slices.h"
#include "layout/state_moves.h"
#include "ops/device.h"

namespace mw {
namespace {

// Elements [begin, begin + count) of those that a move has.
struct MovePart {
  const StateMove* move;
  int64_t begin, count;
};

// The moves between this rank and one peer, taken in order.
class MoveQueue {
 public:
  MoveQueue(std::span<const StateMove> moves, const StateMap& sender) : moves_(moves), sender_(sender) {}
  bool is_empty() const { return moves_.empty(); }
  // The next parts, whole elements of `room` bytes at most; returns their bytes.
  int64_t take(int64_t room, std::vector<MovePart>& parts) {
    const int64_t all = room;
    while (!moves_.empty()) {
      const StateMove& move = moves_.front();
      const int64_t size = size_of(sender_.dtype(move.kind)), count = std::min(move.elements - done_, room / size);
      if (count == 0) break;
      parts.push_back({&move, done_, count});
      room -= count * size;
      done_ += count;
      if (done_ < move.elements) break;
      done_ = 0;
      moves_ = moves_.subspan(1);
    }
    return all - room;
  }

 private:
  std::span<const StateMove> moves_;
  const StateMap& sender_;
  int64_t done_ = 0;  // elements of the first move
};

class Redistribution {
 public:
  Redistribution(Engine& from, Engine& to, int64_t buffer_bytes)
      : world_(from.world),
        device_(to.device),
        reader_(from.device),
        from_(from),
        to_(to),
        moves_(state_moves(from_.map, to_.map, world_.rank())) {
    const auto peers_of = [](const std::vector<std::vector<StateMove>>& moves) {
      return std::count_if(moves.begin(), moves.end(), [](const auto& list) { return !list.empty(); });
    };
    int64_t peers = std::max({int64_t{1}, int64_t{peers_of(moves_.sends)}, int64_t{peers_of(moves_.receives)}});
    world_.all_reduce_max(std::span(&peers, 1));
    room_ = std::max<int64_t>(buffer_bytes / peers, size_of(DType::f32));
    for (const std::vector<StateMove>& list : moves_.sends) sends_.emplace_back(list, from_.map);
    for (const std::vector<StateMove>& list : moves_.receives) receives_.emplace_back(list, from_.map);
  }

  Redistributed run() {
    for (const StateMove& move : moves_.stays) keep(move);
    while (any_is_left()) exchange();
    return done_;
  }

 private:
  // Ranks end together: a collective needs all of them.
  bool any_is_left() {
    const auto is_left = [](const MoveQueue& queue) { return !queue.is_empty(); };
    int64_t left = std::any_of(sends_.begin(), sends_.end(), is_left) ? 1 : 0;
    world_.all_reduce_max(std::span(&left, 1));
    return left != 0;
  }

  void exchange() {
    RowExchange rows;
    rows.row_bytes = 1;
    std::vector<MovePart> sent, received;
    const int64_t send_bytes = take(sends_, rows.send_counts, rows.send_offsets, sent),
                  receive_bytes = take(receives_, rows.receive_counts, rows.receive_offsets, received);
    send_.resize(static_cast<size_t>(send_bytes));
    receive_.resize(static_cast<size_t>(receive_bytes));
    std::byte* end = send_.data();
    for (const MovePart& part : sent) end = pack(part, end);
    rows.send = send_.data();
    rows.receive = receive_.data();
    world_.all_to_all(rows)->wait();
    const std::byte* begin = receive_.data();
    for (const MovePart& part : received) begin = unpack(part, begin);
    done_.sent_bytes += send_bytes;
    done_.received_bytes += receive_bytes;
    ++done_.rounds;
  }

  int64_t take(std::vector<MoveQueue>& queues, std::vector<int64_t>& counts, std::vector<int64_t>& offsets,
               std::vector<MovePart>& parts) const {
    int64_t bytes = 0;
    for (MoveQueue& queue : queues) {
      offsets.push_back(bytes);
      counts.push_back(queue.take(room_, parts));
      bytes += counts.back();
    }
    return bytes;
  }

  // Calls body(element of the sender's slice, of the receiver's slice, count) for the runs of a part.
  template <class Body>
  void for_each_run(const MovePart& part, Body body) const {
    int64_t at = 0;
    for_each_shared_run(from_.map.rows()[part.move->row].shape, part.move->from, part.move->to,
                        [&](int64_t a, int64_t b, int64_t count) {
                          const int64_t begin = std::max(at, part.begin),
                                        end = std::min(at + count, part.begin + part.count);
                          if (begin < end) body(a + begin - at, b + begin - at, end - begin);
                          at += count;
                        });
  }

  std::byte* pack(const MovePart& part, std::byte* to) {
    const LocalSlice& slice = from_.at(*part.move, part.move->from_index, part.move->from);
    for_each_run(part, [&](int64_t a, int64_t, int64_t count) {
      const std::span<const std::byte> bytes = reader_.read(slice, a, count);
      to = std::copy(bytes.begin(), bytes.end(), to);
    });
    return to;
  }

  const std::byte* unpack(const MovePart& part, const std::byte* from) {
    const LocalSlice& slice = to_.at(*part.move, part.move->to_index, part.move->to);
    const DType dtype = from_.map.dtype(part.move->kind);
    for_each_run(part, [&](int64_t, int64_t b, int64_t count) {
      write(slice, b, count, from, dtype);
      from += count * size_of(dtype);
    });
    return from;
  }

  void keep(const StateMove& move) {
    constexpr int64_t kPiece = 1 << 20;  // elements
    const LocalSlice &source = from_.at(move, move.from_index, move.from),
                     &slice = to_.at(move, move.to_index, move.to);
    const DType dtype = from_.map.dtype(move.kind);
    for_each_run({&move, 0, move.elements}, [&](int64_t a, int64_t b, int64_t count) {
      for (int64_t i = 0; i < count; i += kPiece) {
        const int64_t piece = std::min(kPiece, count - i);
        write(slice, b + i, piece, reader_.read(source, a + i, piece).data(), dtype);
      }
    });
    done_.kept_bytes += move.elements * size_of(dtype);
  }

  void write(const LocalSlice& slice, int64_t at, int64_t count, const std::byte* from, DType dtype) const {
    write_stored(device_, from, dtype, slice.values.slice(at, count),
                 slice.near.data == nullptr ? slice.near : slice.near.slice(at, count));
  }

  Comm& world_;
  Device device_;
  SliceReader reader_;
  EngineStates from_, to_;
  RankMoves moves_;
  int64_t room_ = 0;  // bytes for each peer in a round
  std::vector<MoveQueue> sends_, receives_;
  std::vector<std::byte> send_, receive_;
  Redistributed done_;
};

}  // namespace

Redistributed redistribute(Engine& from, Engine& to, int64_t buffer_bytes) {
  const TraceScope scope(to.stream.trace(), Work::checkpoint, "redistribute");
  from.stream.wait();  // for the update
  to.stream.wait();
  const Redistributed done = Redistribution(from, to, buffer_bytes).run();
  refresh_weights(to);
  to.stream.wait();
  return done;
}

}  // namespace mw
