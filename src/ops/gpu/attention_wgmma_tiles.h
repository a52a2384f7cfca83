// Tiles of attention for Hopper's warpgroups (wgmma). A block owns kOwned rows of one head, kWarpgroupRows for each of
// two multiplying warpgroups, and walks over the rows of the other operand. One warp copies tiles by boxes: the owned
// rows, and the others into a ring of stages. Tiles have panels of 64 columns, in which rows are swizzled.
//
// Sums [kWarpgroupRows, N] of a warpgroup are sum[N / 2]: a thread holds in sum[4 * j + 2 * half + e] row
// sum_row(half), column 8 * j + sum_column(e).
#pragma once

#include "ops/gpu/attention_tiles.h"
#include "ops/gpu/tensor_map.h"
#include "ops/gpu/tile_queue.h"
#include "ops/gpu/tile_ring.h"

namespace mw::gpu::warpgroup_attention {

using namespace attention_detail;

constexpr int kWarpgroupRows = 64, kOwned = 2 * kWarpgroupRows;
constexpr int kPanel = 64;  // columns
constexpr int kWarpgroupThreads = 3 * kWarpgroup;
constexpr int kReaders = 2 * kWarpgroup / 32;  // warps that multiply
constexpr int kLoadRegisters = 24, kMultiplyRegisters = 240;
using ItemQueue = TileQueue<kReaders + 1, false>;

template <int kWidth, int kRows>
constexpr int kTileBytes = kWidth* kRows* static_cast<int>(sizeof(bf16));
__host__ __device__ constexpr unsigned round_up_to_atom(unsigned bytes) {
  return (bytes + kAtomBytes - 1) / kAtomBytes * kAtomBytes;
}

__device__ inline int warpgroup_index() { return shuffle_from(thread_index() / kWarpgroup, 0); }
// Of the warpgroup's rows.
__device__ inline int sum_row(int half) { return thread_index() % kWarpgroup / 32 * 16 + lane_index() / 4 + 8 * half; }

// What a block owns at a time: the tile of one head, counted from the one with the most work.
struct Item {
  int sequence, head, tile;
};

// All items of a kernel: of some heads of some sequences. `section` of these heads at a time, counted over the
// sequences, so that what they read stays in the cache; of a section, the items with the most work first.
struct Items {
  int sequences, heads, tiles, section, first_sequence = 0, first_head = 0;

  __host__ __device__ int count() const { return sequences * heads * tiles; }
  __device__ Item find(int number) const {
    const int of_section = number % (tiles * section),
              head = number / (tiles * section) * section + of_section % section;
    return {first_sequence + head / heads, first_head + head % heads, of_section / section};
  }
  // The number of an item's head among all of these.
  __device__ int place_of_head(const Item& item) const {
    return (item.sequence - first_sequence) * heads + item.head - first_head;
  }
};

// Calls body(item) for all items that the block takes. taken: how many items blocks have taken. For all warps of the
// multiplying warpgroups, and the copying one.
template <class Body>
__device__ void for_each_item(const Items& items, int* taken, ItemQueue queue, const Body& body) {
  if (queue.takes()) queue.take(taken);
  for (int number = queue.get(); number < items.count(); number = queue.get()) {
    if (queue.takes()) queue.take(taken);
    body(items.find(number));
  }
}

// The stage that products in flight read: released when a later batch has begun and they are done.
struct HeldStage {
  unsigned read = 0;
  __device__ void replace(unsigned other) {
    if (read != 0) release<false>(read);
    read = other;
  }
};

// Begins to copy rows [row, row + kRows) of a head. By one thread.
template <int kWidth, int kRows>
__device__ void copy_tile(unsigned to, const TensorMap& map, int sequence, int head, int row, unsigned barrier) {
#pragma unroll
  for (int panel = 0; panel < kWidth / kPanel; ++panel)
    copy_box_of_head(to + panel * kRows * kRowBytes, map, sequence, row, head, panel * kPanel, barrier);
}

// The rows of a tile with kRows rows, from row `first` on, as an operand: along the depth or along the width of the
// product. The 16 summands of a step begin at a fixed distance from the first ones.
template <int kRows>
__device__ uint64_t describe_tile_rows(unsigned tile, int first) {
  return describe_tile(tile + first * kRowBytes, kRows * kRowBytes);
}
template <int kRows>
__device__ uint64_t columns_of_step(uint64_t columns, int step) {
  constexpr int kSteps = kPanel / 16;
  return move_tile(columns, step / kSteps * kRows * kRowBytes + step % kSteps * 32);
}
__device__ inline uint64_t rows_of_step(uint64_t rows, int step) { return move_tile(rows, step * 16 * kRowBytes); }

// Before any product: if the compiler sets sums to zero between products, they run one by one.
template <int kCount>
__device__ void set_to_zero(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[i] = 0.0f;
  keep_sums(sums);
}

// sums = (the warpgroup's owned rows) (walked rows)^T: starts the products.
template <int kWidth, int kWalked>
__device__ void start_dot_rows(uint64_t owned, uint64_t walked, float (&sums)[kWalked / 2]) {
#pragma unroll
  for (int step = 0; step < kWidth / 16; ++step) {
    const uint64_t a = columns_of_step<kOwned>(owned, step), b = columns_of_step<kWalked>(walked, step);
    if (step == 0) multiply_first_async<Along::depth, Along::depth>(sums, a, b);
    else multiply_async<Along::depth, Along::depth>(sums, a, b, true);
  }
}

// Weights [kWarpgroupRows, kWalked], rounded to bf16, as the first operand.
template <int kWalked>
struct RoundedWeights {
  unsigned value[kWalked / 16][4];

