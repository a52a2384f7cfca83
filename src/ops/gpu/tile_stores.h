// Stores of a 128-row tile by the multiplying warpgroups. The sums are in registers as multiply_async leaves them: of
// every eight columns a thread has columns 2 * (lane % 4) and the next one, in row lane / 4 of its warp's sixteen rows
// and in the row 8 below.
#pragma once

#include "ops/gpu/wgmma.h"

namespace mw::gpu {

// Selects instead of branching: branches cost registers.
__device__ inline unsigned choose(bool first, unsigned a, unsigned b) { return first ? a : b; }

// Swaps words among four neighbouring lanes: word i of lane j becomes word j of lane i.
__device__ inline void transpose(unsigned (&words)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & distance) continue;
      const bool upper = lane & distance;
      const unsigned received = shuffle_xor(choose(upper, words[i], words[i + distance]), distance);
      words[i] = choose(upper, received, words[i]);
      words[i + distance] = choose(upper, words[i + distance], received);
    }
}

constexpr int kLanesOfRow = 4;
// Among lanes that hold two neighbouring rows, whether this one holds the second.
__device__ inline bool holds_second_row() { return static_cast<int>(threadIdx.x) / kLanesOfRow % 2 == 1; }

// Two neighbouring rows that eight lanes store in whole lines of 128 bytes, because the cost of a store is the number
// of lines it touches. Lanes 0 to 3 (of the first row) take the first half of both rows, the lanes of the second row
// the second half, 16 bytes each. A null row does not exist.
template <class U>
struct RowPair {
  U *first, *second;

  // The pair of this thread's row and its neighbour's. All lanes must call it.
  __device__ static RowPair find(U* own) {
    const auto bits = shuffle_xor(reinterpret_cast<unsigned long long>(own), kLanesOfRow);
    U* const other = reinterpret_cast<U*>(bits);
    return holds_second_row() ? RowPair{other, own} : RowPair{own, other};
  }
  // Exchanges words with the lane of the other row. Before: words [0] and [1] are the two halves of a line of the
  // lane's own row. After: they are one half of both rows. A second call undoes it.
  __device__ static void swap(unsigned (&words)[2][4]) {
    const bool second_row = holds_second_row();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned received = shuffle_xor(choose(second_row, words[0][i], words[1][i]), kLanesOfRow);
      words[0][i] = choose(second_row, received, words[0][i]);
      words[1][i] = choose(second_row, words[1][i], received);
    }
  }
  __device__ U* place(int i, int column, int limit) const {
    U* const row = i == 0 ? first : second;
    return row != nullptr && column < limit ? row + column : nullptr;
  }
};

// store_row(): stores the columns below `limit` of one row of this thread's sums and its neighbour's; half = 1 selects
// the thread's second row.

template <bool kAdd, int kCount>
__device__ void store_bf16_row(bf16* row, int half, int limit, const float (&sums)[kCount]) {
  static_assert(kCount % 32 == 0);
  const auto pair = RowPair<bf16>::find(row);
  const auto column_of = [](int j) {
    return 8 * (j + (holds_second_row() ? 4 : 0) + static_cast<int>(threadIdx.x) % kLanesOfRow);
  };
  // All loads come before the first store. The compiler cannot move them there: it must assume that a store changes
  // what a later load reads.
  uint4 before[kAdd ? kCount / 32 : 1][2] = {};
  if constexpr (kAdd) {
#pragma unroll
    for (int j = 0; j < kCount / 4; j += 8)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (const bf16* from = pair.place(i, column_of(j), limit))
          before[j / 8][i] = *reinterpret_cast<const uint4*>(from);
  }
#pragma unroll
  for (int j = 0; j < kCount / 4; j += 8) {
    const int column = column_of(j);
    unsigned words[2][4] = {};
    if constexpr (kAdd) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 there = before[j / 8][i];
        words[i][0] = there.x, words[i][1] = there.y, words[i][2] = there.z, words[i][3] = there.w;
      }
      RowPair<bf16>::swap(words);
    }
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      if constexpr (kAdd) transpose(words[part]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int own = 4 * (j + 4 * part + i) + 2 * half;
        float left = sums[own], right = sums[own + 1];
        if constexpr (kAdd) {
          const auto* there = reinterpret_cast<const bf16*>(&words[part][i]);
          left += to_float(there[0]);
          right += to_float(there[1]);
        }
        words[part][i] = round_pair(left, right);
      }
      transpose(words[part]);
    }
    RowPair<bf16>::swap(words);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (bf16* to = pair.place(i, column, limit))
        *reinterpret_cast<uint4*>(to) = make_uint4(words[i][0], words[i][1], words[i][2], words[i][3]);
  }
}
template <int kCount>
__device__ void store_row(bf16* row, int half, int limit, const float (&sums)[kCount], bool add) {
  if (add) store_bf16_row<true>(row, half, limit, sums);
  else store_bf16_row<false>(row, half, limit, sums);
}

