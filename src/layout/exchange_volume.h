// How many rows an MoE layer's exchange moves over which links, for uniform choices without repetition.
#pragma once

#include <cstdint>

#include "config/model_spec.h"
#include "layout/islands.h"
#include "layout/transport.h"

namespace mw {

// Of what one token causes to be sent: within a node, and between nodes. What stays on its rank does not count.
struct LinkRows {
  double near = 0, far = 0;
};

// Rows that move towards the experts, on average over the members of an EP group; as many come back. Blocks of experts
// as make_block_placement cuts them. With groups of experts (MoeSpec) the choice between equal nodes follows
// distinct_nodes. Where ranks have slices of experts, every token goes to all other ranks.
LinkRows rows_per_token(const MoeSpec& moe, const TransportTraits& traits, const Islands& islands);
// The same for `nodes` nodes of `near` ranks each, in closed form: flat K (g - 1) / (g N) near and K (N - 1) / N far;
// halo K (g - 1) / g near; bypass D(n) (g - 1) / g near and D(N) (N - 1) / N far, with D of distinct_groups and n = g
// N; gather_tokens g - 1 near and (N - 1) g far.
LinkRows rows_per_token(const MoeSpec& moe, const TransportTraits& traits, int64_t nodes, int64_t near);

// Bytes that one row moves with it in a training step, there and back in both passes: of the row, `row_bytes` each
// time, of the gate weights, their gradients and, by way of the node and to slices of experts, the choices that travel
// with it. again: rows are dispatched once more before the backward pass.
double bytes_per_row(const MoeSpec& moe, const TransportTraits& traits, int64_t row_bytes, bool again);

// The chance that some of a token's experts are among `own` of all E: 1 - C(E - own, K) / C(E, K).
double chance_of_any(const MoeSpec& moe, int64_t own);

// Groups of ranks (nodes) that one token's k experts lie in, of `groups` with equally many of the E experts:
// N * (1 - C(E - E/N, k) / C(E, k)).
double distinct_groups(int64_t experts, int64_t top_k, int64_t groups);
// The same of nodes, where the choice is limited to the kept ones of the model's groups of experts (MoeSpec): each set
// of groups and each set of experts in them is as likely as any other.
double distinct_nodes(const MoeSpec& moe, int64_t nodes);

}  // namespace mw
