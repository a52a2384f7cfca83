// Causal attention, backward. One work item is a (sequence, KV head): it walks the query tiles of all heads of the
// group in order and sums d_k and d_v in fp32, so that the order of summation does not depend on the threads.
#include <omp.h>

#include "ops/attention.h"
#include "ops/cpu/attention_tiles.h"
#include "ops/cpu/simd_math.h"

namespace mw::cpu {
namespace {

using namespace attention_detail;

// Scratch of one thread. Rows are padded() wide.
struct Scratch {
  float* q_qh;  // scaled queries
  float* q_hq;  // the same, transposed
  float* d_o_qh;
  float* d_o_hq;
  float* k_kh;
  float* v_kh;
  float* p_kq;    // scores, then probabilities
  float* d_s_kq;  // gradient of the probabilities, then of the scaled scores
  float* d_q_qh;
  float* lse_q;
  float* delta_q;  // sum over d of o * d_o: what the softmax's gradient subtracts
  float* d_k_kh;   // of the whole sequence
  float* d_v_kh;
};

// Cuts `memory` into the scratch of one thread and returns its length.
int64_t split_scratch(float* memory, const AttentionShape& shape, Scratch& s) {
  const int64_t head = padded(shape.head_dim), value = padded(shape.value_dim);
  const int64_t all_keys = tile::round_up(shape.seq_len, tile::kRows);
  int64_t used = 0;
  const auto take = [&](int64_t count) {
    float* taken = memory == nullptr ? nullptr : memory + used;
    used += count;
    return taken;
  };
  s.q_qh = take(kQueries * head);
  s.q_hq = take(kQueries * head);
  s.d_o_qh = take(kQueries * value);
  s.d_o_hq = take(kQueries * value);
  s.k_kh = take(kKeys * head);
  s.v_kh = take(kKeys * value);
  s.p_kq = take(kKeys * kQueries);
  s.d_s_kq = take(kKeys * kQueries);
  s.d_q_qh = take(kQueries * head);
  s.lse_q = take(kQueries);
  s.delta_q = take(kQueries);
  s.d_k_kh = take(all_keys * head);
  s.d_v_kh = take(all_keys * value);
  return used;
}

template <class T>
struct Operands {
  const T *q_THh, *k_TGh, *v_TGh, *o_THh;
  const float* lse_HT;
  const T* d_o_THh;
  const int32_t* first_T;  // null without documents
  T *d_q_THh, *d_k_TGh, *d_v_TGh;
  float* delta_HT;  // null: not wanted
};

// From scores and d_p to probabilities and d_s, for the visible part of one tile.
void softmax_gradient(const Scratch& s, const FirstKeys& first, int64_t key_begin, int64_t keys, int64_t columns,
                      int64_t shift) {
  const float* lse_q = s.lse_q;
  const float* delta_q = s.delta_q;
  for (int64_t r = 0; r < keys; ++r) {
    float* p = s.p_kq + r * kQueries;
    float* d_s = s.d_s_kq + r * kQueries;
    const int64_t begin = mask_row(p, r + shift, first.end_of(key_begin + r, columns), columns);
#pragma omp simd
    for (int64_t c = begin; c < columns; ++c) {
      p[c] = fast_exp(p[c] - lse_q[c]);
      d_s[c] = p[c] * (d_s[c] - delta_q[c]);
    }
  }
}

template <class T>
void differentiate_tile(const AttentionShape& shape, const Operands<T>& x, int64_t sequence, int64_t head,
                        int64_t query_begin, const Scratch& s) {
  const int64_t H = shape.heads, G = shape.kv_heads, S = shape.seq_len, h = shape.head_dim, v = shape.value_dim;
  const int64_t kv_head = head / (H / G), h_row = padded(h), v_row = padded(v);
  const int64_t queries = std::min(kQueries, S - query_begin), columns = padded(queries);
  const int64_t token = sequence * S + query_begin;
  const FirstKeys first{x.first_T == nullptr ? nullptr : x.first_T + token, queries};

  load_tile(x.q_THh + (token * H + head) * h, H * h, queries, columns, h, shape.scale, s.q_qh);
  tile::transpose(columns, h_row, s.q_qh, h_row, s.q_hq, kQueries);
  load_tile(x.d_o_THh + (token * H + head) * v, H * v, queries, columns, v, 1.0f, s.d_o_qh);
  tile::transpose(columns, v_row, s.d_o_qh, v_row, s.d_o_hq, kQueries);
  std::fill(s.d_q_qh, s.d_q_qh + columns * h_row, 0.0f);
  for (int64_t c = 0; c < queries; ++c) {
    const T* o = x.o_THh + ((token + c) * H + head) * v;
    const float* d_o = s.d_o_qh + c * v_row;
    float delta = 0.0f;
#pragma omp simd reduction(+ : delta)
    for (int64_t d = 0; d < v; ++d) delta += to_float(o[d]) * d_o[d];
    s.delta_q[c] = delta;
    const int64_t at = head * shape.sequences * S + token + c;
    if (x.delta_HT != nullptr) x.delta_HT[at] = delta;
    s.lse_q[c] = x.lse_HT[at];
  }
  // Padding queries get probability zero.
  std::fill(s.delta_q + queries, s.delta_q + columns, 0.0f);
  std::fill(s.lse_q + queries, s.lse_q + columns, std::numeric_limits<float>::infinity());

  for (int64_t key_begin = first.first_tile(); key_begin < query_begin + queries; key_begin += kKeys) {
    const int64_t keys = std::min(kKeys, query_begin + queries - key_begin);
    const int64_t shift = key_begin - query_begin;
    const int64_t key = (sequence * S + key_begin) * G + kv_head;
    const int64_t key_rows = tile::round_up(keys, tile::kRows);
    load_tile(x.k_TGh + key * h, G * h, keys, key_rows, h, 1.0f, s.k_kh);
    load_tile(x.v_TGh + key * v, G * v, keys, key_rows, v, 1.0f, s.v_kh);
    tile::product<false>(key_rows, columns, s.k_kh, h_row, 1, s.q_hq, kQueries, s.p_kq, kQueries, [&](int64_t r) {
      return tile::Part{r + shift, 0, h};
    });
    tile::product<false>(key_rows, columns, s.v_kh, v_row, 1, s.d_o_hq, kQueries, s.d_s_kq, kQueries, [&](int64_t r) {
      return tile::Part{r + shift, 0, v};
    });
    softmax_gradient(s, first, key_begin, key_rows, columns, shift);
    const auto queries_that_see = [&](int64_t r) { return tile::Part{0, std::max<int64_t>(0, r + shift), queries}; };
    tile::product<true>(key_rows, v_row, s.p_kq, kQueries, 1, s.d_o_qh, v_row, s.d_v_kh + key_begin * v_row, v_row,
                        queries_that_see);
    tile::product<true>(key_rows, h_row, s.d_s_kq, kQueries, 1, s.q_qh, h_row, s.d_k_kh + key_begin * h_row, h_row,
                        queries_that_see);
    tile::product<true>(columns, h_row, s.d_s_kq, 1, kQueries, s.k_kh, h_row, s.d_q_qh, h_row, [&](int64_t c) {
      return tile::Part{0, 0, std::min(keys, c + tile::kRows - shift)};
    });
  }

  for (int64_t c = 0; c < queries; ++c) {
    T* d_q = x.d_q_THh + ((token + c) * H + head) * h;
    for (int64_t d = 0; d < h; ++d) d_q[d] = from_float<T>(shape.scale * s.d_q_qh[c * h_row + d]);
  }
}

template <class T>
void differentiate_group(const AttentionShape& shape, const Operands<T>& x, int64_t sequence, int64_t kv_head,
                         const Scratch& s) {
  const int64_t G = shape.kv_heads, S = shape.seq_len, h = shape.head_dim, v = shape.value_dim;
  const int64_t h_row = padded(h), v_row = padded(v), group = shape.heads / G;
  const int64_t all_keys = tile::round_up(S, tile::kRows);
  std::fill(s.d_k_kh, s.d_k_kh + all_keys * h_row, 0.0f);
  std::fill(s.d_v_kh, s.d_v_kh + all_keys * v_row, 0.0f);
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
    for (int64_t query = 0; query < S; query += kQueries) differentiate_tile(shape, x, sequence, head, query, s);
  for (int64_t t = 0; t < S; ++t) {
    const int64_t row = (sequence * S + t) * G + kv_head;
    for (int64_t d = 0; d < h; ++d) x.d_k_TGh[row * h + d] = from_float<T>(s.d_k_kh[t * h_row + d]);
    for (int64_t d = 0; d < v; ++d) x.d_v_TGh[row * v + d] = from_float<T>(s.d_v_kh[t * v_row + d]);
  }
}

template <class T>
void differentiate(Stream& stream, const AttentionShape& shape, const Operands<T>& operands) {
  const int64_t items = backward_items(shape);
  const int threads = threads_used(items, stream.threads());
  WorkspaceFrame frame(stream.workspace());
  const int64_t floats = backward_scratch_floats(shape);
  float* memory = frame.take<float>(static_cast<size_t>(threads * floats));
#pragma omp parallel num_threads(threads)
  {
    Scratch scratch;
    split_scratch(memory + omp_get_thread_num() * floats, shape, scratch);
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t item = 0; item < items; ++item)
      differentiate_group(shape, operands, item / shape.kv_heads, item % shape.kv_heads, scratch);
  }
}

}  // namespace

int64_t attention_detail::backward_scratch_floats(const AttentionShape& shape) {
  Scratch unused;
  return split_scratch(nullptr, shape, unused);
}

void attention_backward(Stream& stream, const AttentionShape& shape, TensorView q_THh, TensorView k_TGh,
                        TensorView v_TGh, TensorView o_THh, TensorView lse_HT, TensorView d_o_THh, TensorView d_q_THh,
                        TensorView d_k_TGh, TensorView d_v_TGh, TensorView first_T, TensorView delta_HT) {
  if (q_THh.dim(0) == 0) return;
  const auto run = [&]<class E>(E) {
    differentiate<E>(stream, shape,
                     {q_THh.as<E>(), k_TGh.as<E>(), v_TGh.as<E>(), o_THh.as<E>(), lse_HT.as<float>(), d_o_THh.as<E>(),
                      shape.documents ? first_T.as<int32_t>() : nullptr, d_q_THh.as<E>(), d_k_TGh.as<E>(),
                      d_v_TGh.as<E>(), delta_HT.data == nullptr ? nullptr : delta_HT.as<float>()});
  };
  if (q_THh.dtype == DType::f32) run(float{});
  else run(bf16{});
}

}  // namespace mw::cpu
