// Shared by the kernels of causal attention. Each thread block owns one tile of 64 rows (queries or keys of one head)
// and loops over the tiles of the other operand. It computes two kinds of products:
//   dot_rows:    sum[m][n] = owned row m . walked row n       (scores; gradients of the probabilities)
//   add_product: sum[m][c] += tile[n][m] * walked row n, col c   (outputs; gradients of q, k and v)
// Both stage their operands in shared memory, kDepth steps of the inner dimension at a time, and keep sums in
// registers: thread (y, x) of (64 / R) x 16 has R neighbouring rows and 4 neighbouring columns of each 64.
//
// Head widths are not limited: inner dimensions are processed in steps, and outputs wider than 64 * C columns are split
// into chunks of columns, one block each, which recompute the scores. Rows and columns outside a tensor are staged as
// zeros.
#pragma once

#include <limits>
#include <type_traits>

#include "ops/attention.h"
#include "ops/gpu/attention_choice.h"
#include "ops/gpu/capability.h"
#include "ops/gpu/launch.h"

namespace mw::gpu::attention_detail {

constexpr int kTile = 64;          // rows of a tile
constexpr int kDepth = 16;         // of an inner dimension, staged at once
constexpr int kAcross = 16;        // threads that share a row of a tile; divides every wave
constexpr int kPitch = kTile + 4;  // floats between rows of shared tiles: aligned, and spread over the banks
constexpr int kMaxColumnQuads = 2;
constexpr int kTileFloats = kTile * kPitch;
constexpr int kStageFloats = 2 * kDepth * kPitch;
static_assert(kDepth * kTile * kMaxColumnQuads <= kStageFloats && kAcross * 4 == kTile && kTile % kDepth == 0);

// R: rows per thread. C: quads of output columns per thread, so that a block makes 64 * C columns.
template <int R>
constexpr int kTileThreads = kTile / R* kAcross;

struct alignas(16) Quad {
  float x[4];
};

// Consecutive tokens of one head: row r is the `width` values at first + r * stride. Rows from `count` on are read as
// zeros.
template <class T>
struct Rows {
  T* first;
  int64_t stride;
  int count, width;
};

// Of the backward pass, in the order of ops/attention.h.
template <class T>
struct Operands {
  const T *q_THh, *k_TGh, *v_TGh, *o_THh;
  const float* lse_HT;
  const T* d_o_THh;
  const int32_t* first_T;  // null without documents
  float* delta_HT;
  LsePlace place;  // of lse and delta
  T *d_q_THh, *d_k_TGh, *d_v_TGh;
};

// The tile that a block owns. Blocks are numbered with chunks of columns fastest, then tiles, heads and sequences:
// blocks that run at the same time then share keys and values in cache.
struct Block {
  int64_t sequence, head;
  int tile, column;
};

__device__ inline int thread_index() { return static_cast<int>(threadIdx.x); }
template <int R>
__device__ int first_row() {
  return thread_index() / kAcross * R;
}
__device__ inline int first_column() { return thread_index() % kAcross * 4; }

__device__ inline Block this_block(int64_t chunks, int64_t tiles, int64_t heads, int chunk_columns) {
  const int64_t index = blockIdx.x, item = index / chunks;
  return {item / tiles / heads, item / tiles % heads, static_cast<int>(item % tiles),
          static_cast<int>(index % chunks) * chunk_columns};
}

// Tile `tile` of one head of x: [B * stride, heads, width]. A sequence has `stride` rows and uses the first `tokens`.
template <class T>
__device__ Rows<T> rows_of(T* x, int64_t heads, int64_t width, int64_t tokens, int64_t sequence, int64_t head, int tile,
                           int64_t stride) {
  const int64_t begin = int64_t{tile} * kTile, left = tokens - begin;
  return {x + ((sequence * stride + begin) * heads + head) * width, heads * width,
          left < kTile ? static_cast<int>(left) : kTile, static_cast<int>(width)};
}
template <class T>
__device__ Rows<T> rows_of(T* x, int64_t heads, int64_t width, int64_t seq_len, int64_t sequence, int64_t head,
                           int tile) {
  return rows_of(x, heads, width, seq_len, sequence, head, tile, seq_len);
}

// All rows of a head of x: [B * stride, heads, width]. A sequence has `stride` rows and uses the first `tokens`.
template <class T>
__device__ Rows<T> rows_of_head(T* x, int64_t heads, int64_t width, int64_t tokens, int64_t stride, int64_t sequence,
                                int64_t head) {
  return {x + (sequence * stride * heads + head) * width, heads * width, static_cast<int>(tokens),
          static_cast<int>(width)};
}

// The same rows without their first columns.
template <class T>
__device__ Rows<T> columns_from(const Rows<T>& rows, int column) {
  return {rows.first + column, rows.stride, rows.count, rows.width - column};
}

// stage[d][r] = rows[r][begin + d]. Eight lanes along a row and at least four rows per wave: reads of whole memory
// sectors, writes to 32 different banks.
template <int R, class T>
__device__ void stage_transposed(const Rows<T>& rows, int begin, float* stage) {
  constexpr int kLanes = 8, kStep = kTileThreads<R> / kLanes;
  const int d = thread_index() % kLanes, row = thread_index() / kLanes;
  const T* from = rows.first + row * rows.stride + begin + d;
  stage += d * kPitch + row;
#pragma unroll
  for (int r = 0; r < kTile; r += kStep, from += kStep * rows.stride) {
#pragma unroll
    for (int e = 0; e < kDepth; e += kLanes)
      stage[e * kPitch + r] = row + r < rows.count && begin + d + e < rows.width ? to_float(from[e]) : 0.0f;
  }
}

// stage[r][c] = rows[begin + r][c], 64 * C columns.
template <int R, int C, class T>
__device__ void stage_rows(const Rows<T>& rows, int begin, float* stage) {
  constexpr int kColumns = kTile * C, kStep = kTileThreads<R> / kColumns;
  const int c = thread_index() % kColumns, row = thread_index() / kColumns;
  const T* from = rows.first + (begin + row) * rows.stride + c;
#pragma unroll
  for (int r = 0; r < kDepth; r += kStep, from += kStep * rows.stride)
    stage[(row + r) * kColumns + c] = begin + row + r < rows.count && c < rows.width ? to_float(*from) : 0.0f;
}

// to[4 * n + e] = from[n * step + e].
template <int N>
__device__ void load_quads(const float* from, int step, float (&to)[N]) {
#pragma unroll
  for (int n = 0; n < N / 4; ++n) {
    const Quad quad = *reinterpret_cast<const Quad*>(from + n * step);
#pragma unroll
    for (int e = 0; e < 4; ++e) to[4 * n + e] = quad.x[e];
  }
}

// Over the threads that share a row of a tile; each of them gets the result.
template <class Op>
__device__ float reduce_across(float value, Op op) {
#pragma unroll
  for (int lanes = kAcross / 2; lanes > 0; lanes /= 2) value = op(value, shuffle_xor(value, lanes));
  return value;
}

// Of tensor cores: a lane has columns 8 j + sum_column(e) of a row of sums, and four neighbouring lanes share the row.
__device__ inline int lane_index() { return thread_index() % 32; }
__device__ inline int sum_column(int e) { return lane_index() % 4 * 2 + e; }

// Over the lanes that share a row of those sums; each of them gets the result.
__device__ inline float largest_of_row(float value) {
  value = fmaxf(value, shuffle_xor(value, 1));  // passes over a NaN
  return fmaxf(value, shuffle_xor(value, 2));
}
__device__ inline float sum_of_row(float value) {
  value += shuffle_xor(value, 1);
  return value + shuffle_xor(value, 2);
}

// sum[i][j] += a[k][row i] * b[k][column j] over kDepth steps; rows of a are kPitch apart.
template <int R, int C>
__device__ void multiply(const float* a, const float* b, int b_pitch, float (&sum)[R][4 * C]) {
  a += first_row<R>();
  b += first_column();
#pragma unroll 4
  for (int k = 0; k < kDepth; ++k) {
    float x[R], y[4 * C];
    load_quads(a + k * kPitch, 4, x);
    load_quads(b + k * b_pitch, kTile, y);
#pragma unroll
    for (int i = 0; i < R; ++i)
#pragma unroll
      for (int j = 0; j < 4 * C; ++j) sum[i][j] += x[i] * y[j];
  }
}

// Products of rows. Begins with a barrier before any write: callers may have read stage and tiles until the call, and
// may write tiles after it.
template <int R, class T>
__device__ void dot_rows(const Rows<T>& owned, const Rows<T>& walked, float* stage, float (&sum)[R][4]) {
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) sum[i][j] = 0.0f;
  for (int begin = 0; begin < owned.width; begin += kDepth) {
    __syncthreads();
    stage_transposed<R>(owned, begin, stage);
    stage_transposed<R>(walked, begin, stage + kDepth * kPitch);
    __syncthreads();
    multiply<R, 1>(stage, stage + kDepth * kPitch, kPitch, sum);
  }
}