// Adds with reductions in memory, so that no thread waits for the old value. Each element is added to once per product:
// the result does not depend on the order.
template <int kCount>
__device__ void store_row(float* row, int half, int limit, const float (&sums)[kCount], bool add) {
  const auto pair = RowPair<float>::find(row);
  const int lane = static_cast<int>(threadIdx.x) % kLanesOfRow;
  const bool odd = lane % 2 == 1;
#pragma unroll
  for (int j = 0; j < kCount / 4; j += 4) {
    unsigned words[2][4];
#pragma unroll
    for (int part = 0; part < 2; ++part)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        // Of two groups of eight columns, neighbouring lanes take one each: four columns instead of twice two.
        const int group = 4 * (j + 2 * part) + 2 * half + i;
        const unsigned left = __float_as_uint(sums[group]), right = __float_as_uint(sums[group + 4]);
        const unsigned received = shuffle_xor(choose(odd, left, right), 1);
        words[part][i] = choose(odd, received, left);
        words[part][i + 2] = choose(odd, right, received);
      }
    RowPair<float>::swap(words);
    const int column = 8 * (j + (holds_second_row() ? 2 : 0) + lane % 2) + 4 * (lane / 2);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (float* to = pair.place(i, column, limit)) {
        const float4 quad = make_float4(__uint_as_float(words[i][0]), __uint_as_float(words[i][1]),
                                        __uint_as_float(words[i][2]), __uint_as_float(words[i][3]));
        if (add) add_async(to, quad);
        else *reinterpret_cast<float4*>(to) = quad;
      }
  }
}

// Where the two rows of this thread lie in the result, from the tile's first column on, and the `width` of columns up
// to the end of the result. A null row does not exist.
template <class U>
struct TileRows {
  U *upper, *lower;
  int width;

  // Prefetches the values to be added to into the cache while products are in flight; four lanes share a row.
  __device__ void prefetch(int tile_width) const {
    constexpr int kLine = kRowBytes / sizeof(U);
    for (const U* row : {upper, lower})
      for (int column = static_cast<int>(threadIdx.x) % kLanesOfRow * kLine;
           row != nullptr && column < min(width, tile_width); column += kLanesOfRow * kLine)
        gpu::prefetch(row + column);
  }
  template <int kCount>
  __device__ void store(const float (&sums)[kCount], bool add) const {
    store_row(upper, 0, width, sums, add);
    store_row(lower, 1, width, sums, add);
  }
};

// The rows of a tile with rows [0, height), addressed by row_at(r).
template <class U, class RowAt>
__device__ TileRows<U> find_tile_rows(int64_t height, int width, const RowAt& row_at) {
  const int thread = static_cast<int>(threadIdx.x) - kWarpgroup, own = thread / 32 * 16 + thread % 32 / kLanesOfRow;
  return {own < height ? row_at(own) : nullptr, own + 8 < height ? row_at(own + 8) : nullptr, width};
}

// write_box(): writes the sums of this warpgroup's 64 rows, in columns [first, first + 128 bytes) of the tile, to
// shared memory, swizzled as the copy engine reads them.

// Rows that follow each other begin with different groups of eight columns, so that no two lanes that store at the same
// time address the same bank.
template <int kCount>
__device__ void write_box(unsigned box, int first, const float (&sums)[kCount], float) {
  const unsigned lane = threadIdx.x % 32, row = threadIdx.x % kWarpgroup / 32 * 16 + lane / kLanesOfRow;
  const bool second_row = holds_second_row();
  const unsigned chunk = lane % kLanesOfRow / 2 ^ row % 8 ^ choose(second_row, 4, 0);
  const unsigned to = box + row * kRowBytes + chunk * 16 + lane % 2 * 8;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int own = first / 2 + 4 * i, other = first / 2 + 4 * (i ^ 2);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto word = [&](int c) {
        return choose(second_row, __float_as_uint(sums[other + 2 * half + c]),
                      __float_as_uint(sums[own + 2 * half + c]));
      };
      store_shared((to ^ static_cast<unsigned>(i * 32)) + half * kAtomBytes, word(0), word(1));
    }
  }
}
// kAdds: adds the sums to what the box holds.
template <bool kAdds = false, int kCount>
__device__ void write_box(unsigned box, int first, const float (&sums)[kCount], bf16) {
  const unsigned lane = threadIdx.x % 32, row = threadIdx.x % kWarpgroup / 32 * 16 + lane % 16;
  const unsigned to = box + row * kRowBytes + (lane / 16 ^ row % 8) * 16;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned place = to ^ static_cast<unsigned>(i * 32);
    unsigned words[4];
    if constexpr (kAdds) load_matrices<false>(words, place);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float left = sums[first / 2 + 8 * i + 2 * j], right = sums[first / 2 + 8 * i + 2 * j + 1];
      if constexpr (kAdds) {
        const auto* there = reinterpret_cast<const bf16*>(&words[j]);
        left += to_float(there[0]);
        right += to_float(there[1]);
      }
      words[j] = round_pair(left, right);
    }
    store_matrices(place, words);
  }
}

}  // namespace mw::gpu
