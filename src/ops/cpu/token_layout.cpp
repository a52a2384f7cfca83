#include "ops/token_layout.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "ops/cpu/loops.h"

namespace mw::cpu {
namespace {

// The sort counts per block of tokens, so that blocks can be placed side by side.
constexpr int64_t kMaxBlocks = 64;
constexpr int64_t kMinTokensPerBlock = 64;

int64_t tokens_per_block(int64_t tokens) {
  return std::max(kMinTokensPerBlock, (tokens + kMaxBlocks - 1) / kMaxBlocks);
}

int64_t blocks_of(int64_t tokens) {
  const int64_t block = tokens_per_block(tokens);
  return (tokens + block - 1) / block;
}

// Ascending order of the result: descending weight, then ascending choice. A total order on all bit patterns, NaNs too.
uint64_t make_rank_key(float weight, int64_t choice) {
  const auto bits = std::bit_cast<uint32_t>(weight + 0.0f);  // -0 becomes +0
  const uint32_t ascending = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(~ascending) << 32 | static_cast<uint64_t>(choice);
}

// Marks the choices of one domain [begin, end) that exceed their expert's capacity with row_of = -1.
// keys: one per choice of the domain; starts: E + 1.
void drop_beyond_capacity(Stream& stream, const int32_t* ids, const float* weights, int64_t begin, int64_t end,
                          int64_t capacity, int64_t E, uint64_t* keys, int32_t* starts, int32_t* row_of) {
  // Counting sort of the domain's choices by expert: starts[e] is expert e's begin, and its end once all are placed.
  std::fill_n(starts, E + 1, 0);
  for (int64_t i = begin; i < end; ++i) ++starts[ids[i] + 1];
  for (int64_t e = 0; e < E; ++e) starts[e + 1] += starts[e];
  for (int64_t i = begin; i < end; ++i) keys[starts[ids[i]]++] = make_rank_key(weights[i], i);
  const int64_t block = std::max<int64_t>(1, E / 64);
  for_blocks(stream, E, block, [=](int64_t first, int64_t last) {
    for (int64_t e = first; e < last; ++e) {
      uint64_t* from = keys + (e == 0 ? 0 : starts[e - 1]);
      uint64_t* to = keys + starts[e];
      if (to - from <= capacity) continue;
      std::nth_element(from, from + capacity, to);
      for (uint64_t* key = from + capacity; key != to; ++key) row_of[*key & 0xffffffffu] = -1;
    }
  });
}

// expert_at[position] for all positions. Errors: internal, when the positions are no permutation.
void invert(std::span<const int32_t> position_of_expert, int32_t* expert_at) {
  const int64_t E = std::ssize(position_of_expert);
  std::fill_n(expert_at, E, -1);
  for (int64_t e = 0; e < E; ++e) {
    const int64_t position = position_of_expert[static_cast<size_t>(e)];
    MW_CHECK(position >= 0 && position < E && expert_at[position] < 0, "position {} of expert {}", position, e);
    expert_at[position] = static_cast<int32_t>(e);
  }
}

}  // namespace

void build_token_layout(Stream& stream, TensorView ids_TK, TensorView weights_TK, TensorView ranking_TK,
                        std::span<const int32_t> position_of_expert, CapacityRule rule, TokenLayout& layout) {
  const int64_t T = layout.tokens, K = layout.top_k, E = layout.experts, choices = T * K;
  const int32_t* ids = ids_TK.as<int32_t>();
  const float *weights = weights_TK.as<float>(),
              *ranking = ranking_TK.data == nullptr ? weights : ranking_TK.as<float>();
  int32_t* token_ids = layout.token_ids_R.as<int32_t>();
  int32_t* expert_ids = layout.expert_ids_R.as<int32_t>();
  float* sorted_weights = layout.weights_R.as<float>();
  int32_t* row_of = layout.row_of_TK.as<int32_t>();
  int64_t* rows_per_expert = layout.rows_per_expert_E.as<int64_t>();
  for (int64_t i = 0; i < choices; ++i)
    MW_CHECK(ids[i] >= 0 && ids[i] < E, "expert id {} of {} for choice {}", ids[i], E, i);

  WorkspaceFrame frame(stream.workspace());
  auto* expert_at = frame.take<int32_t>(static_cast<size_t>(E));
  invert(position_of_expert, expert_at);

  std::fill_n(row_of, choices, 0);
  if (rule.capacity > 0 && choices > 0) {
    WorkspaceFrame drop_frame(stream.workspace());
    auto* keys = drop_frame.take<uint64_t>(static_cast<size_t>(choices));
    auto* starts = drop_frame.take<int32_t>(static_cast<size_t>(E + 1));
    for (int64_t t = 0; t < T; t += rule.domain_tokens)
      drop_beyond_capacity(stream, ids, ranking, t * K, std::min(T, t + rule.domain_tokens) * K, rule.capacity, E, keys,
                           starts, row_of);
  }

  // Stable counting sort: counts per (block of tokens, expert) become each block's first row for the expert.
  const int64_t block = tokens_per_block(T), blocks = blocks_of(T);
  auto* next_bE = frame.take<int32_t>(static_cast<size_t>(blocks * E));
  for_blocks(stream, T, block, [=](int64_t begin, int64_t end) {
    int32_t* counts = next_bE + begin / block * E;
    std::fill_n(counts, E, 0);
    for (int64_t i = begin * K; i < end * K; ++i) counts[ids[i]] += row_of[i] < 0 ? 0 : 1;
  });
  int32_t row = 0;
  for (int64_t position = 0; position < E; ++position) {
    const int32_t e = expert_at[position], first = row;
    for (int64_t b = 0; b < blocks; ++b) {
      const int32_t count = next_bE[b * E + e];
      next_bE[b * E + e] = row;
      row += count;
    }
    rows_per_expert[e] = row - first;
  }
  layout.rows = row;
  layout.dropped = choices - row;

  for_blocks(stream, T, block, [=](int64_t begin, int64_t end) {
    int32_t* next = next_bE + begin / block * E;
    for (int64_t i = begin * K; i < end * K; ++i) {
      if (row_of[i] < 0) continue;
      const int32_t r = next[ids[i]]++;
      row_of[i] = r;
      token_ids[r] = static_cast<int32_t>(i / K);
      expert_ids[r] = ids[i];
      sorted_weights[r] = weights[i];
    }
  });
}

int64_t token_layout_workspace_bytes(int64_t tokens, int64_t top_k, int64_t experts) {
  const int64_t blocks = std::min(kMaxBlocks, (tokens + kMinTokensPerBlock - 1) / kMinTokensPerBlock);
  const int64_t words = (blocks + 2) * experts + 1;
  return words * static_cast<int64_t>(sizeof(int32_t)) + tokens * top_k * static_cast<int64_t>(sizeof(uint64_t)) +
         4 * 64;
}

void gather_rows(Stream& stream, TensorView x_TD, const int32_t* rows, int64_t count, TensorView out_RD) {
  const int64_t row_bytes = x_TD.cols() * size_of(x_TD.dtype);
  const auto width = static_cast<size_t>(row_bytes);
  const auto* from = static_cast<const std::byte*>(x_TD.data);
  auto* to = static_cast<std::byte*>(out_RD.data);
  if (row_bytes == 0) return;
  for_blocks(stream, count, rows_per_block(x_TD.cols()), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      if (rows[r] < 0) std::memset(to + r * row_bytes, 0, width);
      else std::memcpy(to + r * row_bytes, from + rows[r] * row_bytes, width);
    }
  });
}

