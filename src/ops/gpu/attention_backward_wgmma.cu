// Causal attention by warpgroups, backward, in two passes without atomics:
//   d_q: a block owns 128 queries of one head and walks over the keys that they see;
//   d_k and d_v: a block owns 128 keys of one KV head and walks over the queries that see them, the last ones first,
//   and at each tile of queries over all heads of the group: blocks of a KV head then read the same queries at the same
//   time, from the L2 cache.
//   Scores are computed as [keys, queries], so that probabilities and their gradients stay in registers.
// Both recompute probabilities from lse. Where scratch holds gradients of scores, the second pass comes first and
// stores them, and d_q is a product of them (attention_stored_wgmma.h).
#include "ops/gpu/attention_stored_wgmma.h"
#include "ops/gpu/attention_wgmma.h"
#include "ops/gpu/attention_wgmma_tiles.h"

namespace mw::gpu {
namespace {

using namespace warpgroup_attention;
using library_attention::Part;

// Rows walked over at a time. With 64, products of two operands in shared memory wait for it; with 128, sums and
// weights do not fit into registers.
constexpr int kWalked = 96;
constexpr int kWalkedStages = 2;

// Tensor maps: of the tiles that a block owns, and of those that it walks over.
struct PassMaps {
  TensorMap owned_qk, owned_v, walked_qk, walked_v;
};

// Stages of kRows rows of both kinds, with the widths of queries and of values.
template <int kQk, int kV, int kRows, int kCount>
struct PairRing : StageRing<kTileBytes<kQk, kRows> + kTileBytes<kV, kRows>, kCount> {
  __device__ uint64_t describe_qk(int first) const { return describe_tile_rows<kRows>(this->tile(), first); }
  __device__ uint64_t describe_v(int first) const {
    return describe_tile_rows<kRows>(this->tile() + kTileBytes<kQk, kRows>, first);
  }
  // Begins to copy rows from `row` on, by one thread.
  __device__ void copy(const TensorMap& of_qk, const TensorMap& of_v, int sequence, int head, int row) const {
    arrive_expecting(this->filled(), this->kStageBytes);
    copy_tile<kQk, kRows>(this->tile(), of_qk, sequence, head, row, this->filled());
    copy_tile<kV, kRows>(this->tile() + kTileBytes<kQk, kRows>, of_v, sequence, head, row, this->filled());
  }
};

// Shared memory of a block: kFirstBytes for its own use, and both rings, whose tiles begin on borders of kAtomBytes.
template <int kQk, int kV, int kOwnedStages, int kFirstBytes>
struct PassMemory {
  using Owned = PairRing<kQk, kV, kOwned, kOwnedStages>;
  using Walked = PairRing<kQk, kV, kWalked, kWalkedStages>;
  static constexpr unsigned kOwnedAt = round_up_to_atom(Walked::kBytes),
                            kBytes = kFirstBytes + kAtomBytes + kOwnedAt + Owned::kBytes;
  unsigned first;
  Walked walked;
  Owned owned;

  __device__ explicit PassMemory(unsigned memory)
      : first(memory), walked{{round_up_to_atom(memory + kFirstBytes)}}, owned{{walked.memory + kOwnedAt}} {}
};

// --- d_q ------------------------------------------------------------------------------------------------------------

struct QueryPass {
  static constexpr int kLoadRegisters = warpgroup_attention::kLoadRegisters,
                       kMultiplyRegisters = warpgroup_attention::kMultiplyRegisters;
  PassMaps maps;
  AttentionShape shape;
  Operands<bf16> x;
  Items items;
  int* taken;

  template <int kQk, int kV>
  using Memory = PassMemory<kQk, kV, 2, ItemQueue::kBytes>;

  template <class Memory>
  __device__ void init(Memory at) const {
    ItemQueue{at.first}.init();
    at.owned.init(1, kReaders);
    at.walked.init(1, kReaders);
  }

