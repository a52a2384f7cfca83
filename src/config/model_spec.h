// ModelSpec: an architecture as data - a list of layers, each naming its attention and its feed-forward kind.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/kinds.h"

namespace mw {

// RMS norm of queries and keys: none, per head (Qwen3), or over the whole projection before the head split (OLMoE).
enum class QkNorm : uint8_t { none, per_head, full_width };
template <>
inline constexpr EnumWord<QkNorm> kEnumWords<QkNorm>[] = {
    {QkNorm::none, "none"}, {QkNorm::per_head, "per_head"}, {QkNorm::full_width, "full_width"}};

// Grouped key/value heads (multi-head with as many as query heads), or latent attention.
enum class AttentionKind : uint8_t { grouped, latent };
template <>
inline constexpr EnumWord<AttentionKind> kEnumWords<AttentionKind>[] = {{AttentionKind::grouped, "grouped"},
                                                                        {AttentionKind::latent, "latent"}};

// Multi-head latent attention (DeepSeek-V2, section 2.1): keys and values of all heads are rebuilt from one narrow
// normed latent, queries too where q_rank > 0. A query/key head is nope_dim values without position, then rope_dim
// rotated ones; those of the key are the same for all heads.
struct LatentSpec {
  int64_t q_rank = 0;  // width of the queries' latent; 0: queries come straight from the input
  int64_t kv_rank = 0, nope_dim = 0, rope_dim = 0, value_dim = 0;
  bool operator==(const LatentSpec&) const = default;
};

// YaRN (Peng et al. 2023): rotary frequencies that turn slowly within `positions` are divided by `factor`.
struct YarnSpec {
  double factor = 1;                      // 1: none
  double mscale = 0, mscale_all_dim = 0;  // 0: not given
  double beta_fast = 32, beta_slow = 1;   // turns within `positions` from and to which frequencies are mixed
  int64_t positions = 0;                  // length of sequence that the model was first trained with
  bool truncate = true;                   // whether the mixed frequencies begin and end at whole pairs
  // m(s) = 0.1 s ln(factor) + 1. Sine and cosine are multiplied by m(mscale) / m(mscale_all_dim), or m(1) where one is
  // not given; the scores of latent attention by m(mscale_all_dim)^2 where it is.
  double table_scale() const;
  double score_scale() const;
  bool operator==(const YarnSpec&) const = default;
};

struct AttentionSpec {
  int64_t heads = 0, kv_heads = 0;  // equal for latent attention
  int64_t head_dim = 0;             // of queries and keys; latent: nope_dim + rope_dim
  QkNorm qk_norm = QkNorm::none;
  double clip_qkv = 0;  // clamp of q, k, v to [-clip, clip]; 0: none
  double rope_theta = 10000.0;
  AttentionKind kind = AttentionKind::grouped;
  LatentSpec latent = {};  // of latent attention
  RopePairs rope_pairs = RopePairs::halves;
  YarnSpec yarn = {};
  // Of grouped attention.
  bool qkv_bias = false, output_bias = false;  // of the projections
  int64_t rotary_dim = 0;                      // the first elements of a head, which alone are rotated; 0: all
  bool norm_after_rotary = false;              // of queries and keys, per head
  bool sinks = false;                          // a logit of each head joins its softmax (ops/sinks.h)
  int64_t window = 0;                          // keys that a query sees, its own included; 0: all up to its own

