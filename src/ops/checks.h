// Checks of dtypes and shapes, as the operators' headers require them, once for all backends: the public functions call
// check_<operator> before they call the backend. Backends only check what they alone know: values that they can read,
// limits of their own, their packed forms of weights.
// Errors: internal, naming the operands.
#pragma once

#include "ops/operators.h"

namespace mw {

void check_convert(const TensorView& x, const TensorView& y);
void check_add(const TensorView& a, const TensorView& b, const TensorView& out);
// For both directions: y is the output of clamp, or the gradient.
void check_clamp(const TensorView& x, const TensorView& y);

void check_rms_norm(const TensorView& x, const TensorView& gain, const TensorView& y, const TensorView& rstd,
                    const RowSums& squares);
void check_add_rms_norm(const TensorView& a, const TensorView& b, const TensorView& gain, const TensorView& sum,
                        const TensorView& y, const TensorView& rstd);
void check_rms_norm_apply(const TensorView& x, const TensorView& gain, const TensorView& rstd, const TensorView& y);
void check_rms_norm_backward(const TensorView& x, const TensorView& gain, const TensorView& rstd, const TensorView& d_y,
                             const TensorView& d_residual, const TensorView& d_x, const TensorView& d_gain,
                             const RowSums& products);
void check_row_products(const TensorView& a, const TensorView& b, const TensorView& gain, const TensorView& sums);

// For both directions: x and the bias, or their gradients.
void check_add_bias(const TensorView& x, const TensorView& bias);
void check_rope(const TensorView& x_THh, const TensorView& cos_Sp, const TensorView& sin_Sp, const TensorView& y_THh,
                const TensorView& first_T, int64_t begin);
// For both directions; `many` is the operand with as many rows as `few`, or a multiple of them.
void check_norm_rope(const TensorView& x_THh, const TensorView& gain, const TensorView& rstd, const Rotation& rotation,
                     const TensorView& y_THh, const TensorView& d_gain);
void check_columns(const Columns& few, const Columns& many, int64_t count);

void check_activate(Activation kind, const TensorView& h_RcF, const TensorView& a_RF);
void check_activate_backward(Activation kind, const TensorView& h_RcF, const TensorView& d_a_RF,
                             const TensorView& weight_R, const TensorView& d_h_RcF, const TensorView& a_RF,
                             const TensorView& d_weight_R);

void check_gate_rows(const TensorView& gate_R, const TensorView& x_RN);
void check_gate_backward(const TensorView& gate_R, const TensorView& d_gate_R);

// For both directions: the table and y, or their gradients.
void check_table(const TensorView& table_vD, VocabPart part, const TensorView& ids_T);
void check_embed(const TensorView& table_vD, VocabPart part, const TensorView& ids_T, const TensorView& y_TD);

void check_cross_entropy(const TensorView& logits_CV, const TensorView& labels_C, const TensorView& loss_C,
                         const TensorView& d_logits_CV);
void check_softmax_statistics(const TensorView& logits_Cv, VocabPart part, const TensorView& labels_C,
                              const TensorView& statistics_C3);
void check_cross_entropy_of_part(const TensorView& logits_Cv, VocabPart part, const TensorView& labels_C,
                                 const TensorView& statistics_PC3, const TensorView& loss_C,
                                 const TensorView& d_logits_Cv);

void check_attention_shape(const AttentionShape& shape);
void check_first_keys_of_window(int64_t seq_len, int64_t window, const TensorView& start_T, const TensorView& first_T,
                                int64_t past);
void check_attention(const AttentionShape& shape, const TensorView& q_THh, const TensorView& k_TGh,
                     const TensorView& v_TGh, const TensorView& o_THh, const TensorView& lse_HT,
                     const TensorView& first_T);
void check_attention_backward(const AttentionShape& shape, const TensorView& q_THh, const TensorView& k_TGh,
                              const TensorView& v_TGh, const TensorView& o_THh, const TensorView& lse_HT,
                              const TensorView& d_o_THh, const TensorView& d_q_THh, const TensorView& d_k_TGh,
                              const TensorView& d_v_TGh, const TensorView& first_T, const TensorView& delta_HT);
void check_add_sinks(const AttentionShape& shape, const TensorView& sinks_H, const TensorView& o_THh,
                     const TensorView& lse_HT);
void check_sinks_backward(const AttentionShape& shape, DType dtype, const TensorView& sinks_H, const TensorView& lse_HT,
                          const TensorView& delta_HT, const TensorView& d_sinks_H);
void check_largest_logits(const AttentionShape& shape, const TensorView& q_THh, const TensorView& k_TGh,
                          const TensorView& largest_H, const TensorView& first_T);

void check_adamw(int64_t step, const AdamWTensor& tensor);

void check_muon_momentum(int64_t step, const TensorView& grad, const TensorView& m, const TensorView& u);
void check_normalise_matrices(const TensorView& x_bNK, const TensorView& sums, const TensorView& y_bNK);
void check_muon_update(const TensorView& x, const TensorView& w, const TensorView& copy_bf16);
void check_pack_weight(const Weight& weight);
void check_matmul(const TensorView& x_MK, const Weight& weight, const TensorView& y_MN);
void check_matmul_d_input(const TensorView& dy_MN, const Weight& weight, const TensorView& dx_MK);
void check_matmul_d_weight(const TensorView& dy_MN, const TensorView& x_MK, const TensorView& dw_NK);
// For both directions: x and y, or their gradients.
void check_mixed_matmul(const TensorView& x_MK, const Weight& weight, const TensorView& y_MN);
void check_mixed_matmul_d_weight(const TensorView& dy_MN, const TensorView& x_MK, const TensorView& dw_NK);
void check_esmm(const SortedRows& x_RK, std::span<const int64_t> offsets, std::span<const Weight> weights,
                const SortedRows& y_RN);
void check_esmm_d_input(const SortedRows& dy_RN, std::span<const int64_t> offsets, std::span<const Weight> weights,
                        const SortedRows& dx_RK);
void check_square_sums(std::span<const TensorView> matrices_eNK, const SquareSums& begun);
void check_estmm(const SortedRows& dy_RN, const SortedRows& x_RK, std::span<const int64_t> offsets,
                 const TensorView& dw_eNK, const GradientStore& to);
// Of operators of expert biases, too; weights: a value of each row, or empty.
void check_ess(const SortedRows& dy_RN, std::span<const int64_t> offsets, const TensorView& db_eN,
               std::span<const int32_t> experts, const TensorView& weights_R);

void check_route(const RouterRule& rule, const TensorView& logits_TE, const TensorView& bias_E,
                 const TensorView& ids_TK, const TensorView& weights_TK, const RouterStatistics& statistics,
                 const TensorView& gaps_T);
void check_route_backward(const RouterRule& rule, const TensorView& logits_TE, const TensorView& ids_TK,
                          const TensorView& d_weights_TK, std::span<const float> d_prob_E,
                          const TensorView& d_logits_TE);

void check_build_token_layout(const TensorView& ids_TK, const TensorView& weights_TK, const TensorView& ranking_TK,
                              std::span<const int32_t> position_of_expert, const CapacityRule& rule,
                              const TokenLayout& layout);
void check_gather_rows(const TensorView& x_TD, int64_t count, const TensorView& out_RD);
void check_combine_rows(const TensorView& y_RD, const TensorView& row_of_TK, const TensorView& weights_TK,
                        const TensorView& base_TD, const TensorView& out_TD);

void check_fill_index(std::span<const IndexRun> runs, const TensorView& out);
void check_gather_values(const TensorView& values, const TensorView& index, const TensorView& out);
void check_scatter_values(const TensorView& values, const TensorView& index, const TensorView& out);
void check_sort_units(const TensorView& experts_Ic, const TensorView& order_I, const UnitTable& out);
void check_count_units(const TensorView& experts_Ic, std::span<const UnitParts> divisions, const TensorView& counts);
void check_unit_choices(const TensorView& experts_Ic, const TensorView& weights_Ic, const TensorView& leads_U,
                        bool merge, const TensorView& out_experts, const TensorView& out_weights);

}  // namespace mw
