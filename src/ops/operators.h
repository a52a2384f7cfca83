// The operator table of one backend. The public operator functions look up the table of their stream's device and call
// the entry, so that one binary runs on CPUs and GPUs.
#pragma once

#include "ops/activation.h"
#include "ops/adamw.h"
#include "ops/attention.h"
#include "ops/attention_logits.h"
#include "ops/bias.h"
#include "ops/columns.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/expert_bias.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/mixed_matmul.h"
#include "ops/muon.h"
#include "ops/norm.h"
#include "ops/norm_rope.h"
#include "ops/rope.h"
#include "ops/router.h"
#include "ops/row_gate.h"
#include "ops/sinks.h"
#include "ops/token_layout.h"
#include "ops/units.h"
#include "ops/window.h"

namespace mw {

// A null entry is an operator that the backend does not have: calling it is an error that names it.
struct Operators {
  const char* backend = "";

  decltype(&mw::fill_zero) fill_zero = nullptr;
  decltype(&mw::fill_zeros) fill_zeros = nullptr;
  decltype(&mw::convert) convert = nullptr;
  decltype(&mw::add) add = nullptr;
  decltype(&mw::scaled_sum) scaled_sum = nullptr;
  decltype(&mw::clamp) clamp = nullptr;
  decltype(&mw::clamp_backward) clamp_backward = nullptr;
  decltype(&mw::sum_squares) sum_squares = nullptr;
  decltype(&mw::sum_squares_exactly) sum_squares_exactly = nullptr;
  decltype(&mw::sum_squares_by_tile) sum_squares_by_tile = nullptr;
  decltype(&mw::all_finite) all_finite = nullptr;

  decltype(&mw::rms_norm) rms_norm = nullptr;
  decltype(&mw::add_rms_norm) add_rms_norm = nullptr;
  decltype(&mw::rms_norm_apply) rms_norm_apply = nullptr;
  decltype(&mw::rms_norm_backward) rms_norm_backward = nullptr;
  decltype(&mw::row_products) row_products = nullptr;
  decltype(&mw::add_bias) add_bias = nullptr;
  decltype(&mw::bias_backward) bias_backward = nullptr;
  decltype(&mw::rope) rope = nullptr;
  decltype(&mw::norm_rope) norm_rope = nullptr;
  decltype(&mw::norm_rope_apply) norm_rope_apply = nullptr;
  decltype(&mw::norm_rope_backward) norm_rope_backward = nullptr;
  decltype(&mw::copy_columns) copy_columns = nullptr;
  decltype(&mw::sum_columns) sum_columns = nullptr;
  decltype(&mw::activate) activate = nullptr;
  decltype(&mw::activate_backward) activate_backward = nullptr;
  decltype(&mw::gate_rows) gate_rows = nullptr;
  decltype(&mw::gate_backward) gate_backward = nullptr;
  decltype(&mw::embed) embed = nullptr;
  decltype(&mw::embed_backward) embed_backward = nullptr;
  decltype(&mw::clear_rows) clear_rows = nullptr;
  decltype(&mw::cross_entropy) cross_entropy = nullptr;
  decltype(&mw::softmax_statistics) softmax_statistics = nullptr;
  decltype(&mw::cross_entropy_of_part) cross_entropy_of_part = nullptr;
  decltype(&mw::first_keys_of_window) first_keys_of_window = nullptr;
  decltype(&mw::attention) attention = nullptr;
  decltype(&mw::attention_backward) attention_backward = nullptr;
  decltype(&mw::largest_logits) largest_logits = nullptr;
  decltype(&mw::add_sinks) add_sinks = nullptr;
  decltype(&mw::sinks_backward) sinks_backward = nullptr;
  decltype(&mw::adamw) adamw = nullptr;
  decltype(&mw::muon_momentum) muon_momentum = nullptr;
  decltype(&mw::normalise_matrices) normalise_matrices = nullptr;
  decltype(&mw::muon_update) muon_update = nullptr;

  decltype(&mw::pack_weight) pack_weight = nullptr;
  decltype(&mw::matmul) matmul = nullptr;
  decltype(&mw::matmul_d_input) matmul_d_input = nullptr;
  decltype(&mw::matmul_d_weight) matmul_d_weight = nullptr;
  decltype(&mw::mixed_matmul) mixed_matmul = nullptr;
  decltype(&mw::mixed_matmul_d_input) mixed_matmul_d_input = nullptr;
  decltype(&mw::mixed_matmul_d_weight) mixed_matmul_d_weight = nullptr;
  decltype(&mw::esmm) esmm = nullptr;
  decltype(&mw::esmm_d_input) esmm_d_input = nullptr;
  decltype(&mw::estmm) estmm = nullptr;
  decltype(&mw::ess) ess = nullptr;
  decltype(&mw::add_expert_bias) add_expert_bias = nullptr;
  decltype(&mw::expert_bias_products) expert_bias_products = nullptr;
  // The products of esfk at once. Where it is null or returns false, esmm_d_input and estmm compute both again.
  bool (*esfk)(Stream& stream, const SortedRows& dy_RN, const SortedRows& x_RK, std::span<const int64_t> offsets,
               std::span<const Weight> weights, const SortedRows& dx_RK, TensorView dw_eNK, GradientStore to,
               ExpertProducts by) = nullptr;

  decltype(&mw::describe_attention) describe_attention = nullptr;
  decltype(&mw::describe_esmm) describe_esmm = nullptr;

  decltype(&mw::route) route = nullptr;
  decltype(&mw::route_backward) route_backward = nullptr;
  decltype(&mw::build_token_layout) build_token_layout = nullptr;
  decltype(&mw::gather_rows) gather_rows = nullptr;
  decltype(&mw::combine_rows) combine_rows = nullptr;
  decltype(&mw::fill_index) fill_index = nullptr;
  decltype(&mw::gather_values) gather_values = nullptr;
  decltype(&mw::scatter_values) scatter_values = nullptr;
  decltype(&mw::sort_units) sort_units = nullptr;
  decltype(&mw::count_units) count_units = nullptr;
  decltype(&mw::unit_choices) unit_choices = nullptr;

  // Scratch sizes; contracts in the operators' headers.
  int64_t (*norm_workspace_bytes)(int64_t rows, int64_t width) = nullptr;
  int64_t (*embedding_workspace_bytes)(int64_t tokens, int64_t vocab) = nullptr;
  int64_t (*attention_workspace_bytes)(const AttentionShape& shape, DType dtype, int threads) = nullptr;
  int64_t (*matmul_workspace_bytes)(int64_t max_n, int64_t max_k) = nullptr;
  int64_t (*esmm_workspace_bytes)(ExpertProducts by, int64_t max_rows, int64_t max_n, int64_t max_k,
                                  DType gradients) = nullptr;
  int64_t (*mixed_matmul_workspace_bytes)(int64_t rows, int64_t n, int64_t k) = nullptr;
  int64_t (*router_workspace_bytes)(int64_t tokens, int64_t experts) = nullptr;
  int64_t (*token_layout_workspace_bytes)(int64_t tokens, int64_t top_k, int64_t experts) = nullptr;
  int64_t (*index_workspace_bytes)(int64_t runs) = nullptr;
  int64_t (*unit_workspace_bytes)(int64_t items, int64_t choices, int64_t experts) = nullptr;
};

const Operators& cpu_operators();
// Errors: unsupported, in a build without a GPU.
const Operators& gpu_operators();

}  // namespace mw
