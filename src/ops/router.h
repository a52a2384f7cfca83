// The router after its matrix product: scores, top-k selection, gate weights, load and auxiliary statistics, and the
// gradient of all of them. Everything is fp32.
#pragma once

#include <cstdint>
#include <span>

#include "base/kinds.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace mw {

struct RouterRule {
  int64_t experts = 0;  // E
  int64_t top_k = 0;    // K
  ScoreFunction score = ScoreFunction::softmax;
  bool renormalise = false;  // gate weights divided by their sum over the chosen K
  float least_sum = 0.0f;    // that the sum over the chosen K counts as at least (ERNIE)
  float scale = 1.0f;        // gate weights times this, after renormalisation
  // Group-limited selection: experts form `groups` equal groups; only experts of the `kept_groups` groups with the
  // largest score (ties to the lower index) can be chosen. A group's score is the sum of its `group_best` largest s +
  // bias (DeepSeek-V2: 1, V3: 2).
  int64_t groups = 1, kept_groups = 1, group_best = 1;
  // Of sigmoid scores: p of the statistics and of the auxiliary loss is softmax(logits), as Hugging Face has it.
  bool softmax_p = false;
};

// Statistics of one call: sums over tokens, so that the sums of several ranks can be added. Empty members are not
// computed. On a GPU they are filled by the next Stream::wait(): until then their memory must stay valid. Adjacent
// members (counts_E, prob_sums_E, z_sum in this order) are read by one copy.
struct RouterStatistics {
  std::span<double> counts_E;  // choices of expert e, before rows are dropped
  // Sum over tokens of p[t, e]: softmax, or sigmoid scores divided by their sum over E (see RouterRule::softmax_p).
  std::span<double> prob_sums_E;
  double* z_sum = nullptr;  // sum over tokens of logsumexp(logits[t])^2
};

// s = softmax(logits) or sigmoid(logits). Chooses the K experts with the largest s + bias (bias: f32 [E] or an empty
// view; it never enters the weights), ties to the lower index, in descending order. weight = s, renormalised and scaled
// as the rule says.
// logits: f32 [T, E]. ids: i32 [T, K]. weights: f32 [T, K]. All outputs and statistics are overwritten; statistics are
// summed in an order that does not depend on the thread count.
// When `forced` is true, ids are an input (replayed routing) and only weights and statistics are computed.
// gaps (f32 [T], or empty): how close the choice was: s + bias of the K-th minus that of the best expert not chosen in
// the kept groups, or the score of the last kept group minus that of the best group not kept, if that is smaller; +inf
// when nothing is left out. Not written when forced.
// Non-finite logits may give non-finite weights and statistics, but ids are always valid.
void route(Stream& stream, const RouterRule& rule, TensorView logits_TE, TensorView bias_E, bool forced,
           TensorView ids_TK, TensorView weights_TK, const RouterStatistics& statistics, TensorView gaps_T);

// d_logits (f32 [T, E], overwritten) from
//   d_weights: f32 [T, K], gradient of the gate weights (zero where a row was dropped);
//   d_prob_E:  gradient of the auxiliary loss with respect to p[t, e], the same for all tokens (empty span: none);
//   z_scale:   the z-loss is z_scale * sum over tokens of logsumexp^2.
void route_backward(Stream& stream, const RouterRule& rule, TensorView logits_TE, TensorView ids_TK,
                    TensorView d_weights_TK, std::span<const float> d_prob_E, float z_scale, TensorView d_logits_TE);

// Scratch bytes of either function; also an upper bound for all smaller sizes.
int64_t router_workspace_bytes(int64_t tokens, int64_t experts, DeviceKind device = DeviceKind::cpu);

}  // namespace mw
