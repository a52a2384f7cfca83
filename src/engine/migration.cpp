#include "engine/migration.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/host.h"
#include "core/rng.h"
#include "engine/replicas.h"
#include "engine/state_slices.h"
#include "engine/zero.h"
#include "layout/state_moves.h"
#include "ops/device.h"

namespace mw {
namespace {

constexpr int64_t kProbeBytes = int64_t{4} << 20;  // of a rank in a round of measure_bandwidth
constexpr int kProbeRounds = 7;                    // all count: in a run, too, some wait for a busy core

// Neighbouring elements of a slice in this rank's memory. They travel as they are stored: of split weights, the rests
// behind the high parts.
struct Run {
  const LocalSlice* slice;
  int64_t begin, count;
  std::array<TensorView, 2> parts() const {
    const TensorView& near = slice->near;
    return {near.data == nullptr ? TensorView(nullptr, near.dtype, {0}) : near.slice(begin, count),
            slice->values.slice(begin, count)};
  }
  int64_t bytes() const { return parts()[0].bytes() + parts()[1].bytes(); }
};
using PeerRuns = std::vector<std::vector<Run>>;  // by rank of the world

int64_t bytes_of(const std::vector<Run>& runs) {
  int64_t bytes = 0;
  for (const Run& run : runs) bytes += run.bytes();
  return bytes;
}

// The ranks that share the layers of this rank, and the group of them that moves memory most directly.
struct Sharers {
  Comm& group;
  std::vector<int> world_ranks;  // in the order of the group
};
Sharers sharers_of(Engine& engine) {
  const Mesh& mesh = engine.plan.mesh;
  const int own = engine.world.rank();
  if (mesh.tp == 1) return {*engine.comms.dp, group_of(mesh, MeshAxis::dp, own)};
  Sharers sharers{*engine.comms.stage, {}};
  for (int rank = 0; rank < mesh.world; ++rank)
    if (coords_of(mesh, rank).pp == coords_of(mesh, own).pp) sharers.world_ranks.push_back(rank);
  return sharers;
}

// The states move inside the same memory: what arrives overwrites what leaves. In a round the same part of each expert
// matrix travels, from all slots to all slots, and nothing is written before everything is packed. So no round
// overwrites what a later one sends.
class Migration {
 public:
  // scratch: memory to send from and to receive in.
  Migration(Engine& engine, const EngineStates& before, const EngineStates& after, const std::vector<size_t>& rows,
            const std::array<std::span<std::byte>, 2>& scratch, const std::function<void()>& at_message)
      : world_(engine.world),
        stream_(engine.stream),
        sharers_(sharers_of(engine)),
        before_(before),
        after_(after),
        scratch_(scratch),
        at_message_(at_message) {
    moves_ = state_moves(before.map, after.map, world_.rank(), rows);
    if (engine.plan.run.fault == Fault::stale_moment)
      for (auto* lists : {&moves_.sends, &moves_.receives})
        for (std::vector<StateMove>& list : *lists)
          std::erase_if(list, [](const StateMove& move) { return move.kind != StateKind::param; });
  }

  Migrated run(int64_t piece_bytes) {
    const int64_t rounds = count_rounds(piece_bytes);
    for (int64_t round = 0; round < rounds; ++round) exchange(round, rounds);
    return done_;
  }

 private:
  // Enough for pieces of about piece_bytes, and for the scratch memory of all ranks. Where ZeRO cuts experts, rounds
  // are uneven; twice as many cut each into two, so that what fits still does.
  int64_t count_rounds(int64_t piece_bytes) {
    int64_t rounds = (std::max(most_bytes(true, 1), most_bytes(false, 1)) + piece_bytes - 1) / piece_bytes;
    world_.all_reduce_max(std::span(&rounds, 1));
    while (rounds > 0 &&
           (most_bytes(true, rounds) > std::ssize(scratch_[0]) || most_bytes(false, rounds) > std::ssize(scratch_[1])))
      rounds *= 2;
    world_.all_reduce_max(std::span(&rounds, 1));
    return rounds;
  }

  int64_t most_bytes(bool leaves, int64_t rounds) const {
    int64_t most = 0;
    for (int64_t round = 0; round < rounds; ++round) {
      int64_t bytes = 0;
      for (const std::vector<Run>& runs : runs_of(leaves, round, rounds)) bytes += bytes_of(runs);
      most = std::max(most, bytes);
    }
    return most;
  }

