#include "formats/weights/hf_names.h"

#include <fmt/format.h>

#include "base/error.h"
#include "config/hf_families.h"

namespace mw {
namespace {

void add_latent_attention(std::vector<HfTensor>& out, const AttentionSpec& a, int64_t width, int64_t i) {
  const LatentSpec& l = a.latent;
  const std::string hf = fmt::format("model.layers.{}.self_attn.", i), own = fmt::format("layers.{}.attn.", i);
  const int64_t q = a.heads * a.head_dim;
  if (l.q_rank == 0) {
    out.push_back({hf + "q_proj.weight", {q, width}, own + "wq", 0});
  } else {
    out.push_back({hf + "q_a_proj.weight", {l.q_rank, width}, own + "wq_a", 0});
    out.push_back({hf + "q_a_layernorm.weight", {l.q_rank}, own + "q_norm", 0});
    out.push_back({hf + "q_b_proj.weight", {q, l.q_rank}, own + "wq_b", 0});
  }
  out.push_back({hf + "kv_a_proj_with_mqa.weight", {l.kv_rank + l.rope_dim, width}, own + "wkv_a", 0});
  out.push_back({hf + "kv_a_layernorm.weight", {l.kv_rank}, own + "kv_norm", 0});
  out.push_back({hf + "kv_b_proj.weight", {a.heads * (l.nope_dim + l.value_dim), l.kv_rank}, own + "wkv_b", 0});
  out.push_back({hf + "o_proj.weight", {width, a.heads * l.value_dim}, own + "wo", 0});
}

void add_attention(std::vector<HfTensor>& out, const HfFamily& family, const AttentionSpec& a, int64_t width,
                   int64_t i) {
  if (a.is_latent()) {
    add_latent_attention(out, a, width, i);
    return;
  }
  const std::string hf = fmt::format("model.layers.{}.self_attn.", i), own = fmt::format("layers.{}.attn.", i);
  const int64_t q = a.heads * a.head_dim, kv = a.kv_heads * a.head_dim;
  out.push_back({hf + "q_proj.weight", {q, width}, own + "wq", 0});
  out.push_back({hf + "k_proj.weight", {kv, width}, own + "wk", 0});
  out.push_back({hf + "v_proj.weight", {kv, width}, own + "wv", 0});
  out.push_back({hf + "o_proj.weight", {width, q}, own + "wo", 0});
  if (a.qkv_bias) {
    out.push_back({hf + "q_proj.bias", {q}, own + "bq", 0});
    out.push_back({hf + "k_proj.bias", {kv}, own + "bk", 0});
    out.push_back({hf + "v_proj.bias", {kv}, own + "bv", 0});
  }
  if (a.output_bias) out.push_back({hf + "o_proj.bias", {width}, own + "bo", 0});
  if (a.sinks) out.push_back({hf + "sinks", {a.heads}, own + "sinks", 0});
  if (a.qk_norm == QkNorm::none) return;
  const bool per_head = a.qk_norm == QkNorm::per_head;
  out.push_back({fmt::format("{}{}.weight", hf, family.q_norm), {per_head ? a.head_dim : q}, own + "q_norm", 0});
  out.push_back({fmt::format("{}{}.weight", hf, family.k_norm), {per_head ? a.head_dim : kv}, own + "k_norm", 0});
}

void add_feed_forward(std::vector<HfTensor>& out, int64_t f, int64_t width, const std::string& hf,
                      const std::string& own) {
  out.push_back({hf + "gate_proj.weight", {f, width}, own + "w_up", 0});
  out.push_back({hf + "up_proj.weight", {f, width}, own + "w_up", f * width});
  out.push_back({hf + "down_proj.weight", {width, f}, own + "w_down", 0});
}

void add_experts(std::vector<HfTensor>& out, const MoeSpec& m, int64_t width, const std::string& hf,
                 const std::string& own, const HfFamily& family) {
  const int64_t matrix = m.width * width;
  for (int64_t e = 0; e < m.experts; ++e) {
    const std::string at = fmt::format("{}experts.{}.", hf, e);
    const auto add = [&](const char* name, std::vector<int64_t> shape, const char* param, int64_t begin) {
      out.push_back({fmt::format("{}{}.weight", at, name), std::move(shape), own + param, begin});
    };
    add(family.gate, {m.width, width}, "w_up", 2 * e * matrix);
    add(family.up, {m.width, width}, "w_up", (2 * e + 1) * matrix);
    add(family.down, {width, m.width}, "w_down", e * matrix);
  }
}

// gpt-oss: [E, D, 2 F] and [E, F, D], in MXFP4 [E, 2 F, D] and [E, D, F], with gate and up in turn along 2 F.
void add_transposed_experts(std::vector<HfTensor>& out, const MoeSpec& m, int64_t d, const std::string& hf,
                            const std::string& own, bool mxfp4) {
  const int64_t e = m.experts, f = m.width;
  HfTensor up{hf + "gate_up_proj", {e, d, 2 * f}, own + "w_up"}, down{hf + "down_proj", {e, f, d}, own + "w_down"},
      up_bias{hf + "gate_up_proj_bias", {e, 2 * f}, own + "b_up"};
  up.file_sizes = {e, d, f, 2};
  up.axes = {0, 3, 2, 1};
  down.file_sizes = {e, f, d};
  down.axes = {0, 2, 1};
  up_bias.file_sizes = {e, f, 2};
  up_bias.axes = {0, 2, 1};
  if (mxfp4) {
    up.shape = {e, 2 * f, d};
    up.file_sizes = {e, f, 2, d};
    up.axes = {0, 2, 1, 3};
    down.shape = {e, d, f};
    down.file_sizes.clear();
    down.axes.clear();
    up.is_mxfp4 = down.is_mxfp4 = true;
  }
  out.insert(out.end(), {up, up_bias, down, {hf + "down_proj_bias", {e, d}, own + "b_down"}});
}

enum class Storage : uint8_t { each, fused, mxfp4 };  // of experts

std::vector<HfTensor> list_tensors(const ModelSpec& model, Storage experts) {
  const bool fused = experts != Storage::each;
  const HfFamily* const family = find_hf_family(model.family);
  if (family == nullptr)
    fail(Exit::unsupported, fmt::format("a model of the family \"{}\" has no Hugging Face tensor names", model.family),
         "use a model that was read from a Hugging Face folder (model = \"hf:DIR\")");
  const int64_t d = model.width;
  std::vector<HfTensor> out;
  out.push_back({"model.embed_tokens.weight", {model.vocab, d}, "embed", 0});
  for (int64_t i = 0; i < model.layer_count(); ++i) {
    const LayerSpec& layer = model.layers[static_cast<size_t>(i)];
    const std::string hf = fmt::format("model.layers.{}.", i), own = fmt::format("layers.{}.", i);
    out.push_back({hf + "input_layernorm.weight", {d}, own + "attn_norm", 0});
    out.push_back({hf + "post_attention_layernorm.weight", {d}, own + "ffn_norm", 0});
    add_attention(out, *family, layer.attention, d, i);
    if (layer.feed_forward == FeedForwardKind::dense) {
      add_feed_forward(out, layer.dense_width, d, hf + "mlp.", own + "ffn.");
      continue;
    }
    const MoeSpec& m = layer.moe;
    const std::string block = hf + (fused ? "mlp." : family->moe_block);
    const auto name = [&](const char* usual, const char* of_fused) {
      return block + (fused && has_name(of_fused) ? of_fused : usual);
    };
    const std::string router = name(family->router, family->fused_router),
                      shared = name(family->shared, family->fused_shared);
    out.push_back({router + ".weight", {m.experts, d}, own + "moe.router", 0});
    out.back().keeps_f32 = family->f32_router;
    if (m.bias) out.push_back({router + ".bias", {m.experts}, own + "moe.router_bias"});
    if (m.selection_bias) {
      std::vector<int64_t> shape = {m.experts};
      if (family->bias_is_row) shape.insert(shape.begin(), 1);
      out.push_back({name(family->router_bias, family->fused_router_bias), std::move(shape), own + "moe.bias", 0});
      out.back().keeps_f32 = true;
    }
    if (m.shared_width > 0) add_feed_forward(out, m.shared_width, d, shared + ".", own + "moe.shared.");
    if (m.shared_gate) out.push_back({shared + "_gate.weight", {1, d}, own + "moe.shared.gate", 0});
    if (family->transposed_experts) {
      add_transposed_experts(out, m, d, block + "experts.", own + "moe.", experts == Storage::mxfp4);
    } else if (fused) {
      out.push_back({block + "experts.gate_up_proj", {m.experts, 2 * m.width, d}, own + "moe.w_up", 0});
      out.push_back({block + "experts.down_proj", {m.experts, d, m.width}, own + "moe.w_down", 0});
    } else {
      add_experts(out, m, d, block, own + "moe.", *family);
    }
  }
  out.push_back({"model.norm.weight", {d}, "final_norm", 0});
  if (!model.tie_embeddings) out.push_back({"lm_head.weight", {model.vocab, d}, "head", 0});
  return out;
}

}  // namespace

int64_t HfTensor::numel() const {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return n;
}

std::vector<HfTensor> hf_tensors(const ModelSpec& model) { return list_tensors(model, Storage::each); }
std::vector<HfTensor> hf_fused_tensors(const ModelSpec& model) { return list_tensors(model, Storage::fused); }
std::vector<HfTensor> hf_mxfp4_tensors(const ModelSpec& model) {
  const HfFamily* const family = find_hf_family(model.family);
  if (family == nullptr || !family->transposed_experts) return {};
  return list_tensors(model, Storage::mxfp4);
}

}  // namespace mw
