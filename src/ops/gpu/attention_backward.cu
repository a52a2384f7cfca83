// Causal attention, backward, in three passes without atomics:
//   delta of a head and token = sum of o * d_o, kAcross lanes per row;
//   d_q: a block owns 64 queries of one head and walks over the keys that they see;
//   d_k and d_v: a block owns 64 keys of one KV head and walks, head by head of the group, over the queries that see
//   them.
// Both of the latter recompute probabilities from lse, and own 64 or 128 columns of their outputs.
#include "ops/attention.h"

#include "ops/gpu/attention_choice.h"
#include "ops/gpu/attention_library.h"
#include "ops/gpu/attention_mma.h"
#include "ops/gpu/attention_tiles.h"
#include "ops/gpu/attention_wgmma.h"
#include "ops/gpu/operators.h"
#include "ops/gpu/pack.h"
#include "ops/gpu/reduce.h"

namespace mw::gpu {
namespace {

using namespace attention_detail;

constexpr int kQueryRows = 8;  // per thread, where queries are owned
constexpr int kKeyRows = 4;    // where keys are owned: with two sums of outputs, more would not fit into registers

template <int N, class T>
__global__ void delta_kernel(AttentionShape shape, Operands<T> x) {
  const int64_t tokens = shape.sequences * shape.seq_len, width = shape.value_dim, rows = tokens * shape.heads;
  const int64_t index = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kAcross;
  const int64_t row = index < rows ? index : rows - 1;  // all lanes of a wave take part in the sum
  float delta = 0.0f;
  for (int64_t i = thread_index() % kAcross * N; i < width; i += kAcross * N) {
    const Pack<T, N> o = load<N>(x.o_THh + row * width + i), d_o = load<N>(x.d_o_THh + row * width + i);
#pragma unroll
    for (int k = 0; k < N; ++k) delta += to_float(o.at[k]) * to_float(d_o.at[k]);
  }
  delta = reduce_across(delta, Sum());
  if (thread_index() % kAcross != 0 || index >= rows) return;
  const int64_t token = row / shape.heads, sequence = token / shape.seq_len;
  x.delta_HT[x.place(row % shape.heads, sequence) + token % shape.seq_len] = delta;
}

// What the softmax's gradient needs of a tile of queries.
struct Statistics {
  float lse[kTile], delta[kTile];
  int first[kTile];  // the first key that a query sees
};

// Queries beyond the sequence get probability zero.
template <class T>
__device__ void load_statistics(const AttentionShape& shape, const Operands<T>& x, const Block& block, int64_t head,
                                int query_tile, int queries, Statistics& to) {
  load_first_keys(x.first_T, shape, block, query_tile, queries, to.first);
  const int query = thread_index();
  if (query >= kTile) return;
  const int64_t at = x.place(head, block.sequence) + int64_t{query_tile} * kTile + query;
  to.lse[query] = query < queries ? x.lse_HT[at] : std::numeric_limits<float>::infinity();
  to.delta[query] = query < queries ? x.delta_HT[at] : 0.0f;
}

// The position in its tile of the query of the thread's (row i, column j), and of the key.
struct QueriesAreRows {
  static __device__ int query(int i, int) { return first_row<kQueryRows>() + i; }
  static __device__ int key(int, int j) { return first_column() + j; }
};
struct QueriesAreColumns {
  static __device__ int query(int, int j) { return first_column() + j; }
  static __device__ int key(int i, int) { return first_row<kKeyRows>() + i; }
};

// tile = probabilities, from scores before scaling. On the diagonal a query sees keys up to its own position;
// everywhere from its first on, where key 0 of the tile is key_begin.
template <class Position, int R>
__device__ void store_probabilities(const Statistics& statistics, float scale, bool diagonal, int key_begin,
                                    float (&scores)[R][4], float* tile) {
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int query = Position::query(i, j), key = Position::key(i, j);
      const bool seen = key_begin + key >= statistics.first[query] && (!diagonal || key <= query);
      scores[i][j] = seen ? expf(scale * scores[i][j] - statistics.lse[query]) : 0.0f;
    }
  store_part(tile, scores);
}

// From probabilities in the tile, and their gradients, to gradients of the scaled scores in the tile. Hidden scores
// have probability zero and get none, whatever a NaN beside them says.
template <class Position, int R>
__device__ void store_score_gradients(const Statistics& statistics, float (&d_p)[R][4], float* tile) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float p[R];
    load_quads(part_of<R>(tile, j), 4, p);
#pragma unroll
    for (int i = 0; i < R; ++i)
      d_p[i][j] = p[i] == 0.0f ? 0.0f : p[i] * (d_p[i][j] - statistics.delta[Position::query(i, j)]);
  }
  store_part(tile, d_p);
}

