// Shared by the forward and backward pass of CPU attention: tile sizes and the loading of tiles.
//
// Scores are stored transposed, s_kq[key][query]. The statistics of a query are then in one vector lane, the softmax
// needs no sums across lanes, and only the queries must be transposed, once per query tile.
#pragma once

#include <algorithm>
#include <limits>

#include "base/dtype.h"
#include "core/tensor.h"
#include "ops/attention.h"
#include "ops/cpu/tile_product.h"

namespace mw::cpu::attention_detail {

constexpr int64_t kQueries = 64;  // queries per tile
constexpr int64_t kKeys = 64;     // keys per tile
// A block of kRows rows of scores begins within one vector of queries; masking relies on it.
static_assert(kQueries % tile::kLanes == 0 && kKeys % tile::kLanes == 0 && tile::kLanes % tile::kRows == 0);

inline int64_t query_tiles(const AttentionShape& shape) { return (shape.seq_len + kQueries - 1) / kQueries; }

// Work items that threads share: (sequence, head, query tile) forward; (sequence, KV head) backward, so that the sums
// over queries and over the heads of a group stay in one thread.
inline int64_t forward_items(const AttentionShape& shape) { return shape.sequences * shape.heads * query_tiles(shape); }
inline int64_t backward_items(const AttentionShape& shape) { return shape.sequences * shape.kv_heads; }
inline int threads_used(int64_t items, int threads) { return static_cast<int>(std::min<int64_t>(items, threads)); }

// Scratch of one thread of the backward pass.
int64_t backward_scratch_floats(const AttentionShape& shape);

// Floats in a tile row of `width` values, rounded up to whole vectors.
inline int64_t padded(int64_t width) { return tile::round_up(width, tile::kLanes); }

// dst[r] = scale * src[r] for r < rows in fp32, zero in the columns up to padded(width) and in rows up to padded_rows.
template <class T>
void load_tile(const T* src, int64_t src_row, int64_t rows, int64_t padded_rows, int64_t width, float scale,
               float* dst) {
  const int64_t dst_row = padded(width);
  for (int64_t r = 0; r < rows; ++r, src += src_row, dst += dst_row) {
    for (int64_t d = 0; d < width; ++d) dst[d] = scale * to_float(src[d]);
    std::fill(dst + width, dst + dst_row, 0.0f);
  }
  std::fill(dst, dst + (padded_rows - rows) * dst_row, 0.0f);
}

// The first key visible to each query of a tile, by position in the sequence; null: key 0.
struct FirstKeys {
  const int32_t* of_query;
  int64_t queries;

  // Begin of the first tile of keys that the queries see.
  int64_t first_tile() const { return of_query == nullptr ? 0 : *of_query / kKeys * kKeys; }
  // The first query (of `columns`, including padding) that no longer sees the key. Padding sees what the last query
  // sees.
  int64_t end_of(int64_t key, int64_t columns) const {
    if (of_query == nullptr || of_query[queries - 1] <= key) return columns;
    return std::upper_bound(of_query, of_query + queries, key) - of_query;
  }
};

// Masks one row of scores. A key at position `shift` relative to the query tile is visible to queries c >= shift, up to
// the `end` from FirstKeys. Returns the first column of scores that must be computed, a multiple of the vector size,
// and sets the scores from there on of queries that do not see the key to -inf.
inline int64_t mask_row(float* scores, int64_t shift, int64_t end, int64_t columns) {
  constexpr float kHidden = -std::numeric_limits<float>::infinity();
  const int64_t visible = std::clamp<int64_t>(shift, 0, columns), begin = visible / tile::kLanes * tile::kLanes;
  std::fill(scores + begin, scores + visible, kHidden);
  std::fill(scores + std::max(visible, end), scores + columns, kHidden);
  return begin;
}

}  // namespace mw::cpu::attention_detail
