// A stable counting sort of items by small keys, in two kernels. Each block has a chunk of the items. The first kernel
// counts the keys of the chunks. In the second one every block adds up the counts of all chunks, and its waves take
// turns at the next place of each key. Atomics only add integers: the result is deterministic.
#pragma once

#include "ops/gpu/launch.h"
#include "ops/gpu/sort.h"

namespace mw::gpu {

constexpr int kSortThreads = 1024;
constexpr int64_t kMaxSortChunks = 128, kMaxSortCounts = 1 << 17;  // every block reads the counts of all chunks
constexpr int64_t kSharedKeys = 4096;                              // up to so many keys, shared memory has both tables

struct CountingSort {
  int32_t* counts_ck;  // [chunk, key]: items
  int32_t* places_ck;  // [chunk, 2, key]: what a block needs beside, where shared memory is too small
  int32_t* first_k;    // [key]: first place
  int64_t* total;      // items that have a key
  int64_t items, keys, chunk_items, chunks;
};

// The last chunks may be empty.
inline int64_t count_sort_chunks(int64_t items, int64_t keys) {
  const int64_t most = std::clamp<int64_t>(kMaxSortCounts / std::max<int64_t>(keys, 1), 1, kMaxSortChunks);
  return std::clamp<int64_t>(ceil_div(items, kSortThreads), 1, most);
}
inline int64_t count_spilled_places(int64_t chunks, int64_t keys) { return keys > kSharedKeys ? 2 * keys * chunks : 0; }

inline CountingSort take_counting_sort(WorkspaceFrame& frame, int64_t items, int64_t keys) {
  const int64_t chunks = count_sort_chunks(items, keys);
  return {frame.take<int32_t>(static_cast<size_t>(keys * chunks)),
          frame.take<int32_t>(static_cast<size_t>(count_spilled_places(chunks, keys))),
          frame.take<int32_t>(static_cast<size_t>(keys)),
          frame.take<int64_t>(1),
          items,
          keys,
          ceil_div(ceil_div(items, chunks), kSortThreads) * kSortThreads,
          chunks};
}

// Enough for fewer items and fewer keys, too.
inline int64_t counting_sort_bytes(int64_t items, int64_t keys) {
  const auto taken = [](int64_t bytes) { return ceil_div(bytes, 64) * 64; };
  const int64_t chunks = std::clamp<int64_t>(ceil_div(items, kSortThreads), 1, kMaxSortChunks);
  const int64_t counts = std::max(keys, std::min(keys * chunks, kMaxSortCounts));
  return taken(4 * counts) + (keys > kSharedKeys ? taken(8 * counts) : 0) + taken(4 * keys) + 64;
}

// The lanes of the wave that have the same value as this lane. value: in [0, limit).
__device__ inline LaneMask lanes_like(int32_t value, int64_t limit) {
  LaneMask same = ~LaneMask{0};
  for (int64_t bit = 1; bit < limit; bit *= 2) {
    const bool set = (value & bit) != 0;
    const LaneMask others = ballot(set);
    same &= set ? others : ~others;
  }
  return same;
}

template <class KeyOf>
__global__ void __launch_bounds__(kSortThreads) count_keys_kernel(KeyOf key_of, CountingSort sort) {
  int32_t* counts = sort.counts_ck + static_cast<int64_t>(blockIdx.x) * sort.keys;
  for (int64_t key = threadIdx.x; key < sort.keys; key += kSortThreads) counts[key] = 0;
  __syncthreads();
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * sort.chunk_items;
  const int64_t end = begin + sort.chunk_items < sort.items ? begin + sort.chunk_items : sort.items;
  for (int64_t i = begin + threadIdx.x; i < end; i += kSortThreads)
    if (const int32_t key = key_of(i); key >= 0) atomicAdd(counts + key, 1);
}

// By one block: next becomes the place of the chunk's first item of each key, totals the items of each key. Block 0
// also stores what others read.
__device__ inline void find_places(const CountingSort& sort, int32_t* next, int32_t* totals) {
  const int keys = static_cast<int>(sort.keys), chunks = static_cast<int>(sort.chunks);
  const int thread = static_cast<int>(threadIdx.x), chunk = static_cast<int>(blockIdx.x);
  for (int key = thread; key < keys; key += kSortThreads) next[key] = totals[key] = 0;
  __syncthreads();
  int columns = kWave;
  while (columns < keys && columns < kSortThreads) columns *= 2;
  const int parts = kSortThreads / columns;
  for (int key = thread % columns; key < keys; key += columns) {
    int32_t before = 0, total = 0;
#pragma unroll 4
    for (int c = thread / columns; c < chunks; c += parts) {
      const int32_t count = sort.counts_ck[static_cast<int64_t>(c) * keys + key];
      total += count;
      before += c < chunk ? count : 0;
    }
    atomicAdd(next + key, before);
    atomicAdd(totals + key, total);
  }
  __syncthreads();
  int32_t before = 0;
  for (int first = 0; first < keys; first += kSortThreads) {
    const int key = first + thread;
    int32_t total = 0;
    const int32_t place = before + scan_block(key < keys ? totals[key] : 0, &total);
    if (key < keys) next[key] += place;
    if (key < keys && chunk == 0) sort.first_k[key] = place;
    before += total;
  }
  if (chunk == 0 && thread == 0) *sort.total = before;
  __syncthreads();
}

// See sort_items.
template <class KeyOf, class PlaceItem>
__global__ void __launch_bounds__(kSortThreads)
    place_items_kernel(KeyOf key_of, PlaceItem place_item, CountingSort sort, const int32_t* key_at,
                       int64_t* items_of_key) {
  __shared__ int32_t places[2 * kSharedKeys];
  int32_t* next = sort.keys <= kSharedKeys ? places : sort.places_ck + static_cast<int64_t>(blockIdx.x) * 2 * sort.keys;
  int32_t* totals = next + sort.keys;
  find_places(sort, next, totals);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWave, wave = thread / kWave;
  if (blockIdx.x == 0 && items_of_key != nullptr)
    for (int64_t i = thread; i < sort.keys; i += kSortThreads)
      items_of_key[i] = static_cast<int64_t>(totals[key_at == nullptr ? i : key_at[i]]);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * sort.chunk_items;
  const int64_t end = begin + sort.chunk_items < sort.items ? begin + sort.chunk_items : sort.items;
  for (int64_t first = begin; first < end; first += kSortThreads) {
    const int64_t i = first + thread;
    const int32_t key = i < end ? key_of(i) : -1;
    const LaneMask same = lanes_like(key < 0 ? static_cast<int32_t>(sort.keys) : key, sort.keys + 1);
    const bool leads = first_lane(same) == lane;
    int32_t place = 0;
    for (int turn = 0; turn < kSortThreads / kWave; ++turn) {
      if (turn == wave && leads && key >= 0) {
        place = next[key];
        next[key] = place + count_lanes(same);
      }
      __syncthreads();
    }
    place = shuffle_from(place, first_lane(same)) + count_lanes(same & ((LaneMask{1} << lane) - 1));
    if (i < end) place_item(i, key, place);
  }
}

// Calls place_item(i, key, place) for all items i, in no particular order; where key is -1, place means nothing.
// key_of(i): the key of item i, or -1 for an item that gets no place; is called twice. Both are structs with a const
// __device__ operator().
// items_of_key: receives the number of items of each key, in entry i that of key_at[i], or of key i where key_at is
// null; may be null.
template <class KeyOf, class PlaceItem>
void sort_items(Stream& stream, const CountingSort& sort, const KeyOf& key_of, const PlaceItem& place_item,
                const int32_t* key_at, int64_t* items_of_key) {
  launch(stream, count_keys_kernel<KeyOf>, sort.chunks, kSortThreads, 0, key_of, sort);
  launch(stream, place_items_kernel<KeyOf, PlaceItem>, sort.chunks, kSortThreads, 0, key_of, place_item, sort, key_at,
         items_of_key);
}

}  // namespace mw::gpu
