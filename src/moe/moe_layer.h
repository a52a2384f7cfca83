// One MoE feed-forward: router, layout, transport, experts, shared experts, combine; forward and backward.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "config/model_spec.h"
#include "moe/experts.h"
#include "ops/router.h"

namespace mw {

// A two-operand feed-forward that every token passes: dense layers and shared experts.
struct FeedForwardWeights {
  Weight up, down;          // [c * F, D], [D, F]
  TensorView d_up, d_down;  // f32
};

// The activation of a layer with its constants.
ActivationRule activation_rule(const LayerSpec& layer);

// The sigmoid gate of a feed-forward (ops/row_gate.h), and its gradient; empty: none.
struct FeedForwardGate {
  TensorView gate_T, d_gate_T;
};

// out[T, D] = gate * down(activate(up(x))); h [T, c, F] is kept for backward, a [T, F] is scratch. The gate's logits
// become the gate.
void feed_forward(Stream& stream, const ActivationRule& rule, const FeedForwardWeights& weights, TensorView x_TD,
                  TensorView h_TcF, TensorView a_TF, TensorView out_TD, const FeedForwardGate& gate = {});
// h alone, once more.
void feed_forward_hidden(Stream& stream, const FeedForwardWeights& weights, TensorView x_TD, TensorView h_TcF);
// d_x (overwritten) and d_down (stored as `store` says) from d_out. h is overwritten with its own gradient, d_gate with
// that of the gate's logits.
void feed_forward_backward(Stream& stream, const ActivationRule& rule, const FeedForwardWeights& weights,
                           TensorView h_TcF, TensorView a_TF, TensorView d_out_TD, TensorView d_x_TD, Store store,
                           const FeedForwardGate& gate = {});
// d_up, from the gradient that feed_forward_backward left in h.
void feed_forward_backward_up(Stream& stream, const FeedForwardWeights& weights, TensorView x_TD, TensorView d_h_TcF,
                              Store store);

struct MoeWeights {
  Weight router;                          // f32 [E, D]
  TensorView d_router;                    // f32 [E, D]
  TensorView router_bias, d_router_bias;  // f32 [E], of models that have it
  TensorView bias_E;                      // f32 [E] selection bias, or empty
  FeedForwardWeights shared;              // up.n == 0: none
  Weight shared_gate;                     // f32 [1, D], of models that have it
  TensorView d_shared_gate;
  ExpertBiases experts;  // of models that have them
};

// Tensors of one layer and live micro-batch; sizes are those of the table of bytes (act.I.*), used from the front.
struct MoeSaved {
  TensorView logits, expert_choice, gate_weights, token_ids, expert_ids, row_weights, row_of, rows_per_expert, shared_h;
  GrowingTensor h;              // [R, c, F]
  TensorView shared_gate = {};  // f32 [T], of models that have it
};

struct MoeScratch {
  ExpertScratch experts;
  TensorView d_gate, d_logits;  // f32
  TensorView shared_a;
  TensorView branch;              // [T, D]
  TensorView d_shared_gate = {};  // f32 [T]
};

// Watches and replaces the choice of experts and of dropped rows: how `verify` compares and replays routing.
struct RoutingTap {
  // Filled where not null: what the layer chooses by itself [T, K], how near another choice was [T], and the same of
  // the best scores where the loss counts those; gate weights [T, K] of that choice, or of the replayed one without
  // ids.
  int32_t* ids = nullptr;
  float* gaps = nullptr;
  int32_t* best_ids = nullptr;
  float* best_gaps = nullptr;
  float* weights = nullptr;
  // What the layer goes on with instead where not null, [T, K]: choices, and what says which rows a capacity drops.
  const int32_t* replay_ids = nullptr;
  const int32_t* replay_best_ids = nullptr;
  const float* ranking = nullptr;
};

// Sums of one forward pass over this rank's tokens: linear in tokens, or in sequences.
struct LoadStatistics {
  explicit LoadStatistics(int64_t experts = 0)
      : counts(static_cast<size_t>(experts)), prob_sums(counts), counted(counts) {}

  std::vector<double> counts;     // [E] choices, before drops
  std::vector<double> prob_sums;  // [E]
  std::vector<double> counted;    // [E] the choices that the auxiliary loss counts
  double z_sum = 0, dropped = 0;
  // With sequences apart: sum over them of sum_e f_e * P_e, shares of choices times K and mean probabilities.
  double sequence_sum = 0;
};

// The gradient of the auxiliary terms with respect to one token, the same for all tokens.
struct AuxGradient {
  std::vector<float> d_prob;  // [E]
  float z_scale = 0;
  float d_sequence_sum = 0;  // with sequences apart, in the place of d_prob: of LoadStatistics::sequence_sum
};

// What a layer does not keep for its backward pass, where it computes it again. Its memory may then be shared with
// other layers.
struct MoeRecompute {
  bool logits = false;
  bool dispatched = false;  // the rows that its experts received, with all that lies beside them
  bool hidden = false;      // pre-activations h, of routed and of shared experts
};

// expert_capacity as the operators take it; factor 0: no limit.
CapacityRule capacity_rule(const MoeSpec& moe, int64_t domain_tokens, double factor);

struct MoeOptions {
  double capacity_factor = 0;  // 0: dropless
  bool capacity_per_sequence = true;
  bool drop_one_row = false;    // test-only fault
  bool choose_wrongly = false;  // another one, and whether it recurs
  bool also_when_replayed = false;
  bool sequences_apart = false;  // statistics of the auxiliary loss by sequence, of which ranks have whole ones
  bool best_scores = false;      // these count each token's experts of best score, without bias and groups
  bool softmax_p = false;        // of sigmoid scores: RouterRule::softmax_p
  ExpertProducts products = ExpertProducts::automatic;
  MoeRecompute recompute;
  bool defer_up = false;  // backward leaves d_up, of routed and shared experts, to backward_up; not with recompute
};

class MoeLayer {
 public:
  MoeLayer(const LayerSpec& layer, std::vector<int32_t> position_of_expert, MoeWeights weights, MoeSaved saved,
           MoeScratch scratch, std::unique_ptr<Transport> transport, MoeOptions options);

