// Causal attention by warpgroups, forward: a block owns 128 queries of one head and walks over the keys that they see,
// with a running softmax in base 2. Weights of the softmax stay in registers, where the product with the values takes
// them from; it runs beside the softmax of the next tile.
#include "ops/gpu/attention_wgmma.h"

#include "ops/gpu/attention_wgmma_tiles.h"

namespace mw::gpu {
namespace {

using namespace warpgroup_attention;

constexpr float kHidden = -std::numeric_limits<float>::infinity();
constexpr int kKeys = 128;  // walked at a time
constexpr int kStages = 2;  // of queries, of keys and of values

struct ForwardMaps {
  TensorMap q, k, v;
};

template <int kWidth, int kRows>
using Tiles = StageRing<kTileBytes<kWidth, kRows>, kStages>;

// Shared memory of a block: the queue, and three rings, whose tiles begin on borders of kAtomBytes.
template <int kQk, int kV>
struct Rings {
  Tiles<kQk, kOwned> queries;
  Tiles<kQk, kKeys> keys;
  Tiles<kV, kKeys> values;

  static constexpr unsigned kKeysAt = round_up_to_atom(Tiles<kQk, kOwned>::kBytes),
                            kValuesAt = kKeysAt + round_up_to_atom(Tiles<kQk, kKeys>::kBytes),
                            kBytes = kValuesAt + Tiles<kV, kKeys>::kBytes;
  __device__ explicit Rings(unsigned memory) : queries{memory}, keys{memory + kKeysAt}, values{memory + kValuesAt} {}
  __device__ void init() {
    queries.init(1, kReaders);
    keys.init(1, kReaders);
    values.init(1, kReaders);
  }
};

// Copies rows from `row` on to the next stage, when it is free. By all lanes of a warp.
template <int kWidth, int kRows>
__device__ void load(Tiles<kWidth, kRows>& ring, const TensorMap& map, int sequence, int head, int row) {
  wait_for_phase(ring.read(), ring.parity ^ 1);
  if (lane_index() == 0) {
    arrive_expecting(ring.filled(), ring.kStageBytes);
    copy_tile<kWidth, kRows>(ring.tile(), map, sequence, head, row, ring.filled());
  }
  ring.advance();
}

template <int kQk, int kV>
__device__ void load_tiles(const ForwardMaps& maps, const AttentionShape& shape, const int32_t* first_T,
                           const Items& items, int* taken, ItemQueue queue, Rings<kQk, kV> rings) {
  const int group = static_cast<int>(shape.heads / shape.kv_heads);
  for_each_item(items, taken, queue, [&](const Item& item) {
    const KeyRange range = keys_of<kKeys>(shape, first_T, items, item);
    load<kQk, kOwned>(rings.queries, maps.q, item.sequence, item.head, range.top);
    for (int key = range.begin; key < range.end; key += kKeys) {
      load<kQk, kKeys>(rings.keys, maps.k, item.sequence, item.head / group, key);
      load<kV, kKeys>(rings.values, maps.v, item.sequence, item.head / group, key);
    }
  });
}

// Of the thread's two rows: the largest score so far, and the sum of exponentials over the thread's own columns.
struct Running {
  float largest[2] = {kLowestScore, kLowestScore}, sum[2] = {0.0f, 0.0f};

  // Turns scores into 2^(scale * (score - largest)). shrink: what earlier outputs are to be multiplied by.
  template <int kCount>
  __device__ void step(float scale, float (&scores)[kCount], float (&shrink)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = largest[half];
#pragma unroll
      for (int i = 0; i < kCount; i += 4) top = fmaxf(top, fmaxf(scores[i + 2 * half], scores[i + 2 * half + 1]));
      top = largest_of_row(top);
      shrink[half] = exp2_quickly(scale * (largest[half] - top));
      largest[half] = top;
      const float shift = scale * top;
      float added = 0.0f;
#pragma unroll
      for (int i = 0; i < kCount; i += 4)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& score = scores[i + 2 * half + e];
          score = exp2_quickly(scale * score - shift);
          added += score;
        }
      sum[half] = sum[half] * shrink[half] + added;
    }
  }
};