  bool is_latent() const { return kind == AttentionKind::latent; }
  int64_t value_dim() const { return is_latent() ? latent.value_dim : head_dim; }  // of a value head
  int64_t rope_dim() const {                                                       // rotated elements of a head
    return is_latent() ? latent.rope_dim : rotary_dim > 0 ? rotary_dim : head_dim;
  }
  // Whether each head of queries and keys is normalised by itself and then rotated, with nothing between.
  bool rotates_normed_heads() const {
    return qk_norm == QkNorm::per_head && !norm_after_rotary && clip_qkv == 0 && !is_latent();
  }
  bool has_window(int64_t seq_len) const { return window > 0 && window < seq_len; }
  double mean_keys(int64_t seq_len) const;  // that a query sees, over the positions of a sequence
  bool operator==(const AttentionSpec&) const = default;
};

struct MoeSpec {
  int64_t experts = 0, top_k = 0;  // E, K
  int64_t width = 0;               // F of one routed expert
  int64_t shared_width = 0;        // width of the fused shared experts; 0: none
  ScoreFunction score = ScoreFunction::softmax;
  bool selection_bias = false;  // auxiliary-loss-free balancing (DeepSeek-V3): a bias that enters the choice only
  bool renormalise = false;
  double scale = 1.0;
  // Group-limited selection: only the kept_groups best of `groups` equal groups of experts take part; a group's score
  // is the sum of its group_best largest (DeepSeek-V2: 1, V3: 2).
  int64_t groups = 1, kept_groups = 1, group_best = 1;
  bool shared_gate = false;  // what shared experts add is multiplied by the sigmoid of a linear layer with one output
  double least_sum = 0;      // that renormalisation divides by at least
  bool bias = false;         // of the router, and of both projections of routed experts
  bool operator==(const MoeSpec&) const = default;
};

// Rows that an expert takes of so many tokens, X-MoE's capacity: ceil(factor * tokens * K / E).
int64_t expert_capacity(const MoeSpec& moe, int64_t tokens, double factor);

// The constants of clamped_swiglu in gpt-oss.
constexpr double kSwigluAlpha = 1.702, kSwigluLimit = 7;

enum class FeedForwardKind : uint8_t { dense, moe };

struct LayerSpec {
  AttentionSpec attention;
  FeedForwardKind feed_forward = FeedForwardKind::dense;
  Activation activation = Activation::swiglu;
  double swiglu_alpha = kSwigluAlpha, swiglu_limit = kSwigluLimit;  // of clamped_swiglu
  int64_t dense_width = 0;                                          // F of a dense layer
  MoeSpec moe;                                                      // of an MoE layer
  bool operator==(const LayerSpec&) const = default;
};

struct ModelSpec {
  std::string family;  // Hugging Face's model_type, or "native": picks the names of tensors
  int64_t vocab = 0;   // V
  int64_t width = 0;   // D
  double norm_eps = 1e-6;
  bool tie_embeddings = false;
  double init_std = 0.02;
  double aux_loss_coef = 0;   // the model's own default; the run file may override it
  bool sequence_aux = false;  // its auxiliary loss is taken over each sequence (DeepSeek's seq_aux)
  int64_t mtp_layers = 0;     // multi-token prediction layers that its folder may hold: they are skipped
  std::vector<LayerSpec> layers;

  int64_t layer_count() const { return static_cast<int64_t>(layers.size()); }
  int64_t moe_layer_count() const;
  bool operator==(const ModelSpec&) const = default;
};

// Checks every field and every derived size for range and consistency. Errors: config, naming `where` and the field.
void validate(const ModelSpec& model, const std::string& where);

// Native architecture table of a run file.
struct NativeModel {
  std::string preset;  // of config/presets.h; all other fields must then be at their defaults
  int64_t vocab = 256, width = 256, layers = 4, heads = 8, kv_heads = 0 /* = heads */,
          head_dim = 0 /* = width / heads */;
  int64_t experts = 8, top_k = 2, expert_width = 256, shared_experts = 0, dense_layers = 0, dense_width = 0;
  Activation activation = Activation::swiglu;
  ScoreFunction score = ScoreFunction::softmax;
  QkNorm qk_norm = QkNorm::none;
  bool selection_bias = false, renormalise = true, tie_embeddings = false;
  double routed_scale = 1.0, rope_theta = 10000.0, norm_eps = 1e-6, init_std = 0.02, clip_qkv = 0;
  AttentionKind attention = AttentionKind::grouped;
  int64_t q_rank = 0, kv_rank = 64, nope_dim = 32, rope_dim = 16, value_dim = 32;  // of latent attention
  int64_t expert_groups = 1, kept_groups = 1, group_best = 1;
  bool operator==(const NativeModel&) const = default;
};
// Load-balance loss of a [model] table without a selection bias: without one of the two, a router soon sends nearly all
// tokens to a few experts.
constexpr double kNativeAuxLossCoef = 0.05;
// Validates the table of [model] and derives its layers. Errors: config, naming the key.
ModelSpec build_native_model(const NativeModel& native);

// FLOPs of one token's forward products (2 per multiply-add): active weights and causal attention at the given length.
// Training is 3x.
double forward_flops_per_token(const ModelSpec& model, int64_t seq_len);

std::string summary(const ModelSpec& model);  // one line for the log

}  // namespace mw