  // May be called before what precedes forward or backward: starts to gather the weights of the pass, if they are not
  // resident. Collective over EP.
  void weights_begin(Stream& stream, Pass pass);
  // out = base + routed(x) + shared(x); out may alias base, an empty one is zero. Collective over EP. x [T, D]: the
  // layer's normed input, T = sequences x seq_len.
  void forward(Stream& stream, TensorView x_TD, TensorView base_TD, TensorView out_TD, int64_t seq_len, bool training,
               const RoutingTap* tap);
  const LoadStatistics& statistics() const { return statistics_; }
  // d_x (overwritten) from d_out, with the routing of the forward pass. Gradients of experts, routed and shared, are
  // stored as `gradients` says; others are accumulated. x: to the bit that of forward. Collective over EP.
  void backward(Stream& stream, TensorView x_TD, TensorView d_out_TD, TensorView d_x_TD, const AuxGradient& aux,
                GradientStore gradients = {});
  // With defer_up, at any time after backward: what it left. x: as there.
  void backward_up(Stream& stream, TensorView x_TD, GradientStore gradients);

  // Rows that this rank's experts computed in the last forward pass, and those of replicas among them.
  int64_t expert_rows() const { return rows_; }
  int64_t replica_rows() const { return transport_->replica_rows(); }

 private:
  TensorView shared_forward(Stream& stream, TensorView x_TD, TensorView base_TD, TensorView out_TD);
  void route_tokens(Stream& stream, TensorView x_TD, int64_t seq_len, const RoutingTap* tap);
  struct Choice {
    bool replay = false;
    TensorView ids_TK, gaps_T;
  };
  // Of this layer's own, with a place for its gaps where somebody wants them; of the tap's.
  Choice own_choice(TensorView ids_TK, bool wants_gaps, int64_t place) const;
  Choice replayed_choice(Stream& stream, TensorView ids_TK, const int32_t* ids) const;
  void spoil_choice(Stream& stream, TensorView ids_TK) const;
  // Choices, weights and sums of the pieces, which are there once the stream was waited for, from the logits; the
  // statistics from those; the gradient.
  void choose_experts(Stream& stream, int64_t seq_len, const Choice& choice, const Choice& best);
  void sum_statistics();
  void choose_experts_backward(Stream& stream, TensorView d_gate_TK, const AuxGradient& aux, TensorView d_logits_TE);
  void router_logits(Stream& stream, TensorView x_TD);
  FeedForwardGate shared_gate() const;
  void dispatch_again(Stream& stream, TensorView x_TD);
  void expert_gradient(Stream& stream, ExpertMatrix matrix, int64_t chunk, const SortedRows& d_y, const SortedRows& x,
                       std::span<const int64_t> offsets, GradientStore store);
  void expert_up_gradient(Stream& stream, int64_t chunk, TensorView x_TD, GradientStore gradients);
  void expert_up_backward(Stream& stream, int64_t chunk, const ExpertBatch& batch, const ExpertWeights& weights,
                          TensorView x_TD, GradientStore gradients);
  void recompute_by_token(Stream& stream, TensorView x_TD);
  TensorView tokens_of(TensorView saved, int64_t width) const;
  TensorView shared_hidden() const;
  TensorView hidden();     // h of the experts' rows
  TensorView activated();  // their a

  LayerSpec layer_;
  ActivationRule activation_;
  RouterRule rule_, best_rule_;
  std::vector<int32_t> position_of_expert_;
  MoeWeights weights_;
  Experts experts_;
  MoeSaved saved_;
  MoeScratch scratch_;
  std::unique_ptr<Transport> transport_;
  MoeOptions options_;

  RoutedTokens routed_;
  LoadStatistics statistics_;
  // Tokens that are routed by one call, and the sums of each: of all choices, of those that the loss counts.
  struct PieceSums {
    std::vector<double> counted, routed;  // the latter: counts, sums of p, z_sum beside each other, for one copy

    explicit PieceSums(size_t experts) : counted(experts), routed(2 * experts + 1) {}
    std::span<double> counts() { return std::span(routed).first(counted.size()); }
    std::span<double> prob_sums() { return std::span(routed).subspan(counted.size(), counted.size()); }
    double& z_sum() { return routed.back(); }
  };
  int64_t piece_tokens_ = 0;
  std::vector<PieceSums> pieces_;
  int64_t tokens_ = 0, rows_ = 0;
};

}  // namespace mw