template <int C, class T>
__global__ void __launch_bounds__(kTileThreads<kQueryRows>)
    d_query_kernel(AttentionShape shape, int64_t tiles, int64_t chunks, Operands<T> x) {
  constexpr int R = kQueryRows;
  alignas(16) __shared__ float stage[kStageFloats];
  __shared__ Statistics statistics;
  alignas(16) __shared__ float tile[kTileFloats];  // probabilities, then gradients of scores, [key][query]
  const int64_t H = shape.heads, G = shape.kv_heads, S = shape.seq_len, h = shape.head_dim, v = shape.value_dim;
  Block block = this_block(chunks, tiles, H, kTile * C);
  block.tile = static_cast<int>(tiles) - 1 - block.tile;  // the longest first
  const int64_t kv_head = block.head / (H / G);
  const auto queries = rows_of(x.q_THh, H, h, S, block.sequence, block.head, block.tile);
  const auto d_outputs = rows_of(x.d_o_THh, H, v, S, block.sequence, block.head, block.tile);
  load_statistics(shape, x, block, block.head, block.tile, queries.count, statistics);

  float d_q[R][4 * C];
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int c = 0; c < 4 * C; ++c) d_q[i][c] = 0.0f;

  for (int key_tile = first_key_tile(x.first_T, shape, block); key_tile <= block.tile; ++key_tile) {
    const auto keys = rows_of(x.k_TGh, G, h, S, block.sequence, kv_head, key_tile);
    const auto values = rows_of(x.v_TGh, G, v, S, block.sequence, kv_head, key_tile);
    float products[R][4];
    dot_rows(queries, keys, stage, products);
    store_probabilities<QueriesAreRows>(statistics, shape.scale, key_tile == block.tile, key_tile * kTile, products,
                                        tile);
    dot_rows(d_outputs, values, stage, products);
    store_score_gradients<QueriesAreRows>(statistics, products, tile);
    add_product<R, C>(tile, columns_from(keys, block.column), stage, d_q);
  }
  const auto d_q_rows = rows_of(x.d_q_THh, H, h, S, block.sequence, block.head, block.tile);
  store_rows<R, C>(columns_from(d_q_rows, block.column), shape.scale, d_q);
}

// Whether the first query of a tile, and so every later one, sees no key of the block's tile.
template <class T>
__device__ bool sees_later_keys_alone(const AttentionShape& shape, const Operands<T>& x, const Block& block,
                                      int query_tile) {
  if (x.first_T == nullptr) return false;
  return x.first_T[block.sequence * shape.seq_len + int64_t{query_tile} * kTile] >= (block.tile + 1) * kTile;
}

// The bound of 2 keeps two blocks on a multiprocessor (HIP: two waves on a SIMD), of which one works while one waits.
template <int C, class T>
__global__ void __launch_bounds__(kTileThreads<kKeyRows>, 2)
    d_key_value_kernel(AttentionShape shape, int64_t tiles, int64_t chunks, Operands<T> x) {
  constexpr int R = kKeyRows;
  alignas(16) __shared__ float stage[kStageFloats];
  __shared__ Statistics statistics;
  alignas(16) __shared__ float tile[kTileFloats];  // probabilities, then gradients of scores, [query][key]
  const int64_t H = shape.heads, G = shape.kv_heads, S = shape.seq_len, h = shape.head_dim, v = shape.value_dim;
  const Block block = this_block(chunks, tiles, G, kTile * C);  // the first tiles are the longest
  const auto keys = rows_of(x.k_TGh, G, h, S, block.sequence, block.head, block.tile);
  const auto values = rows_of(x.v_TGh, G, v, S, block.sequence, block.head, block.tile);

  float d_k[R][4 * C], d_v[R][4 * C];
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int c = 0; c < 4 * C; ++c) d_k[i][c] = d_v[i][c] = 0.0f;

  const int64_t group = H / G, first_head = block.head * group;
  for (int64_t head = first_head; head < first_head + group; ++head)
    for (int query_tile = block.tile; query_tile < tiles; ++query_tile) {
      if (sees_later_keys_alone(shape, x, block, query_tile)) break;
      const auto queries = rows_of(x.q_THh, H, h, S, block.sequence, head, query_tile);
      const auto d_outputs = rows_of(x.d_o_THh, H, v, S, block.sequence, head, query_tile);
      load_statistics(shape, x, block, head, query_tile, queries.count, statistics);
      float products[R][4];
      dot_rows(keys, queries, stage, products);
      store_probabilities<QueriesAreColumns>(statistics, shape.scale, query_tile == block.tile, block.tile * kTile,
                                             products, tile);
      if (block.column < v) add_product<R, C>(tile, columns_from(d_outputs, block.column), stage, d_v);
      if (block.column >= h) continue;
      dot_rows(values, d_outputs, stage, products);
      store_score_gradients<QueriesAreColumns>(statistics, products, tile);
      add_product<R, C>(tile, columns_from(queries, block.column), stage, d_k);
    }
  const auto d_k_rows = rows_of(x.d_k_TGh, G, h, S, block.sequence, block.head, block.tile);
  store_rows<R, C>(columns_from(d_k_rows, block.column), shape.scale, d_k);
  const auto d_v_rows = rows_of(x.d_v_TGh, G, v, S, block.sequence, block.head, block.tile);
  store_rows<R, C>(columns_from(d_v_rows, block.column), 1.0f, d_v);
}