// sum[i][j] += tile[n][row i] * rows[n][column j] over the rows n. The tile may have been written just before.
template <int R, int C, class T>
__device__ void add_product(const float* tile, const Rows<T>& rows, float* stage, float (&sum)[R][4 * C]) {
  for (int begin = 0; begin < rows.count; begin += kDepth) {
    __syncthreads();
    stage_rows<R, C>(rows, begin, stage);
    __syncthreads();
    multiply<R, C>(tile + begin * kPitch, stage, kTile * C, sum);
  }
}

// The thread's part of a tile, tile[column j][row i].
template <int R>
__device__ float* part_of(float* tile, int j) {
  return tile + (first_column() + j) * kPitch + first_row<R>();
}

template <int R>
__device__ void store_part(float* tile, const float (&values)[R][4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j)
#pragma unroll
    for (int i = 0; i < R; i += 4)
      *reinterpret_cast<Quad*>(part_of<R>(tile, j) + i) =
          Quad{{values[i][j], values[i + 1][j], values[i + 2][j], values[i + 3][j]}};
}

// rows[row i][column j] = factor * sum[i][j], for rows and columns that exist.
template <int R, int C, class T>
__device__ void store_rows(const Rows<T>& rows, float factor, const float (&sum)[R][4 * C]) {
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int j = 0; j < 4 * C; ++j) {
      const int row = first_row<R>() + i, column = j / 4 * kTile + first_column() + j % 4;
      if (row < rows.count && column < rows.width)
        rows.first[row * rows.stride + column] = from_float<T>(factor * sum[i][j]);
    }
}

