// Causal attention, forward: the choice of kernels, and those with fp32 arithmetic, which take any width. A block owns
// 64 queries of one head and 64 or 128 columns of their outputs, and walks over the tiles of keys that they see, with a
// running softmax.
#include "ops/attention.h"

#include "ops/gpu/attention_choice.h"
#include "ops/gpu/attention_library.h"
#include "ops/gpu/attention_mma.h"
#include "ops/gpu/attention_tiles.h"
#include "ops/gpu/attention_wgmma.h"
#include "ops/gpu/operators.h"
#include "ops/gpu/reduce.h"

namespace mw::gpu {
namespace {

using namespace attention_detail;

constexpr int kRows = 8;  // of queries per thread
constexpr float kHidden = -std::numeric_limits<float>::infinity();

struct Larger {  // passes over a NaN, so that all threads of a row agree on its maximum
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Statistics of the thread's rows: the largest score so far, and the sum of exp(score - largest) over the thread's own
// columns.
struct Running {
  float largest[kRows], sum[kRows];
};

// Turns scores into exp(score - largest) and scales earlier outputs down to a largest score that grew. A query sees
// keys from first[query] to its own position; query 0 and key 0 of the tiles are at query_begin and key_begin.
template <int C>
__device__ void softmax_step(float scale, const int (&first)[kTile], int query_begin, int key_begin, Running& running,
                             float (&scores)[kRows][4], float (&out)[kRows][4 * C]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float largest = running.largest[i];
    const int query = first_row<kRows>() + i, first_seen = first[query] - key_begin,
              last_seen = query_begin + query - key_begin;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int key = first_column() + j;
      const bool seen = key >= first_seen && key <= last_seen;
      scores[i][j] = seen ? scale * scores[i][j] : kHidden;
      largest = fmaxf(largest, scores[i][j]);
    }
    largest = reduce_across(largest, Larger());
    const float shrink = expf(running.largest[i] - largest);
    running.largest[i] = largest;
    running.sum[i] *= shrink;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      scores[i][j] = expf(scores[i][j] - largest);
      running.sum[i] += scores[i][j];
    }
#pragma unroll
    for (int c = 0; c < 4 * C; ++c) out[i][c] *= shrink;
  }
}

template <int C, class T>
__global__ void __launch_bounds__(kTileThreads<kRows>)
    attention_kernel(AttentionShape shape, int64_t tiles, int64_t chunks, const T* q_THh, const T* k_TGh,
                     const T* v_TGh, int64_t kv_stride, T* o_THh, float* lse_HT, const int32_t* first_T) {
  alignas(16) __shared__ float stage[kStageFloats];
  alignas(16) __shared__ float tile[kTileFloats];  // exp(score - largest), [key][query]
  __shared__ int first[kTile];
  const int64_t H = shape.heads, G = shape.kv_heads, S = shape.seq_len, h = shape.head_dim, v = shape.value_dim;
  Block block = this_block(chunks, tiles, H, kTile * C);
  block.tile = static_cast<int>(tiles) - 1 - block.tile;  // the longest first
  const int64_t kv_head = block.head / (H / G);
  const auto queries = rows_of(q_THh, H, h, S, block.sequence, block.head, block.tile);
  load_first_keys(first_T, shape, block, block.tile, queries.count, first);

  Running running;
  float out[kRows][4 * C];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    running.largest[i] = kLowestScore;
    running.sum[i] = 0.0f;
#pragma unroll
    for (int c = 0; c < 4 * C; ++c) out[i][c] = 0.0f;
  }

  const int query_begin = static_cast<int>(shape.past) + block.tile * kTile;
  const int last_key_tile = (query_begin + queries.count - 1) / kTile;
  for (int key_tile = first_key_tile(first_T, shape, block); key_tile <= last_key_tile; ++key_tile) {
    const auto keys = rows_of(k_TGh, G, h, shape.past + S, block.sequence, kv_head, key_tile, kv_stride);
    const auto values = rows_of(v_TGh, G, v, shape.past + S, block.sequence, kv_head, key_tile, kv_stride);
    float scores[kRows][4];
    dot_rows(queries, keys, stage, scores);
    softmax_step<C>(shape.scale, first, query_begin, key_tile * kTile, running, scores, out);
    store_part(tile, scores);
    add_product<kRows, C>(tile, columns_from(values, block.column), stage, out);
  }

  const auto outputs = rows_of(o_THh, H, v, S, block.sequence, block.head, block.tile);
  float* lse = lse_HT + (block.head * shape.sequences + block.sequence) * S + int64_t{block.tile} * kTile;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = first_row<kRows>() + i;
    const float sum = reduce_across(running.sum[i], Sum()), inverse = 1.0f / sum;
