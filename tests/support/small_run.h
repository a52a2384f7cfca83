// A run small enough for any test: three layers, the first dense, then MoE with shared experts; odd sizes where they
// can be odd.
#pragma once

#include "config/run_spec.h"

namespace mw::test {

inline RunSpec small_run() {
  RunSpec run;
  run.native.vocab = 29;
  run.native.width = 16;
  run.native.layers = 3;
  run.native.heads = 4;
  run.native.kv_heads = 2;
  run.native.head_dim = 6;
  run.native.experts = 6;
  run.native.top_k = 2;
  run.native.expert_width = 10;
  run.native.shared_experts = 2;
  run.native.dense_layers = 1;
  run.native.dense_width = 20;
  run.native.qk_norm = QkNorm::per_head;
  run.native.init_std = 0.3;
  run.train.seq_len = 9;
  run.train.global_batch = 16;
  run.train.micro_batches = 4;
  run.train.dtype = DType::f32;
  run.moe.aux_loss_coef = 0.5;
  run.moe.z_loss_coef = 0.05;
  return run;
}

// With latent attention; queries are not compressed.
inline RunSpec latent_run() {
  RunSpec run = small_run();
  run.native.attention = AttentionKind::latent;
  run.native.kv_heads = run.native.head_dim = 0;
  run.native.qk_norm = QkNorm::none;
  run.native.kv_rank = 9;
  run.native.nope_dim = 5;
  run.native.rope_dim = 6;
  run.native.value_dim = 7;
  return run;
}

// In bf16, all sides of its matrices multiples of 64: on a GPU its master weights are split (layout/byte_table.h).
inline RunSpec even_run() {
  RunSpec run = small_run();
  run.train.dtype = DType::bf16;
  run.native.vocab = 128;
  run.native.width = run.native.dense_width = run.native.expert_width = 64;
  run.native.heads = run.native.kv_heads = 4;
  run.native.head_dim = 16;
  return run;
}

}  // namespace mw::test
