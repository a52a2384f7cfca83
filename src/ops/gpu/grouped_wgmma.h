// Grouped GEMM in bf16 with Hopper's warpgroup instructions (wgmma). A block computes tiles of 128 or 256 rows of an
// expert's result. One warpgroup copies: it fills a ring of stages in shared memory, 64 summands each, and gathers rows
// by their index on the way. Two warpgroups multiply, 64 or 128 rows each. They store bf16 rows and weight gradients
// through shared memory, and from registers what the copy engine cannot store: last rows of an expert, additions to
// bf16 weight gradients. Where bf16 rows are added to, the engine loads the old ones meanwhile. Blocks are persistent
// and take the next free tile from a counter. The first stages of a tile then load while the sums of the previous one
// are stored, and a block that started late, or shares its processor with an exchange, takes fewer tiles. Results do
// not depend on which block computes a tile. Pairs of blocks (clusters) compute two tiles of the same columns: each
// loads half of the second operand for both, because the L2 cache is the bottleneck.
#pragma once

#include <array>

#include "ops/gpu/grouped.h"
#include "ops/gpu/tile_loaders.h"
#include "ops/gpu/tile_queue.h"
#include "ops/gpu/tile_ring.h"
#include "ops/gpu/tile_stores.h"
#include "ops/gpu/tiling.h"

namespace mw::gpu {

constexpr int kBlockThreads = 3 * kWarpgroup;            // one copies, two multiply
constexpr int kCopyRegisters = 56, kSumRegisters = 224;  // 56 + 2 * 224 = 3 * 168, what a thread has at the start
template <bool kPaired>
using BlockQueue = TileQueue<kBlockThreads / 32, kPaired>;

// What a warp spends its cycles on: waiting for the number of the next tile, waiting for a stage to be filled or read,
// copying or multiplying, storing.
enum class Spent : int { number, stage, work, store };
// Roles: the warpgroup that copies and the two that multiply.
constexpr int kSpentKinds = 4, kRoles = 3;

// A meter times parts of a kernel. This one measures nothing and costs nothing; bench/hopper_products.cu has one that
// counts cycles.
struct NoMeter {
  static constexpr bool kMultiplies = true;  // false: stages are filled and released only
  __device__ void begin() {}
  template <class Body>
  __device__ void time(Spent, const Body& body) {
    body();
  }
  __device__ void end(int) const {}
};

template <class Product>
using RingOf = Ring<Product::kWidth, Product::kRows>;
template <class Product>
constexpr int kStrips = Product::kRows / kHeight;  // of 64 rows, of each multiplying warpgroup
template <class Product>
using TileSums = float[kStrips<Product>][Product::kWidth / 2];

__device__ inline int count_steps(int64_t depth) { return static_cast<int>((depth + kDepth - 1) / kDepth); }

template <class Meter, class Queue>
__device__ int get_number(Meter& meter, Queue& queue) {
  int number = 0;
  meter.time(Spent::number, [&] { number = queue.get(); });
  return number;
}

template <class Product, class Meter>
__device__ void load_tiles(const Product& product, TileWalk<Product::kPaired> walk, RingOf<Product> ring,
                           BlockQueue<Product::kPaired> queue, Meter& meter) {
  if (queue.takes()) queue.take(walk.table.taken);
  for (int number = get_number(meter, queue); number < walk.table.tiles; number = get_number(meter, queue)) {
    if (queue.takes()) meter.time(Spent::number, [&] { queue.take(walk.table.taken); });
    const Tile tile = walk.find(number, Product::kRows, Product::kWidth);
    const int steps = count_steps(product.depth(tile));
    if (steps == 0) continue;
    auto a = product.load_a(tile);
    auto b = product.load_b(tile);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      a.prepare(step);
      b.prepare(step);
      meter.time(Spent::stage, [&] { wait_for_phase(ring.read(), ring.parity ^ 1); });
      meter.time(Spent::work, [&] {
        b.load(step, ring.b(), ring.filled());
        a.load(step, ring.a(), ring.filled());
        arrive_after_copies(ring.filled());
      });
      ring.advance();
    }
  }
}

