// Faults that tests inject (debug.fault): each makes a run wrong in one known way, so that tests can show that `verify`
// and the watchdog find it.
#pragma once

#include <string>
#include <vector>

namespace mw {

struct Faults {
  bool double_expert_gradient = false;  // of the first expert tensor of each rank
  bool skip_router_sum = false;         // gradients of token shards are not summed over TP
  bool drop_row = false;                // the first choice of the first token, on the first rank of DP and TP
  bool wrong_choice = false;            // in the last layer, also when a routing is replayed
  bool fleeting_choice = false;         // the same, not when a routing is replayed
  bool local_aux_counts = false;        // counts of the auxiliary loss are not summed over ranks
  bool wrong_denominator = false;       // the loss is divided by the labels of the rank, not of the step
  bool nan_gradient = false;
  bool wrong_clip = false;         // clips 1 % more on all ranks but the first
  bool stale_gather = false;       // ZeRO does not gather the updated weights of experts
  bool skip_tied_sum = false;      // gradients of tied embeddings are not summed over stages
  bool copies_in_norm = false;     // the gradient norm counts copies of a gradient
  bool slight_gradient = false;    // 0.1 % too large
  bool fleeting_gradient = false;  // the same, until `verify` tries other tokens
  bool slight_query_norm = false;  // gradients of the query norm are 0.1 % too large
  // Of exchanges by way of the node.
  bool lose_replica = false;         // gateways pass on the neighbour's row
  bool merge_unweighted = false;     // the first rank of each EP group forgets the gate weights in bypass
  bool swap_gate_gradients = false;  // gate gradients travel with the neighbour's row
  bool forget_home = false;          // gradients of rows do not return from experts of the own node
  bool stale_weights = false;        // recompute sends other gate weights
  bool wrong_gateway_order = false;  // gateways mistake their sources' rows for each other's
  bool hang = false;                 // the last rank stops at step 3
};

std::vector<std::string> fault_names();
// The fault of this name alone; "": none. Errors: config, for an unknown name.
Faults faults_of(const std::string& name);

}  // namespace mw
