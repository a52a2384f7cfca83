// A stable counting sort of items by small keys. One block ranks kThreads items among each other, one wave per key adds
// up the blocks' counts, one block the keys'. Nothing is counted by atomics: the result is deterministic.
#pragma once

#include "ops/gpu/launch.h"
#include "ops/gpu/sort.h"

namespace mw::gpu {

struct CountingSort {
  int32_t* counts_kb;  // [key, block]: items, then those of the blocks before
  int32_t* first_k;    // [key]: items, then first place
  int64_t* total;      // items that have a key
  int64_t items, keys, blocks;

  // The place of item i of this key, of which `rank` items of its block precede it.
  __device__ int32_t place_of(int64_t i, int32_t key, int32_t rank) const {
    return first_k[key] + counts_kb[key * blocks + i / kThreads] + rank;
  }
};

inline CountingSort take_counting_sort(WorkspaceFrame& frame, int64_t items, int64_t keys) {
  const int64_t blocks = ceil_div(items, kThreads);
  return {frame.take<int32_t>(static_cast<size_t>(keys * blocks)),
          frame.take<int32_t>(static_cast<size_t>(keys)),
          frame.take<int64_t>(1),
          items,
          keys,
          blocks};
}

inline int64_t counting_sort_bytes(int64_t items, int64_t keys) {
  const auto taken = [](int64_t bytes) { return ceil_div(bytes, 64) * 64; };
  return taken(4 * keys * ceil_div(items, kThreads)) + taken(4 * keys) + 64;
}

// key(i): the key of item i, -1 for an item to leave out, whose rank stays as it is. The last item of a key in its
// block knows their count.
template <class KeyOf>
__global__ void rank_kernel(KeyOf key_of, int32_t* ranks, CountingSort sort) {
  __shared__ int4 keys4[kThreads / 4];
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const int32_t key = i < sort.items ? key_of(i) : -1;
  reinterpret_cast<int32_t*>(keys4)[thread] = key;
  __syncthreads();
  if (key < 0) return;
  int before = 0, after = 0;
  for (int j = 0; j < kThreads; j += 4) {
    const int4 four = keys4[j / 4];
    const int32_t others[] = {four.x, four.y, four.z, four.w};
    for (int k = 0; k < 4; ++k) {
      before += others[k] == key && j + k < thread ? 1 : 0;
      after += others[k] == key && j + k > thread ? 1 : 0;
    }
  }
  ranks[i] = before;
  if (after == 0) sort.counts_kb[key * sort.blocks + blockIdx.x] = before + 1;
}

// One block of one wave per key: counts become sums over the blocks before.
inline __global__ void sum_blocks_kernel(CountingSort sort) {
  int32_t* counts = sort.counts_kb + static_cast<int64_t>(blockIdx.x) * sort.blocks;
  int32_t before = 0;
  for (int64_t first = 0; first < sort.blocks; first += kWave) {
    const int64_t b = first + threadIdx.x;
    const int32_t count = b < sort.blocks ? counts[b] : 0;
    const int32_t inclusive = scan_wave(count);
    if (b < sort.blocks) counts[b] = before + inclusive - count;
    before += shuffle_from(inclusive, kWave - 1);
  }
  if (threadIdx.x == 0) sort.first_k[blockIdx.x] = before;
}

// One block: items of each key become its first place. items_of_key: where they go as well, entry i is those of
// key_at[i], or of key i without key_at; may be null.
inline __global__ void sum_keys_kernel(CountingSort sort, const int32_t* key_at, int64_t* items_of_key) {
  const int keys = static_cast<int>(sort.keys), thread = static_cast<int>(threadIdx.x);
  if (items_of_key != nullptr)
    for (int i = thread; i < keys; i += kThreads)
      items_of_key[i] = static_cast<int64_t>(sort.first_k[key_at == nullptr ? i : key_at[i]]);
  __syncthreads();
  int32_t before = 0;
  for (int first = 0; first < keys; first += kThreads) {
    const int key = first + thread;
    int32_t total = 0;
    const int32_t place = before + scan_block(key < keys ? sort.first_k[key] : 0, &total);
    if (key < keys) sort.first_k[key] = place;
    before += total;
  }
  if (thread == 0) *sort.total = before;
}

// Everything but the last step: afterwards item i of key k belongs at sort.place_of(i, k, ranks[i]). ranks: one per
// item.
template <class KeyOf>
void rank_items(Stream& stream, const CountingSort& sort, const KeyOf& key_of, int32_t* ranks, const int32_t* key_at,
                int64_t* items_of_key) {
  const auto count_bytes = static_cast<size_t>(sort.keys * sort.blocks) * sizeof(int32_t);
  if (count_bytes > 0) check(fill_async(sort.counts_kb, 0, count_bytes, native(stream)), "filling memory");
  launch(stream, rank_kernel<KeyOf>, sort.blocks, kThreads, 0, key_of, ranks, sort);
  launch(stream, sum_blocks_kernel, sort.keys, kWave, 0, sort);
  launch(stream, sum_keys_kernel, 1, kThreads, 0, sort, key_at, items_of_key);
}

}  // namespace mw::gpu
