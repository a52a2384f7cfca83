// How tiles of Hopper's products are stored: the very source, run on the CPU.
#include "ops/gpu/tile_stores.h"  // with the stand-in of wgmma.h

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <vector>

namespace mw::gpu {
namespace {

constexpr int kTileRows = 128, kCopyingThreads = kWarpgroup, kAllThreads = 3 * kWarpgroup;
constexpr int kMargin = 16;  // columns of the result left of the tile

// Sums that bf16 holds, even when they are added to what was there. Never zero, but for one that is negative.
float sum_at(int row, int column) {
  if (row == 5 && column == 3) return -0.0f;
  return static_cast<float>(1 + (row * 3 + column * 7) % 120);
}
float before_at(int row, int column) { return static_cast<float>((row + column) % 60); }

template <class U>
U converted(float value) {
  if constexpr (std::is_same_v<U, float>) return value;
  else return to_bf16(value);
}
float widened(float value) { return value; }
float widened(bf16 value) { return to_float(value); }

// The sums of this thread in a tile of kTileColumns columns.
template <int kTileColumns>
void set_sums(float (&sums)[kTileColumns / 2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = (static_cast<int>(threadIdx.x) - kCopyingThreads) / 32;
  for (int j = 0; j < kTileColumns / 8; ++j)
    for (int i = 0; i < 2; ++i)
      for (int c = 0; c < 2; ++c)
        sums[4 * j + 2 * i + c] = sum_at(16 * warp + lane / 4 + 8 * i, 8 * j + 2 * (lane % 4) + c);
}

// A tile of kTileColumns columns, of which `width` exist, and of `height` rows, which lie at every second row of the
// result from the last one on.
template <class U, int kTileColumns>
void check_tile(int height, int width, bool add) {
  SCOPED_TRACE(fmt::format("{} bytes, {} columns, {} x {}, {}", sizeof(U), kTileColumns, height, width, add));
  const int stride = kMargin + kTileColumns + kMargin, rows = 2 * kTileRows;
  struct alignas(16) Chunk {
    U values[16 / sizeof(U)];
  };
  std::vector<Chunk> memory(static_cast<size_t>(rows * stride) / std::size(Chunk{}.values));
  U* const result = memory[0].values;
  const auto place = [&](int r, int c) { return result + (rows - 1 - 2 * r) * stride + kMargin + c; };
  for (int r = 0; r < kTileRows; ++r)
    for (int c = -kMargin; c < kTileColumns + kMargin; ++c) *place(r, c) = converted<U>(before_at(r, c + kMargin));
  emulated::run_block(kAllThreads, [&] {
    if (threadIdx.x < kCopyingThreads) return;
    float sums[kTileColumns / 2];
    set_sums<kTileColumns>(sums);
    const auto tile = find_tile_rows<U>(height, width, [&](int r) { return place(r, 0); });
    if (add) tile.prefetch(kTileColumns);
    tile.store(sums, add);
  });
  for (int r = 0; r < kTileRows; ++r)
    for (int c = -kMargin; c < kTileColumns + kMargin; ++c) {
      const bool inside = r < height && c >= 0 && c < std::min(width, kTileColumns);
      const float before = before_at(r, c + kMargin);
      const float expected = !inside ? before : add ? before + sum_at(r, c) : sum_at(r, c);
      ASSERT_EQ(widened(*place(r, c)), expected) << r << ", " << c;
      if (!inside || add) continue;
      ASSERT_EQ(std::signbit(widened(*place(r, c))), std::signbit(expected)) << r << ", " << c;
    }
}

TEST(TileStores, EachSumGoesToItsPlace) {
  for (const bool add : {false, true})
    for (const int height : {1, 8, 77, 128, 300})
      for (const int width : {8, 40, 64, 136, 256, 1000}) {
        check_tile<float, 256>(height, width, add);
        check_tile<float, 128>(height, width, add);
        check_tile<bf16, 256>(height, width, add);
        check_tile<bf16, 128>(height, width, add);
      }
}

TEST(TileStores, SumsAreRoundedOnceAfterTheyAreAdded) {
  alignas(16) bf16 row[128];
  std::fill(std::begin(row), std::end(row), to_bf16(256.0f));
  emulated::run_block(kAllThreads, [&] {
    if (threadIdx.x < kCopyingThreads) return;
    float sums[64];
    std::fill(std::begin(sums), std::end(sums), 1.00390625f);  // 1 in bf16, and 257 would become 256
    find_tile_rows<bf16>(1, 128, [&](int) { return row; }).store(sums, true);
  });
  for (const bf16 value : row) EXPECT_EQ(to_float(value), 258.0f);
}

// Every box of the second warpgroup's rows. A lane stores kWords at once; lanes whose words fill the 32 banks store
// together.
template <class U, int kTileColumns, unsigned kWords>
void check_boxes() {
  constexpr int kColumns = kRowBytes / sizeof(U);
  constexpr unsigned kBox = 2 * kAtomBytes, kTogether = 32 / kWords;
  for (int first = 0; first < kTileColumns; first += kColumns) {
    SCOPED_TRACE(fmt::format("{} bytes, {} columns, from {}", sizeof(U), kTileColumns, first));
    for (auto& stores : shared_stores) stores.clear();
    dynamic_memory[0].resize((kBox + kTileRows / 2 * kRowBytes) / sizeof(double));
    emulated::run_block(kAllThreads, [&] {
      if (threadIdx.x < kCopyingThreads + kWarpgroup) return;
      float sums[kTileColumns / 2];
      set_sums<kTileColumns>(sums);
      write_box(kBox, first, sums, U());
    });
    for (int r = 0; r < kTileRows / 2; ++r)
      for (int c = 0; c < kColumns; ++c) {
        const int byte = c * static_cast<int>(sizeof(U)), chunk = byte / 16 ^ r % 8;
        U value;
        std::memcpy(&value, in_shared(kBox + static_cast<unsigned>(r * kRowBytes + chunk * 16 + byte % 16)), sizeof(U));
        ASSERT_EQ(widened(value), widened(converted<U>(sum_at(kTileRows / 2 + r, first + c)))) << r << ", " << c;
      }
    for (unsigned begin = kCopyingThreads + kWarpgroup; begin < kAllThreads; begin += kTogether)
      for (size_t store = 0; store < shared_stores[begin].size(); ++store) {
        std::set<unsigned> banks;
        for (unsigned i = 0; i < kTogether; ++i) banks.insert(shared_stores[begin + i].at(store) / 4 % 32 / kWords);
        ASSERT_EQ(banks.size(), kTogether) << "threads from " << begin << ", store " << store;
      }
  }
}

TEST(TileStores, BoxesAreSwizzledAndWrittenWithoutBankConflicts) {
  check_boxes<float, 256, 2>();
  check_boxes<float, 128, 2>();
  check_boxes<bf16, 256, 4>();
  check_boxes<bf16, 128, 4>();
}

}  // namespace
}  // namespace mw::gpu
