// Work items are (sequence, head, query tile), as in the forward pass of attention.
#include "ops/attention_logits.h"

#include <omp.h>

#include "ops/cpu/attention_tiles.h"

namespace mw::cpu {
namespace {

using namespace attention_detail;

// Scratch of one thread. Rows are padded() wide.
struct Scratch {
  float *q_qh, *q_hq, *k_kh, *s_kq;
};

int64_t scratch_floats(const AttentionShape& shape) {
  return (2 * kQueries + kKeys) * padded(shape.head_dim) + kKeys * kQueries;
}

Scratch split_scratch(float* memory, const AttentionShape& shape) {
  const int64_t tile = kQueries * padded(shape.head_dim);
  return {memory, memory + tile, memory + 2 * tile, memory + 2 * tile + kKeys * padded(shape.head_dim)};
}

// Of the `keys` rows of scores that queries [0, queries) see.
float largest_of_tile(const float* s_kq, const FirstKeys& first, int64_t key_begin, int64_t keys, int64_t queries,
                      int64_t shift, float largest) {
  for (int64_t r = 0; r < keys; ++r) {
    const float* row = s_kq + r * kQueries;
    const int64_t begin = std::max<int64_t>(0, r + shift), end = first.end_of(key_begin + r, queries);
#pragma omp simd reduction(max : largest)
    for (int64_t c = begin; c < end; ++c) largest = row[c] > largest ? row[c] : largest;
  }
  return largest;
}

template <class T>
float largest_logit(const AttentionShape& shape, const T* q_THh, const T* k_TGh, const int32_t* first_T,
                    int64_t sequence, int64_t head, int64_t query_begin, const Scratch& s) {
  const int64_t H = shape.heads, G = shape.kv_heads, S = shape.seq_len, h = shape.head_dim;
  const int64_t kv_head = head / (H / G), h_row = padded(h);
  const int64_t queries = std::min(kQueries, S - query_begin), columns = padded(queries);
  const int64_t token = sequence * S + query_begin;
  const FirstKeys first{first_T == nullptr ? nullptr : first_T + token, queries};
  load_tile(q_THh + (token * H + head) * h, H * h, queries, columns, h, shape.scale, s.q_qh);
  tile::transpose(columns, h_row, s.q_qh, h_row, s.q_hq, kQueries);
  float largest = kLowestScore;
  for (int64_t key_begin = first.first_tile(); key_begin < query_begin + queries; key_begin += kKeys) {
    const int64_t keys = std::min(kKeys, query_begin + queries - key_begin), shift = key_begin - query_begin;
    const int64_t key_rows = tile::round_up(keys, tile::kRows);
    load_tile(k_TGh + ((sequence * S + key_begin) * G + kv_head) * h, G * h, keys, key_rows, h, 1.0f, s.k_kh);
    tile::product<false>(key_rows, columns, s.k_kh, h_row, 1, s.q_hq, kQueries, s.s_kq, kQueries, [&](int64_t r) {
      return tile::Part{r + shift, 0, h};
    });
    largest = largest_of_tile(s.s_kq, first, key_begin, keys, queries, shift, largest);
  }
  return largest;
}

template <class T>
void find_largest(Stream& stream, const AttentionShape& shape, const T* q_THh, const T* k_TGh, float* largest_H,
                  const int32_t* first_T) {
  const int64_t items = forward_items(shape), tiles = query_tiles(shape);
  const int threads = threads_used(items, stream.threads());
  WorkspaceFrame frame(stream.workspace());
  const int64_t floats = scratch_floats(shape);
  float* memory = frame.take<float>(static_cast<size_t>(threads * floats));
#pragma omp parallel num_threads(threads)
  {
    const Scratch scratch = split_scratch(memory + omp_get_thread_num() * floats, shape);
    // The longest tiles first.
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t item = 0; item < items; ++item) {
      const int64_t tile = tiles - 1 - item % tiles, head = item / tiles % shape.heads;
      const float largest =
          largest_logit(shape, q_THh, k_TGh, first_T, item / tiles / shape.heads, head, tile * kQueries, scratch);
#pragma omp critical(mw_largest_logit)
      largest_H[head] = std::max(largest_H[head], largest);
    }
  }
}

}  // namespace

void largest_logits(Stream& stream, const AttentionShape& shape, TensorView q_THh, TensorView k_TGh,
                    TensorView largest_H, TensorView first_T) {
  if (q_THh.dim(0) == 0) return;
  with_float_type(q_THh.dtype, [&]<class E>(E) {
    find_largest(stream, shape, q_THh.as<E>(), k_TGh.as<E>(), largest_H.as<float>(),
                 shape.documents ? first_T.as<int32_t>() : nullptr);
  });
}

}  // namespace mw::cpu
