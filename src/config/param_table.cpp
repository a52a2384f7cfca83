#include "config/param_table.h"

#include <fmt/format.h>

namespace mw {
namespace {

// Appends rows with the defaults of their role.
class TableBuilder {
 public:
  explicit TableBuilder(double std) : std_(std) {}
  void add(std::string name, std::vector<int64_t> shape, ParamRole role, int64_t layer, bool expert = false,
           TensorCut cut = TensorCut::none) {
    ParamRow row;
    row.name = std::move(name);
    row.shape = std::move(shape);
    row.role = role;
    row.layer = layer;
    row.expert = expert;
    row.cut = cut;
    row.trained = role != ParamRole::selection;
    row.decay = row.shape.size() >= 2;
    const bool constant = role == ParamRole::norm || role == ParamRole::bias || role == ParamRole::expert_bias ||
                          role == ParamRole::selection;
    row.init_std = constant ? 0.0 : std_;
    rows.push_back(std::move(row));
  }
  std::vector<ParamRow> rows;

 private:
  double std_;
};

void add_grouped_attention(TableBuilder& table, const AttentionSpec& a, int64_t d, const std::string& at,
                           int64_t layer) {
  const int64_t q = a.heads * a.head_dim, kv = a.kv_heads * a.head_dim;
  table.add(at + "wq", {q, d}, ParamRole::matrix, layer, false, TensorCut::query_rows);
  table.add(at + "wk", {kv, d}, ParamRole::matrix, layer, false, TensorCut::kv_rows);
  table.add(at + "wv", {kv, d}, ParamRole::matrix, layer, false, TensorCut::kv_rows);
  table.add(at + "wo", {d, q}, ParamRole::matrix, layer, false, TensorCut::query_columns);
  if (a.qkv_bias) {
    table.add(at + "bq", {q}, ParamRole::bias, layer, false, TensorCut::query_rows);
    table.add(at + "bk", {kv}, ParamRole::bias, layer, false, TensorCut::kv_rows);
    table.add(at + "bv", {kv}, ParamRole::bias, layer, false, TensorCut::kv_rows);
  }
  if (a.output_bias) table.add(at + "bo", {d}, ParamRole::bias, layer);
  if (a.sinks) table.add(at + "sinks", {a.heads}, ParamRole::bias, layer, false, TensorCut::query_heads);
  if (a.qk_norm == QkNorm::none) return;
  const bool per_head = a.qk_norm == QkNorm::per_head;
  const auto add_gain = [&](const char* name, int64_t width, TensorCut cut) {
    table.add(at + name, {per_head ? a.head_dim : width}, ParamRole::norm, layer, false,
              per_head ? TensorCut::none : cut);
  };
  add_gain("q_norm", q, TensorCut::query_rows);
  add_gain("k_norm", kv, TensorCut::kv_rows);
}

void add_latent_attention(TableBuilder& table, const AttentionSpec& a, int64_t d, const std::string& at,
                          int64_t layer) {
  const LatentSpec& l = a.latent;
  const int64_t q = a.heads * a.head_dim;
  if (l.q_rank == 0) {
    table.add(at + "wq", {q, d}, ParamRole::matrix, layer, false, TensorCut::query_rows);
  } else {
    table.add(at + "wq_a", {l.q_rank, d}, ParamRole::matrix, layer);
    table.add(at + "q_norm", {l.q_rank}, ParamRole::norm, layer);
    table.add(at + "wq_b", {q, l.q_rank}, ParamRole::matrix, layer, false, TensorCut::query_rows);
  }
  table.add(at + "wkv_a", {l.kv_rank + l.rope_dim, d}, ParamRole::matrix, layer);
  table.add(at + "kv_norm", {l.kv_rank}, ParamRole::norm, layer);
  table.add(at + "wkv_b", {a.heads * (l.nope_dim + l.value_dim), l.kv_rank}, ParamRole::matrix, layer, false,
            TensorCut::kv_rows);
  table.add(at + "wo", {d, a.heads * l.value_dim}, ParamRole::matrix, layer, false, TensorCut::query_columns);
}

}  // namespace

int64_t ParamRow::numel() const {
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  return n;
}

std::vector<ParamRow> param_table(const ModelSpec& model) {
  TableBuilder table(model.init_std);
  const int64_t d = model.width;
  table.add("embed", {model.vocab, d}, ParamRole::embedding, -1, false, TensorCut::vocab_rows);
  for (int64_t i = 0; i < model.layer_count(); ++i) {
    const LayerSpec& layer = model.layers[static_cast<size_t>(i)];
    const AttentionSpec& a = layer.attention;
    const int64_t c = halves_of(layer.activation);
    const std::string at = fmt::format("layers.{}.", i);
    table.add(at + "attn_norm", {d}, ParamRole::norm, i);
    const auto cut_matrix = [&](const char* name, std::vector<int64_t> shape, TensorCut cut) {
      table.add(at + name, std::move(shape), ParamRole::matrix, i, false, cut);
    };
    if (a.is_latent()) add_latent_attention(table, a, d, at + "attn.", i);
    else add_grouped_attention(table, a, d, at + "attn.", i);
    table.add(at + "ffn_norm", {d}, ParamRole::norm, i);
    if (layer.feed_forward == FeedForwardKind::dense) {
      cut_matrix("ffn.w_up", {c, layer.dense_width, d}, TensorCut::width);
      cut_matrix("ffn.w_down", {d, layer.dense_width}, TensorCut::width);
      continue;
    }
    const MoeSpec& m = layer.moe;
    table.add(at + "moe.router", {m.experts, d}, ParamRole::router, i);
    if (m.bias) table.add(at + "moe.router_bias", {m.experts}, ParamRole::bias, i);
    if (m.selection_bias) table.add(at + "moe.bias", {m.experts}, ParamRole::selection, i);
    table.add(at + "moe.w_up", {m.experts, c, m.width, d}, ParamRole::matrix, i, true, TensorCut::expert_width);
    if (m.bias)
      table.add(at + "moe.b_up", {m.experts, c, m.width}, ParamRole::expert_bias, i, false, TensorCut::expert_width);
    table.add(at + "moe.w_down", {m.experts, d, m.width}, ParamRole::matrix, i, true, TensorCut::expert_width);
    if (m.bias) table.add(at + "moe.b_down", {m.experts, d}, ParamRole::expert_bias, i);
    if (m.shared_width > 0) {
      cut_matrix("moe.shared.w_up", {c, m.shared_width, d}, TensorCut::shared_width);
      cut_matrix("moe.shared.w_down", {d, m.shared_width}, TensorCut::shared_width);
      if (m.shared_gate) table.add(at + "moe.shared.gate", {1, d}, ParamRole::router, i);
    }
  }
  table.add("final_norm", {d}, ParamRole::norm, -1);
  if (!model.tie_embeddings) table.add("head", {model.vocab, d}, ParamRole::matrix, -1, false, TensorCut::vocab_rows);
  return std::move(table.rows);
}

int64_t parameter_count(const ModelSpec& model) {
  int64_t count = 0;
  for (const ParamRow& row : param_table(model)) count += row.numel();
  return count;
}

int64_t active_parameter_count(const ModelSpec& model) {
  int64_t count = 0;
  for (const ParamRow& row : param_table(model)) {
    if (!row.expert && row.role != ParamRole::expert_bias) count += row.numel();
    else count += row.numel() / row.shape[0] * model.layers[static_cast<size_t>(row.layer)].moe.top_k;
  }
  return count;
}

}  // namespace mw
