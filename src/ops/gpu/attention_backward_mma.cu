// Causal attention on tensor cores, backward, in two passes without atomics:
//   d_q: a block owns 64 queries of one head and walks over the keys that they see;
//   d_k and d_v: a block owns 64 keys of one KV head and walks, head by head of the group, over the queries that see
//   them. Scores are computed as [keys, queries], so that probabilities and their gradients stay in registers.
// Both recompute probabilities from lse.
#include "ops/gpu/attention_mma.h"
#include "ops/gpu/attention_mma_tiles.h"

namespace mw::gpu {
namespace {

using namespace attention_detail;

template <int kQk, int kV>
constexpr unsigned kQueryBytes = kTwoTiles<kQk, kV, kTile> + kStages* kTwoTiles<kQk, kV, kWalked>;

template <int kQk, int kV>
__global__ void __launch_bounds__(kMmaThreads)
    d_query_mma_kernel(AttentionShape shape, int64_t tiles, Operands<bf16> x) {
  const unsigned query_tile = shared_address(dynamic_shared_memory<bf16>()),
                 d_out_tile = query_tile + kTile * kRowBytes<kQk>, stages = query_tile + kTwoTiles<kQk, kV, kTile>;
  const int64_t H = shape.heads, G = shape.kv_heads, S = shape.seq_len, h = shape.head_dim, v = shape.value_dim;
  const Block block = this_block(1, tiles, H, 0);
  const int begin = (static_cast<int>(tiles) - 1 - block.tile) * kTile;  // the longest first
  const int64_t sequence = block.sequence, kv_head = block.head / (H / G);
  const WalkedKeys<kQk, kV> walked{TileCopies<kQk, kWalked>(rows_of_head(x.k_TGh, G, h, S, S, sequence, kv_head)),
                                   TileCopies<kV, kWalked>(rows_of_head(x.v_TGh, G, v, S, S, sequence, kv_head)),
                                   stages, first_key(x.first_T, shape, sequence, begin) / kWalked * kWalked,
                                   min(begin + kTile, static_cast<int>(S))};
  TileCopies<kQk, kTile>(rows_of_head(x.q_THh, H, h, S, S, sequence, block.head)).start(begin, query_tile);
  TileCopies<kV, kTile>(rows_of_head(x.d_o_THh, H, v, S, S, sequence, block.head)).start(begin, d_out_tile);
  walked.load(walked.begin);
  const OwnQueries own(x.first_T, shape, sequence, begin);
  float lse[2], delta[2];  // lse in base 2; queries beyond the sequence get probability zero
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = begin + sum_row(half);
    const int64_t at = x.place(block.head, sequence) + query;
    lse[half] = query < S ? x.lse_HT[at] * kLog2OfE : std::numeric_limits<float>::infinity();
    delta[half] = query < S ? x.delta_HT[at] : 0.0f;
  }
  wait_for_copies<0>();
  __syncthreads();
  const InRegisters<kQk> own_queries(query_tile);
  const InRegisters<kV> own_d_outs(d_out_tile);

