// Causal attention, forward. Work items are (sequence, head, query tile): independent, so that results do not depend on
// the threads.
#include "ops/attention.h"

#include <omp.h>

#include <cmath>

#include "ops/cpu/attention_tiles.h"
#include "ops/cpu/simd_math.h"

namespace mw::cpu {
namespace {

using namespace attention_detail;

// Scratch of one thread. Rows are padded() wide.
struct Scratch {
  float* q_qh;  // scaled queries
  float* q_hq;  // the same, transposed
  float* k_kh;
  float* v_kh;
  float* s_kq;  // scores, then probabilities before division by their sum
  float* o_qh;  // running output
  float* max_q;
  float* sum_q;
  float* scale_q;  // what the running output is multiplied by when a maximum grows
};

int64_t scratch_floats(const AttentionShape& shape) {
  const int64_t head = padded(shape.head_dim), value = padded(shape.value_dim);
  return 2 * kQueries * head + kKeys * (head + value) + kKeys * kQueries + kQueries * value + 3 * kQueries;
}

Scratch split_scratch(float* memory, const AttentionShape& shape) {
  const int64_t head = padded(shape.head_dim), value = padded(shape.value_dim);
  const auto take = [&memory](int64_t count) {
    float* taken = memory;
    memory += count;
    return taken;
  };
  Scratch s;
  s.q_qh = take(kQueries * head);
  s.q_hq = take(kQueries * head);
  s.k_kh = take(kKeys * head);
  s.v_kh = take(kKeys * value);
  s.s_kq = take(kKeys * kQueries);
  s.o_qh = take(kQueries * value);
  s.max_q = take(kQueries);
  s.sum_q = take(kQueries);
  s.scale_q = take(kQueries);
  return s;
}

// Turns one tile of scores into exp(score - running maximum) and brings the running statistics up to date.
void softmax_step(const Scratch& s, const FirstKeys& first, int64_t key_begin, int64_t keys, int64_t columns,
                  int64_t shift) {
  alignas(64) float max_q[kQueries];
  std::copy(s.max_q, s.max_q + columns, max_q);
  for (int64_t r = 0; r < keys; ++r) {
    float* row = s.s_kq + r * kQueries;
    const int64_t begin = mask_row(row, r + shift, first.end_of(key_begin + r, columns), columns);
#pragma omp simd
    for (int64_t c = begin; c < columns; ++c) max_q[c] = row[c] > max_q[c] ? row[c] : max_q[c];
  }
#pragma omp simd
  for (int64_t c = 0; c < columns; ++c) {
    s.scale_q[c] = fast_exp(s.max_q[c] - max_q[c]);
    s.max_q[c] = max_q[c];
    s.sum_q[c] *= s.scale_q[c];
  }
  float* sum_q = s.sum_q;
  for (int64_t r = 0; r < keys; ++r) {
    float* row = s.s_kq + r * kQueries;
    const int64_t begin = r + shift <= 0 ? 0 : std::min(r + shift, columns) / tile::kLanes * tile::kLanes;
#pragma omp simd
    for (int64_t c = begin; c < columns; ++c) {
      const float p = fast_exp(row[c] - max_q[c]);
      row[c] = p;
      sum_q[c] += p;
    }
  }
}

// kv_stride: rows of k and v from one sequence to the next.
template <class T>
void attend_tile(const AttentionShape& shape, const T* q_THh, const T* k_TGh, const T* v_TGh, int64_t kv_stride,
                 T* o_THh, float* lse_HT, const int32_t* first_T, int64_t sequence, int64_t head, int64_t query_begin,
                 const Scratch& s) {
  const int64_t H = shape.heads, G = shape.kv_heads, S = shape.seq_len, h = shape.head_dim, v = shape.value_dim;
  const int64_t kv_head = head / (H / G), h_row = padded(h), v_row = padded(v);
  const int64_t queries = std::min(kQueries, S - query_begin), columns = padded(queries);
  const int64_t token = sequence * S + query_begin, position = shape.past + query_begin;
  const FirstKeys first{first_T == nullptr ? nullptr : first_T + token, queries};

  load_tile(q_THh + (token * H + head) * h, H * h, queries, columns, h, shape.scale, s.q_qh);
  tile::transpose(columns, h_row, s.q_qh, h_row, s.q_hq, kQueries);
  std::fill(s.o_qh, s.o_qh + columns * v_row, 0.0f);
  std::fill(s.max_q, s.max_q + columns, kLowestScore);
  std::fill(s.sum_q, s.sum_q + columns, 0.0f);

  for (int64_t key_begin = first.first_tile(); key_begin < position + queries; key_begin += kKeys) {
    const int64_t keys = std::min(kKeys, position + queries - key_begin);
    const int64_t shift = key_begin - position;
    const int64_t key = (sequence * kv_stride + key_begin) * G + kv_head;
    const int64_t key_rows = tile::round_up(keys, tile::kRows);
    load_tile(k_TGh + key * h, G * h, keys, key_rows, h, 1.0f, s.k_kh);
    load_tile(v_TGh + key * v, G * v, keys, keys, v, 1.0f, s.v_kh);
    tile::product<false>(key_rows, columns, s.k_kh, h_row, 1, s.q_hq, kQueries, s.s_kq, kQueries, [&](int64_t r) {
      return tile::Part{r + shift, 0, h};
    });
    softmax_step(s, first, key_begin, keys, columns, shift);
    for (int64_t c = 0; c < columns; ++c) {
      if (s.scale_q[c] == 1.0f) continue;
      for (int64_t d = 0; d < v_row; ++d) s.o_qh[c * v_row + d] *= s.scale_q[c];
    }
    tile::product<true>(columns, v_row, s.s_kq, 1, kQueries, s.v_kh, v_row, s.o_qh, v_row, [&](int64_t c) {
      return tile::Part{0, 0, std::min(keys, c + tile::kRows - shift)};
    });
  }

  for (int64_t c = 0; c < queries; ++c) {
    T* out = o_THh + ((token + c) * H + head) * v;
    const float inverse = 1.0f / s.sum_q[c];
    for (int64_t d = 0; d < v; ++d) out[d] = from_float<T>(s.o_qh[c * v_row + d] * inverse);
    lse_HT[head * shape.sequences * S + token + c] = s.max_q[c] + std::log(s.sum_q[c]);
  }
}

template <class T>
void attend(Stream& stream, const AttentionShape& shape, const T* q_THh, const T* k_TGh, const T* v_TGh,
            int64_t kv_stride, T* o_THh, float* lse_HT, const int32_t* first_T) {
  const int64_t items = forward_items(shape), tiles = query_tiles(shape);
  const int threads = threads_used(items, stream.threads());
  WorkspaceFrame frame(stream.workspace());
  const int64_t floats = scratch_floats(shape);
  float* memory = frame.take<float>(static_cast<size_t>(threads * floats));
#pragma omp parallel num_threads(threads)
  {
    const Scratch scratch = split_scratch(memory + omp_get_thread_num() * floats, shape);
    // Within a head the longest tiles first; heads in turn, so that the threads share keys and values in cache.
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t item = 0; item < items; ++item) {
      const int64_t tile = tiles - 1 - item % tiles, head = item / tiles % shape.heads;
      attend_tile(shape, q_THh, k_TGh, v_TGh, kv_stride, o_THh, lse_HT, first_T, item / tiles / shape.heads, head,
                  tile * kQueries, scratch);
    }
  }
}

}  // namespace

void attention(Stream& stream, const AttentionShape& shape, TensorView q_THh, TensorView k_TGh, TensorView v_TGh,
               TensorView o_THh, TensorView lse_HT, TensorView first_T) {
  if (q_THh.dim(0) == 0) return;
  const auto run = [&]<class E>(E) {
    attend(stream, shape, q_THh.as<E>(), k_TGh.as<E>(), v_TGh.as<E>(), k_TGh.dim(0) / shape.sequences, o_THh.as<E>(),
           lse_HT.as<float>(), shape.documents ? first_T.as<int32_t>() : nullptr);
  };
  if (q_THh.dtype == DType::f32) run(float{});
  else run(bf16{});
}

int64_t attention_workspace_bytes(const AttentionShape& shape, DType, int threads) {
  const int64_t floats = std::max(threads_used(forward_items(shape), threads) * scratch_floats(shape),
                                  threads_used(backward_items(shape), threads) * backward_scratch_floats(shape));
  return tile::round_up(floats * static_cast<int64_t>(sizeof(float)), 64);
}

}  // namespace mw::cpu