template <class T>
void compute_delta(Stream& stream, const AttentionShape& shape, const Operands<T>& x) {
  constexpr int kPack = kWidePack<T>;
  const int64_t rows = shape.sequences * shape.seq_len * shape.heads;
  with_pack<kPack>(shape.value_dim % kPack == 0 && allow_packs<kPack>(x.o_THh, x.d_o_THh), [&](auto pack) {
    launch(stream, delta_kernel<decltype(pack)::value, T>, ceil_div(rows, kThreads / kAcross), kThreads, 0, shape, x);
  });
}

template <class T>
void differentiate(Stream& stream, const AttentionShape& shape, const Operands<T>& x) {
  const int64_t tiles = tiles_of(shape);
  with_column_quads(shape.head_dim, [&](auto column_quads) {
    constexpr int C = decltype(column_quads)::value;
    const int64_t chunks = ceil_div(shape.head_dim, kTile * C);
    launch(stream, d_query_kernel<C, T>, shape.sequences * shape.heads * tiles * chunks, kTileThreads<kQueryRows>, 0,
           shape, tiles, chunks, x);
  });
  const int64_t widest = std::max(shape.head_dim, shape.value_dim);
  with_column_quads(widest, [&](auto column_quads) {
    constexpr int C = decltype(column_quads)::value;
    const int64_t chunks = ceil_div(widest, kTile * C);
    launch(stream, d_key_value_kernel<C, T>, shape.sequences * shape.kv_heads * tiles * chunks, kTileThreads<kKeyRows>,
           0, shape, tiles, chunks, x);
  });
}

size_t delta_floats(const AttentionShape& shape) {
  return static_cast<size_t>(shape.heads * shape.sequences * shape.seq_len);
}
// As scratch is taken.
int64_t delta_bytes(const AttentionShape& shape) {
  return ceil_div(static_cast<int64_t>(delta_floats(shape) * sizeof(float)), 64) * 64;
}

}  // namespace

int64_t score_scratch_bytes(const AttentionShape& shape) {
  return attention_library_workspace_bytes(shape) - delta_bytes(shape);
}

void attention_backward(Stream& stream, const AttentionShape& shape, TensorView q_THh, TensorView k_TGh,
                        TensorView v_TGh, TensorView o_THh, TensorView lse_HT, TensorView d_o_THh, TensorView d_q_THh,
                        TensorView d_k_TGh, TensorView d_v_TGh, TensorView first_T, TensorView delta_HT) {
  if (q_THh.dim(0) == 0) return;
  const AttentionKernels kernels = choose_attention(stream, shape, q_THh.dtype);
  if (kernels != AttentionKernels::plain)
    check_borders({q_THh, k_TGh, v_TGh, o_THh, d_o_THh, d_q_THh, d_k_TGh, d_v_TGh});
  if (kernels == AttentionKernels::library && !warpgroups_lead(stream, shape, score_scratch_bytes(shape))) {
    attention_backward_by_library(stream, shape, q_THh, k_TGh, v_TGh, o_THh, lse_HT, d_o_THh, d_q_THh, d_k_TGh, d_v_TGh,
                                  first_T, delta_HT);
    return;
  }
  WorkspaceFrame frame(stream.workspace());
  auto* delta = delta_HT.data == nullptr ? frame.take<float>(delta_floats(shape)) : delta_HT.as<float>();
  with_float_type(q_THh.dtype, [&](auto type) {
    using E = decltype(type);
    const Operands<E> x{q_THh.as<E>(),
                        k_TGh.as<E>(),
                        v_TGh.as<E>(),
                        o_THh.as<E>(),
                        lse_HT.as<float>(),
                        d_o_THh.as<E>(),
                        shape.documents ? first_T.as<int32_t>() : nullptr,
                        delta,
                        place_lse(kernels, shape),
                        d_q_THh.as<E>(),
                        d_k_TGh.as<E>(),
                        d_v_TGh.as<E>()};
    compute_delta(stream, shape, x);
    if constexpr (std::is_same_v<E, bf16>) {
      if (kernels != AttentionKernels::plain) {
        if (warpgroups_take(stream, shape))
          attention_gradients_by_warpgroups(stream, shape, x, score_scratch_bytes(shape));
        else attention_gradients_on_tensor_cores(stream, shape, x);
        return;
      }
    }
    differentiate(stream, shape, x);
  });
}

// The kernels here take some in the backward pass alone.
int64_t attention_workspace_bytes(const AttentionShape& shape, DType dtype, int) {
  const int64_t own = delta_bytes(shape);
  return dtype == DType::bf16 ? std::max(own, attention_library_workspace_bytes(shape)) : own;
}

}  // namespace mw::gpu
