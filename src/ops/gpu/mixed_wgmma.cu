// The product of bf16 rows with the three bf16 parts of fp32 weights, by the kernels of grouped_wgmma.h. Groups of 192
// columns: parts 1, 2, 3 of the same 64 rows of the weight. A tile has one group, or two where n > 64. The three sums
// of an element are in one thread.
#include "ops/gpu/bf16_parts.h"
#include "ops/gpu/grouped_wgmma.h"
#include "ops/gpu/mixed.h"
#include "ops/gpu/pack.h"

namespace mw::gpu {
namespace {

constexpr int kPartsWidth = kParts * kPartColumns;
constexpr int kPack = kWidePack<bf16>;

// What the device knows of the tiles: the counter of tiles taken, all rows as one expert, and their end.
struct PartTiles {
  ExpertTiles counter_and_experts[3];
};

// The parts of rows [64 i, 64 i + 64) of the weight become rows [192 i, 192 i + 192). Stores the tiles as well.
struct SplitByTiles {
  const float* from;
  bf16* to;
  int64_t width;
  PartTiles tiles;
  PartTiles* tiles_to;
  template <int N>
  __device__ void apply(int64_t i) const {
    if (i == 0) *tiles_to = tiles;
    const Pack<float, N> values = load<N>(from + i);
    Pack<bf16, N> parts[kParts];
#pragma unroll
    for (int k = 0; k < N; ++k) split_value(values.at[k], parts[0].at[k], parts[1].at[k], parts[2].at[k]);
    const int64_t row = i / width, first = row / kPartColumns * kPartsWidth + row % kPartColumns;
#pragma unroll
    for (int p = 0; p < kParts; ++p) store(to + (first + p * kPartColumns) * width + i % width, parts[p]);
  }
};

// Loads boxes of x, which lie in device memory. A box is fetched into the cache kAhead steps before it is copied: more
// steps than the ring has stages.
struct RowsLoader {
  static constexpr int kAhead = 6;
  static constexpr int kFetcher = kWarpgroup - 32;  // a thread of the last warp, which copies no box
  BoxLoader<Along::depth, kHeight> boxes;
  int64_t depth;

  __device__ void prepare(int) {}
  __device__ void load(int step, unsigned tile, unsigned filled) const {
    boxes.load(step, tile, filled);
    const int64_t ahead = static_cast<int64_t>(step + kAhead) * kDepth;
    if (threadIdx.x == kFetcher && ahead < depth) prefetch_box(boxes.map, 0, boxes.left, static_cast<int>(ahead));
  }
};

// Where a warpgroup stores its rows of a tile.
struct SummedRows {
  TileRows<float> rows;

  __device__ void prefetch(int) const {}
  template <int kCount>
  __device__ void store(const float (&sums)[kCount], bool) const {
    constexpr int kOwn = kPartColumns / 2;  // sums of a thread in 64 columns
    float results[kCount / kParts];
#pragma unroll
    for (int i = 0; i < kCount / kParts; ++i) {
      const float* of_first = sums + i / kOwn * kParts * kOwn + i % kOwn;
      results[i] = sum_of_parts(of_first[0], of_first[kOwn], of_first[2 * kOwn]);
    }
    rows.store(results, false);
  }
};

template <int kTileWidth>
struct PartsProduct {
  static constexpr Along kA = Along::depth, kB = Along::depth;
  static constexpr int kRows = kHeight, kWidth = kTileWidth;
  static constexpr bool kBoxesA = true, kBoxesB = true, kPaired = true, kFindsAhead = false, add = false;
  static constexpr int kHeldBytes = 0;
  using LoaderB = BoxLoader<kB, kWidth, kPaired>;

  TensorMap weights, x;
  float* y;
  int64_t width_of_x, width_of_y;

