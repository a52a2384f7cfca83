// Intel's AMX as a TileUnit. Each function carries its own target, so that the file needs no flags and a build for any
// x86-64 CPU contains it. CPUs with AMX have AVX-512 too.
#include <immintrin.h>

#include "ops/cpu/tile_matmul.h"

namespace mw::cpu {
namespace {

constexpr int64_t kTileValues = kTile * kTileBlock;

// Operand of LDTILECFG.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

__attribute__((target("amx-tile"))) void begin() {
  static constexpr TileConfig kConfig;
  _tile_loadconfig(&kConfig);
}

__attribute__((target("amx-tile"))) void end() {
  _mm_sfence();  // for rows that were stored past the cache
  _tile_release();
}

// Registers: sums in 0 to 3, a in 4 and 5, b in 6 and 7.
__attribute__((target("amx-tile,amx-bf16"))) void two_rows(const TileBlock& p) {
  const auto c_bytes = p.c_row * static_cast<int64_t>(sizeof(float));
  float* low = p.c + kTile * p.c_row;
  if (p.add) {
    _tile_loadd(0, p.c, c_bytes);
    _tile_loadd(1, p.c + kTile, c_bytes);
    _tile_loadd(2, low, c_bytes);
    _tile_loadd(3, low + kTile, c_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const bf16 *a = p.a, *b = p.b;
  for (int64_t step = 0; step < p.steps; ++step, a += 2 * kTileValues, b += 2 * kTileValues) {
    _tile_loadd(6, b, 64);
    _tile_loadd(4, a, 64);
    _tile_loadd(7, b + kTileValues, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, a + kTileValues, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, p.c, c_bytes);
  _tile_stored(1, p.c + kTile, c_bytes);
  _tile_stored(2, low, c_bytes);
  _tile_stored(3, low + kTile, c_bytes);
}

__attribute__((target("amx-tile,amx-bf16"))) void one_row(const TileBlock& p) {
  const auto c_bytes = p.c_row * static_cast<int64_t>(sizeof(float));
  if (p.add) {
    _tile_loadd(0, p.c, c_bytes);
    _tile_loadd(1, p.c + kTile, c_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
  }
  const bf16 *a = p.a, *b = p.b;
  for (int64_t step = 0; step < p.steps; ++step, a += 2 * kTileValues, b += 2 * kTileValues) {
    _tile_loadd(4, a, 64);
    _tile_loadd(6, b, 64);
    _tile_loadd(7, b + kTileValues, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
  }
  _tile_stored(0, p.c, c_bytes);
  _tile_stored(1, p.c + kTile, c_bytes);
}

void block(const TileBlock& p) { p.row_tiles == 2 ? two_rows(p) : one_row(p); }

__attribute__((target("avx512f,avx512bw"))) void pair_rows(const bf16* square, int64_t row, bf16* to) {
  // The elements of both registers in turn: x0, y0, x1, y1, ... of their lower halves, and of their upper ones.
  alignas(64) uint16_t low[32], high[32];
  for (uint16_t i = 0; i < 32; ++i) {
    low[i] = static_cast<uint16_t>(i / 2 + i % 2 * 32);
    high[i] = static_cast<uint16_t>(low[i] + 16);
  }
  const __m512i by_low = _mm512_load_si512(low), by_high = _mm512_load_si512(high);
  for (int64_t r = 0; r < kTile; ++r) {
    const __m512i x = _mm512_loadu_si512(square + 2 * r * row), y = _mm512_loadu_si512(square + (2 * r + 1) * row);
    _mm512_storeu_si512(to + r * kTileBlock, _mm512_permutex2var_epi16(x, by_low, y));
    _mm512_storeu_si512(to + kTileValues + r * kTileBlock, _mm512_permutex2var_epi16(x, by_high, y));
  }
}

// All lanes. GCC 12 warns of its own intrinsics without a mask; with this one they are the same instruction.
constexpr __mmask16 kAll = 0xffff;
constexpr __mmask8 kAll8 = 0xff;

// Blocks of 8 x 8 are transposed within the 128-bit lanes, then the lanes.
__attribute__((target("avx512f,avx512bw"))) void transpose(const bf16* square, int64_t row, bf16* to) {
  __m512i x[kTileBlock], y[kTileBlock];
  for (int i = 0; i < 32; ++i) x[i] = _mm512_loadu_si512(square + i * row);
  for (int i = 0; i < 32; i += 2) {  // pairs of rows
    y[i] = _mm512_unpacklo_epi16(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi16(x[i], x[i + 1]);
  }
  for (int i = 0; i < 32; i += 4)  // fours
    for (int j = 0; j < 2; ++j) {
      x[i + 2 * j] = _mm512_maskz_unpacklo_epi32(kAll, y[i + j], y[i + 2 + j]);
      x[i + 2 * j + 1] = _mm512_maskz_unpackhi_epi32(kAll, y[i + j], y[i + 2 + j]);
    }
  for (int i = 0; i < 32; i += 8)  // eights: lane l of y[i + j] has column 8 l + j of rows i to i + 7
    for (int j = 0; j < 4; ++j) {
      y[i + 2 * j] = _mm512_maskz_unpacklo_epi64(kAll8, x[i + j], x[i + 4 + j]);
      y[i + 2 * j + 1] = _mm512_maskz_unpackhi_epi64(kAll8, x[i + j], x[i + 4 + j]);
    }
  for (int j = 0; j < 8; ++j) {  // 4 x 4 lanes
    const __m512i low01 = _mm512_maskz_shuffle_i64x2(kAll8, y[j], y[8 + j], 0x44),
                  low23 = _mm512_maskz_shuffle_i64x2(kAll8, y[16 + j], y[24 + j], 0x44);
    const __m512i high01 = _mm512_maskz_shuffle_i64x2(kAll8, y[j], y[8 + j], 0xee),
                  high23 = _mm512_maskz_shuffle_i64x2(kAll8, y[16 + j], y[24 + j], 0xee);
    _mm512_store_si512(to + j * kTileBlock, _mm512_maskz_shuffle_i64x2(kAll8, low01, low23, 0x88));
    _mm512_store_si512(to + (8 + j) * kTileBlock, _mm512_maskz_shuffle_i64x2(kAll8, low01, low23, 0xdd));
    _mm512_store_si512(to + (16 + j) * kTileBlock, _mm512_maskz_shuffle_i64x2(kAll8, high01, high23, 0x88));
    _mm512_store_si512(to + (24 + j) * kTileBlock, _mm512_maskz_shuffle_i64x2(kAll8, high01, high23, 0xdd));
  }
}

__attribute__((target("avx512f,avx512bf16"))) void round(const float* from, int64_t from_row, bf16* to, int64_t to_row,
                                                         int64_t rows, bool past_cache) {
  for (int64_t i = 0; i < rows; ++i, from += from_row, to += to_row) {
    const auto values =
        reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + kTile), _mm512_loadu_ps(from)));
    if (past_cache) _mm512_stream_si512(reinterpret_cast<__m512i*>(to), values);
    else _mm512_storeu_si512(to, values);
  }
}

}  // namespace

const TileUnit* amx_unit() {
  static constexpr TileUnit kUnit{begin, block, end, pair_rows, transpose, round};
  return &kUnit;
}

}  // namespace mw::cpu