  // Of this rank's memory, what leaves or what arrives in a round. Moves from the rank to itself are both.
  PeerRuns runs_of(bool leaves, int64_t round, int64_t rounds) const {
    const std::vector<std::vector<StateMove>>& moves = leaves ? moves_.sends : moves_.receives;
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
          if (first < last) list.push_back({&own, at + first - in_entry, last - first});
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
    const PeerRuns sent = runs_of(true, round, rounds), received = runs_of(false, round, rounds);
    RowExchange rows;
    rows.row_bytes = 1;
    rows.send = scratch_[0].data();
    rows.receive = scratch_[1].data();
    place(sent, rows.send_counts, rows.send_offsets, done_.sent_bytes);
    place(received, rows.receive_counts, rows.receive_offsets, done_.received_bytes);
    for_each_part(sent, scratch_[0].data(), [&](std::byte* packed, const TensorView& part) {
      stream_.queue().copy(packed, part.data, static_cast<size_t>(part.bytes()));
    });
    at_message_();
    const std::unique_ptr<Pending> travelling = sharers_.group.all_to_all(stream_, rows);
    at_message_();
    travelling->wait();
    for_each_part(received, scratch_[1].data(), [&](const std::byte* packed, const TensorView& part) {
      stream_.queue().copy(part.data, packed, static_cast<size_t>(part.bytes()));
    });
    ++done_.rounds;
  }

  // Calls body(place in `packed`, part) for the parts of all runs, in the order of the group.
  template <class Body>
  void for_each_part(const PeerRuns& runs, std::byte* packed, const Body& body) const {
    for (const int rank : sharers_.world_ranks)
      for (const Run& run : runs[static_cast<size_t>(rank)])
        for (const TensorView& part : run.parts()) {
          body(packed, part);
          packed += part.bytes();
        }
  }

  void place(const PeerRuns& runs, std::vector<int64_t>& counts, std::vector<int64_t>& offsets,
             int64_t& travelled) const {
    int64_t bytes = 0;
    for (const int rank : sharers_.world_ranks) {
      offsets.push_back(bytes);
      counts.push_back(bytes_of(runs[static_cast<size_t>(rank)]));
      bytes += counts.back();
      if (rank != world_.rank()) travelled += counts.back();
    }
  }

  Comm& world_;
  Stream& stream_;
  Sharers sharers_;
  const EngineStates &before_, &after_;
  std::array<std::span<std::byte>, 2> scratch_;
  const std::function<void()>& at_message_;
  RankMoves moves_;
  Migrated done_;
};

// The memory of the two largest gradients: the next step overwrites it.
std::array<std::span<std::byte>, 2> scratch_of(const std::vector<Parameter*>& params) {
  std::array<std::span<std::byte>, 2> largest;
  for (const Parameter* p : params) {
    const std::span<std::byte> bytes = bytes_of(p->grad);
    if (bytes.size() > largest[1].size()) largest[1] = bytes;
    if (largest[1].size() > largest[0].size()) std::swap(largest[0], largest[1]);
  }
  return largest;
}

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

Migrated migrate_experts(Engine& engine, const SharedPlacements& placements, int64_t piece_bytes,
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
  Migrated done = Migration(engine, before, after, rows, scratch_of(moved), at_message).run(piece_bytes);
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

// With messages as large as those of a move, to some near and far members of the EP group: of a large group, each of
// them would get too little for its bandwidth to show.
double measure_bandwidth(Engine& engine) {
  std::vector<Parameter*> experts;
  for (Parameter& p : engine.params.all())
    if (p.row.expert) experts.push_back(&p);
  const std::array<std::span<std::byte>, 2> scratch = scratch_of(experts);
  Comm& ep = *engine.comms.ep;
  std::set<int> distances;
  for (const int distance : {1, ep.size() / 8, ep.size() / 4, ep.size() / 2})
    if (distance > 0 && distance < ep.size()) distances.insert(distance);
  const int64_t messages = std::max<int64_t>(std::ssize(distances), 1);
  int64_t each = -std::min({kProbeBytes, std::ssize(scratch[0]), std::ssize(scratch[1])}) / messages;
  ep.all_reduce_max(std::span(&each, 1));
  each = -each;
  const auto members = static_cast<size_t>(ep.size());
  RowExchange rows{scratch[0].data(), {}, {}, scratch[1].data(), {}, {}, 1};
  rows.send_counts = rows.send_offsets = rows.receive_counts = rows.receive_offsets = std::vector<int64_t>(members);
  int64_t at = 0;
  for (const int distance : distances) {
    const auto to = static_cast<size_t>((ep.rank() + distance) % ep.size()),
               from = static_cast<size_t>((ep.rank() - distance + ep.size()) % ep.size());
    rows.send_counts[to] = rows.receive_counts[from] = each;
    rows.send_offsets[to] = rows.receive_offsets[from] = at;
    at += each;
  }
  double begin = 0;
  for (int round = 0; round <= kProbeRounds; ++round) {
    ep.all_to_all(engine.stream, rows)->wait();
    engine.stream.wait();
    if (round == 0) begin = now_seconds();  // the first one connects
  }
  double seconds_per_byte = at == 0 ? 0 : (now_seconds() - begin) / static_cast<double>(kProbeRounds * at);
  engine.world.all_reduce_max(std::span(&seconds_per_byte, 1));
  return seconds_per_byte > 0 ? 1 / seconds_per_byte : std::numeric_limits<double>::infinity();
}

}  // namespace mw
