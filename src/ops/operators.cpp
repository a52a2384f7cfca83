// The functions of the operators' headers: each checks its operands and goes to the backend of its stream, inside a
// scope of the trace.
#include "ops/operators.h"

#include <utility>

#include "ops/checks.h"

namespace mw {
namespace {

const Operators& operators_of(DeviceKind device) {
  return device == DeviceKind::cpu ? cpu_operators() : gpu_operators();
}

template <class Entry>
Entry find(DeviceKind device, Entry Operators::*entry, const char* name) {
  const Operators& table = operators_of(device);
  if (table.*entry == nullptr)
    fail(Exit::unsupported, fmt::format("the operator {} is not supported on {} yet", name, table.backend),
         "set train.device = \"cpu\", which has every operator; docs/limits.md lists what is missing");
  return table.*entry;
}

template <class Entry, class... Arguments>
auto run(Stream& stream, Work work, const char* name, Entry Operators::*entry, Arguments&&... arguments) {
  const TraceScope scope(stream.trace(), work, name);
  return find(stream.device().kind, entry, name)(stream, std::forward<Arguments>(arguments)...);
}

}  // namespace

void fill_zero(Stream& stream, TensorView x) { run(stream, Work::elementwise, "fill_zero", &Operators::fill_zero, x); }
void fill_zeros(Stream& stream, std::span<const TensorView> tensors) {
  run(stream, Work::elementwise, "fill_zeros", &Operators::fill_zeros, tensors);
}
void convert(Stream& stream, TensorView x, TensorView y) {
  check_convert(x, y);
  run(stream, Work::elementwise, "convert", &Operators::convert, x, y);
}
void add(Stream& stream, TensorView a, TensorView b, TensorView out) {
  check_add(a, b, out);
  run(stream, Work::elementwise, "add", &Operators::add, a, b, out);
}
void scaled_sum(Stream& stream, float a, TensorView x, float b, TensorView y, TensorView out) {
  check_add(x, y, out);
  run(stream, Work::elementwise, "scaled_sum", &Operators::scaled_sum, a, x, b, y, out);
}
void clamp(Stream& stream, TensorView x, float limit, TensorView y) {
  check_clamp(x, y);
  run(stream, Work::elementwise, "clamp", &Operators::clamp, x, limit, y);
}
void clamp_backward(Stream& stream, TensorView x, float limit, TensorView d) {
  check_clamp(x, d);
  run(stream, Work::elementwise, "clamp_backward", &Operators::clamp_backward, x, limit, d);
}
double sum_squares(Stream& stream, std::span<const TensorView> tensors) {
  return run(stream, Work::elementwise, "sum_squares", &Operators::sum_squares, tensors);
}
ExactSum sum_squares_exactly(Stream& stream, std::span<const TensorView> tensors, int64_t piece) {
  return run(stream, Work::elementwise, "sum_squares_exactly", &Operators::sum_squares_exactly, tensors, piece);
}
void clear(Stream& stream, SquareSums& sums) {
  sums.elements = 0;
  if (sums.limbs.data != nullptr) fill_zero(stream, sums.limbs);
}
ExactSum sum_squares_by_tile(Stream& stream, std::span<const TensorView> matrices_eNK, const SquareSums& begun) {
  check_square_sums(matrices_eNK, begun);
  return run(stream, Work::elementwise, "sum_squares_by_tile", &Operators::sum_squares_by_tile, matrices_eNK, begun);
}
bool all_finite(Stream& stream, TensorView x) {
  return run(stream, Work::elementwise, "all_finite", &Operators::all_finite, x);
}
void rms_norm(Stream& stream, TensorView x, TensorView gain, float eps, TensorView y, TensorView rstd,
              RowSums squares) {
  check_rms_norm(x, gain, y, rstd, squares);
  run(stream, Work::elementwise, "rms_norm", &Operators::rms_norm, x, gain, eps, y, rstd, squares);
}
void add_rms_norm(Stream& stream, TensorView a, TensorView b, TensorView gain, float eps, TensorView sum, TensorView y,
                  TensorView rstd) {
  check_add_rms_norm(a, b, gain, sum, y, rstd);
  run(stream, Work::elementwise, "add_rms_norm", &Operators::add_rms_norm, a, b, gain, eps, sum, y, rstd);
}
void rms_norm_apply(Stream& stream, TensorView x, TensorView gain, TensorView rstd, TensorView y) {
  check_rms_norm_apply(x, gain, rstd, y);
  run(stream, Work::elementwise, "rms_norm_apply", &Operators::rms_norm_apply, x, gain, rstd, y);
}
void rms_norm_backward(Stream& stream, TensorView x, TensorView gain, TensorView rstd, TensorView d_y,
                       TensorView d_residual, TensorView d_x, TensorView d_gain, RowSums products) {
  check_rms_norm_backward(x, gain, rstd, d_y, d_residual, d_x, d_gain, products);
  run(stream, Work::elementwise, "rms_norm_backward", &Operators::rms_norm_backward, x, gain, rstd, d_y, d_residual,
      d_x, d_gain, products);
}
void row_products(Stream& stream, TensorView a, TensorView b, TensorView gain, TensorView sums) {
  check_row_products(a, b, gain, sums);
  run(stream, Work::elementwise, "row_products", &Operators::row_products, a, b, gain, sums);
}
void add_bias(Stream& stream, TensorView x, TensorView bias) {
  check_add_bias(x, bias);
  run(stream, Work::elementwise, "add_bias", &Operators::add_bias, x, bias);
}
void bias_backward(Stream& stream, TensorView d, TensorView d_bias) {
  check_add_bias(d, d_bias);
  run(stream, Work::elementwise, "bias_backward", &Operators::bias_backward, d, d_bias);
}
void rope(Stream& stream, TensorView x_THh, TensorView cos_Sp, TensorView sin_Sp, RopeDirection direction,
          TensorView y_THh, RopePairs pairs, TensorView first_T, int64_t begin) {
  check_rope(x_THh, cos_Sp, sin_Sp, y_THh, first_T, begin);
  run(stream, Work::elementwise, "rope", &Operators::rope, x_THh, cos_Sp, sin_Sp, direction, y_THh, pairs, first_T,
      begin);
}
void norm_rope(Stream& stream, TensorView x_THh, TensorView gain, float eps, const Rotation& rotation, TensorView y_THh,
               TensorView rstd) {
  check_norm_rope(x_THh, gain, rstd, rotation, y_THh, gain);
  run(stream, Work::elementwise, "norm_rope", &Operators::norm_rope, x_THh, gain, eps, rotation, y_THh, rstd);
}
void norm_rope_apply(Stream& stream, TensorView x_THh, TensorView gain, TensorView rstd, const Rotation& rotation,
                     TensorView y_THh) {
  check_norm_rope(x_THh, gain, rstd, rotation, y_THh, gain);
  run(stream, Work::elementwise, "norm_rope_apply", &Operators::norm_rope_apply, x_THh, gain, rstd, rotation, y_THh);
}
void norm_rope_backward(Stream& stream, TensorView x_THh, TensorView gain, TensorView rstd, const Rotation& rotation,
                        TensorView d_THh, TensorView d_gain) {
  check_norm_rope(x_THh, gain, rstd, rotation, d_THh, d_gain);
  run(stream, Work::elementwise, "norm_rope_backward", &Operators::norm_rope_backward, x_THh, gain, rstd, rotation,
      d_THh, d_gain);
}
void copy_columns(Stream& stream, Columns x, Columns y, int64_t count) {
  check_columns(x, y, count);
  run(stream, Work::elementwise, "copy_columns", &Operators::copy_columns, x, y, count);
}
void sum_columns(Stream& stream, Columns x, Columns y, int64_t count) {
  check_columns(y, x, count);
  run(stream, Work::elementwise, "sum_columns", &Operators::sum_columns, x, y, count);
}
void activate(Stream& stream, const ActivationRule& rule, TensorView h_RcF, TensorView a_RF) {
  check_activate(rule.kind, h_RcF, a_RF);
  run(stream, Work::elementwise, "activate", &Operators::activate, rule, h_RcF, a_RF);
}
void activate_backward(Stream& stream, const ActivationRule& rule, TensorView h_RcF, TensorView d_a_RF,
                       TensorView weight_R, TensorView d_h_RcF, TensorView a_RF, TensorView d_weight_R) {
  check_activate_backward(rule.kind, h_RcF, d_a_RF, weight_R, d_h_RcF, a_RF, d_weight_R);
  run(stream, Work::elementwise, "activate_backward", &Operators::activate_backward, rule, h_RcF, d_a_RF, weight_R,
      d_h_RcF, a_RF, d_weight_R);
}
void gate_rows(Stream& stream, TensorView gate_R, TensorView x_RN) {
  check_gate_rows(gate_R, x_RN);
  run(stream, Work::elementwise, "gate_rows", &Operators::gate_rows, gate_R, x_RN);
}
void gate_backward(Stream& stream, TensorView gate_R, TensorView d_gate_R) {
  check_gate_backward(gate_R, d_gate_R);
  run(stream, Work::elementwise, "gate_backward", &Operators::gate_backward, gate_R, d_gate_R);
}
void embed(Stream& stream, TensorView table_vD, VocabPart part, TensorView ids_T, TensorView y_TD) {
  check_embed(table_vD, part, ids_T, y_TD);
  run(stream, Work::other, "embed", &Operators::embed, table_vD, part, ids_T, y_TD);
}
void embed_backward(Stream& stream, TensorView d_y_TD, VocabPart part, TensorView ids_T, TensorView d_table_vD) {
  check_embed(d_table_vD, part, ids_T, d_y_TD);
  run(stream, Work::other, "embed_backward", &Operators::embed_backward, d_y_TD, part, ids_T, d_table_vD);
}
void clear_rows(Stream& stream, VocabPart part, TensorView ids_T, TensorView table_vD) {
  check_table(table_vD, part, ids_T);
  run(stream, Work::other, "clear_rows", &Operators::clear_rows, part, ids_T, table_vD);
}
void cross_entropy(Stream& stream, TensorView logits_CV, TensorView labels_C, float scale, TensorView loss_C,
                   TensorView d_logits_CV) {
  check_cross_entropy(logits_CV, labels_C, loss_C, d_logits_CV);
  run(stream, Work::elementwise, "cross_entropy", &Operators::cross_entropy, logits_CV, labels_C, scale, loss_C,
      d_logits_CV);
}
void softmax_statistics(Stream& stream, TensorView logits_Cv, VocabPart part, TensorView labels_C,
                        TensorView statistics_C3) {
  check_softmax_statistics(logits_Cv, part, labels_C, statistics_C3);
  run(stream, Work::elementwise, "softmax_statistics", &Operators::softmax_statistics, logits_Cv, part, labels_C,
      statistics_C3);
}
void cross_entropy_of_part(Stream& stream, TensorView logits_Cv, VocabPart part, TensorView labels_C,
                           TensorView statistics_PC3, float scale, TensorView loss_C, TensorView d_logits_Cv) {
  check_cross_entropy_of_part(logits_Cv, part, labels_C, statistics_PC3, loss_C, d_logits_Cv);
  run(stream, Work::elementwise, "cross_entropy_of_part", &Operators::cross_entropy_of_part, logits_Cv, part, labels_C,
      statistics_PC3, scale, loss_C, d_logits_Cv);
}
void first_keys_of_window(Stream& stream, int64_t seq_len, int64_t window, TensorView start_T, TensorView first_T,
                          int64_t past) {
  check_first_keys_of_window(seq_len, window, start_T, first_T, past);
  run(stream, Work::elementwise, "first_keys_of_window", &Operators::first_keys_of_window, seq_len, window, start_T,
      first_T, past);
}
void attention(Stream& stream, const AttentionShape& shape, TensorView q_THh, TensorView k_TGh, TensorView v_TGh,
               TensorView o_THh, TensorView lse_HT, TensorView first_T) {
  check_attention(shape, q_THh, k_TGh, v_TGh, o_THh, lse_HT, first_T);
  run(stream, Work::attention, "attention", &Operators::attention, shape, q_THh, k_TGh, v_TGh, o_THh, lse_HT, first_T);
}
void attention_backward(Stream& stream, const AttentionShape& shape, TensorView q_THh, TensorView k_TGh,
                        TensorView v_TGh, TensorView o_THh, TensorView lse_HT, TensorView d_o_THh, TensorView d_q_THh,
                        TensorView d_k_TGh, TensorView d_v_TGh, TensorView first_T, TensorView delta_HT) {
  check_attention_backward(shape, q_THh, k_TGh, v_TGh, o_THh, lse_HT, d_o_THh, d_q_THh, d_k_TGh, d_v_TGh, first_T,
                           delta_HT);
  run(stream, Work::attention, "attention_backward", &Operators::attention_backward, shape, q_THh, k_TGh, v_TGh, o_THh,
      lse_HT, d_o_THh, d_q_THh, d_k_TGh, d_v_TGh, first_T, delta_HT);
}
void largest_logits(Stream& stream, const AttentionShape& shape, TensorView q_THh, TensorView k_TGh,
                    TensorView largest_H, TensorView first_T) {
  check_largest_logits(shape, q_THh, k_TGh, largest_H, first_T);
  run(stream, Work::attention, "largest_logits", &Operators::largest_logits, shape, q_THh, k_TGh, largest_H, first_T);
}
void add_sinks(Stream& stream, const AttentionShape& shape, TensorView sinks_H, TensorView o_THh, TensorView lse_HT) {
  check_add_sinks(shape, sinks_H, o_THh, lse_HT);
  run(stream, Work::attention, "add_sinks", &Operators::add_sinks, shape, sinks_H, o_THh, lse_HT);
}
void sinks_backward(Stream& stream, const AttentionShape& shape, DType dtype, TensorView sinks_H, TensorView lse_HT,
                    TensorView delta_HT, TensorView d_sinks_H) {
  check_sinks_backward(shape, dtype, sinks_H, lse_HT, delta_HT, d_sinks_H);
  run(stream, Work::attention, "sinks_backward", &Operators::sinks_backward, shape, dtype, sinks_H, lse_HT, delta_HT,
      d_sinks_H);
}
void adamw(Stream& stream, const AdamW& rule, int64_t step, float grad_scale, std::span<const AdamWTensor> tensors) {
  for (const AdamWTensor& tensor : tensors) check_adamw(step, tensor);
  run(stream, Work::optimizer, "adamw", &Operators::adamw, rule, step, grad_scale, tensors);
}
void muon_momentum(Stream& stream, const Muon& rule, int64_t step, float grad_scale, TensorView grad, TensorView m,
                   TensorView u) {
  check_muon_momentum(step, grad, m, u);
  run(stream, Work::optimizer, "muon_momentum", &Operators::muon_momentum, rule, step, grad_scale, grad, m, u);
}
void normalise_matrices(Stream& stream, TensorView x_bNK, TensorView sums, TensorView y_bNK) {
  check_normalise_matrices(x_bNK, sums, y_bNK);
  run(stream, Work::optimizer, "normalise_matrices", &Operators::normalise_matrices, x_bNK, sums, y_bNK);
}
void muon_update(Stream& stream, float lr, float decay, float rate, TensorView x, TensorView w, TensorView copy_bf16) {
  check_muon_update(x, w, copy_bf16);
  run(stream, Work::optimizer, "muon_update", &Operators::muon_update, lr, decay, rate, x, w, copy_bf16);
}
void pack_weight(Stream& stream, const Weight& weight) {
  check_pack_weight(weight);
  if (weight.n == 0) return;
  run(stream, Work::optimizer, "pack_weight", &Operators::pack_weight, weight);
}
void matmul(Stream& stream, TensorView x_MK, const Weight& weight, TensorView y_MN) {
  check_matmul(x_MK, weight, y_MN);
  if (weight.n == 0) return;
  run(stream, Work::matmul, "matmul", &Operators::matmul, x_MK, weight, y_MN);
}
void matmul_d_input(Stream& stream, TensorView dy_MN, const Weight& weight, TensorView dx_MK, Store store) {
  check_matmul_d_input(dy_MN, weight, dx_MK);
  if (weight.n == 0) {  // a sum of nothing
    if (store == Store::overwrite) fill_zero(stream, dx_MK);
    return;
  }
  run(stream, Work::matmul, "matmul_d_input", &Operators::matmul_d_input, dy_MN, weight, dx_MK, store);
}
void matmul_d_weight(Stream& stream, TensorView dy_MN, TensorView x_MK, TensorView dw_NK, Store store) {
  check_matmul_d_weight(dy_MN, x_MK, dw_NK);
  if (dw_NK.numel() == 0) return;
  if (dy_MN.rows() == 0) {  // a sum of nothing
    if (store == Store::overwrite) fill_zero(stream, dw_NK);
    return;
  }
  run(stream, Work::matmul, "matmul_d_weight", &Operators::matmul_d_weight, dy_MN, x_MK, dw_NK, store);
}
void mixed_matmul(Stream& stream, TensorView x_MK, const Weight& weight, TensorView y_MN) {
  check_mixed_matmul(x_MK, weight, y_MN);
  run(stream, Work::matmul, "mixed_matmul", &Operators::mixed_matmul, x_MK, weight, y_MN);
}
void mixed_matmul_d_input(Stream& stream, TensorView dy_MN, const Weight& weight, TensorView dx_MK) {
  check_mixed_matmul(dx_MK, weight, dy_MN);
  run(stream, Work::matmul, "mixed_matmul_d_input", &Operators::mixed_matmul_d_input, dy_MN, weight, dx_MK);
}
void mixed_matmul_d_weight(Stream& stream, TensorView dy_MN, TensorView x_MK, TensorView dw_NK) {
  check_mixed_matmul_d_weight(dy_MN, x_MK, dw_NK);
  run(stream, Work::matmul, "mixed_matmul_d_weight", &Operators::mixed_matmul_d_weight, dy_MN, x_MK, dw_NK);
}
void esmm(Stream& stream, SortedRows x_RK, std::span<const int64_t> offsets, std::span<const Weight> weights,
          SortedRows y_RN, ExpertProducts by) {
  check_esmm(x_RK, offsets, weights, y_RN);
  run(stream, Work::matmul, "esmm", &Operators::esmm, x_RK, offsets, weights, y_RN, by);
}
void esmm_d_input(Stream& stream, SortedRows dy_RN, std::span<const int64_t> offsets, std::span<const Weight> weights,
                  SortedRows dx_RK, ExpertProducts by) {
  check_esmm_d_input(dy_RN, offsets, weights, dx_RK);
  run(stream, Work::matmul, "esmm_d_input", &Operators::esmm_d_input, dy_RN, offsets, weights, dx_RK, by);
}
void estmm(Stream& stream, SortedRows dy_RN, SortedRows x_RK, std::span<const int64_t> offsets, TensorView dw_eNK,
           GradientStore to, ExpertProducts by) {
  check_estmm(dy_RN, x_RK, offsets, dw_eNK, to);
  run(stream, Work::matmul, "estmm", &Operators::estmm, dy_RN, x_RK, offsets, dw_eNK, to, by);
}
void ess(Stream& stream, SortedRows dy_RN, std::span<const int64_t> offsets, TensorView db_eN,
         std::span<const int32_t> experts, TensorView weights_R) {
  check_ess(dy_RN, offsets, db_eN, experts, weights_R);
  run(stream, Work::elementwise, "ess", &Operators::ess, dy_RN, offsets, db_eN, experts, weights_R);
}
void add_expert_bias(Stream& stream, SortedRows y_RN, std::span<const int64_t> offsets,
                     std::span<const int32_t> experts, TensorView bias_EN) {
  check_ess(y_RN, offsets, bias_EN, experts, {});
  run(stream, Work::elementwise, "add_expert_bias", &Operators::add_expert_bias, y_RN, offsets, experts, bias_EN);
}
void expert_bias_products(Stream& stream, SortedRows dy_RN, std::span<const int64_t> offsets,
                          std::span<const int32_t> experts, TensorView bias_EN, TensorView sums_R) {
  check_ess(dy_RN, offsets, bias_EN, experts, sums_R);
  run(stream, Work::elementwise, "expert_bias_products", &Operators::expert_bias_products, dy_RN, offsets, experts,
      bias_EN, sums_R);
}
void esfk(Stream& stream, SortedRows dy_RN, SortedRows x_RK, std::span<const int64_t> offsets,
          std::span<const Weight> weights, SortedRows dx_RK, TensorView dw_eNK, GradientStore to, TensorView db_eN,
          ExpertProducts by) {
  check_esmm_d_input(dy_RN, offsets, weights, dx_RK);
  check_estmm(dy_RN, x_RK, offsets, dw_eNK, to);
  if (db_eN.data != nullptr) check_ess(dy_RN, offsets, db_eN, {}, {});
  const TraceScope scope(stream.trace(), Work::matmul, "esfk");
  const auto at_once = operators_of(stream.device().kind).esfk;
  if (at_once == nullptr || !at_once(stream, dy_RN, x_RK, offsets, weights, dx_RK, dw_eNK, to, by)) {
    esmm_d_input(stream, dy_RN, offsets, weights, dx_RK, by);
    estmm(stream, dy_RN, x_RK, offsets, dw_eNK, to, by);
  }
  if (db_eN.data != nullptr) ess(stream, dy_RN, offsets, db_eN);
}
void route(Stream& stream, const RouterRule& rule, TensorView logits_TE, TensorView bias_E, bool forced,
           TensorView ids_TK, TensorView weights_TK, const RouterStatistics& statistics, TensorView gaps_T) {
  check_route(rule, logits_TE, bias_E, ids_TK, weights_TK, statistics, gaps_T);
  run(stream, Work::router, "route", &Operators::route, rule, logits_TE, bias_E, forced, ids_TK, weights_TK, statistics,
      gaps_T);
}
void route_backward(Stream& stream, const RouterRule& rule, TensorView logits_TE, TensorView ids_TK,
                    TensorView d_weights_TK, std::span<const float> d_prob_E, float z_scale, TensorView d_logits_TE) {
  check_route_backward(rule, logits_TE, ids_TK, d_weights_TK, d_prob_E, d_logits_TE);
  run(stream, Work::router, "route_backward", &Operators::route_backward, rule, logits_TE, ids_TK, d_weights_TK,
      d_prob_E, z_scale, d_logits_TE);
}
void build_token_layout(Stream& stream, TensorView ids_TK, TensorView weights_TK, TensorView ranking_TK,
                        std::span<const int32_t> position_of_expert, CapacityRule rule, TokenLayout& layout) {
  check_build_token_layout(ids_TK, weights_TK, ranking_TK, position_of_expert, rule, layout);
  run(stream, Work::router, "build_token_layout", &Operators::build_token_layout, ids_TK, weights_TK, ranking_TK,
      position_of_expert, rule, layout);
}
void gather_rows(Stream& stream, TensorView x_TD, const int32_t* rows, int64_t count, TensorView out_RD) {
  check_gather_rows(x_TD, count, out_RD);
  run(stream, Work::router, "gather_rows", &Operators::gather_rows, x_TD, rows, count, out_RD);
}
void combine_rows(Stream& stream, TensorView y_RD, TensorView row_of_TK, TensorView weights_TK, TensorView base_TD,
                  TensorView out_TD) {
  check_combine_rows(y_RD, row_of_TK, weights_TK, base_TD, out_TD);
  run(stream, Work::router, "combine_rows", &Operators::combine_rows, y_RD, row_of_TK, weights_TK, base_TD, out_TD);
}
void fill_index(Stream& stream, std::span<const IndexRun> runs, TensorView out) {
  check_fill_index(runs, out);
  run(stream, Work::exchange, "fill_index", &Operators::fill_index, runs, out);
}
void gather_values(Stream& stream, TensorView values, TensorView index, TensorView out) {
  check_gather_values(values, index, out);
  run(stream, Work::router, "gather_values", &Operators::gather_values, values, index, out);
}
void scatter_values(Stream& stream, TensorView values, TensorView index, TensorView out) {
  check_scatter_values(values, index, out);
  run(stream, Work::router, "scatter_values", &Operators::scatter_values, values, index, out);
}
void sort_units(Stream& stream, TensorView experts_Ic, TensorView order_I, std::span<const int32_t> part_of_expert,
                int64_t parts, bool merge, const UnitTable& out) {
  check_sort_units(experts_Ic, order_I, out);
  run(stream, Work::router, "sort_units", &Operators::sort_units, experts_Ic, order_I, part_of_expert, parts, merge,
      out);
}
void count_units(Stream& stream, TensorView experts_Ic, std::span<const UnitParts> divisions, TensorView counts) {
  check_count_units(experts_Ic, divisions, counts);
  run(stream, Work::router, "count_units", &Operators::count_units, experts_Ic, divisions, counts);
}
void unit_choices(Stream& stream, TensorView experts_Ic, TensorView weights_Ic, TensorView leads_U,
                  std::span<const int32_t> part_of_expert, bool merge, TensorView out_experts, TensorView out_weights) {
  check_unit_choices(experts_Ic, weights_Ic, leads_U, merge, out_experts, out_weights);
  run(stream, Work::router, "unit_choices", &Operators::unit_choices, experts_Ic, weights_Ic, leads_U, part_of_expert,
      merge, out_experts, out_weights);
}

std::string describe_attention(Stream& stream, const AttentionShape& shape, DType dtype) {
  check_attention_shape(shape);
  return find(stream.device().kind, &Operators::describe_attention, "describe_attention")(stream, shape, dtype);
}
std::string describe_esmm(Stream& stream, SortedRows x_RK, std::span<const Weight> weights, SortedRows y_RN,
                          double rows_of_an_expert, ExpertProducts by) {
  return find(stream.device().kind, &Operators::describe_esmm, "describe_esmm")(stream, x_RK, weights, y_RN,
                                                                                rows_of_an_expert, by);
}

int64_t norm_workspace_bytes(int64_t rows, int64_t width, DeviceKind device) {
  return find(device, &Operators::norm_workspace_bytes, "norm_workspace_bytes")(rows, width);
}
int64_t embedding_workspace_bytes(int64_t tokens, int64_t vocab, DeviceKind device) {
  return find(device, &Operators::embedding_workspace_bytes, "embedding_workspace_bytes")(tokens, vocab);
}
int64_t attention_workspace_bytes(const AttentionShape& shape, DType dtype, int threads, DeviceKind device) {
  check_attention_shape(shape);
  return find(device, &Operators::attention_workspace_bytes, "attention_workspace_bytes")(shape, dtype, threads);
}
int64_t matmul_workspace_bytes(int64_t max_n, int64_t max_k, DeviceKind device) {
  return find(device, &Operators::matmul_workspace_bytes, "matmul_workspace_bytes")(max_n, max_k);
}
int64_t esmm_workspace_bytes(ExpertProducts by, int64_t max_rows, int64_t max_n, int64_t max_k, DeviceKind device,
                             DType gradients) {
  return find(device, &Operators::esmm_workspace_bytes, "esmm_workspace_bytes")(by, max_rows, max_n, max_k, gradients);
}
int64_t mixed_matmul_workspace_bytes(int64_t rows, int64_t n, int64_t k, DeviceKind device) {
  return find(device, &Operators::mixed_matmul_workspace_bytes, "mixed_matmul_workspace_bytes")(rows, n, k);
}
int64_t router_workspace_bytes(int64_t tokens, int64_t experts, DeviceKind device) {
  return find(device, &Operators::router_workspace_bytes, "router_workspace_bytes")(tokens, experts);
}
int64_t token_layout_workspace_bytes(int64_t tokens, int64_t top_k, int64_t experts, DeviceKind device) {
  return find(device, &Operators::token_layout_workspace_bytes, "token_layout_workspace_bytes")(tokens, top_k, experts);
}
int64_t unit_workspace_bytes(int64_t items, int64_t choices, int64_t experts, DeviceKind device) {
  return find(device, &Operators::unit_workspace_bytes, "unit_workspace_bytes")(items, choices, experts);
}
int64_t index_workspace_bytes(int64_t runs, DeviceKind device) {
  return find(device, &Operators::index_workspace_bytes, "index_workspace_bytes")(runs);
}

}  // namespace mw
