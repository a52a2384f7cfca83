// Tiles of attention for tensor cores (mma.sync). A block of four warps owns kTile rows of one head, kWarpRows a warp,
// and walks over the rows of the other operand, kWalked at a time, which asynchronous copies fetch one tile ahead.
//
// Sums [kWarpRows, N] of a warp are sum[N / 8][4]: of lane l, columns 8 n + 2 (l % 4) + {0, 1} of rows l / 4
// (sum[n][0], sum[n][1]) and l / 4 + 8 (sum[n][2], sum[n][3]). Addresses of shared memory are in bytes.
#pragma once

#include "ops/gpu/attention_tiles.h"
#include "ops/gpu/mma.h"

namespace mw::gpu::attention_detail {

constexpr int kWarpRows = 16, kWalked = 32, kStages = 2;
constexpr int kMmaThreads = kTile / kWarpRows * 32;
constexpr int kChunk = 8;                   // elements that a copy moves
constexpr int kCopyColumns = 8 * kChunk;    // of the columns that eight neighbouring threads copy at once
constexpr int kCopyRows = kMmaThreads / 8;  // of the rows that a block copies at once

// Bytes between rows in shared memory: eight rows begin in eight different groups of banks.
template <int kWidth>
constexpr unsigned kRowBytes = (kWidth + kChunk) * sizeof(bf16);

// Bytes of two tiles with kRows rows each, of a head's two widths.
template <int kQk, int kV, int kRows>
constexpr unsigned kTwoTiles = kRows*(kRowBytes<kQk> + kRowBytes<kV>);

__device__ inline int warp_row() { return thread_index() / 32 * kWarpRows; }  // of the tile, the warp's first
// The row of the tile of sum[n][2 * half + e].
__device__ inline int sum_row(int half) { return warp_row() + lane_index() / 4 + 8 * half; }

// Copies tiles of kRows rows to shared memory: the thread's part. Rows and columns that do not exist become zeros. The
// width is a multiple of kChunk.
template <int kWidth, int kRows>
struct TileCopies {
  static_assert(kWidth % kCopyColumns == 0 && kRows % kCopyRows == 0);
  Rows<const bf16> rows;  // from the thread's row and column on
  unsigned place;         // of the thread's row and column in a tile

  __device__ explicit TileCopies(const Rows<const bf16>& all) {
    const int row = thread_index() / 8, column = thread_index() % 8 * kChunk;
    rows = {all.first + row * all.stride + column, all.stride, all.count - row, all.width - column};
    place = row * kRowBytes<kWidth> + column * static_cast<unsigned>(sizeof(bf16));
  }
  // Begins to copy rows [begin, begin + kRows); `shift`: elements from the head to the one to copy from.
  __device__ void start(int begin, unsigned tile, int64_t shift = 0) const {
    const bf16* from = rows.first + shift + begin * rows.stride;
    const auto copy = [&](auto all_rows) {
#pragma unroll
      for (int i = 0; i < kRows / kCopyRows; ++i)
#pragma unroll
        for (int j = 0; j < kWidth / kCopyColumns; ++j)
          copy_chunk(tile + place + i * kCopyRows * kRowBytes<kWidth> + j * kCopyColumns * sizeof(bf16),
                     from + i * kCopyRows * rows.stride + j * kCopyColumns,
                     j * kCopyColumns < rows.width && (all_rows.value || begin + i * kCopyRows < rows.count));
    };
    if (begin + kRows - kCopyRows < rows.count) copy(std::true_type());
    else copy(std::false_type());
  }
};

// The warp's rows of the owned tile as the first operand, summands [16 * step, 16 * step + 16).
template <int kWidth>
__device__ void load_owned(unsigned tile, int step, unsigned (&a)[4]) {
  const unsigned lane = lane_index(), row = warp_row() + lane % 16;
  load_matrices<false>(a, tile + row * kRowBytes<kWidth> + lane / 16 * 16 + step * 32);
}

// The owned rows as the first operand of dot_rows: read for every walked tile, or kept in registers.
template <int kWidth>
struct InMemory {
  unsigned tile;
  __device__ void get(int step, unsigned (&a)[4]) const { load_owned<kWidth>(tile, step, a); }
};
template <int kWidth>
struct InRegisters {
  unsigned value[kWidth / 16][4];
  __device__ explicit InRegisters(unsigned tile) {
#pragma unroll
    for (int step = 0; step < kWidth / 16; ++step) load_owned<kWidth>(tile, step, value[step]);
  }
  __device__ void get(int step, unsigned (&a)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = value[step][i];
  }
};

template <int N>
__device__ void set_to_zero(float (&sum)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[n][i] = 0.0f;
}

// One step of sum[m][n] += owned row m . walked row n.
template <int kWidth, class Owned>
__device__ void dot_step(const Owned& owned, unsigned walked, int step, float (&sum)[kWalked / 8][4]) {
  const unsigned lane = lane_index(),
                 from = walked + (lane / 16 * 8 + lane % 8) * kRowBytes<kWidth> + lane / 8 % 2 * 16 + 32 * step;
  unsigned a[4], b[kWalked / 16][4];
  owned.get(step, a);
#pragma unroll
  for (int n = 0; n < kWalked / 16; ++n) load_matrices<false>(b[n], from + 16 * n * kRowBytes<kWidth>);
#pragma unroll
  for (int n = 0; n < kWalked / 16; ++n) {
    multiply_add(sum[2 * n], a, b[n][0], b[n][1]);
    multiply_add(sum[2 * n + 1], a, b[n][2], b[n][3]);
  }
}

// sum[m][n] = owned row m . walked row n.
template <int kWidth, class Owned>
__device__ void dot_rows(const Owned& owned, unsigned walked, float (&sum)[kWalked / 8][4]) {
  set_to_zero(sum);
#pragma unroll
  for (int step = 0; step < kWidth / 16; ++step) dot_step<kWidth>(owned, walked, step, sum);
}

// Two such products with a step of each in turn, so that one goes on while the other waits.
template <int kWidth, int kOtherWidth, class Owned, class Other>
__device__ void dot_rows(const Owned& owned, unsigned walked, float (&sum)[kWalked / 8][4], const Other& other,
                         unsigned other_walked, float (&other_sum)[kWalked / 8][4]) {
  constexpr int kSteps = std::max(kWidth, kOtherWidth) / 16;
  set_to_zero(sum);
  set_to_zero(other_sum);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (step < kWidth / 16) dot_step<kWidth>(owned, walked, step, sum);
    if (step < kOtherWidth / 16) dot_step<kOtherWidth>(other, other_walked, step, other_sum);
  }
}