  __device__ static void init_barriers(unsigned) {}
  __device__ void finish() const {}
  __device__ int64_t depth(const Tile&) const { return width_of_x; }
  __device__ int64_t height(const Tile& tile) const { return tile.end - tile.top; }
  __device__ int width(const Tile& tile) const { return static_cast<int>(width_of_y - tile.left / kParts); }
  __device__ RowsLoader load_a(const Tile& tile) const { return {{x, 0, 0, static_cast<int>(tile.top)}, width_of_x}; }
  __device__ LoaderB load_b(const Tile& tile) const {
    return {weights, 0, 0, static_cast<int>(tile.left), tile.shared};
  }
  __device__ SummedRows place(const Tile& tile, int, unsigned) const {
    float* const first = y + tile.top * width_of_y + tile.left / kParts;
    return {find_tile_rows<float>(height(tile), width(tile), [&](int r) { return first + r * width_of_y; })};
  }
};

// Blocks work in pairs, which share the weights.
template <int kTileWidth>
bool multiply_parts(Stream& stream, TensorView x_MK, const Weight& weight, TensorView y_MN) {
  using Product = PartsProduct<kTileWidth>;
  const Processors& processors = find_processors(stream);
  const int64_t rows = x_MK.rows(), n = weight.n, k = weight.k, groups = ceil_div(n, kPartColumns);
  const int64_t row_tiles = ceil_div(rows, kHeight), columns = ceil_div(groups * kPartsWidth, kTileWidth);
  const int64_t tiles = count_pair_units(row_tiles, columns);
  // Others than the last turn of all processors have no idle ones. The library cuts few rows into smaller tiles.
  const int64_t turns = ceil_div(tiles, std::max(processors.pairs, 1));
  if (processors.pairs == 0 || 3 * tiles < 2 * turns * processors.pairs) return false;
  // On an H200 the library takes 1.2 of this kernel's time with full tiles, and 0.6 with 8 columns in a tile for 64.
  if (4 * n * kParts < 3 * columns * kTileWidth) return false;

  WorkspaceFrame frame(stream.workspace());
  auto* parts = frame.take<bf16>(static_cast<size_t>(groups * kPartsWidth * k));
  auto* tiles_of_device = frame.take<PartTiles>(1);
  Product product{{}, {}, y_MN.as<float>(), k, n};
  if (!describe_matrices({parts, DType::bf16, 1, groups * kPartsWidth, k, groups * kPartsWidth * k},
                         Product::LoaderB::kBoxRows, &product.weights) ||
      !describe_matrices({x_MK.data, DType::bf16, 1, rows, k, rows * k}, kHeight, &product.x))
    return warn_unless(stream, false);
  const SplitByTiles split{weight.values.as<float>(),
                           parts,
                           k,
                           {{{}, {0, 0, static_cast<int>(row_tiles)}, {rows, static_cast<int>(tiles), 0}}},
                           tiles_of_device};
  for_each_pack<kPack>(stream, n * k, allow_packs<kPack>(split.from), split);
  ExpertTiles* const counter = tiles_of_device->counter_and_experts;
  const TileTable table{counter + 1, static_cast<int>(tiles), static_cast<int>(columns), &counter->first_tile};
  TilesLaunch<NoMeter>{stream, processors, table, NoMeter()}(product);
  return true;
}

}  // namespace

bool multiply_parts_by_warpgroups(Stream& stream, TensorView x_MK, const Weight& weight, TensorView y_MN) {
  constexpr int64_t kStored = kWidePack<float>;  // columns that a thread stores at once
  if (x_MK.dtype != DType::bf16 || weight.k % kChunk != 0 || weight.n % kStored != 0 || !is_aligned(x_MK.data) ||
      !is_aligned(y_MN.data))
    return false;
  return weight.n > kPartColumns ? multiply_parts<2 * kPartsWidth>(stream, x_MK, weight, y_MN)
                                 : multiply_parts<kPartsWidth>(stream, x_MK, weight, y_MN);
}

}  // namespace mw::gpu
