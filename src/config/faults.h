// Faults that tests inject (debug.fault): each makes a run wrong in one known way, so that tests can show that `verify`
// and the watchdog find it.
#pragma once

#include <cstdint>

#include "base/enum_words.h"

namespace mw {

enum class Fault : uint8_t {
  none,
  double_expert_gradient,  // of the first expert tensor of each rank
  skip_router_sum,         // gradients of token shards are not summed over TP
  drop_row,                // the first choice of the first token, on the first rank of DP and TP
  wrong_choice,            // in the last layer, also when a routing is replayed
  fleeting_choice,         // the same, not when a routing is replayed
  local_aux_counts,        // counts of the auxiliary loss are not summed over ranks
  wrong_denominator,       // the loss is divided by the labels of the rank, not of the step
  nan_gradient,
  wrong_clip,         // clips 1 % more on all ranks but the first
  stale_gather,       // ZeRO does not gather the updated weights of experts
  skip_tied_sum,      // gradients of tied embeddings are not summed over stages
  copies_in_norm,     // the gradient norm counts copies of a gradient
  slight_gradient,    // 0.1 % too large
  fleeting_gradient,  // the same, until `verify` tries other tokens
  slight_query_norm,  // gradients of the query norm are 0.1 % too large
  // Of exchanges by way of the node.
  lose_replica,         // gateways pass on the neighbour's row
  merge_unweighted,     // the first rank of each EP group forgets the gate weights in bypass
  swap_gate_gradients,  // gate gradients travel with the neighbour's row
  forget_home,          // gradients of rows do not return from experts of the own node
  stale_weights,        // recompute sends other gate weights
  wrong_gateway_order,  // gateways mistake their sources' rows for each other's
  short_slice,          // with gather_tokens, the last rank of each EP group lacks a feature of each expert
  stale_cache_slot,     // the last gather of weights in a step is left out: its slot holds another piece or old weights
  late_reduce,          // with gather_weights, owners read weight gradients before the sum over ranks
  stale_moment,         // with debug.migrate, moments stay behind where experts move to another rank
  local_largest_logits,  // ranks do not exchange the largest attention logits
  wrong_share_offset,    // the last data-parallel rank begins one sample too early in each micro-batch
  // Of replicas of experts.
  lost_replica_gradient,    // homes do not add the gradients of replicas
  double_replica_gradient,  // homes add them twice
  norm_counts_replicas,     // the gradient norm counts them, beside the sums at home
  stale_replica,            // once filled, replicas keep their weights
  hang,                     // the last rank stops at step 3
};
template <>
inline constexpr EnumWord<Fault> kEnumWords<Fault>[] = {
    {Fault::none, ""},
    {Fault::double_expert_gradient, "double_expert_gradient"},
    {Fault::skip_router_sum, "skip_router_sum"},
    {Fault::drop_row, "drop_row"},
    {Fault::wrong_choice, "wrong_choice"},
    {Fault::fleeting_choice, "fleeting_choice"},
    {Fault::local_aux_counts, "local_aux_counts"},
    {Fault::wrong_denominator, "wrong_denominator"},
    {Fault::nan_gradient, "nan_gradient"},
    {Fault::wrong_clip, "wrong_clip"},
    {Fault::stale_gather, "stale_gather"},
    {Fault::skip_tied_sum, "skip_tied_sum"},
    {Fault::copies_in_norm, "copies_in_norm"},
    {Fault::slight_gradient, "slight_gradient"},
    {Fault::fleeting_gradient, "fleeting_gradient"},
    {Fault::slight_query_norm, "slight_query_norm"},
    {Fault::lose_replica, "lose_replica"},
    {Fault::merge_unweighted, "merge_unweighted"},
    {Fault::swap_gate_gradients, "swap_gate_gradients"},
    {Fault::forget_home, "forget_home"},
    {Fault::stale_weights, "stale_weights"},
    {Fault::wrong_gateway_order, "wrong_gateway_order"},
    {Fault::short_slice, "short_slice"},
    {Fault::stale_cache_slot, "stale_cache_slot"},
    {Fault::late_reduce, "late_reduce"},
    {Fault::stale_moment, "stale_moment"},
    {Fault::local_largest_logits, "local_largest_logits"},
    {Fault::wrong_share_offset, "wrong_share_offset"},
    {Fault::lost_replica_gradient, "lost_replica_gradient"},
    {Fault::double_replica_gradient, "double_replica_gradient"},
    {Fault::norm_counts_replicas, "norm_counts_replicas"},
    {Fault::stale_replica, "stale_replica"},
    {Fault::hang, "hang"},
};

}  // namespace mw
