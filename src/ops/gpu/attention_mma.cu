// Causal attention on tensor cores, forward: a block owns 64 queries of one head and walks over the keys that they see,
// with a running softmax in base 2. Weights of the softmax stay in registers, where the product with the values takes
// them from.
#include "ops/gpu/attention_mma.h"

#include "base/library_attention.h"
#include "ops/gpu/attention_mma_tiles.h"

namespace mw::gpu {
namespace {

using namespace attention_detail;

constexpr float kHidden = -std::numeric_limits<float>::infinity();

// Of the thread's two rows: the largest score so far, and the sum of exponentials over the thread's own columns.
struct Running {
  float largest[2] = {kLowestScore, kLowestScore}, sum[2] = {0.0f, 0.0f};
};

// Turns scores into 2^(scale * (score - largest)), and scales earlier outputs down to a largest score that grew.
template <int N, int M>
__device__ void softmax_step(float scale, Running& running, float (&scores)[N][4], float (&out)[M][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = running.largest[half];
#pragma unroll
    for (int n = 0; n < N; ++n) largest = fmaxf(largest, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
    largest = largest_of_row(largest);
    const float shrink = exp2_quickly(scale * (running.largest[half] - largest)), shift = scale * largest;
    running.largest[half] = largest;
    running.sum[half] *= shrink;
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& score = scores[n][2 * half + e];
        score = exp2_quickly(scale * score - shift);
        running.sum[half] += score;
      }
#pragma unroll
    for (int m = 0; m < M; ++m) {
      out[m][2 * half] *= shrink;
      out[m][2 * half + 1] *= shrink;
    }
  }
}

template <int kQk, int kV>
constexpr unsigned kForwardBytes = kTile* kRowBytes<kQk> + kStages* kTwoTiles<kQk, kV, kWalked>;

template <int kQk, int kV>
__global__ void __launch_bounds__(kMmaThreads)
    attention_mma_kernel(AttentionShape shape, int64_t tiles, const bf16* q_THh, const bf16* k_TGh, const bf16* v_TGh,
                         int64_t kv_stride, bf16* o_THh, float* lse_HT, const int32_t* first_T) {
  const unsigned query_tile = shared_address(dynamic_shared_memory<bf16>()),
                 stages = query_tile + kTile * kRowBytes<kQk>;
  const int64_t H = shape.heads, G = shape.kv_heads, S = shape.seq_len, h = shape.head_dim, v = shape.value_dim;
  const Block block = this_block(1, tiles, H, 0);
  const int begin = (static_cast<int>(tiles) - 1 - block.tile) * kTile;  // the longest first
  const int64_t sequence = block.sequence, kv_head = block.head / (H / G), tokens = shape.past + S;
  const WalkedKeys<kQk, kV> walked{
      TileCopies<kQk, kWalked>(rows_of_head(k_TGh, G, h, tokens, kv_stride, sequence, kv_head)),
      TileCopies<kV, kWalked>(rows_of_head(v_TGh, G, v, tokens, kv_stride, sequence, kv_head)), stages,
      first_key(first_T, shape, sequence, begin) / kWalked * kWalked,
      static_cast<int>(shape.past) + min(begin + kTile, static_cast<int>(S))};
  TileCopies<kQk, kTile>(rows_of_head(q_THh, H, h, S, S, sequence, block.head)).start(begin, query_tile);
  walked.load(walked.begin);
  const OwnQueries own(first_T, shape, sequence, begin);
  wait_for_copies<0>();
  __syncthreads();
  const InRegisters<kQk> owned(query_tile);

  Running running;
  float out[kV / 8][4];
  set_to_zero(out);
  const float scale = shape.scale * kLog2OfE;
  for (int key = walked.begin; key < walked.end; key += kWalked) {
    wait_for_copies<0>();
    __syncthreads();  // the tile has come, and the one before has been read
    walked.load(key + kWalked);
    float scores[kWalked / 8][4];
    dot_rows<kQk>(owned, walked.keys_at(key), scores);
    if (!own.see_all(key)) {
#pragma unroll
      for (int n = 0; n < kWalked / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (!own.see(i / 2, key + 8 * n + sum_column(i % 2))) scores[n][i] = kHidden;
    }
    softmax_step(scale, running, scores, out);
    add_product<kV>(scores, walked.values_at(key), out);
  }

  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = sum_of_row(running.sum[half]);
    factor[half] = 1.0f / sum;
    const int query = begin + sum_row(half);
    if (lane_index() % 4 == 0 && query < S)
      lse_HT[(block.head * shape.sequences + sequence) * S + query] = running.largest[half] * shape.scale + logf(sum);
  }
  store_sums<kV>(rows_of_head(o_THh, H, v, S, S, sequence, block.head), begin, factor, out);
}

}  // namespace

bool tensor_cores_take(const AttentionShape& shape) {
  return shape.scale > 0 && library_attention::tensor_cores_take(shape.head_dim, shape.value_dim);
}

void attention_on_tensor_cores(Stream& stream, const AttentionShape& shape, TensorView q_THh, TensorView k_TGh,
                               TensorView v_TGh, TensorView o_THh, TensorView lse_HT, TensorView first_T) {
  with_widths(shape, [&](auto qk, auto v) {
    constexpr int kQk = decltype(qk)::value, kV = decltype(v)::value;
    const auto kernel = attention_mma_kernel<kQk, kV>;
    const size_t bytes = kForwardBytes<kQk, kV>;
    check(allow_shared_bytes(reinterpret_cast<const void*>(kernel), bytes), "asking for shared memory");
    launch(stream, kernel, shape.sequences * shape.heads * tiles_of(shape), kMmaThreads, bytes, shape, tiles_of(shape),
           q_THh.as<bf16>(), k_TGh.as<bf16>(), v_TGh.as<bf16>(), k_TGh.dim(0) / shape.sequences, o_THh.as<bf16>(),
           lse_HT.as<float>(), shape.documents ? first_T.as<int32_t>() : nullptr);
  });
}

}  // namespace mw::gpu