// sum[m][c] += weights[m][n] * walked row n, column c. Weights are rounded to bf16.
template <int kWidth>
__device__ void add_product(const float (&weights)[kWalked / 8][4], unsigned walked, float (&sum)[kWidth / 8][4]) {
  const unsigned lane = lane_index(), from = walked + lane % 16 * kRowBytes<kWidth> + lane / 16 * 16;
#pragma unroll
  for (int step = 0; step < kWalked / 16; ++step) {
    const auto &low = weights[2 * step], &high = weights[2 * step + 1];
    const unsigned a[4] = {round_pair(low[0], low[1]), round_pair(low[2], low[3]), round_pair(high[0], high[1]),
                           round_pair(high[2], high[3])};
#pragma unroll
    for (int c = 0; c < kWidth / 16; ++c) {
      unsigned b[4];
      load_matrices<true>(b, from + 16 * step * kRowBytes<kWidth> + 32 * c);
      multiply_add(sum[2 * c], a, b[0], b[1]);
      multiply_add(sum[2 * c + 1], a, b[2], b[3]);
    }
  }
}

// rows[begin + row][column] = factor[half] * sum, for rows and columns that exist.
template <int kWidth>
__device__ void store_sums(const Rows<bf16>& rows, int begin, const float (&factor)[2],
                           const float (&sum)[kWidth / 8][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = begin + sum_row(half);
    if (row >= rows.count) continue;
    bf16* to = rows.first + row * rows.stride + sum_column(0);
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n)
      if (8 * n < rows.width)
        *reinterpret_cast<uint32_t*>(to + 8 * n) =
            round_pair(factor[half] * sum[n][2 * half], factor[half] * sum[n][2 * half + 1]);
  }
}

// The owned rows of the thread, as queries: position among the keys of the sequence, and the first key that each sees.
// Queries beyond the sequence see what the last one does.
struct OwnQueries {
  int position[2], first[2];
  int warp_begin, warp_first;  // position of the warp's first query, and the first key of its last one

  __device__ OwnQueries(const int32_t* first_T, const AttentionShape& shape, int64_t sequence, int begin) {
    const int last = static_cast<int>(shape.seq_len) - 1, past = static_cast<int>(shape.past);
    const auto first_of = [&](int query) {
      return first_T == nullptr ? 0 : first_T[sequence * shape.seq_len + (query < last ? query : last)];
    };
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      position[half] = past + begin + sum_row(half);
      first[half] = first_of(begin + sum_row(half));
    }
    warp_begin = past + begin + warp_row();
    warp_first = first_of(begin + warp_row() + kWarpRows - 1);
  }
  // Whether all queries of the warp see all keys of the walked tile.
  __device__ bool see_all(int key_begin) const {
    return key_begin + kWalked - 1 <= warp_begin && key_begin >= warp_first;
  }
  __device__ bool see(int half, int key) const { return key >= first[half] && key <= position[half]; }
};

// The first key that an owned tile of queries sees.
__device__ inline int first_key(const int32_t* first_T, const AttentionShape& shape, int64_t sequence, int begin) {
  return first_T == nullptr ? 0 : first_T[sequence * shape.seq_len + begin];
}

// The keys and values of a head that a tile of queries walks over: those from `begin` to `end`, kWalked at a time, in
// kStages tiles of each from `stages` on.
template <int kQk, int kV>
struct WalkedKeys {
  TileCopies<kQk, kWalked> keys;
  TileCopies<kV, kWalked> values;
  unsigned stages;
  int begin, end;

  __device__ unsigned keys_at(int key) const { return stages + key / kWalked % kStages * kTwoTiles<kQk, kV, kWalked>; }
  __device__ unsigned values_at(int key) const { return keys_at(key) + kWalked * kRowBytes<kQk>; }
  // Begins to copy the tile at `key`, if there is one, as a group of its own.
  __device__ void load(int key) const {
    if (key < end) {
      keys.start(key, keys_at(key));
      values.start(key, values_at(key));
    }
    commit_copies();
  }
};

// Calls body with the widths of queries and of values that kernels are compiled for, as types.
template <class Body>
void with_widths(const AttentionShape& shape, const Body& body) {
  const auto call = [&](auto qk, auto v) { body(qk, v); };
  if (std::max(shape.head_dim, shape.value_dim) <= 64)
    call(std::integral_constant<int, 64>(), std::integral_constant<int, 64>());
  else if (shape.head_dim <= 128) call(std::integral_constant<int, 128>(), std::integral_constant<int, 128>());
  else call(std::integral_constant<int, 192>(), std::integral_constant<int, 128>());
}

}  // namespace mw::gpu::attention_detail
