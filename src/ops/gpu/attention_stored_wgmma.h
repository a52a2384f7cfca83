// Gradients of scores in memory, between the two passes of attention backward by warpgroups: the pass of d_k and d_v
// writes them as it rounds them, and that of d_q is one product that reads them. So five products make the gradients,
// where two passes that both compute scores take seven.
#pragma once

#include "ops/gpu/attention_wgmma_tiles.h"

namespace mw::gpu::warpgroup_attention {

// Gradients of scores of some heads of some sequences, bf16. Of each kOwned queries the keys up to the diagonal's end,
// in blocks of 128 bytes: 8 keys of 8 queries, which are neighbours. Blocks of the same keys follow each other. Two
// parts are never written. Queries beyond the sequence change only rows of d_q beyond the sequence, which nobody
// stores. Keys that documents hide from all queries of a tile are not read.
struct ScoreGradients {
  static constexpr int kBlock = 8, kWordsOfBlock = kBlock * kBlock / 2, kBlocksAcross = kOwned / kBlock;
  static constexpr int kWordsOfKeys = kBlocksAcross * kWordsOfBlock;  // of eight keys
  uint32_t* first = nullptr;                                          // null: not stored
  int tiles = 0;                                                      // of a head

  // Of the first `tiles` tiles of a head.
  __host__ __device__ static constexpr int64_t words_of(int64_t tiles) {
    return tiles * (tiles + 1) / 2 * kBlocksAcross * kWordsOfKeys;
  }
  // head: its number among those that are stored. key: a multiple of kBlock.
  __device__ uint32_t* find(int head, int tile, int key) const {
    return first + head * words_of(tiles) + words_of(tile) + int64_t{key / kBlock * kWordsOfKeys};
  }

  // Stores a warpgroup's gradients of 64 keys and kQueries queries, from `query` on, of the head that is `head` behind
  // the one where `keys` are those of its first key and tile 0. A warp writes whole blocks. Queries from `end` on are
  // left out.
  template <int kQueries>
  __device__ void store(uint32_t* keys, int head, int query, int end, const RoundedWeights<kQueries>& d_scores) const {
    const unsigned tile = static_cast<unsigned>(query) / kOwned, within = static_cast<unsigned>(query) % kOwned;
    uint32_t* to = keys + head * words_of(tiles) + words_of(tile) + within / kBlock * kWordsOfBlock +
                   thread_index() % kWarpgroup / 32 * 2 * kWordsOfKeys + lane_index();
    const int64_t to_next = words_of(tile + 1) - words_of(tile) - kWordsOfKeys;  // from beyond the tile's last query
#pragma unroll
    for (int step = 0; step < kQueries / 16; ++step) {
      if (query + step * 16 >= end) break;
      uint32_t* blocks = to + step * 2 * kWordsOfBlock + (within + step * 16 < kOwned ? 0 : to_next);
#pragma unroll
      for (int i = 0; i < 4; ++i) blocks[i % 2 * kWordsOfKeys + i / 2 * kWordsOfBlock] = d_scores.value[step][i];
    }
  }
};

// d_q from stored gradients of scores. A block owns two tiles of queries of one head, one for each multiplying
// warpgroup, so that keys are read half as often.
struct StoredQueryPass {
  static constexpr int kLoadRegisters = 56, kMultiplyRegisters = 216, kTilesOwned = 2;
  static constexpr int kWidth = 128;  // of heads, at most
  static constexpr int kKeys = 64, kStages = 4;
  static constexpr int kScoreBytes = kOwned * kKeys * static_cast<int>(sizeof(bf16));  // of one tile

  TensorMap keys;
  AttentionShape shape;
  Operands<bf16> x;
  ScoreGradients stored;
  Items items;
  int* taken;

  template <int kQk, int>
  struct Memory {
    using Stages = StageRing<kTileBytes<kQk, kKeys> + kTilesOwned * kScoreBytes, kStages>;
    static constexpr unsigned kBytes = ItemQueue::kBytes + kAtomBytes + Stages::kBytes;
    unsigned queue;
    Stages stages;
    __device__ explicit Memory(unsigned memory) : queue(memory), stages{round_up_to_atom(memory + ItemQueue::kBytes)} {}
    __device__ unsigned scores(int tile) const { return stages.tile() + kTileBytes<kQk, kKeys> + tile * kScoreBytes; }
  };

