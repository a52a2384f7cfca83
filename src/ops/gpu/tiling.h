// How a grouped product is split into tiles of its result: by the host, and as blocks look them up.
#pragma once

#include <span>
#include <vector>

#include "ops/gpu/launch.h"
#include "ops/gpu/wgmma.h"

namespace mw::gpu {

constexpr int kHeight = 128;                        // of a tile
constexpr int kWideTile = 256, kNarrowTile = 128;   // their widths
constexpr int kTallHeight = 256, kTallWidth = 192;  // of a tall tile
constexpr int kBand = 16;                           // row tiles that share column tiles of the other operand

// Where an expert's rows and tiles begin (for pairs of blocks: their units of two tiles), and its number of row tiles.
// One extra entry holds the end of the last expert.
struct ExpertTiles {
  int64_t first_row;
  int first_tile, row_tiles;
};

struct TileTable {
  const ExpertTiles* experts;
  int tiles, columns;  // of all experts; tiles side by side
  int* taken;          // how many tiles blocks have taken
};

// The tile shapes that kernels support: pairs of blocks require wide tiles.
template <int kTileWidth, bool kInPairs, int kTileHeight = kHeight>
struct TileShape {
  static constexpr int kRows = kTileHeight, kWidth = kTileWidth;
  static constexpr bool kPaired = kInPairs;
};

// A tile at [top, left) of the result of an expert that owns rows [begin, end). It may extend beyond the last column.
struct Tile {
  int expert;
  int64_t begin, end, top, left;
  bool shared;  // the other block of the pair computes a tile of the same columns
};

// Looks tiles up by number, in ascending order. A pair takes two row tiles at the same columns; for an odd last row
// tile of an expert, two neighbouring column tiles.
template <bool kPaired>
struct TileWalk {
  static constexpr int kRows = kPaired ? kPair : 1, kBandRows = kBand / kRows;  // row tiles taken at a time
  TileTable table;
  int expert = 0;

  // Bands of an expert's row tiles go through all columns together, so that tiles in flight share operands in cache.
  __device__ Tile find(int number, int tile_height, int width) {
    while (table.experts[expert + 1].first_tile <= number) ++expert;
    const ExpertTiles here = table.experts[expert];
    const int64_t begin = here.first_row, end = table.experts[expert + 1].first_row;
    const int own = kPaired ? place_in_pair() : 0, place = number - here.first_tile, rows = here.row_tiles / kRows;
    if (kPaired && place >= rows * table.columns) {
      const int column = (place - rows * table.columns) * kPair + own;
      return {expert, begin, end, int64_t{rows} * kRows * tile_height, int64_t{column} * width, false};
    }
    const int band = place / (kBandRows * table.columns), in_band = place - band * kBandRows * table.columns;
    const int height = min(kBandRows, rows - band * kBandRows), row = band * kBandRows + in_band % height;
    return {expert, begin, end, int64_t{row * kRows + own} * tile_height, int64_t{in_band / height} * width, kPaired};
  }
};

// How many blocks run at the same time, one per processor, and how many pairs.
struct Processors {
  int blocks = 0, pairs = 0;
};
// Of the stream's GPU, for kernels that multiply by warpgroups: none on any GPU but Hopper.
const Processors& find_processors(Stream& stream);

// Units of two tiles that pairs take: see TileWalk.
inline int64_t count_pair_units(int64_t row_tiles, int64_t columns) {
  return row_tiles / kPair * columns + row_tiles % kPair * ceil_div(columns, kPair);
}

struct TileSize {
  int64_t height, width;
  bool paired;
};

// How the host splits a product into tiles. The device gets a zero (the counter of tiles taken) followed by the
// experts, because one copy costs less than two.
struct Tiling {
  std::vector<ExpertTiles> counter_and_experts = {ExpertTiles{}};
  TileSize tile;
  int64_t columns;

  std::span<ExpertTiles> experts() { return std::span(counter_and_experts).subspan(1); }
  int64_t rows() const { return counter_and_experts.back().first_row; }
  int tiles() const { return counter_and_experts.back().first_tile; }
};

// Tiles of one size. row_tiles_of(rows): row tiles of an expert with so many rows.
template <class RowTiles>
Tiling cut_tiles(std::span<const int64_t> offsets, int64_t width, const TileSize& tile, const RowTiles& row_tiles_of) {
  Tiling tiling;
  tiling.tile = tile;
  tiling.columns = ceil_div(width, tile.width);
  int64_t tiles = 0;
  for (size_t e = 0; e < offsets.size(); ++e) {
    const int64_t own = e + 1 < offsets.size() ? row_tiles_of(offsets[e + 1] - offsets[e]) : 0;
    tiling.counter_and_experts.push_back({offsets[e], static_cast<int>(tiles), static_cast<int>(own)});
    tiles += tile.paired ? count_pair_units(own, tiling.columns) : own * tiling.columns;
  }
  return tiling;
}

// Chooses narrow tiles where wide ones would leave processors idle or compute many columns in vain. Chooses pairs where
// at least two thirds of the row tiles can share with another one of their expert: the others gain nothing and wait for
// each other.
template <class RowTiles>
Tiling cut_tiles(std::span<const int64_t> offsets, int64_t width, const Processors& processors,
                 const RowTiles& row_tiles_of) {
  int64_t row_tiles = 0, alone = 0;
  for (size_t e = 0; e + 1 < offsets.size(); ++e) {
    const int64_t own = row_tiles_of(offsets[e + 1] - offsets[e]);
    row_tiles += own;
    alone += own % kPair;
  }
  const int64_t wide = ceil_div(width, kWideTile), narrow = ceil_div(width, kNarrowTile);
  if (row_tiles * wide < processors.blocks || 12 * wide > 7 * narrow)
    return cut_tiles(offsets, width, TileSize{kHeight, kNarrowTile, false}, row_tiles_of);
  const bool paired = processors.pairs > 0 && 3 * alone <= row_tiles;
  return cut_tiles(offsets, width, TileSize{kHeight, kWideTile, paired}, row_tiles_of);
}

}  // namespace mw::gpu
