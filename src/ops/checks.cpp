#include "ops/checks.h"

#include <algorithm>

#include "ops/check_views.h"

namespace mw {
namespace {

void check_normalised(const TensorView& x, const TensorView& gain, const TensorView& y) {
  MW_CHECK(x.rank > 0 && y.dtype == x.dtype && same_shape(y, x), "norm of {} beside {}", x.describe(), y.describe());
  MW_CHECK(gain.dtype == DType::f32 && gain.numel() == x.cols(), "gain of a norm is {}, expected f32[{}]",
           gain.describe(), x.cols());
}

void check_rstd(const TensorView& rstd, const TensorView& x) {
  MW_CHECK(rstd.dtype == DType::f32 && rstd.numel() == x.rows(), "rstd is {}, expected f32[{}]", rstd.describe(),
           x.rows());
}

void check_row_sums(const RowSums& whole, const TensorView& x) {
  if (!is_given(whole.sums)) return;
  MW_CHECK(whole.sums.dtype == DType::f32 && whole.sums.numel() == x.rows() && whole.width >= x.cols(),
           "sums over rows of {} are {}, beside {}", whole.width, whole.sums.describe(), x.describe());
}

void check_row_weights(const TensorView& weight_R, const TensorView& a_RF) {
  MW_CHECK(!is_given(weight_R) || weight_R.numel() >= a_RF.dim(0), "row weights {} for {}", weight_R.describe(),
           a_RF.describe());
}

void check_part(VocabPart part, int64_t count) {
  MW_CHECK(part.begin >= 0 && count <= part.vocab - part.begin, "ids {} to {} of a vocabulary of {}", part.begin,
           part.begin + count, part.vocab);
}

void check_logits(const TensorView& logits, const TensorView& labels_C) {
  MW_CHECK(logits.rank == 2 && is_float(logits.dtype), "logits are {}, expected f32 or bf16[C, V]", logits.describe());
  MW_CHECK(labels_C.dtype == DType::i32 && labels_C.numel() == logits.dim(0), "labels are {}, expected i32[{}]",
           labels_C.describe(), logits.dim(0));
}

// The master weights: what packs a weight and what products of f32 read.
void check_values(const Weight& weight) {
  MW_CHECK(is_given(weight.values) && weight.values.dtype == DType::f32 && weight.values.numel() == weight.n * weight.k,
           "weight [{}, {}] has values {}", weight.n, weight.k, weight.values.describe());
}

// y = x W^T takes K columns to N, the gradient N to K.
void check_product(const TensorView& x, int64_t x_width, const TensorView& y, int64_t y_width, const Weight& weight) {
  MW_CHECK(x.cols() == x_width && y.cols() == y_width, "{} = product of {} with a weight [{}, {}]", y.describe(),
           x.describe(), weight.n, weight.k);
  MW_CHECK(is_float(x.dtype) && is_float(y.dtype), "product of {} stored in {}", x.describe(), y.describe());
  if (x.dtype == DType::f32) check_values(weight);
}

void check_same_rows(const TensorView& x, const TensorView& y) {
  MW_CHECK(x.rows() == y.rows(), "{} = product of {}", y.describe(), x.describe());
}

// dw is [N, K], or such a matrix per expert: rank 3, which may be bf16 as dy and x are.
void check_weight_gradient(const TensorView& dy, const TensorView& x, const TensorView& dw, int rank) {
  MW_CHECK(is_float(x.dtype) && x.dtype == dy.dtype, "weight gradient of {} and {}", dy.describe(), x.describe());
  MW_CHECK((dw.dtype == DType::f32 || (rank == 3 && dw.dtype == DType::bf16 && x.dtype == DType::bf16)) &&
               dw.rank == rank && dw.dim(rank - 2) == dy.cols() && dw.dim(rank - 1) == x.cols(),
           "{} += {}^T {}", dw.describe(), dy.describe(), x.describe());
}

void check_master_weights(const TensorView& w, const TensorView& copy_bf16) {
  const bool has_copy = is_given(copy_bf16);
  MW_CHECK(w.dtype == DType::f32 || (w.dtype == DType::u16 && (has_copy || w.numel() == 0)),
           "master weights {} with the copy {}", w.describe(), copy_bf16.describe());
  MW_CHECK(!has_copy || (copy_bf16.dtype == DType::bf16 && copy_bf16.numel() == w.numel()),
           "master weights {} with the copy {}", w.describe(), copy_bf16.describe());
}

void check_mixed_rows(const TensorView& x, const TensorView& y, int64_t n, int64_t k) {
  MW_CHECK(x.dtype == DType::bf16 && x.rank == 2 && x.dim(1) == k && y.dtype == DType::f32 && y.rank == 2 &&
               y.dim(1) == n && x.dim(0) == y.dim(0),
           "{} and {} in a mixed product with a weight [{}, {}]", x.describe(), y.describe(), n, k);
}

void check_offsets(std::span<const int64_t> offsets, int64_t experts, const SortedRows& a, const SortedRows& b) {
  MW_CHECK(std::ssize(offsets) == experts + 1, "{} offsets for {} experts", offsets.size(), experts);
  MW_CHECK(offsets.front() >= 0 && std::is_sorted(offsets.begin(), offsets.end()),
           "offsets of {} experts from {} to {}", experts, offsets.front(), offsets.back());
  for (const SortedRows* rows : {&a, &b})
    MW_CHECK(rows->index != nullptr || offsets.back() <= rows->data.rows(), "{} sorted rows of {}", offsets.back(),
             rows->data.describe());
}

void check_router(const RouterRule& rule, const TensorView& logits_TE, const TensorView& ids_TK,
                  const TensorView& weights_TK) {
  const int64_t T = logits_TE.dim(0), E = rule.experts, K = rule.top_k;
  MW_CHECK(logits_TE.rank == 2 && logits_TE.dim(1) == E && ids_TK.numel() == T * K && weights_TK.numel() == T * K,
           "router of {} experts, top-{}: {}, {}, {}", E, K, logits_TE.describe(), ids_TK.describe(),
           weights_TK.describe());
  const int64_t groups = rule.groups, kept = rule.kept_groups;
  MW_CHECK(groups >= 1 && E % groups == 0 && kept >= 1 && kept <= groups && rule.group_best >= 1,
           "{} of {} groups of {} experts, scored by {}", kept, groups, E, rule.group_best);
  MW_CHECK(K >= 1 && K <= E / groups * kept, "top-{} of {} experts in {} of {} groups", K, E, kept, groups);
}

}  // namespace

void check_convert(const TensorView& x, const TensorView& y) {
  MW_CHECK(x.numel() == y.numel(), "{} converted to {}", x.describe(), y.describe());
}

void check_add(const TensorView& a, const TensorView& b, const TensorView& out) {
  for (const TensorView* other : {&b, &out})
    MW_CHECK(a.dtype == other->dtype && a.numel() == other->numel(), "sum of {} beside {}", a.describe(),
             other->describe());
}

void check_clamp(const TensorView& x, const TensorView& y) {
  MW_CHECK(x.dtype == y.dtype && x.numel() == y.numel(), "clamp of {} beside {}", x.describe(), y.describe());
}

void check_rms_norm(const TensorView& x, const TensorView& gain, const TensorView& y, const TensorView& rstd,
                    const RowSums& squares) {
  check_normalised(x, gain, y);
  if (is_given(rstd)) check_rstd(rstd, x);
  check_row_sums(squares, x);
}

void check_add_rms_norm(const TensorView& a, const TensorView& b, const TensorView& gain, const TensorView& sum,
                        const TensorView& y, const TensorView& rstd) {
  for (const TensorView* other : {&y, &a, &b}) check_normalised(sum, gain, *other);
  check_rstd(rstd, sum);
}

void check_rms_norm_apply(const TensorView& x, const TensorView& gain, const TensorView& rstd, const TensorView& y) {
  check_normalised(x, gain, y);
  check_rstd(rstd, x);
}

void check_rms_norm_backward(const TensorView& x, const TensorView& gain, const TensorView& rstd, const TensorView& d_y,
                             const TensorView& d_residual, const TensorView& d_x, const TensorView& d_gain,
                             const RowSums& products) {
  check_normalised(x, gain, d_y);
  check_normalised(x, d_gain, d_x);
  if (is_given(d_residual)) check_normalised(x, gain, d_residual);
  check_rstd(rstd, x);
  check_row_sums(products, x);
}

void check_row_products(const TensorView& a, const TensorView& b, const TensorView& gain, const TensorView& sums) {
  MW_CHECK(is_float(a.dtype) && a.dtype == b.dtype && same_shape(a, b), "products of {} and {}", a.describe(),
           b.describe());
  MW_CHECK(!is_given(gain) || (gain.dtype == DType::f32 && gain.numel() == a.cols()), "gain {} of products of {}",
           gain.describe(), a.describe());
  MW_CHECK(sums.dtype == DType::f32 && sums.numel() == a.rows(), "sums of rows of {} in {}", a.describe(),
           sums.describe());
}

void check_add_bias(const TensorView& x, const TensorView& bias) {
  MW_CHECK(is_float(x.dtype) && bias.dtype == DType::f32 && bias.numel() == x.cols(), "a bias {} of rows of {}",
           bias.describe(), x.describe());
}

void check_rope(const TensorView& x_THh, const TensorView& cos_Sp, const TensorView& sin_Sp, const TensorView& y_THh,
                const TensorView& first_T, int64_t begin) {
  MW_CHECK(cos_Sp.rank == 2 && cos_Sp.dtype == DType::f32 && sin_Sp.dtype == DType::f32 && same_shape(sin_Sp, cos_Sp),
           "cos is {}, sin is {}, expected two f32[S, pairs]", cos_Sp.describe(), sin_Sp.describe());
  const int64_t rotated = 2 * cos_Sp.dim(1);
  MW_CHECK(x_THh.rank == 3 && begin >= 0 && x_THh.dim(2) >= begin + rotated,
           "rope of elements {} to {} of the heads of {}", begin, begin + rotated, x_THh.describe());
  MW_CHECK(y_THh.dtype == x_THh.dtype && same_shape(y_THh, x_THh), "rope of {} into {}", x_THh.describe(),
           y_THh.describe());
  MW_CHECK(cos_Sp.dim(0) > 0 || x_THh.dim(0) == 0, "a table without positions for {} tokens", x_THh.dim(0));
  if (is_given(first_T)) check_view(first_T, DType::i32, {x_THh.dim(0)}, "first");
}

void check_norm_rope(const TensorView& x_THh, const TensorView& gain, const TensorView& rstd, const Rotation& rotation,
                     const TensorView& y_THh, const TensorView& d_gain) {
  check_normalised(x_THh, gain, y_THh);
  check_normalised(x_THh, d_gain, y_THh);
  check_rstd(rstd, x_THh);
  check_rope(x_THh, rotation.cos_Sp, rotation.sin_Sp, y_THh, rotation.first_T, 0);
}

void check_columns(const Columns& few, const Columns& many, int64_t count) {
  const int64_t rows = few.matrix.rows(), all = many.matrix.rows();
  MW_CHECK(few.matrix.dtype == many.matrix.dtype && is_float(few.matrix.dtype), "columns of {} and {}",
           few.matrix.describe(), many.matrix.describe());
  MW_CHECK(rows == 0 ? all == 0 : all % rows == 0, "columns of rows of {} and {}", few.matrix.describe(),
           many.matrix.describe());
  for (const Columns* side : {&few, &many})
    MW_CHECK(count > 0 && side->begin >= 0 && count <= side->matrix.cols() - side->begin, "columns {} to {} of {}",
             side->begin, side->begin + count, side->matrix.describe());
}

void check_activate(Activation kind, const TensorView& h_RcF, const TensorView& a_RF) {
  MW_CHECK(a_RF.rank == 2 && h_RcF.rank == 3 && h_RcF.dim(0) == a_RF.dim(0) && h_RcF.dim(1) == halves_of(kind) &&
               h_RcF.dim(2) == a_RF.dim(1) && h_RcF.dtype == a_RF.dtype,
           "activation of {} into {}", h_RcF.describe(), a_RF.describe());
}

void check_activate_backward(Activation kind, const TensorView& h_RcF, const TensorView& d_a_RF,
                             const TensorView& weight_R, const TensorView& d_h_RcF, const TensorView& a_RF,
                             const TensorView& d_weight_R) {
  check_activate(kind, h_RcF, d_a_RF);
  check_activate(kind, h_RcF, a_RF);
  check_activate(kind, d_h_RcF, a_RF);
  check_row_weights(weight_R, a_RF);
  check_row_weights(d_weight_R, a_RF);
}

void check_gate_rows(const TensorView& gate_R, const TensorView& x_RN) {
  MW_CHECK(is_float(x_RN.dtype) && gate_R.dtype == DType::f32 && gate_R.numel() == x_RN.rows(),
           "gates {} of rows of {}", gate_R.describe(), x_RN.describe());
}

void check_gate_backward(const TensorView& gate_R, const TensorView& d_gate_R) {
  MW_CHECK(gate_R.dtype == DType::f32 && d_gate_R.dtype == DType::f32 && gate_R.numel() == d_gate_R.numel(),
           "gates {} beside gradients {}", gate_R.describe(), d_gate_R.describe());
}

void check_table(const TensorView& table_vD, VocabPart part, const TensorView& ids_T) {
  MW_CHECK(table_vD.rank == 2 && table_vD.dtype == DType::f32, "table is {}, expected f32[V, D]", table_vD.describe());
  check_part(part, table_vD.dim(0));
  MW_CHECK(ids_T.dtype == DType::i32, "ids are {}, expected i32", ids_T.describe());
}

void check_embed(const TensorView& table_vD, VocabPart part, const TensorView& ids_T, const TensorView& y_TD) {
  check_table(table_vD, part, ids_T);
  MW_CHECK(y_TD.rank == 2 && y_TD.dim(0) == ids_T.numel() && y_TD.dim(1) == table_vD.dim(1),
           "{} for ids {} of table {}", y_TD.describe(), ids_T.describe(), table_vD.describe());
}

void check_cross_entropy(const TensorView& logits_CV, const TensorView& labels_C, const TensorView& loss_C,
                         const TensorView& d_logits_CV) {
  check_logits(logits_CV, labels_C);
  const int64_t C = logits_CV.dim(0);
  MW_CHECK(loss_C.dtype == DType::f32 && loss_C.numel() == C, "loss is {}, expected f32[{}]", loss_C.describe(), C);
  MW_CHECK(!is_given(d_logits_CV) || (same_shape(d_logits_CV, logits_CV) && is_float(d_logits_CV.dtype) &&
                                      (logits_CV.dtype == DType::f32 || d_logits_CV.dtype == DType::bf16)),
           "d_logits are {} for logits {}", d_logits_CV.describe(), logits_CV.describe());
}

void check_softmax_statistics(const TensorView& logits_Cv, VocabPart part, const TensorView& labels_C,
                              const TensorView& statistics_C3) {
  check_logits(logits_Cv, labels_C);
  check_part(part, logits_Cv.dim(1));
  check_view(statistics_C3, DType::f32, {logits_Cv.dim(0), kSoftmaxStatistics}, "statistics");
}

void check_cross_entropy_of_part(const TensorView& logits_Cv, VocabPart part, const TensorView& labels_C,
                                 const TensorView& statistics_PC3, const TensorView& loss_C,
                                 const TensorView& d_logits_Cv) {
  check_cross_entropy(logits_Cv, labels_C, loss_C, d_logits_Cv);
  check_part(part, logits_Cv.dim(1));
  MW_CHECK(statistics_PC3.rank == 3 && statistics_PC3.dim(0) > 0, "statistics are {}, expected f32[P, C, 3]",
           statistics_PC3.describe());
  check_view(statistics_PC3, DType::f32, {statistics_PC3.dim(0), logits_Cv.dim(0), kSoftmaxStatistics}, "statistics");
}

void check_adamw(int64_t step, const AdamWTensor& tensor) {
  const TensorView &grad = tensor.grad, &w = tensor.w, &m = tensor.m, &v = tensor.v;
  const int64_t count = w.numel();
  MW_CHECK(step >= 1, "AdamW step {}", step);
  MW_CHECK(is_float(grad.dtype) && grad.numel() == count && m.numel() == count && v.numel() == count,
           "AdamW on {} with {}, {}, {}", w.describe(), grad.describe(), m.describe(), v.describe());
  MW_CHECK(is_float(m.dtype) && m.dtype == v.dtype, "AdamW on {} with moments {}, {}", w.describe(), m.describe(),
           v.describe());
  check_master_weights(w, tensor.copy_bf16);
}

void check_muon_momentum(int64_t step, const TensorView& grad, const TensorView& m, const TensorView& u) {
  MW_CHECK(step >= 1, "Muon step {}", step);
  MW_CHECK(is_float(grad.dtype) && is_float(m.dtype) && u.dtype == DType::f32 && grad.numel() == u.numel() &&
               m.numel() == u.numel(),
           "momentum {} of {} into {}", m.describe(), grad.describe(), u.describe());
}

void check_normalise_matrices(const TensorView& x_bNK, const TensorView& sums, const TensorView& y_bNK) {
  MW_CHECK(x_bNK.rank == 3 && x_bNK.dtype == DType::f32 && is_float(y_bNK.dtype) && same_shape(x_bNK, y_bNK),
           "matrices {} normalised into {}", x_bNK.describe(), y_bNK.describe());
  MW_CHECK(sums.dtype == DType::f32 && sums.numel() == x_bNK.dim(0) * kNormParts,
           "partial sums are {}, expected f32[{}]", sums.describe(), x_bNK.dim(0) * kNormParts);
}

void check_muon_update(const TensorView& x, const TensorView& w, const TensorView& copy_bf16) {
  MW_CHECK(is_float(x.dtype) && x.numel() == w.numel(), "Muon on {} with {}", w.describe(), x.describe());
  check_master_weights(w, copy_bf16);
}

void check_pack_weight(const Weight& weight) { check_values(weight); }

void check_matmul(const TensorView& x_MK, const Weight& weight, const TensorView& y_MN) {
  check_same_rows(x_MK, y_MN);
  check_product(x_MK, weight.k, y_MN, weight.n, weight);
}

void check_matmul_d_input(const TensorView& dy_MN, const Weight& weight, const TensorView& dx_MK) {
  check_same_rows(dy_MN, dx_MK);
  check_product(dy_MN, weight.n, dx_MK, weight.k, weight);
}

void check_matmul_d_weight(const TensorView& dy_MN, const TensorView& x_MK, const TensorView& dw_NK) {
  MW_CHECK(dy_MN.rows() == x_MK.rows(), "weight gradient of {} and {}", dy_MN.describe(), x_MK.describe());
  check_weight_gradient(dy_MN, x_MK, dw_NK, 2);
}

void check_mixed_matmul(const TensorView& x_MK, const Weight& weight, const TensorView& y_MN) {
  check_mixed_rows(x_MK, y_MN, weight.n, weight.k);
  check_values(weight);
}

void check_mixed_matmul_d_weight(const TensorView& dy_MN, const TensorView& x_MK, const TensorView& dw_NK) {
  MW_CHECK(dw_NK.dtype == DType::f32 && dw_NK.rank == 2, "weight gradient {} of a mixed product", dw_NK.describe());
  check_mixed_rows(x_MK, dy_MN, dw_NK.dim(0), dw_NK.dim(1));
}

void check_esmm(const SortedRows& x_RK, std::span<const int64_t> offsets, std::span<const Weight> weights,
                const SortedRows& y_RN) {
  check_offsets(offsets, std::ssize(weights), x_RK, y_RN);
  for (const Weight& w : weights) check_product(x_RK.data, w.k, y_RN.data, w.n, w);
}

void check_esmm_d_input(const SortedRows& dy_RN, std::span<const int64_t> offsets, std::span<const Weight> weights,
                        const SortedRows& dx_RK) {
  check_offsets(offsets, std::ssize(weights), dy_RN, dx_RK);
  for (const Weight& w : weights) check_product(dy_RN.data, w.n, dx_RK.data, w.k, w);
}

void check_square_sums(std::span<const TensorView> matrices_eNK, const SquareSums& begun) {
  for (const TensorView& matrices : matrices_eNK)
    MW_CHECK(matrices.rank == 3 && is_float(matrices.dtype), "squares of {}", matrices.describe());
  const TensorView& limbs = begun.limbs;
  MW_CHECK(!is_given(limbs) || (limbs.dtype == DType::i64 && limbs.numel() == SquareSums::kSets * ExactSum::kLimbs),
           "sums of squares in {}", limbs.describe());
}

void check_estmm(const SortedRows& dy_RN, const SortedRows& x_RK, std::span<const int64_t> offsets,
                 const TensorView& dw_eNK, const GradientStore& to) {
  check_weight_gradient(dy_RN.data, x_RK.data, dw_eNK, 3);
  MW_CHECK(to.squares == nullptr || is_given(to.squares->limbs), "squares of {} without limbs", dw_eNK.describe());
  check_offsets(offsets, dw_eNK.dim(0), dy_RN, x_RK);
}

void check_ess(const SortedRows& dy_RN, std::span<const int64_t> offsets, const TensorView& db_eN,
               std::span<const int32_t> experts, const TensorView& weights_R) {
  MW_CHECK(db_eN.dtype == DType::f32 && db_eN.rank == 2 && db_eN.dim(1) == dy_RN.data.cols(), "{} beside rows of {}",
           db_eN.describe(), dy_RN.data.describe());
  check_offsets(offsets, experts.empty() ? db_eN.dim(0) : std::ssize(experts), dy_RN, dy_RN);
  for (const int32_t expert : experts)
    MW_CHECK(expert >= 0 && expert < db_eN.dim(0), "expert {} of {}", expert, db_eN.describe());
  MW_CHECK(!is_given(weights_R) || (weights_R.dtype == DType::f32 && weights_R.numel() >= offsets.back()),
           "values {} of {} sorted rows", weights_R.describe(), offsets.back());
}

void check_route(const RouterRule& rule, const TensorView& logits_TE, const TensorView& bias_E,
                 const TensorView& ids_TK, const TensorView& weights_TK, const RouterStatistics& statistics,
                 const TensorView& gaps_T) {
  check_router(rule, logits_TE, ids_TK, weights_TK);
  const int64_t T = logits_TE.dim(0), E = rule.experts;
  MW_CHECK(!is_given(bias_E) || bias_E.numel() == E, "bias {} of {} experts", bias_E.describe(), E);
  MW_CHECK(!is_given(gaps_T) || gaps_T.numel() == T, "gaps {} of {} tokens", gaps_T.describe(), T);
  for (const std::span<double> sums_E : {statistics.counts_E, statistics.prob_sums_E})
    MW_CHECK(sums_E.empty() || std::ssize(sums_E) == E, "statistics of {} and {} for {} experts",
             statistics.counts_E.size(), statistics.prob_sums_E.size(), E);
}

void check_route_backward(const RouterRule& rule, const TensorView& logits_TE, const TensorView& ids_TK,
                          const TensorView& d_weights_TK, std::span<const float> d_prob_E,
                          const TensorView& d_logits_TE) {
  check_router(rule, logits_TE, ids_TK, d_weights_TK);
  MW_CHECK(d_logits_TE.numel() == logits_TE.numel(), "gradient {} of router logits {}", d_logits_TE.describe(),
           logits_TE.describe());
  MW_CHECK(d_prob_E.empty() || std::ssize(d_prob_E) == rule.experts, "d_prob of {} for {} experts", d_prob_E.size(),
           rule.experts);
}

void check_build_token_layout(const TensorView& ids_TK, const TensorView& weights_TK, const TensorView& ranking_TK,
                              std::span<const int32_t> position_of_expert, const CapacityRule& rule,
                              const TokenLayout& layout) {
  const int64_t choices = layout.tokens * layout.top_k;
  MW_CHECK(choices <= INT32_MAX, "{} choices do not fit 32-bit rows", choices);
  MW_CHECK(layout.experts > 0 || choices == 0, "{} choices of {} experts", choices, layout.experts);
  MW_CHECK(ids_TK.numel() == choices && weights_TK.numel() == choices, "layout of {} x {} from {} and {}",
           layout.tokens, layout.top_k, ids_TK.describe(), weights_TK.describe());
  MW_CHECK(ranking_TK.data == nullptr || ranking_TK.numel() == choices, "layout of {} x {} ranked by {}", layout.tokens,
           layout.top_k, ranking_TK.describe());
  MW_CHECK(layout.token_ids_R.numel() >= choices && layout.expert_ids_R.numel() >= choices &&
               layout.weights_R.numel() >= choices && layout.row_of_TK.numel() >= choices &&
               layout.rows_per_expert_E.numel() == layout.experts,
           "layout views too small for {} choices of {} experts", choices, layout.experts);
  MW_CHECK(std::ssize(position_of_expert) == layout.experts, "{} positions of {} experts", position_of_expert.size(),
           layout.experts);
  MW_CHECK(rule.capacity <= 0 || rule.domain_tokens > 0 || choices == 0, "capacity {} per {} tokens", rule.capacity,
           rule.domain_tokens);
}

void check_gather_rows(const TensorView& x_TD, int64_t count, const TensorView& out_RD) {
  MW_CHECK(is_float(x_TD.dtype) && x_TD.dtype == out_RD.dtype && x_TD.cols() == out_RD.cols() && count >= 0 &&
               count <= out_RD.rows(),
           "{} rows of {} gathered into {}", count, x_TD.describe(), out_RD.describe());
}

void check_combine_rows(const TensorView& y_RD, const TensorView& row_of_TK, const TensorView& weights_TK,
                        const TensorView& base_TD, const TensorView& out_TD) {
  MW_CHECK(out_TD.rank == 2 && row_of_TK.rank == 2 && row_of_TK.dim(0) == out_TD.dim(0) && y_RD.dtype == out_TD.dtype &&
               y_RD.cols() == out_TD.dim(1),
           "{} combined by {} into {}", y_RD.describe(), row_of_TK.describe(), out_TD.describe());
  MW_CHECK(!is_given(weights_TK) || weights_TK.numel() == row_of_TK.numel(), "weights {} of combined rows {}",
           weights_TK.describe(), row_of_TK.describe());
  MW_CHECK(!is_given(base_TD) || base_TD.numel() == out_TD.numel(), "base {} of combined rows {}", base_TD.describe(),
           out_TD.describe());
}

void check_fill_index(std::span<const IndexRun> runs, const TensorView& out) {
  MW_CHECK(out.numel() <= INT32_MAX, "an index of {} rows", out.numel());
  int64_t end = 0;
  for (const IndexRun& r : runs) {
    MW_CHECK(r.count >= 0 && r.to >= end && r.from >= 0 && r.from + r.count <= INT32_MAX,
             "a run of {} rows from {} to {} after one that ends at {}", r.count, r.from, r.to, end);
    end = r.to + r.count;
  }
  MW_CHECK(end <= out.numel(), "runs to {} in {}", end, out.describe());
}

void check_gather_values(const TensorView& values, const TensorView& index, const TensorView& out) {
  MW_CHECK(values.dtype == out.dtype && (out.dtype == DType::f32 || out.dtype == DType::i32) &&
               index.dtype == DType::i32 && index.numel() == out.numel(),
           "{} gathered by {} into {}", values.describe(), index.describe(), out.describe());
}

void check_scatter_values(const TensorView& values, const TensorView& index, const TensorView& out) {
  MW_CHECK(values.dtype == DType::f32 && out.dtype == DType::f32 && index.dtype == DType::i32 &&
               index.numel() == values.numel(),
           "{} scattered by {} into {}", values.describe(), index.describe(), out.describe());
}
void check_sort_units(const TensorView& experts_Ic, const TensorView& order_I, const UnitTable& out) {
  MW_CHECK(
      experts_Ic.rank == 2 && experts_Ic.dtype == DType::i32 && (!is_given(order_I) || order_I.dtype == DType::i32),
      "units of {} in the order {}", experts_Ic.describe(), order_I.describe());
  for (const TensorView& of_units : {out.items_U, out.leads_U})
    MW_CHECK(of_units.dtype == DType::i32 && of_units.numel() == out.items_U.numel(), "a table of units is {}",
             of_units.describe());
  MW_CHECK(out.units_Ic.dtype == DType::i32 && out.units_Ic.numel() >= experts_Ic.numel(), "units of {} are {}",
           experts_Ic.describe(), out.units_Ic.describe());
}
void check_count_units(const TensorView& experts_Ic, std::span<const UnitParts> divisions, const TensorView& counts) {
  int64_t parts = 0;
  for (const UnitParts& division : divisions) parts += division.parts;
  MW_CHECK(experts_Ic.rank == 2 && experts_Ic.dtype == DType::i32 && !divisions.empty() &&
               std::ssize(divisions) <= kMostUnitParts,
           "units of {} counted by {} divisions", experts_Ic.describe(), divisions.size());
  check_view(counts, DType::i64, {parts}, "the counts of units");
}
void check_unit_choices(const TensorView& experts_Ic, const TensorView& weights_Ic, const TensorView& leads_U,
                        bool merge, const TensorView& out_experts, const TensorView& out_weights) {
  MW_CHECK(experts_Ic.rank == 2 && experts_Ic.dtype == DType::i32 && leads_U.dtype == DType::i32,
           "choices of {} led by {}", experts_Ic.describe(), leads_U.describe());
  const int64_t width = merge ? experts_Ic.cols() : 1;
  check_view(out_experts, DType::i32, {leads_U.numel(), width}, "the experts of units");
  if (leads_U.numel() == 0) return;
  MW_CHECK(is_given(weights_Ic) == is_given(out_weights), "weights {} of units from {}", out_weights.describe(),
           weights_Ic.describe());
  if (!is_given(weights_Ic)) return;
  MW_CHECK(weights_Ic.dtype == DType::f32 && weights_Ic.numel() >= experts_Ic.numel(), "weights {} of {}",
           weights_Ic.describe(), experts_Ic.describe());
  check_view(out_weights, DType::f32, {leads_U.numel(), width}, "the weights of units");
}

}  // namespace mw
