#include "ops/cpu/tile_matmul.h"

#include <omp.h>

#include <algorithm>
#include <cstring>

#include "ops/cpu/loops.h"

namespace mw::cpu {
namespace {

constexpr int64_t kStepValues = kTileBlock * kTileBlock;  // bf16 values of a step, of either operand
// A task: steps taken at once, at most, and strips of rows and column blocks. What they hold stays in the second cache,
// and a strip of up to 16 steps in the first.
constexpr int64_t kSteps = 32, kStrips = 4, kGroup = 16;

constexpr int64_t blocks_of(int64_t count) { return (count + kTileBlock - 1) / kTileBlock; }

const bf16* row_of(const TileRows& rows, int64_t row) {
  return rows.data + (rows.index ? rows.index[row] : row) * rows.stride;
}

// Rows [row, row + 32) and columns [col, col + 32) of a matrix [height, width], `stride` apart: in place where they
// are a square in memory, else copied to `padded`, with zeros beyond the matrix.
struct Square {
  const bf16* data;
  int64_t stride;

  Square(const TileRows& from, int64_t row, int64_t height, int64_t col, int64_t width, bf16* padded)
      : data(padded), stride(kTileBlock) {
    const int64_t rows = std::min(height - row, kTileBlock), cols = std::min(width - col, kTileBlock);
    const bool is_whole = rows == kTileBlock && cols == kTileBlock;
    if (is_whole && !from.index) {
      data = row_of(from, row) + col;
      stride = from.stride;
      return;
    }
    if (!is_whole) std::memset(padded, 0, kStepValues * sizeof(bf16));
    for (int64_t i = 0; i < rows; ++i)
      std::memcpy(padded + i * kTileBlock, row_of(from, row + i) + col, static_cast<size_t>(cols) * sizeof(bf16));
  }
};

// Splits [0, count) among the threads that are worth it for a product of `flops`; every thread brackets its part by
// unit.begin and unit.end.
template <class Body>
void for_threads(Stream& stream, const TileUnit& unit, int64_t flops, int64_t count, Body&& body) {
  constexpr int64_t kFlopsPerThread = 32'000'000;
  const auto threads = static_cast<int>(std::clamp<int64_t>(flops / kFlopsPerThread, 1, stream.threads()));
  const auto run = [&](int64_t thread, int64_t of) {
    unit.begin();
    body(count * thread / of, count * (thread + 1) / of);
    unit.end();
  };
  if (threads == 1) return run(0, 1);
#pragma omp parallel num_threads(threads)
  run(omp_get_thread_num(), omp_get_num_threads());
}

// c[rows, cols] (=|+=) a[rows, depth] b[depth, cols]; b: [cols / 32, depth / 32] steps of TileBlock::b.
struct TileProduct {
  int64_t rows, cols, depth;
  const bf16* b;
  TileResult c;

