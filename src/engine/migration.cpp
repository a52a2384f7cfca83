#include "engine/migration.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "core/rng.h"
#include "engine/replicas.h"
#include "engine/state_slices.h"
#include "engine/zero.h"
#include "layout/state_moves.h"
#include "ops/device.h"

namespace mw {
namespace {

// Neighbouring elements of a slice in this rank's memory.
struct Run {
  const LocalSlice* slice;
  int64_t begin, count;
  DType dtype;  // in which they travel
  int64_t bytes() const { return count * size_of(dtype); }
};
using PeerRuns = std::vector<std::vector<Run>>;  // by rank of the world

int64_t bytes_of(const std::vector<Run>& runs) {
  int64_t bytes = 0;
  for (const Run& run : runs) bytes += run.bytes();
  return bytes;
}

// The states move inside the same memory: what arrives overwrites what leaves. In a round the same part of each expert
// matrix travels, from all slots to all slots, and nothing is written before everything is packed. So no round
// overwrites what a later one sends.
class Migration {
 public:
  Migration(Engine& engine, const EngineStates& before, const EngineStates& after, const std::vector<size_t>& rows,
            const std::function<void()>& at_message)
      : world_(engine.world),
        device_(engine.device),
        reader_(engine.device),
        before_(before),
        after_(after),
        at_message_(at_message) {
    moves_ = state_moves(before.map, after.map, world_.rank(), rows);
    if (engine.plan.run.fault == Fault::stale_moment)
      for (auto* lists : {&moves_.sends, &moves_.receives})
        for (std::vector<StateMove>& list : *lists)
          std::erase_if(list, [](const StateMove& move) { return move.kind != StateKind::param; });
  }

  Migrated run(int64_t buffer_bytes) {
    const int64_t rounds = count_rounds(buffer_bytes);
    for (int64_t round = 0; round < rounds; ++round) exchange(round, rounds);
    return done_;
  }

 private:
  int64_t count_rounds(int64_t buffer_bytes) {
    std::array<int64_t, 2> bytes{};
    for (const std::vector<Run>& runs : runs_of(moves_.sends, true, 0, 1)) bytes[0] += bytes_of(runs);
    for (const std::vector<Run>& runs : runs_of(moves_.receives, false, 0, 1)) bytes[1] += bytes_of(runs);
    int64_t most = std::max(bytes[0], bytes[1]);
    world_.all_reduce_max(std::span(&most, 1));
    return (most + buffer_bytes - 1) / buffer_bytes;
  }

  // Of this rank's memory, what leaves or what arrives in a round. Moves from the rank to itself are both.
  PeerRuns runs_of(const std::vector<std::vector<StateMove>>& moves, bool leaves, int64_t round, int64_t rounds) const {
    PeerRuns runs(moves.size());
    const auto add = [&](std::vector<Run>& list, const StateMove& move, bool stays) {
      const LocalSlice& own =
          leaves ? before_.at(move, move.from_index, move.from) : after_.at(move, move.to_index, move.to);
      const int64_t shift =
          stays ? after_.at(move, move.to_index, move.to).place - before_.at(move, move.from_index, move.from).place
                : 0;
      const int64_t begin = own.entry * round / rounds, end = own.entry * (round + 1) / rounds;
      for_each_shared_run(own.global_shape, move.from, move.to, [&](int64_t a, int64_t b, int64_t count) {
        if (stays && shift + b == a) return;  // in its place already
        for (int64_t i = 0; i < count;) {
          const int64_t at = (leaves ? a : b) + i, in_entry = (own.place + at) % own.entry,
                        part = std::min(count - i, own.entry - in_entry), first = std::max(begin, in_entry),
                        last = std::min(end, in_entry + part);
          if (first < last) list.push_back({&own, at + first - in_entry, last - first, before_.map.dtype(move.kind)});
          i += part;
        }
      });
    };
    for (size_t peer = 0; peer < moves.size(); ++peer)
      for (const StateMove& move : moves[peer]) add(runs[peer], move, false);
    for (const StateMove& move : moves_.stays) add(runs[static_cast<size_t>(world_.rank())], move, true);
    return runs;
  }

