#include <algorithm>

#include "ops/check_views.h"
#include "ops/checks.h"

namespace mw {

void check_attention_shape(const AttentionShape& shape) {
  MW_CHECK(shape.sequences >= 0 && shape.seq_len >= 0 && shape.past >= 0, "{} sequences of {} tokens after {}",
           shape.sequences, shape.seq_len, shape.past);
  MW_CHECK(shape.kv_heads > 0 && shape.heads > 0 && shape.heads % shape.kv_heads == 0, "{} heads over {} KV heads",
           shape.heads, shape.kv_heads);
  MW_CHECK(shape.head_dim > 0 && shape.value_dim > 0, "head_dim {}, value_dim {}", shape.head_dim, shape.value_dim);
}

void check_first_keys_of_window(int64_t seq_len, int64_t window, const TensorView& start_T, const TensorView& first_T,
                                int64_t past) {
  MW_CHECK(seq_len > 0 && window > 0 && past >= 0 && first_T.dtype == DType::i32,
           "first keys {} of windows of {} in sequences of {} after {}", first_T.describe(), window, seq_len, past);
  if (is_given(start_T)) check_view(start_T, DType::i32, {first_T.numel()}, "start");
}

static void check_first_keys(const AttentionShape& shape, const TensorView& first_T) {
  if (shape.documents) check_view(first_T, DType::i32, {shape.sequences * shape.seq_len}, "first");
  else MW_CHECK(!is_given(first_T), "first is {}, of attention without documents", first_T.describe());
}

void check_attention(const AttentionShape& shape, const TensorView& q_THh, const TensorView& k_TGh,
                     const TensorView& v_TGh, const TensorView& o_THh, const TensorView& lse_HT,
                     const TensorView& first_T) {
  check_attention_shape(shape);
  const int64_t T = shape.sequences * shape.seq_len;
  const DType dtype = q_THh.dtype;
  MW_CHECK(is_float(dtype), "q is {}, expected f32 or bf16", q_THh.describe());
  check_view(q_THh, dtype, {T, shape.heads, shape.head_dim}, "q");
  const int64_t keys = shape.past == 0 ? T : k_TGh.dim(0);
  MW_CHECK(keys >= shape.sequences * (shape.past + shape.seq_len) && keys % std::max<int64_t>(shape.sequences, 1) == 0,
           "k is {}, of {} sequences of {} keys and {} more", k_TGh.describe(), shape.sequences, shape.past,
           shape.seq_len);
  check_view(k_TGh, dtype, {keys, shape.kv_heads, shape.head_dim}, "k");
  check_view(v_TGh, dtype, {keys, shape.kv_heads, shape.value_dim}, "v");
  check_view(o_THh, dtype, {T, shape.heads, shape.value_dim}, "o");
  check_view(lse_HT, DType::f32, {shape.heads, T}, "lse");
  check_first_keys(shape, first_T);
}

void check_attention_backward(const AttentionShape& shape, const TensorView& q_THh, const TensorView& k_TGh,
                              const TensorView& v_TGh, const TensorView& o_THh, const TensorView& lse_HT,
                              const TensorView& d_o_THh, const TensorView& d_q_THh, const TensorView& d_k_TGh,
                              const TensorView& d_v_TGh, const TensorView& first_T, const TensorView& delta_HT) {
  MW_CHECK(shape.past == 0, "a gradient of attention over {} earlier keys", shape.past);
  check_attention(shape, q_THh, k_TGh, v_TGh, o_THh, lse_HT, first_T);
  const int64_t T = shape.sequences * shape.seq_len;
  const DType dtype = q_THh.dtype;
  check_view(d_o_THh, dtype, {T, shape.heads, shape.value_dim}, "d_o");
  check_view(d_q_THh, dtype, {T, shape.heads, shape.head_dim}, "d_q");
  check_view(d_k_TGh, dtype, {T, shape.kv_heads, shape.head_dim}, "d_k");
  check_view(d_v_TGh, dtype, {T, shape.kv_heads, shape.value_dim}, "d_v");
  if (is_given(delta_HT)) check_view(delta_HT, DType::f32, {shape.heads, T}, "delta");
}

void check_largest_logits(const AttentionShape& shape, const TensorView& q_THh, const TensorView& k_TGh,
                          const TensorView& largest_H, const TensorView& first_T) {
  check_attention_shape(shape);
  MW_CHECK(shape.past == 0, "largest logits over {} earlier keys", shape.past);
  const int64_t T = shape.sequences * shape.seq_len;
  MW_CHECK(is_float(q_THh.dtype), "q is {}, expected f32 or bf16", q_THh.describe());
  check_view(q_THh, q_THh.dtype, {T, shape.heads, shape.head_dim}, "q");
  check_view(k_TGh, q_THh.dtype, {T, shape.kv_heads, shape.head_dim}, "k");
  check_view(largest_H, DType::f32, {shape.heads}, "largest");
  check_first_keys(shape, first_T);
}

void check_add_sinks(const AttentionShape& shape, const TensorView& sinks_H, const TensorView& o_THh,
                     const TensorView& lse_HT) {
  check_attention_shape(shape);
  const int64_t T = shape.sequences * shape.seq_len;
  MW_CHECK(is_float(o_THh.dtype), "o is {}, expected f32 or bf16", o_THh.describe());
  check_view(sinks_H, DType::f32, {shape.heads}, "sinks");
  check_view(o_THh, o_THh.dtype, {T, shape.heads, shape.value_dim}, "o");
  check_view(lse_HT, DType::f32, {shape.heads, T}, "lse");
}

void check_sinks_backward(const AttentionShape& shape, DType dtype, const TensorView& sinks_H, const TensorView& lse_HT,
                          const TensorView& delta_HT, const TensorView& d_sinks_H) {
  check_attention_shape(shape);
  const int64_t T = shape.sequences * shape.seq_len;
  MW_CHECK(is_float(dtype), "attention of {}, expected f32 or bf16", name_of(dtype));
  check_view(sinks_H, DType::f32, {shape.heads}, "sinks");
  check_view(lse_HT, DType::f32, {shape.heads, T}, "lse");
  check_view(delta_HT, DType::f32, {shape.heads, T}, "delta");
  check_view(d_sinks_H, DType::f32, {shape.heads}, "d_sinks");
}

}  // namespace mw