// sums = a b over all stages of a tile, at least one. One batch of products is always in flight, so each stage is
// released one step late. Calls meanwhile() during the last batch.
template <class Product, class Meter, class Meanwhile>
__device__ void multiply(int group, int steps, RingOf<Product>& ring, TileSums<Product>& sums, Meter& meter,
                         const Meanwhile& meanwhile) {
  constexpr int kBytesA = Product::kA == Along::depth ? 32 : 16 * kRowBytes;  // of 16 summands
  constexpr int kBytesB = Product::kB == Along::depth ? 32 : 16 * kRowBytes;
  unsigned last = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    meter.time(Spent::stage, [&] { wait_for_phase(ring.filled(), ring.parity); });
    meter.time(Spent::work, [&] {
      if constexpr (!Product::kBoxesA || !Product::kBoxesB) fence_writes();
      begin_products();
#pragma unroll
      for (int i = 0; i < kDepth / 16; ++i)
#pragma unroll
        for (int strip = 0; strip < kStrips<Product>; ++strip)
          multiply_async<Product::kA, Product::kB>(
              sums[strip],
              describe_tile(ring.a() + (group * kStrips<Product> + strip) * kPanelBytes + i * kBytesA, kPanelBytes),
              describe_tile(ring.b() + i * kBytesB, kPanelBytes), step > 0 || i > 0);
      commit_products();
      wait_for_products<1>();
    });
    if (step > 0) release<Product::kPaired>(last);
    last = ring.read();
    ring.advance();
  }
  meanwhile();
  meter.time(Spent::work, [&] {
    wait_for_products<0>();
#pragma unroll
    for (int strip = 0; strip < kStrips<Product>; ++strip) keep_sums(sums[strip]);
  });
  release<Product::kPaired>(last);
}

// Rows and columns outside the result are not multiplied.
template <bool kPaired, class StageRing>
__device__ void skip(int steps, StageRing& ring) {
  for (int step = 0; step < steps; ++step) {
    wait_for_phase(ring.filled(), ring.parity);
    release<kPaired>(ring.read());
    ring.advance();
  }
}

// Sets the sums of a tile to zero, except where its first product overwrites them.
template <class Product>
__device__ void begin_sums(TileSums<Product>& sums, int steps) {
#pragma unroll
  for (int strip = 0; strip < kStrips<Product>; ++strip) {
    if constexpr (Product::kFindsAhead) leave_undefined(sums[strip]);
    if (Product::kFindsAhead && steps > 0) continue;
#pragma unroll
    for (float& sum : sums[strip]) sum = 0;
  }
}

// Computes this warpgroup's part of a tile. Calls meanwhile() once.
template <class Product, class Meter, class Meanwhile>
__device__ void multiply_tile(const Product& product, const Tile& tile, RingOf<Product>& ring, int group, unsigned held,
                              Meter& meter, const Meanwhile& meanwhile) {
  const int steps = count_steps(product.depth(tile));
  if (!Meter::kMultiplies || product.height(tile) <= group * Product::kRows / 2 ||
      (Product::kPaired && product.width(tile) <= 0)) {
    skip<Product::kPaired>(steps, ring);
    return meanwhile();
  }
  const auto place = product.place(tile, group, held);
  if (product.add) place.prefetch(Product::kWidth);
  TileSums<Product> sums;
  begin_sums<Product>(sums, steps);
  if (steps > 0) multiply<Product>(group, steps, ring, sums, meter, meanwhile);
  else meanwhile();
  meter.time(Spent::store, [&] {
    if constexpr (kStrips<Product> == 1) place.store(sums[0], product.add);
    else place.store(sums, product.add);
  });
}

// Products with kFindsAhead look the next tile up while the last products of one are in flight. Others have no
// registers for that.
template <class Product, class Meter>
__device__ void multiply_tiles(const Product& product, TileWalk<Product::kPaired> walk, RingOf<Product> ring,
                               BlockQueue<Product::kPaired> queue, int group, unsigned held, Meter& meter) {
  const auto find = [&](int number) { return walk.find(number, Product::kRows, Product::kWidth); };
  int number = get_number(meter, queue);
  if constexpr (Product::kFindsAhead) {
    Tile next;
    if (number < walk.table.tiles) next = find(number);
    while (number < walk.table.tiles) {
      const Tile tile = next;
      multiply_tile(product, tile, ring, group, held, meter, [&] {
        number = get_number(meter, queue);
        if (number < walk.table.tiles) next = find(number);
      });
    }
  } else {
    for (; number < walk.table.tiles; number = get_number(meter, queue))
      multiply_tile(product, find(number), ring, group, held, meter, [] {});
  }
  product.finish();
}