  void exchange(int64_t round, int64_t rounds) {
    const PeerRuns sent = runs_of(moves_.sends, true, round, rounds),
                   received = runs_of(moves_.receives, false, round, rounds);
    RowExchange rows;
    rows.row_bytes = 1;
    send_.resize(static_cast<size_t>(place(sent, rows.send_counts, rows.send_offsets, done_.sent_bytes)));
    receive_.resize(
        static_cast<size_t>(place(received, rows.receive_counts, rows.receive_offsets, done_.received_bytes)));
    rows.send = send_.data();
    rows.receive = receive_.data();
    std::byte* end = send_.data();
    for (const std::vector<Run>& runs : sent)
      for (const Run& run : runs) {
        const std::span<const std::byte> bytes = reader_.read(*run.slice, run.begin, run.count);
        end = std::copy(bytes.begin(), bytes.end(), end);
      }
    at_message_();
    const std::unique_ptr<Pending> travelling = world_.all_to_all(rows);
    at_message_();
    travelling->wait();
    const std::byte* begin = receive_.data();
    for (const std::vector<Run>& runs : received)
      for (const Run& run : runs) {
        const LocalSlice& slice = *run.slice;
        write_stored(device_, begin, run.dtype, slice.values.slice(run.begin, run.count),
                     slice.near.data == nullptr ? slice.near : slice.near.slice(run.begin, run.count));
        begin += run.bytes();
      }
    finish_writes(device_);
    ++done_.rounds;
  }

  int64_t place(const PeerRuns& runs, std::vector<int64_t>& counts, std::vector<int64_t>& offsets,
                int64_t& travelled) const {
    int64_t bytes = 0;
    for (size_t peer = 0; peer < runs.size(); ++peer) {
      offsets.push_back(bytes);
      counts.push_back(bytes_of(runs[peer]));
      bytes += counts.back();
      if (peer != static_cast<size_t>(world_.rank())) travelled += counts.back();
    }
    return bytes;
  }

  Comm& world_;
  Device device_;
  SliceReader reader_;
  const EngineStates &before_, &after_;
  const std::function<void()>& at_message_;
  RankMoves moves_;
  std::vector<std::byte> send_, receive_;
  Migrated done_;
};

}  // namespace

// Replicas of the first of `order` that have no copy on a rank.
static void add_replicas(ExpertPlacement& placement, int rank, const std::vector<int>& order, int64_t slots) {
  const std::vector<int> own = placement.experts_of(rank);
  auto slot = static_cast<int>(own.size());
  for (auto e = order.begin(); e != order.end() && slot < std::ssize(own) + slots; ++e)
    if (std::find(own.begin(), own.end(), *e) == own.end())
      placement.homes[static_cast<size_t>(*e)].push_back({rank, slot++});
}

Placements shuffle_experts(const Placements& placements, uint64_t seed, int64_t step, int64_t replica_slots) {
  Placements shuffled = placements;
  ++shuffled.version;
  for (size_t layer = 0; layer < shuffled.layers.size(); ++layer) {
    ExpertPlacement& placement = shuffled.layers[layer];
    if (placement.is_sliced()) continue;
    const auto shuffle = [](auto& list, const RngKey& key) {
      for (uint64_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[bits_at(key, i) % i]);
    };
    for (std::vector<ExpertHome>& homes : placement.homes) homes.resize(1);
    shuffle(placement.homes, make_rng_key(seed, fmt::format("migrate.{}.{}", step, layer)));
    std::vector<int> experts(placement.homes.size());
    std::iota(experts.begin(), experts.end(), 0);
    for (int rank = 0; rank < placement.ep && replica_slots > 0; ++rank) {
      shuffle(experts, make_rng_key(seed, fmt::format("replicas.{}.{}.{}", step, layer, rank)));
      add_replicas(placement, rank, experts, replica_slots);
    }
  }
  return shuffled;
}

Migrated migrate_experts(Engine& engine, const SharedPlacements& placements, int64_t buffer_bytes,
                         const std::function<void()>& at_message) {
  const TraceScope scope(engine.stream.trace(), Work::optimizer, "migrate_experts");
  engine.stream.wait();  // for the update
  const SharedPlacements from = engine.plan.placements;
  const EngineStates before(engine);
  place_experts(engine, placements);
  const EngineStates after(engine);
  std::vector<size_t> rows;
  std::vector<Parameter*> moved;  // of this rank
  for (size_t i = 0; i < engine.plan.params.size(); ++i) {
    const ParamRow& row = engine.plan.params[i];
    const auto layer = static_cast<size_t>(row.layer);
    if (!row.expert || from->layers[layer] == placements->layers[layer]) continue;
    rows.push_back(i);
    if (engine.params.has(row.name)) moved.push_back(&engine.params.find(row.name));
  }
  Migrated done = Migration(engine, before, after, rows, at_message).run(buffer_bytes);
  at_message();
  refresh_weights(engine.params, engine.comms, engine.stream, moved);
  const bool are_filled = std::any_of(from->layers.begin(), from->layers.end(),
                                      [](const ExpertPlacement& placement) { return placement.has_replicas(); });
  if (engine.plan.run.fault != Fault::stale_replica || !are_filled) {
    at_message();
    const CopiedBytes copied = refresh_replicas(engine);
    done.sent_bytes += copied.sent;
    done.received_bytes += copied.received;
  }
  engine.stream.wait();
  return done;
}

}  // namespace mw
