// How a grouped product is cut into tiles of its result: by the host, and as blocks find them.
#pragma once

#include <span>
#include <vector>

#include "ops/gpu/launch.h"

namespace mw::gpu {

constexpr int kHeight = 128;                       // of a tile
constexpr int kWideTile = 256, kNarrowTile = 128;  // their widths
constexpr int kBand = 16;                          // row tiles that share column tiles of the other operand

// Where an expert's rows and tiles begin, and how many rows of tiles it has; one entry more holds where the last one's
// end.
struct ExpertTiles {
  int64_t first_row;
  int first_tile, row_tiles;
};

struct TileTable {
  const ExpertTiles* experts;
  int tiles, columns;  // of all experts; tiles side by side
  unsigned* taken;     // how many tiles blocks have taken
};

// A tile at [top, left) of the result of an expert that owns rows [begin, end).
struct Tile {
  int expert;
  int64_t begin, end, top, left;
};

// Finds the expert of tiles that are asked for in rising order.
struct TileWalk {
  TileTable table;
  int expert = 0;

  // Bands of an expert's row tiles go through all columns together, so that tiles under way share operands in cache.
  __device__ Tile find(int tile, int width) {
    while (table.experts[expert + 1].first_tile <= tile) ++expert;
    const ExpertTiles here = table.experts[expert];
    const int place = tile - here.first_tile, band = place / (kBand * table.columns);
    const int height = min(kBand, here.row_tiles - band * kBand), in_band = place - band * kBand * table.columns;
    return {expert, here.first_row, table.experts[expert + 1].first_row,
            static_cast<int64_t>(band * kBand + in_band % height) * kHeight,
            static_cast<int64_t>(in_band / height) * width};
  }
};

// How the host cuts a product into tiles; `experts` is what the device reads.
struct Tiling {
  std::vector<ExpertTiles> experts;
  int64_t width, columns;

  int64_t rows() const { return experts.back().first_row; }
  int tiles() const { return experts.back().first_tile; }
};

// Narrow tiles where wide ones would leave processors idle or compute many columns in vain.
template <class RowTiles>
Tiling cut_tiles(std::span<const int64_t> offsets, int64_t width, int processors, const RowTiles& row_tiles_of) {
  Tiling tiling;
  int64_t row_tiles = 0;
  for (size_t e = 0; e < offsets.size(); ++e) {
    const int64_t own = e + 1 < offsets.size() ? row_tiles_of(offsets[e + 1] - offsets[e]) : 0;
    tiling.experts.push_back({offsets[e], 0, static_cast<int>(own)});
    row_tiles += own;
  }
  const int64_t wide = ceil_div(width, kWideTile), narrow = ceil_div(width, kNarrowTile);
  const bool is_narrow = row_tiles * wide < processors || 12 * wide > 7 * narrow;
  tiling.width = is_narrow ? kNarrowTile : kWideTile;
  tiling.columns = is_narrow ? narrow : wide;
  int64_t tiles = 0;
  for (ExpertTiles& expert : tiling.experts) {
    expert.first_tile = static_cast<int>(tiles);
    tiles += expert.row_tiles * tiling.columns;
  }
  return tiling;
}

}  // namespace mw::gpu
