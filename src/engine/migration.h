// Migration: moves experts of a running engine to other ranks of their EP group, with their optimizer state.
#pragma once

#include <cstdint>
#include <functional>

#include "engine/engine.h"

namespace mw {

// Bytes of the pieces in which states travel.
constexpr int64_t kMigrationBytes = int64_t{16} << 20;

// What this rank did.
struct Migrated {
  int64_t sent_bytes = 0, received_bytes = 0;  // to and from other ranks
  int64_t rounds = 0;                          // exchanges
};

// Gives the experts of each layer the ranks and slots of `placements`: moves master weights and moments, refreshes the
// copies of the weights that forward reads, and tells plan and transports. Losses, gradients, weights and moments of
// later steps are the same to the bit as without the migration, with three exceptions: `bypass` sums the rows of a
// token by node; more than two EDP ranks may sum a gradient in an order that depends on its place in a message; on GPUs
// `gather_weights` sums gradients over more than two ranks in an order that may depend on their owner. Gradients
// do not move: the next step overwrites them.
//
// Replicas get the weights of their experts. With them losses and activations of the next step are the same, too; the
// gradients that return from replicas are sums in another order.
//
// Every rank must stay the home of as many experts of a layer as before, so that no memory is allocated. Layers with
// slices of experts must stay as they are. To be called between two steps; not while a CheckpointSave of the engine is
// under way. piece_bytes: larger states travel in several rounds, through the memory of gradients. at_message: for
// tests, called before each message and while states are under way; equally often on all ranks. Collective over the
// world. Deterministic. Errors: config, as place_experts (layout/plan.h).
Migrated migrate_experts(
    Engine& engine, const SharedPlacements& placements, int64_t piece_bytes = kMigrationBytes,
    const std::function<void()>& at_message = [] {});

// Bytes a second that a rank gets from others in some exchanges, on the slowest rank; infinite where no
// two ranks share a layer with experts. Overwrites gradients. Collective over the world.
double measure_bandwidth(Engine& engine);

// Every expert of every layer with whole experts to a random place: a permutation of the layer's homes, with the next
// version. Then replicas of random experts in so many slots of each rank, as far as there are experts without a copy
// there. A function of its arguments.
Placements shuffle_experts(const Placements& placements, uint64_t seed, int64_t step, int64_t replica_slots = 0);

}  // namespace mw