void combine_rows(Stream& stream, TensorView y_RD, TensorView row_of_TK, TensorView weights_TK, TensorView base_TD,
                  TensorView out_TD) {
  const int64_t T = out_TD.dim(0), D = out_TD.dim(1), K = row_of_TK.dim(1);
  const int32_t* row_of = row_of_TK.as<int32_t>();
  const float* weights = weights_TK.data == nullptr ? nullptr : weights_TK.as<float>();
  constexpr int64_t kWidth = 512;  // elements summed at a time, in fp32
  with_float_type(out_TD.dtype, [&](auto type) {
    using Element = decltype(type);
    const Element* y = y_RD.as<Element>();
    const Element* base = base_TD.data == nullptr ? nullptr : base_TD.as<Element>();
    Element* out = out_TD.as<Element>();
    for_blocks(stream, T, rows_per_block(D), [=](int64_t begin, int64_t end) {
      std::array<float, kWidth> sums;
      float* sum = sums.data();
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t d = 0; d < D; d += kWidth) {
          const int64_t width = std::min(kWidth, D - d);
          if (base == nullptr) {
            std::fill_n(sum, width, 0.0f);
          } else {
            const Element* from = base + t * D + d;
#pragma omp simd
            for (int64_t i = 0; i < width; ++i) sum[i] = to_float(from[i]);
          }
          for (int64_t k = t * K; k < (t + 1) * K; ++k) {
            if (row_of[k] < 0) continue;
            const Element* from = y + row_of[k] * D + d;
            const float weight = weights == nullptr ? 1.0f : weights[k];
#pragma omp simd
            for (int64_t i = 0; i < width; ++i) sum[i] += weight * to_float(from[i]);
          }
          Element* to = out + t * D + d;
#pragma omp simd
          for (int64_t i = 0; i < width; ++i) to[i] = from_float<Element>(sum[i]);
        }
      }
    });
  });
}

}  // namespace mw::cpu