  template <class Memory>
  __device__ void load(Memory at) const {
    const bool leads = lane_index() == 0;
    const int group = static_cast<int>(shape.heads / shape.kv_heads);
    for_each_item(items, taken, ItemQueue{at.first}, [&](const Item& item) {
      const KeyRange keys = keys_of<kWalked>(shape, x.first_T, items, item);
      wait_for_phase(at.owned.read(), at.owned.parity ^ 1);
      if (leads) at.owned.copy(maps.owned_qk, maps.owned_v, item.sequence, item.head, keys.top);
      at.owned.advance();
#pragma unroll 1
      for (int key = keys.begin; key < keys.end; key += kWalked) {
        wait_for_phase(at.walked.read(), at.walked.parity ^ 1);
        if (leads) at.walked.copy(maps.walked_qk, maps.walked_v, item.sequence, item.head / group, key);
        at.walked.advance();
      }
    });
  }

  template <int kQk, int kV>
  __device__ void multiply(Memory<kQk, kV> at, int group) const {
    const float scale = shape.scale * kLog2OfE;
    const int S = static_cast<int>(shape.seq_len);
    for_each_item(items, taken, ItemQueue{at.first}, [&](const Item& item) {
      const KeyRange keys = keys_of<kWalked>(shape, x.first_T, items, item);
      const int top = keys.top + group * kWarpgroupRows;
      const FirstKeys first(shape, x.first_T, item, top);
      float lse[2], delta[2];  // lse in base 2; queries beyond the sequence get probability zero
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int query = top + sum_row(half);
        const int64_t row = x.place(item.head, item.sequence) + query;
        lse[half] = query < S ? x.lse_HT[row] * kLog2OfE : std::numeric_limits<float>::infinity();
        delta[half] = query < S ? x.delta_HT[row] : 0.0f;
      }
      wait_for_phase(at.owned.filled(), at.owned.parity);
      const uint64_t queries = at.owned.describe_qk(group * kWarpgroupRows),
                     d_outs = at.owned.describe_v(group * kWarpgroupRows);

      float d_q[kQk / 2];
      set_to_zero(d_q);
      RoundedWeights<kWalked> d_scores;
      HeldStage held;
      const int end = min(keys.end, top + kWarpgroupRows);
      int key = keys.begin;
#pragma unroll 1
      for (; key < end; key += kWalked) {
        wait_for_phase(at.walked.filled(), at.walked.parity);
        float scores[kWalked / 2], d_p[kWalked / 2];
        begin_products();
        start_dot_rows<kQk, kWalked>(queries, at.walked.describe_qk(0), scores);
        commit_products();
        wait_for_products<1>();
        held.replace(at.walked.read());
        begin_products();
        start_dot_rows<kV, kWalked>(d_outs, at.walked.describe_v(0), d_p);
        commit_products();
        wait_for_products<1>();
        keep_sums(scores);
#pragma unroll
        for (int i = 0; i < kWalked / 2; ++i) scores[i] = exp2_quickly(scale * scores[i] - lse[i / 2 % 2]);
        keep_sums(scores);
        // Before the wait: the branch keeps the compiler from moving the exponentials behind it.
        if (key + kWalked - 1 > top || key < first.last)
#pragma unroll
          for (int i = 0; i < kWalked / 2; ++i) {
            const int of = key + i / 4 * 8 + sum_column(i % 2), half = i / 2 % 2;
            const bool hidden = (of > top + sum_row(half)) | (of < first.key[half]);
            scores[i] = hidden ? 0.0f : scores[i];
          }
        wait_for_products<0>();
        keep_sums(d_p);
#pragma unroll
        for (int i = 0; i < kWalked / 2; ++i) scores[i] *= d_p[i] - delta[i / 2 % 2];
        d_scores.round(scores);
        begin_products();
        d_scores.template start_product<kQk>(at.walked.describe_qk(0), d_q);
        commit_products();
        at.walked.advance();
      }
      for (; key < keys.end; key += kWalked) {  // these queries see none of the tile's keys
        wait_for_phase(at.walked.filled(), at.walked.parity);
        release<false>(at.walked.read());
        at.walked.advance();
      }
      wait_for_products<0>();
      keep_sums(d_q);
      held.replace(0);
      release<false>(at.owned.read());
      at.owned.advance();
      const float factor[2] = {shape.scale, shape.scale};
      store_sums<kQk>(rows_of_head(x.d_q_THh, shape.heads, shape.head_dim, S, S, item.sequence, item.head), top, factor,
                      d_q);
    });
  }
};

// --- d_k and d_v ----------------------------------------------------------------------------------------------------

// Positions in the sequence: the queries [top, end) that see any of the keys at `top`, in tiles of kWalked. They end
// with the last tile whose first query sees one, or, where gradients of scores are stored, with the last one that
// begins in a tile of kOwned queries whose first query does.
struct QueryRange {
  int top, end;
  __device__ int tiles() const { return (end - top + kWalked - 1) / kWalked; }
  __device__ int last() const { return top + (tiles() - 1) * kWalked; }
};
__device__ QueryRange queries_of(const AttentionShape& shape, const int32_t* first_T, const Item& item, bool stored) {
  const int S = static_cast<int>(shape.seq_len), top = item.tile * kOwned;
  if (first_T == nullptr) return {top, S};
  int low = 0, high = (S - top + kWalked - 1) / kWalked;
  while (low + 1 < high) {  // low sees some, high does not
    const int middle = (low + high) / 2, query = top + middle * kWalked;
    const int of_tile = stored ? query / kOwned * kOwned : query;
    (first_T[item.sequence * shape.seq_len + of_tile] < top + kOwned ? low : high) = middle;
  }
  return {top, min(top + high * kWalked, S)};
}

// Of the walked queries: what the softmax's gradient needs, and the first key that each sees.
struct Statistics {
  float lse[kWalked], delta[kWalked];
  int first[kWalked];
};
constexpr unsigned kDeltaAt = offsetof(Statistics, delta), kFirstAt = offsetof(Statistics, first);

// Values of the thread's columns among 32.
constexpr int kColumns = 32;
struct ColumnValues {
  float value[kColumns / 8][2];