  float d_q[kQk / 8][4];
  set_to_zero(d_q);
  const float scale = shape.scale * kLog2OfE;
  for (int key = walked.begin; key < walked.end; key += kWalked) {
    wait_for_copies<0>();
    __syncthreads();  // the tile has come, and the one before has been read
    walked.load(key + kWalked);
    float d_scores[kWalked / 8][4], d_p[kWalked / 8][4];
    dot_rows<kQk, kV>(own_queries, walked.keys_at(key), d_scores, own_d_outs, walked.values_at(key), d_p);
    const auto differentiate = [&](auto all) {
#pragma unroll
      for (int n = 0; n < kWalked / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float p = exp2_quickly(scale * d_scores[n][i] - lse[i / 2]), d = p * (d_p[n][i] - delta[i / 2]);
          d_scores[n][i] = all.value || own.see(i / 2, key + 8 * n + sum_column(i % 2)) ? d : 0.0f;
        }
    };
    if (own.see_all(key)) differentiate(std::true_type());
    else differentiate(std::false_type());
    add_product<kQk>(d_scores, walked.keys_at(key), d_q);
  }
  const float factor[2] = {shape.scale, shape.scale};
  store_sums<kQk>(rows_of_head(x.d_q_THh, H, h, S, S, sequence, block.head), begin, factor, d_q);
}

// What the softmax's gradient needs of the walked queries: lse, delta, and the first key that each sees.
struct Statistics {
  float lse[kWalked], delta[kWalked];
  int first[kWalked];
};

template <int kQk, int kV>
constexpr unsigned kKeyBytes = kTwoTiles<kQk, kV, kTile> + kStages*(kTwoTiles<kQk, kV, kWalked> + sizeof(Statistics));

// The tiles of queries of a head that see any of the keys [begin, begin + kTile): from the keys' own position on, up to
// the first tile whose first query sees later keys alone.
__device__ int count_query_tiles(const int32_t* first_T, const AttentionShape& shape, int64_t sequence, int begin) {
  const int tile = begin / kWalked;
  int low = tile, high = static_cast<int>((shape.seq_len + kWalked - 1) / kWalked);
  if (first_T == nullptr) return high - tile;
  while (low + 1 < high) {  // low sees some, high does not
    const int middle = (low + high) / 2;
    (first_T[sequence * shape.seq_len + middle * kWalked] < begin + kTile ? low : high) = middle;
  }
  return low + 1 - tile;
}

template <int kQk, int kV>
__global__ void __launch_bounds__(kMmaThreads, 2)
    d_key_value_mma_kernel(AttentionShape shape, int64_t tiles, Operands<bf16> x) {
  std::byte* memory = dynamic_shared_memory<std::byte>();
  const unsigned key_tile = shared_address(memory), value_tile = key_tile + kTile * kRowBytes<kQk>,
                 stages = key_tile + kTwoTiles<kQk, kV, kTile>;
  auto* statistics =
      reinterpret_cast<Statistics*>(memory + kTwoTiles<kQk, kV, kTile> + kStages * kTwoTiles<kQk, kV, kWalked>);
  const int64_t H = shape.heads, G = shape.kv_heads, S = shape.seq_len, h = shape.head_dim, v = shape.value_dim;
  const Block block = this_block(1, tiles, G, 0);  // the first tiles are the longest
  const int begin = block.tile * kTile, length = static_cast<int>(S);
  const int64_t sequence = block.sequence, kv_head = block.head, first_head = kv_head * (H / G);
  const int end = begin + count_query_tiles(x.first_T, shape, sequence, begin) * kWalked;
  const TileCopies<kQk, kWalked> queries(rows_of_head(x.q_THh, H, h, S, S, sequence, first_head));
  const TileCopies<kV, kWalked> d_outs(rows_of_head(x.d_o_THh, H, v, S, S, sequence, first_head));

  const auto load = [&](int head, int query, int stage) {  // head: of the group
    if (head < H / G) {
      const unsigned to = stages + stage * kTwoTiles<kQk, kV, kWalked>;
      queries.start(query, to, head * h);
      d_outs.start(query, to + kWalked * kRowBytes<kQk>, head * v);
      const int i = thread_index();
      if (i < kWalked) {
        Statistics& of = statistics[stage];
        const bool valid = query + i < length;
        const int64_t token = valid ? query + i : 0, at = x.place(first_head + head, sequence) + token;
        copy_word(shared_address(&of.lse[i]), x.lse_HT + at, valid);
        copy_word(shared_address(&of.delta[i]), x.delta_HT + at, valid);
        if (x.first_T != nullptr) copy_word(shared_address(&of.first[i]), x.first_T + sequence * S + token, valid);
      }
    }
    commit_copies();
  };
  TileCopies<kQk, kTile>(rows_of_head(x.k_TGh, G, h, S, S, sequence, kv_head)).start(begin, key_tile);
  TileCopies<kV, kTile>(rows_of_head(x.v_TGh, G, v, S, S, sequence, kv_head)).start(begin, value_tile);
  load(0, begin, 0);

  float d_k[kQk / 8][4], d_v[kV / 8][4];
  set_to_zero(d_k);
  set_to_zero(d_v);
  const float scale = shape.scale * kLog2OfE;
  const int key = begin + warp_row();  // the warp's first
  const bool has_first = x.first_T != nullptr;
  int stage = 0;
  for (int head = 0, query = begin; head < H / G;) {
    wait_for_copies<0>();
    __syncthreads();  // the tile has come, and the one before has been read
    const bool is_last = query + kWalked >= end;
    const int next_head = head + is_last, next_query = is_last ? begin : query + kWalked;
    load(next_head, next_query, 1 - stage);

    const unsigned query_tile = stages + stage * kTwoTiles<kQk, kV, kWalked>,
                   d_out_tile = query_tile + kWalked * kRowBytes<kQk>;
    const Statistics& of = statistics[stage];
    float p[kWalked / 8][4], d_p[kWalked / 8][4];
    dot_rows<kQk, kV>(InMemory<kQk>{key_tile}, query_tile, p, InMemory<kV>{value_tile}, d_out_tile, d_p);
    const auto differentiate = [&](auto all) {
#pragma unroll
      for (int n = 0; n < kWalked / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = 8 * n + sum_column(i % 2), own = begin + sum_row(i / 2);
          const float weight = exp2_quickly(scale * p[n][i] - of.lse[column] * kLog2OfE),
                      d = weight * (d_p[n][i] - of.delta[column]);
          const bool seen = all.value || (own <= query + column && query + column < length &&
                                          (!has_first || own >= of.first[column]));
          p[n][i] = seen ? weight : 0.0f;
          d_p[n][i] = seen ? d : 0.0f;
        }
    };
    if (query >= key + kWarpRows - 1 && query + kWalked <= length && (!has_first || of.first[kWalked - 1] <= key))
      differentiate(std::true_type());
    else differentiate(std::false_type());
    add_product<kV>(p, d_out_tile, d_v);
    add_product<kQk>(d_p, query_tile, d_k);
    head = next_head;
    query = next_query;
    stage = 1 - stage;
  }
  const float scales[2] = {shape.scale, shape.scale}, ones[2] = {1.0f, 1.0f};
  store_sums<kQk>(rows_of_head(x.d_k_TGh, G, h, S, S, sequence, kv_head), begin, scales, d_k);
  store_sums<kV>(rows_of_head(x.d_v_TGh, G, v, S, S, sequence, kv_head), begin, ones, d_v);
}

template <class Kernel>
void launch_tiles(Stream& stream, Kernel kernel, const AttentionShape& shape, int64_t heads, size_t bytes,
                  const Operands<bf16>& x) {
  check(allow_shared_bytes(reinterpret_cast<const void*>(kernel), bytes), "asking for shared memory");
  launch(stream, kernel, shape.sequences * heads * tiles_of(shape), kMmaThreads, bytes, shape, tiles_of(shape), x);
}

}  // namespace

void attention_gradients_on_tensor_cores(Stream& stream, const AttentionShape& shape, const Operands<bf16>& x) {
  with_widths(shape, [&](auto qk, auto v) {
    constexpr int kQk = decltype(qk)::value, kV = decltype(v)::value;
    launch_tiles(stream, d_query_mma_kernel<kQk, kV>, shape, shape.heads, kQueryBytes<kQk, kV>, x);
    launch_tiles(stream, d_key_value_mma_kernel<kQk, kV>, shape, shape.kv_heads, kKeyBytes<kQk, kV>, x);
  });
}

}  // namespace mw::gpu