template <class Product, class Meter>
__device__ void compute_tiles(const Product& product, TileTable table, Meter meter) {
  constexpr bool kPaired = Product::kPaired;
  let_next_kernel_begin();
  const unsigned held = first_tile_address();
  RingOf<Product> ring{held + Product::kHeldBytes};
  BlockQueue<kPaired> queue{ring.memory + RingOf<Product>::kBytes};
  if (threadIdx.x == 0) {
    ring.init(kWarpgroup + Product::kBoxesA + Product::kBoxesB, (kPaired ? kPair : 1) * 2 * kWarpgroup / 32);
    queue.init();
    Product::init_barriers(held);
  }
  fence_barriers();
  if constexpr (kPaired) sync_pair();
  else __syncthreads();
  const int group = shuffle_from(static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (group == 0) {
    shrink_registers<kCopyRegisters>();
    meter.begin();
    load_tiles(product, {table}, ring, queue, meter);
  } else {
    grow_registers<kSumRegisters>();
    meter.begin();
    multiply_tiles(product, {table}, ring, queue, group - 1, held, meter);
  }
  meter.end(group);
  if constexpr (kPaired) sync_pair();  // a block's memory lives as long as the block
  wait_for_kernel_before();
}

template <class Product, class Meter>
__global__ void __launch_bounds__(kBlockThreads, 1)
    tiles_kernel(const __grid_constant__ Product product, TileTable table, Meter meter) {
  compute_tiles(product, table, meter);
}
template <class Product, class Meter>
__global__ void __launch_bounds__(kBlockThreads, 1) __cluster_dims__(kPair, 1, 1)
    pairs_kernel(const __grid_constant__ Product product, TileTable table, Meter meter) {
  compute_tiles(product, table, meter);
}

template <class Product>
constexpr size_t kSharedBytes =
    kAtomBytes + Product::kHeldBytes + RingOf<Product>::kBytes + BlockQueue<Product::kPaired>::kBytes;

// Returns `done`. If a tensor map was refused, warns once that slower kernels take over.
bool warn_unless(Stream& stream, bool done);

// Starts the kernel of a product whose tiles lie in device memory.
template <class Meter>
struct TilesLaunch {
  Stream& stream;
  const Processors& processors;
  TileTable table;
  Meter meter;
  // Begins while the kernel before it ends, which must be one of this file and independent of this one: neither may
  // write what the other reads or writes.
  bool beside = false;

  template <class Product>
  void operator()(const Product& product) const {
    constexpr bool kPaired = Product::kPaired;
    constexpr auto kKernel = [] {
      if constexpr (kPaired) return pairs_kernel<Product, Meter>;
      else return tiles_kernel<Product, Meter>;
    }();
    constexpr size_t kBytes = kSharedBytes<Product>;
    check(allow_shared_bytes(reinterpret_cast<const void*>(kKernel), kBytes), "asking for shared memory");
    const int blocks =
        kPaired ? kPair * std::min(table.tiles, processors.pairs) : std::min(table.tiles, processors.blocks);
    if (!beside) launch(stream, kKernel, blocks, kBlockThreads, kBytes, product, table, meter);
    else if (blocks > 0)
      check(launch_beside(native(stream), kKernel, blocks, kBlockThreads, kBytes, product, table, meter),
            "starting a kernel");
  }
};

// Copies the tiles of several products to the device at once.
template <size_t kCount>
std::array<TileTable, kCount> copy_tables(Stream& stream, WorkspaceFrame& frame,
                                          const std::array<const Tiling*, kCount>& tilings) {
  static_assert(2 * ((kMaxExperts + 2) * sizeof(ExpertTiles)) + 64 <= kGroupedWorkspaceBytes);
  std::vector<ExpertTiles> all;
  for (const Tiling* tiling : tilings)
    all.insert(all.end(), tiling->counter_and_experts.begin(), tiling->counter_and_experts.end());
  ExpertTiles* memory = device_copy(stream, frame, std::span<const ExpertTiles>(all));
  std::array<TileTable, kCount> tables;
  for (size_t i = 0; i < kCount; ++i) {
    tables[i] = {memory + 1, tilings[i]->tiles(), static_cast<int>(tilings[i]->columns), &memory->first_tile};
    memory += tilings[i]->counter_and_experts.size();
  }
  return tables;
}

}  // namespace mw::gpu
