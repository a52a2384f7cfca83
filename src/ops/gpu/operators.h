// GPU implementations of the operators; contracts are those of the functions with the same name in ops/*.h. All
// pointers are device memory; spans are host memory.
#pragma once

#include "ops/operators.h"

namespace mw::gpu {

decltype(mw::fill_zero) fill_zero;
decltype(mw::fill_zeros) fill_zeros;
decltype(mw::convert) convert;
decltype(mw::add) add;
decltype(mw::scaled_sum) scaled_sum;
decltype(mw::clamp) clamp;
decltype(mw::clamp_backward) clamp_backward;
decltype(mw::sum_squares) sum_squares;
decltype(mw::sum_squares_exactly) sum_squares_exactly;
decltype(mw::sum_squares_by_tile) sum_squares_by_tile;
decltype(mw::all_finite) all_finite;
decltype(mw::rms_norm) rms_norm;
decltype(mw::add_rms_norm) add_rms_norm;
decltype(mw::rms_norm_apply) rms_norm_apply;
decltype(mw::rms_norm_backward) rms_norm_backward;
decltype(mw::row_products) row_products;
decltype(mw::add_bias) add_bias;
decltype(mw::bias_backward) bias_backward;
decltype(mw::rope) rope;
decltype(mw::norm_rope) norm_rope;
decltype(mw::norm_rope_apply) norm_rope_apply;
decltype(mw::norm_rope_backward) norm_rope_backward;
decltype(mw::copy_columns) copy_columns;
decltype(mw::sum_columns) sum_columns;
decltype(mw::activate) activate;
decltype(mw::activate_backward) activate_backward;
decltype(mw::gate_rows) gate_rows;
decltype(mw::gate_backward) gate_backward;
decltype(mw::embed) embed;
decltype(mw::embed_backward) embed_backward;
decltype(mw::clear_rows) clear_rows;
decltype(mw::cross_entropy) cross_entropy;
decltype(mw::softmax_statistics) softmax_statistics;
decltype(mw::cross_entropy_of_part) cross_entropy_of_part;
decltype(mw::first_keys_of_window) first_keys_of_window;
decltype(mw::attention) attention;
decltype(mw::attention_backward) attention_backward;
decltype(mw::largest_logits) largest_logits;
decltype(mw::add_sinks) add_sinks;
decltype(mw::sinks_backward) sinks_backward;
decltype(mw::adamw) adamw;
decltype(mw::muon_momentum) muon_momentum;
decltype(mw::normalise_matrices) normalise_matrices;
decltype(mw::muon_update) muon_update;
decltype(mw::pack_weight) pack_weight;
decltype(mw::matmul) matmul;
decltype(mw::matmul_d_input) matmul_d_input;
decltype(mw::matmul_d_weight) matmul_d_weight;
decltype(mw::mixed_matmul) mixed_matmul;
decltype(mw::mixed_matmul_d_input) mixed_matmul_d_input;
decltype(mw::mixed_matmul_d_weight) mixed_matmul_d_weight;
decltype(mw::esmm) esmm;
decltype(mw::esmm_d_input) esmm_d_input;
decltype(mw::estmm) estmm;
decltype(mw::ess) ess;
decltype(mw::add_expert_bias) add_expert_bias;
decltype(mw::expert_bias_products) expert_bias_products;
// As the entry of the operator table.
bool esfk(Stream& stream, const SortedRows& dy_RN, const SortedRows& x_RK, std::span<const int64_t> offsets,
          std::span<const Weight> weights, const SortedRows& dx_RK, TensorView dw_eNK, GradientStore to,
          ExpertProducts by);
decltype(mw::describe_attention) describe_attention;
decltype(mw::describe_esmm) describe_esmm;
decltype(mw::route) route;
decltype(mw::route_backward) route_backward;
decltype(mw::build_token_layout) build_token_layout;
decltype(mw::gather_rows) gather_rows;
decltype(mw::combine_rows) combine_rows;
decltype(mw::fill_index) fill_index;
decltype(mw::gather_values) gather_values;
decltype(mw::scatter_values) scatter_values;
decltype(mw::sort_units) sort_units;
decltype(mw::count_units) count_units;
decltype(mw::unit_choices) unit_choices;
int64_t attention_workspace_bytes(const AttentionShape& shape, DType dtype, int threads);
int64_t embedding_workspace_bytes(int64_t tokens, int64_t vocab);
int64_t matmul_workspace_bytes(int64_t max_n, int64_t max_k);
int64_t esmm_workspace_bytes(ExpertProducts by, int64_t max_rows, int64_t max_n, int64_t max_k, DType gradients);
int64_t mixed_matmul_workspace_bytes(int64_t rows, int64_t n, int64_t k);
int64_t router_workspace_bytes(int64_t tokens, int64_t experts);
int64_t token_layout_workspace_bytes(int64_t tokens, int64_t top_k, int64_t experts);
int64_t index_workspace_bytes(int64_t runs);
int64_t unit_workspace_bytes(int64_t items, int64_t choices, int64_t experts);
int64_t norm_workspace_bytes(int64_t rows, int64_t width);

}  // namespace mw::gpu