  __device__ void round(const float (&weights)[kWalked / 2]) {
#pragma unroll
    for (int i = 0; i < kWalked / 4; ++i) value[i / 4][i % 4] = round_pair(weights[2 * i], weights[2 * i + 1]);
  }
  __device__ float of_sum(int i) const {  // as it was rounded
    const unsigned pair = value[i / 8][i / 2 % 4];
    return __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
  }
  // sums += weights (walked rows): starts the products.
  template <int kWidth>
  __device__ void start_product(uint64_t walked, float (&sums)[kWidth / 2]) const {
#pragma unroll
    for (int step = 0; step < kWalked / 16; ++step)
      multiply_async<Along::width>(sums, value[step], rows_of_step(walked, step), true);
  }
};

// rows[begin + row][column] = factor[half] * sum, for rows and columns that exist; begin: of the warpgroup's rows.
template <int kWidth>
__device__ void store_sums(const Rows<bf16>& rows, int begin, const float (&factor)[2],
                           const float (&sum)[kWidth / 2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = begin + sum_row(half);
    if (row >= rows.count) continue;
    bf16* to = rows.first + row * rows.stride + sum_column(0);
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n)
      if (8 * n < rows.width)
        *reinterpret_cast<uint32_t*>(to + 8 * n) =
            round_pair(factor[half] * sum[4 * n + 2 * half], factor[half] * sum[4 * n + 2 * half + 1]);
  }
}

// Positions in the sequence: the keys [begin, end) that the tile of queries at `top` walks over; none beyond the
// sequence.
struct KeyRange {
  int top, begin, end;
};
template <int kWalked>
__device__ KeyRange keys_of_queries(const AttentionShape& shape, const int32_t* first_T, int sequence, int top) {
  const int S = static_cast<int>(shape.seq_len);
  if (top >= S) return {top, 0, 0};
  const int first = first_T == nullptr ? 0 : first_T[sequence * shape.seq_len + top];
  return {top, first / kWalked * kWalked, min(top + kOwned, S)};
}
template <int kWalked>
__device__ KeyRange keys_of(const AttentionShape& shape, const int32_t* first_T, const Items& items, const Item& item) {
  return keys_of_queries<kWalked>(shape, first_T, item.sequence, (items.tiles - 1 - item.tile) * kOwned);
}

// The first key that each of the thread's two queries sees, and the warpgroup's last one. Queries beyond the sequence
// see what the last one does.
struct FirstKeys {
  int key[2], last;

  __device__ FirstKeys(const AttentionShape& shape, const int32_t* first_T, const Item& item, int top) {
    const int end = static_cast<int>(shape.seq_len) - 1;
    const auto of_query = [&](int query) {
      return first_T == nullptr ? 0 : first_T[item.sequence * shape.seq_len + min(query, end)];
    };
#pragma unroll
    for (int half = 0; half < 2; ++half) key[half] = of_query(top + sum_row(half));
    last = of_query(top + kWarpgroupRows - 1);
  }
};

// `heads` heads of x in boxes of `rows` rows.
inline TensorMap describe_heads(const AttentionShape& shape, const bf16* x, int64_t heads, int64_t width, int rows) {
  TensorMap map;
  MW_CHECK(gpu::describe_heads({x, shape.sequences, shape.seq_len, shape.seq_len, heads, width}, rows, &map),
           "the driver refuses tensor maps of heads");
  return map;
}

// All items of `heads` heads.
inline Items items_of(const AttentionShape& shape, int64_t heads, int64_t section) {
  return {static_cast<int>(shape.sequences), static_cast<int>(heads), static_cast<int>(ceil_div(shape.seq_len, kOwned)),
          static_cast<int>(section)};
}

template <class... Parameters, class... Arguments>
void launch_warpgroups(Stream& stream, void (*kernel)(Parameters...), int64_t blocks, size_t bytes,
                       const Arguments&... arguments) {
  check(allow_shared_bytes(reinterpret_cast<const void*>(kernel), bytes), "asking for shared memory");
  launch(stream, kernel, blocks, kWarpgroupThreads, bytes, arguments...);
}

// The same with a block for each processor: they take items by the counter, which is one of the arguments, too.
template <class... Parameters, class... Arguments>
void launch_takers(Stream& stream, void (*kernel)(Parameters...), const Items& items, int* taken, size_t bytes,
                   const Arguments&... arguments) {
  check(fill_async(taken, 0, sizeof(int), native(stream)), "filling memory");
  launch_warpgroups(stream, kernel, std::min(items.count(), find_processors(stream).blocks), bytes, arguments...);
}

// Calls body with the widths of queries and of values that kernels are compiled for, as types.
template <class Body>
void with_warpgroup_widths(const AttentionShape& shape, const Body& body) {
  const auto call = [&](auto width) { body(width, width); };
  if (std::max(shape.head_dim, shape.value_dim) <= 64) call(std::integral_constant<int, 64>());
  else call(std::integral_constant<int, 128>());
}

}  // namespace mw::gpu::warpgroup_attention