#pragma unroll
    for (int c = 0; c < 4 * C; ++c) out[i][c] *= inverse;
    if (row < outputs.count && first_column() == 0 && block.column == 0) lse[row] = running.largest[i] + logf(sum);
  }
  store_rows<kRows, C>(columns_from(outputs, block.column), 1.0f, out);
}

}  // namespace

// The library computes what documents hide, and is faster where nothing is hidden.
AttentionKernels choose_attention(Stream& stream, const AttentionShape& shape, DType dtype) {
  if (!is_for_library(dtype)) return AttentionKernels::plain;
  const bool on_tensor_cores = tensor_cores_take(shape);
  if (on_tensor_cores && shape.documents) return AttentionKernels::tensor_cores;
  if (library_takes(stream, shape)) return AttentionKernels::library;
  return on_tensor_cores ? AttentionKernels::tensor_cores : AttentionKernels::plain;
}

LsePlace place_lse(AttentionKernels kernels, const AttentionShape& shape) {
  if (kernels == AttentionKernels::library) return {shape.seq_len, shape.heads * shape.seq_len};
  return {shape.sequences * shape.seq_len, shape.seq_len};
}

void check_borders(std::initializer_list<TensorView> tensors) {
  for (const TensorView& x : tensors)
    MW_CHECK(reinterpret_cast<uintptr_t>(x.data) % 16 == 0,
             "attention with {}, which begins at no multiple of 16 bytes", x.describe());
}

void attention(Stream& stream, const AttentionShape& shape, TensorView q_THh, TensorView k_TGh, TensorView v_TGh,
               TensorView o_THh, TensorView lse_HT, TensorView first_T) {
  if (q_THh.dim(0) == 0) return;
  const DType dtype = q_THh.dtype;
  const AttentionKernels kernels = choose_attention(stream, shape, dtype);
  if (kernels != AttentionKernels::plain) check_borders({q_THh, k_TGh, v_TGh, o_THh});
  if (kernels == AttentionKernels::library) {
    attention_by_library(stream, shape, q_THh, k_TGh, v_TGh, o_THh, lse_HT, first_T);
    return;
  }
  if (kernels == AttentionKernels::tensor_cores) {
    const auto run = warpgroups_take(stream, shape) ? attention_by_warpgroups : attention_on_tensor_cores;
    run(stream, shape, q_THh, k_TGh, v_TGh, o_THh, lse_HT, first_T);
    return;
  }
  with_float_type(dtype, [&](auto type) {
    with_column_quads(shape.value_dim, [&](auto column_quads) {
      using E = decltype(type);
      constexpr int C = decltype(column_quads)::value;
      const int64_t tiles = tiles_of(shape), chunks = ceil_div(shape.value_dim, kTile * C);
      launch(stream, attention_kernel<C, E>, shape.sequences * shape.heads * tiles * chunks, kTileThreads<kRows>, 0,
             shape, tiles, chunks, q_THh.as<E>(), k_TGh.as<E>(), v_TGh.as<E>(), k_TGh.dim(0) / shape.sequences,
             o_THh.as<E>(), lse_HT.as<float>(), shape.documents ? first_T.as<int32_t>() : nullptr);
    });
  });
}

std::string describe_attention(Stream& stream, const AttentionShape& shape, DType dtype) {
  if (!is_for_library(dtype)) return "own kernels (no library for fp32)";
  const AttentionKernels kernels = choose_attention(stream, shape, dtype);
  if (kernels == AttentionKernels::tensor_cores && shape.documents)
    return "own kernels on tensor cores (they skip hidden keys)";
  const LibraryChoice choice = choose_library(stream, shape);
  if (kernels == AttentionKernels::library)
    return choice.library +
           (warpgroups_lead(stream, shape, score_scratch_bytes(shape)) ? ", backward by own kernels" : "");
  return fmt::format("own kernels{} ({}: {})", kernels == AttentionKernels::tensor_cores ? " on tensor cores" : "",
                     choice.library, choice.refusal);
}

}  // namespace mw::gpu