  template <class T>
  T* at(int64_t row, int64_t col) const {
    return static_cast<T*>(c.data) + (c.index ? c.index[row] : row) * c.stride + col;
  }
  // Whether the unit can write a block of c itself.
  bool is_whole(int64_t row, int64_t col) const {
    return c.dtype == DType::f32 && !c.index && row + kTileBlock <= rows && col + kTileBlock <= cols;
  }
  // Asks for the lines of a block, which would otherwise be waited for when it is stored.
  void prefetch(int64_t row, int64_t col) const {
    const int64_t height = std::min(rows - row, kTileBlock);
    for (int64_t i = 0; i < height; ++i)
      if (c.dtype == DType::f32) {
        __builtin_prefetch(at<float>(row + i, col), 1);
        __builtin_prefetch(at<float>(row + i, col + kTile), 1);
      } else {
        __builtin_prefetch(at<bf16>(row + i, col), 1);
      }
  }
  // Brings the sums of a block to c.
  void store(const TileUnit& unit, const float* sums, int64_t row, int64_t col) const {
    const int64_t height = std::min(rows - row, kTileBlock), width = std::min(cols - col, kTileBlock);
    if (c.dtype == DType::bf16 && width == kTileBlock && !c.index && !c.add) {
      constexpr int64_t kPastCache = int64_t{4} << 20;  // bytes of a result that no cache would keep
      const bool past_cache = rows * cols * static_cast<int64_t>(sizeof(bf16)) > kPastCache &&
                              c.stride % kTileBlock == 0 && reinterpret_cast<uintptr_t>(at<bf16>(row, col)) % 64 == 0;
      return unit.round(sums, kTileBlock, at<bf16>(row, col), c.stride, height, past_cache);
    }
    for (int64_t i = 0; i < height; ++i, sums += kTileBlock)
      if (c.dtype == DType::bf16 && width == kTileBlock && !c.add) {
        unit.round(sums, kTileBlock, at<bf16>(row + i, col), 0, 1, false);
      } else if (c.dtype == DType::bf16) {
        bf16* to = at<bf16>(row + i, col);
        for (int64_t j = 0; j < width; ++j) to[j] = to_bf16((c.add ? to_float(to[j]) : 0.0f) + sums[j]);
      } else {
        float* to = at<float>(row + i, col);
        for (int64_t j = 0; j < width; ++j) to[j] = (c.add ? to[j] : 0.0f) + sums[j];
      }
  }
};

// pack(row, first_step, steps, strip) fills the strip [steps, 32, 32] of `a` for rows [row, row + 32), zero beyond
// `rows` and `depth`. Deep products are cut into parts, and several strips share each part of b, which then comes from
// a slower cache; else b stays from one task to the next.
template <class Pack>
void multiply(Stream& stream, const TileUnit& unit, const TileProduct& p, Pack&& pack) {
  const int64_t all_steps = blocks_of(p.depth), blocks = blocks_of(p.cols), strips = blocks_of(p.rows);
  const int64_t parts = (all_steps + kSteps - 1) / kSteps, part = (all_steps + parts - 1) / parts;
  const int64_t chunk = parts == 1 ? 1 : kStrips, group = parts == 1 ? kGroup : kGroup / 2;
  const int64_t chunks = (strips + chunk - 1) / chunk, tasks = chunks * ((blocks + group - 1) / group);
  for_threads(stream, unit, 2 * p.rows * p.cols * p.depth, tasks, [&](int64_t begin, int64_t end) {
    alignas(64) bf16 packed[kStrips][kSteps * kStepValues];
    alignas(64) float sums[kStrips][kGroup / 2][kTileBlock * kTileBlock];
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first_strip = task % chunks * chunk, last_strip = std::min(first_strip + chunk, strips);
      const int64_t first_block = task / chunks * group, last_block = std::min(first_block + group, blocks);
      for (int64_t step = 0; step < all_steps; step += part) {
        const int64_t steps = std::min(part, all_steps - step);
        for (int64_t strip = first_strip; strip < last_strip; ++strip) {
          const int64_t row = strip * kTileBlock;
          bf16* a = packed[strip - first_strip];
          pack(row, step, steps, a);
          const int row_tiles = p.rows - row > kTile ? 2 : 1;
          const float* computed = nullptr;  // sums of the block before, which are read while the unit computes
          for (int64_t block = first_block; block < last_block; ++block) {
            const int64_t col = block * kTileBlock;
            const bf16* b = p.b + (block * all_steps + step) * kStepValues;
            if (step + steps == all_steps) p.prefetch(row, col);
            if (p.is_whole(row, col)) {
              unit.block({a, b, steps, row_tiles, p.at<float>(row, col), p.c.stride, p.c.add || step > 0});
              continue;
            }
            // Without parts two places take turns, so that they stay in the first cache.
            float* c = sums[strip - first_strip][(block - first_block) % (parts == 1 ? 2 : group)];
            unit.block({a, b, steps, row_tiles, c, kTileBlock, step > 0});
            if (step + steps < all_steps) continue;
            if (computed) p.store(unit, computed, row, col - kTileBlock);
            computed = c;
          }
          if (computed) p.store(unit, computed, row, (last_block - 1) * kTileBlock);
        }
      }
    }
  });
}

}  // namespace