  // from: shared memory, the value of column sum_column(0).
  __device__ explicit ColumnValues(unsigned from) {
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) load_shared(from + j * 8 * 4, value[j][0], value[j][1]);
  }
  __device__ float of_sum(int i) const { return value[i / 4][i % 2]; }
};

struct KeyValuePass {
  static constexpr int kLoadRegisters = warpgroup_attention::kLoadRegisters,
                       kMultiplyRegisters = warpgroup_attention::kMultiplyRegisters;
  PassMaps maps;
  AttentionShape shape;
  Operands<bf16> x;
  Items items;
  ScoreGradients stored;

  template <int kQk, int kV>
  using Memory = PassMemory<kQk, kV, 1, kWalkedStages * sizeof(Statistics)>;

  template <class Memory>
  __device__ void init(Memory at) const {
    at.owned.init(1, kReaders);
    at.walked.init(1 + 32, kReaders);  // box copies, and words that all lanes copy
  }

  template <class Memory>
  __device__ void load(Memory at) const {
    const Item item = items.find(static_cast<int>(blockIdx.x));
    const QueryRange queries = queries_of(shape, x.first_T, item, stored.first != nullptr);
    const int lane = lane_index(), group = static_cast<int>(shape.heads / shape.kv_heads),
              S = static_cast<int>(shape.seq_len);
    if (lane == 0) at.owned.copy(maps.owned_qk, maps.owned_v, item.sequence, item.head, queries.top);
#pragma unroll 1
    for (int query = queries.last(); query >= queries.top; query -= kWalked) {
#pragma unroll 1
      for (int head = item.head * group; head < (item.head + 1) * group; ++head) {
        const int64_t of_head = x.place(head, item.sequence), of_sequence = int64_t{item.sequence} * S;
        wait_for_phase(at.walked.read(), at.walked.parity ^ 1);
        if (lane == 0) at.walked.copy(maps.walked_qk, maps.walked_v, item.sequence, head, query);
        const unsigned to = at.first + at.walked.stage * static_cast<unsigned>(sizeof(Statistics)) + lane * 4;
#pragma unroll
        for (int i = 0; i < kWalked; i += 32) {
          const bool valid = query + lane + i < S;
          const int token = valid ? query + lane + i : 0;
          copy_word(to + i * 4, x.lse_HT + of_head + token, valid);
          copy_word(to + kDeltaAt + i * 4, x.delta_HT + of_head + token, valid);
          if (x.first_T != nullptr) copy_word(to + kFirstAt + i * 4, x.first_T + of_sequence + token, valid);
        }
        arrive_after_copies(at.walked.filled());
        at.walked.advance();
      }
    }
  }

