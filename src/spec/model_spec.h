// ModelSpec: an architecture as data - a list of layers, each naming its attention and its feed-forward kind.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/kinds.h"

namespace mw {

// RMS norm of queries and keys: none, per head (Qwen3), or over the whole projection before the head split (OLMoE).
enum class QkNorm : uint8_t { none, per_head, full_width };

struct AttentionSpec {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  QkNorm qk_norm = QkNorm::none;
  double clip_qkv = 0;  // clamp of q, k, v to [-clip, clip]; 0: none
  double rope_theta = 10000.0;
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
  bool operator==(const MoeSpec&) const = default;
};

enum class FeedForwardKind : uint8_t { dense, moe };

struct LayerSpec {
  AttentionSpec attention;
  FeedForwardKind feed_forward = FeedForwardKind::dense;
  Activation activation = Activation::swiglu;
  int64_t dense_width = 0;  // F of a dense layer
  MoeSpec moe;              // of an MoE layer
  bool operator==(const LayerSpec&) const = default;
};

struct ModelSpec {
  std::string family;  // "mixtral", "qwen3_moe", "olmoe" or "native": picks the Hugging Face names
  int64_t vocab = 0;   // V
  int64_t width = 0;   // D
  double norm_eps = 1e-6;
  bool tie_embeddings = false;
  double init_std = 0.02;
  double aux_loss_coef = 0;  // the model's own default; the run file may override it
  std::vector<LayerSpec> layers;

  int64_t layer_count() const { return static_cast<int64_t>(layers.size()); }
  int64_t moe_layer_count() const;
  bool operator==(const ModelSpec&) const = default;
};

// Checks every field and every derived size for range and consistency. Errors: config, naming `where` and the field.
void validate(const ModelSpec& model, const std::string& where);

// Native architecture table of a run file, and the named models of the papers.
struct NativeModel {
  std::string preset;  // "x-moe-small" ... ; other fields then override nothing
  int64_t vocab = 256, width = 256, layers = 4, heads = 8, kv_heads = 0 /* = heads */,
          head_dim = 0 /* = width / heads */;
  int64_t experts = 8, top_k = 2, expert_width = 256, shared_experts = 0, dense_layers = 0, dense_width = 0;
  std::string activation = "swiglu", score = "softmax", qk_norm = "none";
  bool selection_bias = false, renormalise = true, tie_embeddings = false;
  double routed_scale = 1.0, rope_theta = 10000.0, norm_eps = 1e-6, init_std = 0.02, clip_qkv = 0;
  bool operator==(const NativeModel&) const = default;
};
ModelSpec build_native_model(const NativeModel& native);
std::vector<std::string> preset_names();

// FLOPs of one token's forward products (2 per multiply-add): active weights and causal attention at the given length.
// Training is 3x.
double forward_flops_per_token(const ModelSpec& model, int64_t seq_len);

std::string summary(const ModelSpec& model);  // one line for the log

}  // namespace mw
