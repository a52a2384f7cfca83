// The table of parameters: every tensor of a model, once, by name. Arenas, initialisation, the optimizer,
// checkpoints and the Hugging Face exporter walk this table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/model_spec.h"

namespace mw {

enum class ParamRole : uint8_t {
  embedding,    // [V, D]
  matrix,       // [N, K] read by products
  router,       // [E, D] fp32 product, or a gate, [1, D]
  norm,         // [W] gain
  bias,         // [N] of a projection, or the sinks of heads
  expert_bias,  // [E, ..] of a projection of routed experts; every rank has those of all experts
  selection,    // [E] selection bias: not trained by gradient
};

// How tensor parallelism cuts a tensor: rows of the vocabulary, rows, gains or biases of query heads, those of
// key/value heads, columns of query heads, one entry of each query head, or the width of a dense feed-forward, which is
// axis 1. With tensor-sharded experts also the widths of shared experts, axis 1, and of routed ones, axis 2.
enum class TensorCut : uint8_t {
  none,
  vocab_rows,
  query_rows,
  kv_rows,
  query_columns,
  query_heads,
  width,
  shared_width,
  expert_width
};

struct ParamRow {
  std::string name;            // "layers.3.moe.w_up"
  std::vector<int64_t> shape;  // global
  ParamRole role = ParamRole::matrix;
  int64_t layer = -1;  // -1: outside the layers
  TensorCut cut = TensorCut::none;
  bool expert = false;  // axis 0 is the routed expert: sharded over EP, reduced over EDP
  bool trained = true;
  double init_std = 0;  // normal(0, std); 0 with role norm: ones; 0 otherwise: zeros
  bool decay = true;    // weight decay: tensors of two or more dimensions
  // As a run has it (config/param_groups.h).
  bool muon = false;    // Muon updates its matrices, the last two axes; else AdamW
  double lr_scale = 1;  // its learning rate, as a multiple of the schedule's

  int64_t numel() const;
};

// Names: embed, head, final_norm; layers.I.{attn_norm, ffn_norm}; layers.I.attn.{wq, wk, wv, wo, q_norm, k_norm, bq,
// bk, bv, bo}; of latent attention layers.I.attn.{wq or wq_a, q_norm, wq_b; wkv_a [kv_rank + rope, D], kv_norm, wkv_b
// [H * (nope + value), kv_rank], wo}; layers.I.ffn.{w_up [c, F, D], w_down [D, F]}; layers.I.moe.{router,
// router_bias [E], bias, w_up [E, c, F, D], b_up [E, c, F], w_down [E, D, F], b_down [E, D]};
// layers.I.moe.shared.{w_up, w_down, gate [1, D]}. c: halves_of(activation), 2 where there is a gate. With tied
// embeddings there is no `head`. Rows stand in the order of the forward pass: embed; per layer attention, from
// attn_norm on, then feed-forward, from ffn_norm on; final_norm, head. Backward completes their gradients from the last
// to the first.
std::vector<ParamRow> param_table(const ModelSpec& model);

int64_t parameter_count(const ModelSpec& model);         // exact, all rows
int64_t active_parameter_count(const ModelSpec& model);  // those that one token's forward pass reads

}  // namespace mw