  template <int kQk, int kV>
  __device__ void multiply(Memory<kQk, kV> at, int group) const {
    const Item item = items.find(static_cast<int>(blockIdx.x));
    const QueryRange queries = queries_of(shape, x.first_T, item, stored.first != nullptr);
    const float scale = shape.scale * kLog2OfE;
    const int S = static_cast<int>(shape.seq_len), heads = static_cast<int>(shape.heads / shape.kv_heads),
              top = queries.top + group * kWarpgroupRows;  // the warpgroup's first key
    wait_for_phase(at.owned.filled(), at.owned.parity);
    const uint64_t keys = at.owned.describe_qk(group * kWarpgroupRows),
                   values = at.owned.describe_v(group * kWarpgroupRows);

    float d_k[kQk / 2], d_v[kV / 2];
    set_to_zero(d_k);
    set_to_zero(d_v);
    RoundedWeights<kWalked> p, d_scores;
    HeldStage held;
    uint32_t* of_keys = nullptr;
    if (stored.first != nullptr) of_keys = stored.find(items.place_of_head(item) * heads, 0, top);
    int query = queries.last(), head = 0;
#pragma unroll 1
    while (query >= queries.top) {
      wait_for_phase(at.walked.filled(), at.walked.parity);
      // Of the thread's first column.
      const unsigned of = at.first + at.walked.stage * static_cast<unsigned>(sizeof(Statistics)) + sum_column(0) * 4;
      float scores[kWalked / 2];
      begin_products();
      start_dot_rows<kQk, kWalked>(keys, at.walked.describe_qk(0), scores);
      commit_products();
      wait_for_products<0>();
      keep_sums(scores);
      held.replace(at.walked.read());
#pragma unroll
      for (int begin = 0; begin < kWalked; begin += kColumns) {
        const ColumnValues lse(of + begin * 4);
#pragma unroll
        for (int i = 0; i < kColumns / 2; ++i) {
          float& score = scores[begin / 2 + i];
          score = exp2_quickly(scale * score - kLog2OfE * lse.of_sum(i));
        }
      }
      // Queries beyond the sequence are zeros, and need no mask. Their first key is zero, too.
      const bool hides = x.first_T != nullptr;
      const auto first_of = [&](int column) { return static_cast<int>(load_shared(of + kFirstAt + column * 4)); };
      if (query < top + kWarpgroupRows - 1 ||
          (hides && (query + kWalked > S || first_of(kWalked - 1 - sum_column(0)) > top)))
#pragma unroll
        for (int i = 0; i < kWalked / 2; ++i) {
          const int column = i / 4 * 8 + i % 2, key = top + sum_row(i / 2 % 2);
          const bool hidden = (key > query + column + sum_column(0)) | (hides && key < first_of(column));
          scores[i] = hidden ? 0.0f : scores[i];
        }
      p.round(scores);
      float d_p[kWalked / 2];
      begin_products();
      start_dot_rows<kV, kWalked>(values, at.walked.describe_v(0), d_p);
      commit_products();
      p.template start_product<kV>(at.walked.describe_v(0), d_v);
      commit_products();
      wait_for_products<0>();
      keep_sums(d_p);
#pragma unroll
      for (int begin = 0; begin < kWalked; begin += kColumns) {
        const ColumnValues delta(of + kDeltaAt + begin * 4);
#pragma unroll
        for (int i = 0; i < kColumns / 2; ++i) {
          float& d = d_p[begin / 2 + i];
          d = p.of_sum(begin / 2 + i) * (d - delta.of_sum(i));
        }
      }
      d_scores.round(d_p);
      if (of_keys != nullptr) stored.store(of_keys, head, query, S, d_scores);  // not while a product reads them, too
      begin_products();
      d_scores.template start_product<kQk>(at.walked.describe_qk(0), d_k);
      commit_products();
      at.walked.advance();
      if (++head == heads) {
        head = 0;
        query -= kWalked;
      }
    }
    wait_for_products<0>();
    keep_sums(d_k);
    keep_sums(d_v);
    const float scales[2] = {shape.scale, shape.scale}, ones[2] = {1.0f, 1.0f};
    store_sums<kQk>(rows_of_head(x.d_k_TGh, shape.kv_heads, shape.head_dim, S, S, item.sequence, item.head), top,
                    scales, d_k);
    store_sums<kV>(rows_of_head(x.d_v_TGh, shape.kv_heads, shape.value_dim, S, S, item.sequence, item.head), top, ones,
                   d_v);
  }
};

