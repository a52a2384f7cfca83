// Products of bf16 panels by a matrix unit that works on tiles, as Intel's AMX does: a tile of a result is 16 x 16
// fp32, and one step adds the product of 16 x 32 and 32 x 16 bf16 values to it. Packing and loops are here, in plain
// C++; the unit itself is a table of functions, so that tests can put loops in its place.
#pragma once

#include <cstdint>

#include "core/stream.h"
#include "ops/matmul.h"

namespace mw::cpu {

constexpr int64_t kTile = 16;       // rows and columns of a tile of a result
constexpr int64_t kTileBlock = 32;  // rows and columns of a block of 2 x 2 tiles; summands of a step

// A block of a result: c[r, j] = (add ? c[r, j] : 0) + sum over k of a[r, k] b[k, j], for r < 16 row_tiles, j < 32,
// k < 32 steps.
struct TileBlock {
  const bf16* a;  // [steps, 32 rows, 32]
  const bf16* b;  // [steps, 2, 16, 16, 2]: for each step two tiles, a row of a tile holds two summands of 16 columns
  int64_t steps;
  int row_tiles;  // 1 or 2
  float* c;       // rows c_row apart
  int64_t c_row;
  bool add;
};

// A matrix unit, and what prepares its operands. A square has 32 rows and columns.
struct TileUnit {
  // A thread calls `begin` before its first block and `end` after its last.
  void (*begin)();
  void (*block)(const TileBlock& block);
  void (*end)();
  // to: a step of TileBlock::b with the square as its values; rows of the square lie `row` elements apart.
  void (*pair_rows)(const bf16* square, int64_t row, bf16* to);
  // to[j, i] = square[i, j]; rows of `to` are contiguous and aligned to 64 bytes.
  void (*transpose)(const bf16* square, int64_t row, bf16* to);
  // `rows` rows of 32 values to bf16, to nearest. past_cache: `to` is aligned to 64 bytes, and not read soon.
  void (*round)(const float* from, int64_t from_row, bf16* to, int64_t to_row, int64_t rows, bool past_cache);
};

// AMX, or null in a build for another architecture. Only to be called where the CPU and the system allow it:
// MatmulTraits::amx.
const TileUnit* amx_unit();

// Fills both packed forms of a weight. Forward: [n / 32, k / 32, 2, 16, 16, 2] as TileBlock::b takes it, rows and
// columns beyond the weight are zero; backward: the same of the transpose. They fit into packed_weight_bytes.
void pack_tiles(Stream& stream, const TileUnit& unit, const Weight& weight);

// Rows of bf16 values: row r at data + (index ? index[r] : r) * stride.
struct TileRows {
  const bf16* data;
  int64_t stride;
  const int32_t* index;
};

// Rows of a result, f32 or bf16, laid out likewise.
struct TileResult {
  void* data;
  DType dtype;
  int64_t stride;
  const int32_t* index;
  bool add;
};

// c[rows, cols] (=|+=) a[rows, depth] b[depth, cols]; b: a packed form of a weight. rows may be any number. The results
// of this and the next function do not depend on the thread count.
void multiply_by_tiles(Stream& stream, const TileUnit& unit, const TileRows& a, int64_t rows, const bf16* b,
                       int64_t depth, int64_t cols, const TileResult& c);

// c[n, k] (=|+=) a[rows, n]^T b[rows, k], c contiguous. Takes tile_scratch_bytes(rows, k) from the workspace.
void multiply_transposed_by_tiles(Stream& stream, const TileUnit& unit, const TileRows& a, const TileRows& b,
                                  int64_t rows, int64_t n, int64_t k, float* c, bool add);
int64_t tile_scratch_bytes(int64_t rows, int64_t k);

}  // namespace mw::cpu