template <int kQk, int kV>
__device__ void compute_outputs(const AttentionShape& shape, const int32_t* first_T, bf16* o_THh, float* lse_HT,
                                const Items& items, int* taken, ItemQueue queue, Rings<kQk, kV> rings, int group) {
  const float scale = shape.scale * kLog2OfE;
  const int S = static_cast<int>(shape.seq_len);
  for_each_item(items, taken, queue, [&](const Item& item) {
    const KeyRange range = keys_of<kKeys>(shape, first_T, items, item);
    const int top = range.top + group * kWarpgroupRows;
    const FirstKeys own(shape, first_T, item, top);
    auto &queries = rings.queries, &keys = rings.keys, &values = rings.values;

    Running running;
    float scores[kKeys / 2], out[kV / 2], shrink[2];
    set_to_zero(out);
    RoundedWeights<kKeys> weights;
    wait_for_phase(queries.filled(), queries.parity);
    const uint64_t own_rows = describe_tile_rows<kOwned>(queries.tile(), group * kWarpgroupRows);
    const auto start_scores = [&] {
      wait_for_phase(keys.filled(), keys.parity);
      begin_products();
      start_dot_rows<kQk, kKeys>(own_rows, describe_tile_rows<kKeys>(keys.tile(), 0), scores);
      commit_products();
    };
    const auto start_outputs = [&] {
      wait_for_phase(values.filled(), values.parity);
      begin_products();
      weights.template start_product<kV>(describe_tile_rows<kKeys>(values.tile(), 0), out);
      commit_products();
    };
    const auto soften = [&](int key) {
      keep_sums(scores);
      release<false>(keys.read());
      keys.advance();
      if (key + kKeys - 1 > top || key < own.last)
#pragma unroll
        for (int i = 0; i < kKeys / 2; ++i) {
          const int of = key + i / 4 * 8 + sum_column(i % 2), half = i / 2 % 2;
          const bool hidden = (of > top + sum_row(half)) | (of < own.key[half]);
          scores[i] = hidden ? kHidden : scores[i];
        }
      running.step(scale, scores, shrink);
    };
    const auto finish_outputs = [&] {
      wait_for_products<0>();
      keep_sums(out);
      release<false>(values.read());
      values.advance();
    };

    start_scores();
    wait_for_products<0>();
    soften(range.begin);
    weights.round(scores);
#pragma unroll 1
    for (int key = range.begin + kKeys; key < range.end; key += kKeys) {
      start_scores();
      start_outputs();
      wait_for_products<1>();
      soften(key);
      finish_outputs();
#pragma unroll
      for (int i = 0; i < kV / 2; ++i) out[i] *= shrink[i / 2 % 2];
      weights.round(scores);
    }
    release<false>(queries.read());
    queries.advance();
    start_outputs();
    finish_outputs();

    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = sum_of_row(running.sum[half]);
      factor[half] = 1.0f / sum;
      const int query = top + sum_row(half);
      if (lane_index() % 4 == 0 && query < S)
        lse_HT[(item.head * shape.sequences + item.sequence) * S + query] =
            running.largest[half] * shape.scale + logf(sum);
    }
    store_sums<kV>(rows_of_head(o_THh, shape.heads, shape.value_dim, S, S, item.sequence, item.head), top, factor, out);
  });
}

template <int kQk, int kV>
__global__ void __launch_bounds__(kWarpgroupThreads, 1)
    attention_wgmma_kernel(const __grid_constant__ ForwardMaps maps, AttentionShape shape, bf16* o_THh, float* lse_HT,
                           const int32_t* first_T, Items items, int* taken) {
  ItemQueue queue{shared_address(dynamic_shared_memory<std::byte>())};
  Rings<kQk, kV> rings(round_up_to_atom(queue.memory + ItemQueue::kBytes));
  if (threadIdx.x == 0) {
    rings.init();
    queue.init();
  }
  fence_barriers();
  __syncthreads();
  const int group = warpgroup_index();
  if (group == 0) {
    shrink_registers<kLoadRegisters>();
    if (threadIdx.x < 32) load_tiles<kQk, kV>(maps, shape, first_T, items, taken, queue, rings);
  } else {
    grow_registers<kMultiplyRegisters>();
    compute_outputs<kQk, kV>(shape, first_T, o_THh, lse_HT, items, taken, queue, rings, group - 1);
  }
}

}  // namespace

bool warpgroups_take(Stream& stream, const AttentionShape& shape) {
  return shape.scale > 0 && shape.past == 0 && std::max(shape.head_dim, shape.value_dim) <= 128 &&
         shape.head_dim % 8 == 0 && shape.value_dim % 8 == 0 && find_processors(stream).blocks > 0;
}

// Measured on an H200. A block owns keys of a KV head, for all of its query heads: with few of them, some processors
// idle. Kernels that compute scores twice are faster than the library's deterministic ones where heads share keys, and
// than no others. Those that store gradients of scores are faster than either where heads share keys, and otherwise,
// from 2048 tokens on, than the deterministic ones.
bool warpgroups_lead(Stream& stream, const AttentionShape& shape, int64_t scratch_bytes) {
  constexpr int64_t kLength = 1024;
  if (!warpgroups_take(stream, shape) || shape.seq_len < kLength || !keys_occupy_processors(stream, shape))
    return false;
  const bool stores = choose_stored_part(stream, shape, scratch_bytes).sequences > 0,
             groups = shape.heads > shape.kv_heads;
  return stream.is_deterministic() ? groups || (stores && shape.seq_len >= 2 * kLength) : groups && stores;
}

bool keys_occupy_processors(Stream& stream, const AttentionShape& shape) {
  const int64_t items = shape.sequences * shape.kv_heads * ceil_div(shape.seq_len, kOwned);
  return 2 * items >= 3 * find_processors(stream).blocks;
}

void attention_by_warpgroups(Stream& stream, const AttentionShape& shape, TensorView q_THh, TensorView k_TGh,
                             TensorView v_TGh, TensorView o_THh, TensorView lse_HT, TensorView first_T) {
  const int64_t H = shape.heads, G = shape.kv_heads, h = shape.head_dim, v = shape.value_dim;
  const ForwardMaps maps{describe_heads(shape, q_THh.as<bf16>(), H, h, kOwned),
                         describe_heads(shape, k_TGh.as<bf16>(), G, h, kKeys),
                         describe_heads(shape, v_TGh.as<bf16>(), G, v, kKeys)};
  WorkspaceFrame frame(stream.workspace());
  int* taken = frame.take<int>(1);
  const Items items = items_of(shape, H, H);
  with_warpgroup_widths(shape, [&](auto qk, auto v_width) {
    constexpr int kQk = decltype(qk)::value, kV = decltype(v_width)::value;
    launch_takers(stream, attention_wgmma_kernel<kQk, kV>, items, taken,
                  ItemQueue::kBytes + kAtomBytes + Rings<kQk, kV>::kBytes, maps, shape, o_THh.as<bf16>(),
                  lse_HT.as<float>(), shape.documents ? first_T.as<int32_t>() : nullptr, items, taken);
  });
}

}  // namespace mw::gpu