// --- Kernels --------------------------------------------------------------------------------------------------------

template <class Pass, int kQk, int kV>
__global__ void __launch_bounds__(kWarpgroupThreads, 1) attention_pass_kernel(const __grid_constant__ Pass pass) {
  typename Pass::template Memory<kQk, kV> at(shared_address(dynamic_shared_memory<std::byte>()));
  if (threadIdx.x == 0) pass.init(at);
  fence_barriers();
  __syncthreads();
  const int group = warpgroup_index();
  if (group == 0) {
    shrink_registers<Pass::kLoadRegisters>();
    if (threadIdx.x < 32) pass.load(at);
  } else {
    grow_registers<Pass::kMultiplyRegisters>();
    pass.template multiply<kQk, kV>(at, group - 1);
  }
}

// Blocks begin in the order of their numbers: the items with the most work first.
void launch_key_value_pass(Stream& stream, const AttentionShape& shape, const Operands<bf16>& x, const Items& items,
                           const ScoreGradients& stored) {
  const int64_t H = shape.heads, G = shape.kv_heads, h = shape.head_dim, v = shape.value_dim;
  const KeyValuePass pass{
      {describe_heads(shape, x.k_TGh, G, h, kOwned), describe_heads(shape, x.v_TGh, G, v, kOwned),
       describe_heads(shape, x.q_THh, H, h, kWalked), describe_heads(shape, x.d_o_THh, H, v, kWalked)},
      shape,
      x,
      items,
      stored};
  with_warpgroup_widths(shape, [&](auto qk, auto v_width) {
    constexpr int kQk = decltype(qk)::value, kV = decltype(v_width)::value;
    launch_warpgroups(stream, attention_pass_kernel<KeyValuePass, kQk, kV>, pass.items.count(),
                      KeyValuePass::Memory<kQk, kV>::kBytes, pass);
  });
}

template <int kQk, int kV, class Pass>
void launch_query_pass(Stream& stream, const Pass& pass) {
  launch_takers(stream, attention_pass_kernel<Pass, kQk, kV>, pass.items, pass.taken,
                Pass::template Memory<kQk, kV>::kBytes, pass);
}

// Both passes compute scores.
void launch_two_passes(Stream& stream, const AttentionShape& shape, const Operands<bf16>& x) {
  const int64_t H = shape.heads, G = shape.kv_heads, h = shape.head_dim, v = shape.value_dim;
  // The counter lies where the second pass stores d_k.
  const QueryPass query_pass{
      {describe_heads(shape, x.q_THh, H, h, kOwned), describe_heads(shape, x.d_o_THh, H, v, kOwned),
       describe_heads(shape, x.k_TGh, G, h, kWalked), describe_heads(shape, x.v_TGh, G, v, kWalked)},
      shape,
      x,
      items_of(shape, H, H),
      reinterpret_cast<int*>(x.d_k_TGh)};
  with_warpgroup_widths(shape, [&](auto qk, auto v_width) {
    launch_query_pass<decltype(qk)::value, decltype(v_width)::value>(stream, query_pass);
  });
  launch_key_value_pass(stream, shape, x, items_of(shape, G, shape.sequences * G), {});
}