void pack_tiles(Stream& stream, const TileUnit& unit, const Weight& weight) {
  const int64_t n = weight.n, k = weight.k, n_blocks = blocks_of(n), k_blocks = blocks_of(k);
  const auto* values = weight.values.as<float>();
  auto* forward = static_cast<bf16*>(weight.packed_forward.data);
  auto* backward = static_cast<bf16*>(weight.packed_backward.data);
  for_blocks(stream, n_blocks, 1, [&](int64_t i, int64_t) {
    alignas(64) float padded[kTileBlock * kTileBlock];
    alignas(64) bf16 square[kStepValues], turned[kStepValues];
    for (int64_t j = 0; j < k_blocks; ++j) {
      const float* from = values + i * kTileBlock * k + j * kTileBlock;
      const int64_t rows = std::min(n - i * kTileBlock, kTileBlock), cols = std::min(k - j * kTileBlock, kTileBlock);
      const bool whole = rows == kTileBlock && cols == kTileBlock;
      if (!whole) {
        std::memset(padded, 0, sizeof padded);
        for (int64_t r = 0; r < rows; ++r)
          std::memcpy(padded + r * kTileBlock, from + r * k, static_cast<size_t>(cols) * sizeof(float));
      }
      unit.round(whole ? from : padded, whole ? k : kTileBlock, square, kTileBlock, kTileBlock, false);
      unit.transpose(square, kTileBlock, turned);
      unit.pair_rows(square, kTileBlock, backward + (j * n_blocks + i) * kStepValues);
      unit.pair_rows(turned, kTileBlock, forward + (i * k_blocks + j) * kStepValues);
    }
  });
}

void multiply_by_tiles(Stream& stream, const TileUnit& unit, const TileRows& a, int64_t rows, const bf16* b,
                       int64_t depth, int64_t cols, const TileResult& c) {
  multiply(stream, unit, {rows, cols, depth, b, c}, [&](int64_t row, int64_t step, int64_t steps, bf16* strip) {
    const int64_t count = std::min(rows - row, kTileBlock), first = step * kTileBlock;
    const int64_t whole = std::min(steps, (depth - first) / kTileBlock);
    if (count < kTileBlock || whole < steps)
      std::memset(strip, 0, static_cast<size_t>(steps * kStepValues) * sizeof(bf16));
    for (int64_t i = 0; i < count; ++i) {
      const bf16* from = row_of(a, row + i) + first;
      bf16* to = strip + i * kTileBlock;
      for (int64_t s = 0; s < whole; ++s)
        std::memcpy(to + s * kStepValues, from + s * kTileBlock, kTileBlock * sizeof(bf16));
      if (whole < steps)
        std::memcpy(to + whole * kStepValues, from + whole * kTileBlock,
                    static_cast<size_t>(depth - first - whole * kTileBlock) * sizeof(bf16));
    }
  });
}

int64_t tile_scratch_bytes(int64_t rows, int64_t k) {
  return blocks_of(rows) * blocks_of(k) * kStepValues * static_cast<int64_t>(sizeof(bf16));
}

// b is packed into scratch first; strips of `a` are transposed.
void multiply_transposed_by_tiles(Stream& stream, const TileUnit& unit, const TileRows& a, const TileRows& b,
                                  int64_t rows, int64_t n, int64_t k, float* c, bool add) {
  const int64_t all_steps = blocks_of(rows), blocks = blocks_of(k);
  WorkspaceFrame frame(stream.workspace());
  auto* packed = static_cast<bf16*>(frame.take_bytes(static_cast<size_t>(tile_scratch_bytes(rows, k))));
  for_blocks(stream, all_steps, 1, [&](int64_t step, int64_t) {
    alignas(64) bf16 padded[kStepValues];
    for (int64_t block = 0; block < blocks; ++block) {
      const Square square(b, step * kTileBlock, rows, block * kTileBlock, k, padded);
      unit.pair_rows(square.data, square.stride, packed + (block * all_steps + step) * kStepValues);
    }
  });
  multiply(stream, unit, {n, k, rows, packed, {c, DType::f32, k, nullptr, add}},
           [&](int64_t col, int64_t step, int64_t steps, bf16* strip) {
             alignas(64) bf16 padded[kStepValues];
             for (int64_t s = 0; s < steps; ++s) {
               const Square square(a, (step + s) * kTileBlock, rows, col, n, padded);
               unit.transpose(square.data, square.stride, strip + s * kStepValues);
             }
           });
}

}  // namespace mw::cpu