  // The keys that an item's tiles see, in steps of kKeys.
  struct Range {
    KeyRange of[kTilesOwned];
    __device__ int begin() const { return of[0].begin; }
    __device__ int end() const { return max(of[0].end, of[1].end); }
  };
  __device__ static bool sees(const KeyRange& keys, int key) { return key >= keys.begin && key < keys.end; }
  __device__ Range keys_of_item(const Item& item) const {
    const int top = (items.tiles - 1 - item.tile) * kTilesOwned * kOwned;
    return {{keys_of_queries<kKeys>(shape, x.first_T, item.sequence, top),
             keys_of_queries<kKeys>(shape, x.first_T, item.sequence, top + kOwned)}};
  }

  template <class Memory>
  __device__ void init(Memory at) const {
    ItemQueue{at.queue}.init();
    at.stages.init(1, kReaders);
  }

  template <int kQk, int kV>
  __device__ void load(Memory<kQk, kV> at) const {
    const bool leads = lane_index() == 0;
    const int group = static_cast<int>(shape.heads / shape.kv_heads);
    for_each_item(items, taken, ItemQueue{at.queue}, [&](const Item& item) {
      const Range range = keys_of_item(item);
      const int head = items.place_of_head(item);
#pragma unroll 1
      for (int key = range.begin(); key < range.end(); key += kKeys) {
        wait_for_phase(at.stages.read(), at.stages.parity ^ 1);
        if (leads) {
          const unsigned filled = at.stages.filled();
          arrive_expecting(filled,
                           kTileBytes<kQk, kKeys> + (sees(range.of[0], key) + sees(range.of[1], key)) * kScoreBytes);
          copy_tile<kQk, kKeys>(at.stages.tile(), keys, item.sequence, item.head / group, key, filled);
#pragma unroll
          for (int tile = 0; tile < kTilesOwned; ++tile)
            if (sees(range.of[tile], key))
              copy_bytes(at.scores(tile), stored.find(head, range.of[tile].top / kOwned, key), kScoreBytes, filled);
        }
        at.stages.advance();
      }
    });
  }

  template <int kQk, int kV>
  __device__ void multiply(Memory<kQk, kV> at, int group) const {
    for_each_item(items, taken, ItemQueue{at.queue}, [&](const Item& item) {
      const Range range = keys_of_item(item);
      const KeyRange own = group == 0 ? range.of[0] : range.of[1];
      float d_q[kOwned / kWarpgroupRows][kQk / 2];
#pragma unroll
      for (auto& sums : d_q) set_to_zero(sums);
      HeldStage held;
#pragma unroll 1
      for (int key = range.begin(); key < range.end(); key += kKeys) {
        wait_for_phase(at.stages.filled(), at.stages.parity);
        if (sees(own, key)) {
          start_product<kQk>(at.scores(group), describe_tile_rows<kKeys>(at.stages.tile(), 0), d_q);
          wait_for_products<1>();
          held.replace(at.stages.read());
        } else {
          release<false>(at.stages.read());
        }
        at.stages.advance();
      }
      wait_for_products<0>();
#pragma unroll
      for (auto& sums : d_q) keep_sums(sums);
      held.replace(0);
      const int S = static_cast<int>(shape.seq_len);
      const float factor[2] = {shape.scale, shape.scale};
      const auto rows = rows_of_head(x.d_q_THh, shape.heads, shape.head_dim, S, S, item.sequence, item.head);
#pragma unroll
      for (int half = 0; half < kOwned / kWarpgroupRows; ++half)
        store_sums<kQk>(rows, own.top + half * kWarpgroupRows, factor, d_q[half]);
    });
  }

  // sums += (gradients of scores) keys: starts the products.
  template <int kQk>
  __device__ static void start_product(unsigned scores, uint64_t keys,
                                       float (&sums)[kOwned / kWarpgroupRows][kQk / 2]) {
    constexpr int kBytesOfKeys = ScoreGradients::kWordsOfKeys * 4, kBytesOfBlock = ScoreGradients::kWordsOfBlock * 4;
    const uint64_t blocks = describe_blocks(scores, kBytesOfBlock, kBytesOfKeys);
    begin_products();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
#pragma unroll
      for (int half = 0; half < kOwned / kWarpgroupRows; ++half)
        multiply_async<Along::width, Along::width>(
            sums[half],
            move_tile(blocks, step * 2 * kBytesOfKeys + half * kWarpgroupRows / ScoreGradients::kBlock * kBytesOfBlock),
            rows_of_step(keys, step), true);
    commit_products();
  }
};

}  // namespace mw::gpu::warpgroup_attention