// The pass of d_k and d_v of a part from these sequences and KV heads on, then that of d_q.
void launch_stored_passes(Stream& stream, const AttentionShape& shape, const Operands<bf16>& x, const Part& part,
                          int64_t sequence, int64_t kv_head, const ScoreGradients& stored, int* taken) {
  const auto group = static_cast<int>(shape.heads / shape.kv_heads);
  const Items of_keys{static_cast<int>(part.sequences),
                      static_cast<int>(part.kv_heads),
                      stored.tiles,
                      static_cast<int>(part.sequences * part.kv_heads),
                      static_cast<int>(sequence),
                      static_cast<int>(kv_head)};
  launch_key_value_pass(stream, shape, x, of_keys, stored);
  const Items of_queries{of_keys.sequences,
                         of_keys.heads * group,
                         static_cast<int>(ceil_div(stored.tiles, StoredQueryPass::kTilesOwned)),
                         of_keys.heads * group,
                         of_keys.first_sequence,
                         of_keys.first_head * group};
  const TensorMap keys = describe_heads(shape, x.k_TGh, shape.kv_heads, shape.head_dim, StoredQueryPass::kKeys);
  launch_query_pass<StoredQueryPass::kWidth, StoredQueryPass::kWidth>(
      stream, StoredQueryPass{keys, shape, x, stored, of_queries, taken});
}

}  // namespace

// With narrow heads products cost less than these bytes (measured on an H200).
Part choose_stored_part(Stream& stream, const AttentionShape& shape, int64_t scratch_bytes) {
  constexpr int64_t kForCounter = 64;
  if (std::max(shape.head_dim, shape.value_dim) <= StoredQueryPass::kWidth / 2) return {};
  const int64_t G = shape.kv_heads,
                bytes = shape.heads / G * ScoreGradients::words_of(ceil_div(shape.seq_len, kOwned)) * 4,
                fitting = (scratch_bytes - kForCounter) / bytes;  // KV heads
  if (fitting <= 0) return {};
  const auto equal_parts = [](int64_t n, int64_t at_most) { return ceil_div(n, ceil_div(n, std::min(n, at_most))); };
  AttentionShape part = shape;
  part.sequences = fitting < G ? 1 : equal_parts(shape.sequences, fitting / G);
  part.kv_heads = equal_parts(G, fitting);
  const bool all = part.sequences == shape.sequences && part.kv_heads == G;
  if (!all && !keys_occupy_processors(stream, part)) return {};
  return {part.sequences, part.kv_heads};
}

void attention_gradients_by_warpgroups(Stream& stream, const AttentionShape& shape, const Operands<bf16>& x,
                                       int64_t scratch_bytes) {
  const Part part = choose_stored_part(stream, shape, scratch_bytes);
  if (part.sequences == 0) return launch_two_passes(stream, shape, x);
  WorkspaceFrame frame(stream.workspace());
  const int64_t tiles = ceil_div(shape.seq_len, kOwned),
                heads = part.sequences * part.kv_heads * (shape.heads / shape.kv_heads);
  int* taken = frame.take<int>(1);
  const ScoreGradients stored{frame.take<uint32_t>(static_cast<size_t>(heads * ScoreGradients::words_of(tiles))),
                              static_cast<int>(tiles)};
  for (int64_t sequence = 0; sequence < shape.sequences; sequence += part.sequences)
    for (int64_t kv_head = 0; kv_head < shape.kv_heads; kv_head += part.kv_heads)
      launch_stored_passes(
          stream, shape, x,
          {std::min(part.sequences, shape.sequences - sequence), std::min(part.kv_heads, shape.kv_heads - kv_head)},
          sequence, kv_head, stored, taken);
}

}  // namespace mw::gpu
