// The largest attention logits, in fp32 arithmetic on any width. A block owns 64 queries of one head and walks over the
// tiles of keys that they see.
#include "ops/attention_logits.h"

#include "ops/gpu/attention_tiles.h"
#include "ops/gpu/operators.h"
#include "ops/gpu/reduce.h"

namespace mw::gpu {
namespace {

using namespace attention_detail;

constexpr int kRows = 8;  // of queries per thread

// Bits of fp32 numbers are ordered as signed integers where they are not negative, and in reverse as unsigned ones
// where they are.
__device__ void raise(float* to, float value) {
  value += 0.0f;  // -0 is 0
  if (value >= 0.0f) atomicMax(reinterpret_cast<int*>(to), __float_as_int(value));
  else atomicMin(reinterpret_cast<unsigned*>(to), __float_as_uint(value));
}

template <class T>
__global__ void __launch_bounds__(kTileThreads<kRows>)
    largest_logits_kernel(AttentionShape shape, int64_t tiles, const T* q_THh, const T* k_TGh, float* largest_H,
                          const int32_t* first_T) {
  alignas(16) __shared__ float stage[kStageFloats];
  __shared__ int first[kTile];
  const int64_t H = shape.heads, G = shape.kv_heads, S = shape.seq_len, h = shape.head_dim;
  Block block = this_block(1, tiles, H, kTile);
  block.tile = static_cast<int>(tiles) - 1 - block.tile;  // the longest first
  const auto queries = rows_of(q_THh, H, h, S, block.sequence, block.head, block.tile);
  load_first_keys(first_T, shape, block, block.tile, queries.count, first);

  float largest = kLowestScore;
  for (int key_tile = first_key_tile(first_T, shape, block); key_tile <= block.tile; ++key_tile) {
    const auto keys = rows_of(k_TGh, G, h, S, block.sequence, block.head / (H / G), key_tile);
    float scores[kRows][4];
    dot_rows(queries, keys, stage, scores);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int query = first_row<kRows>() + i;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int key = key_tile * kTile + first_column() + j;
        if (query < queries.count && key >= first[query] && key <= block.tile * kTile + query)
          largest = fmaxf(largest, shape.scale * scores[i][j]);
      }
    }
  }
  largest = reduce_block(largest, Maximum());
  if (thread_index() == 0) raise(largest_H + block.head, largest);
}

}  // namespace

void largest_logits(Stream& stream, const AttentionShape& shape, TensorView q_THh, TensorView k_TGh,
                    TensorView largest_H, TensorView first_T) {
  if (q_THh.dim(0) == 0) return;
  with_float_type(q_THh.dtype, [&](auto type) {
    using E = decltype(type);
    const int64_t tiles = tiles_of(shape);
    launch(stream, largest_logits_kernel<E>, shape.sequences * shape.heads * tiles, kTileThreads<kRows>, 0, shape,
           tiles, q_THh.as<E>(), k_TGh.as<E>(), largest_H.as<float>(),
           shape.documents ? first_T.as<int32_t>() : nullptr);
  });
}

}  // namespace mw::gpu