// Documents: first_T as in ops/attention.h, null without.

// The first tile of keys that a tile of queries sees.
__device__ inline int first_key_tile(const int32_t* first_T, const AttentionShape& shape, const Block& block) {
  if (first_T == nullptr) return 0;
  return first_T[block.sequence * shape.seq_len + int64_t{block.tile} * kTile] / kTile;
}

// first[query] = the first key that a query of the tile sees, counted from the sequence's; queries beyond the sequence
// see what the last one does. By the first kTile threads.
__device__ inline void load_first_keys(const int32_t* first_T, const AttentionShape& shape, const Block& block,
                                       int query_tile, int queries, int (&first)[kTile]) {
  const int query = thread_index();
  if (query >= kTile) return;
  const int64_t begin = block.sequence * shape.seq_len + int64_t{query_tile} * kTile;
  first[query] = first_T == nullptr ? 0 : first_T[begin + (query < queries ? query : queries - 1)];
}

inline int64_t tiles_of(const AttentionShape& shape) { return ceil_div(shape.seq_len, kTile); }

// Calls body with C, the quads of output columns for outputs of this width, as a type.
template <class Body>
void with_column_quads(int64_t width, const Body& body) {
  if (width <= kTile) body(std::integral_constant<int, 1>());
  else body(std::integral_constant<int, kMaxColumnQuads>());
}

}  // namespace mw::gpu::attention_detail
