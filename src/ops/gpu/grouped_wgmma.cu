// Grouped products of bf16 on Hopper's warpgroup instructions. A block computes 128 rows of tiles of an expert's
// result: one warpgroup fills a ring of stages in shared memory, 64 summands each, gathering rows by their index on the
// way; two multiply 64 rows each. Blocks stay and take the next tile that none has taken, so that its first stages come
// while the sums of the last one are stored, and that a block which came late, or shares its processor with an
// exchange, takes fewer. Which block computes a tile does not change its bits. Pairs of blocks compute two tiles of the
// same columns: each fetches half of the second operand for both, since the second level of cache limits them.
#include <cstdio>

#include "ops/gpu/grouped.h"
#include "ops/gpu/grouped_rows.h"
#include "ops/gpu/tile_loaders.h"
#include "ops/gpu/tile_queue.h"
#include "ops/gpu/tile_ring.h"
#include "ops/gpu/tile_stores.h"
#include "ops/gpu/tiling.h"

namespace mw::gpu {
namespace {

constexpr int kBlockThreads = 3 * kWarpgroup;            // one copies, two multiply
constexpr int kCopyRegisters = 56, kSumRegisters = 224;  // 56 + 2 * 224 = 3 * 168, what a thread has at the start
template <bool kPaired>
using BlockQueue = TileQueue<kBlockThreads / 32, kPaired>;

// Rows that an operand comes from. The map describes them where they have no index: then boxes bring them.
struct Operand {
  TensorMap map;
  Rows<const bf16> rows;
};

// y[r] (=|+=) x[r] W^T (weights along the depth: [out, depth]) or x[r] W (along the width: [depth, out]). Boxes of x
// go on into the next expert's rows: what comes of those is not stored.
template <Along kWeights, class U, class Shape, bool kBoxes>
struct RowsProduct {
  static constexpr Along kA = Along::depth, kB = kWeights;
  static constexpr int kWidth = Shape::kWidth;
  static constexpr bool kBoxesA = kBoxes, kBoxesB = true, kPaired = Shape::kPaired;
  using LoaderB = BoxLoader<kB, kWidth, kPaired>;

  TensorMap weights;
  Operand x;
  Rows<U> y;
  bool add;

  __device__ int64_t depth(const Tile&) const { return x.rows.width; }
  __device__ int64_t height(const Tile& tile) const { return tile.end - tile.begin - tile.top; }
  __device__ auto load_a(const Tile& tile) const {
    const int first = static_cast<int>(tile.begin + tile.top);
    if constexpr (kBoxes) return BoxLoader<kA, kHeight>{x.map, 0, 0, first};
    else return DepthLoader<kHeight>(source_of(x.rows, tile.end), first);
  }
  __device__ auto load_b(const Tile& tile) const {
    return LoaderB{weights, tile.expert, 0, static_cast<int>(tile.left), tile.shared};
  }
  __device__ int width(const Tile& tile) const { return static_cast<int>(y.width - tile.left); }
  __device__ TileRows<U> place(const Tile& tile) const {
    return find_tile_rows<U>(height(tile), width(tile),
                             [&](int r) { return y.row(tile.begin + tile.top + r) + tile.left; });
  }
};

// dw_e[n, k] (=|+=) sum over rows r of expert e of dy[r, n] x[r, k]. Boxes of one operand go on into the next expert's
// rows; copies of the other end in zeros there. So those rows count for nothing as long as they are finite.
template <class U, class Shape, bool kBoxesOfDy, bool kBoxesOfX>
struct WeightsProduct {
  static_assert(kBoxesOfX ? !kBoxesOfDy : !Shape::kPaired);
  static constexpr Along kA = Along::width, kB = Along::width;
  static constexpr int kWidth = Shape::kWidth;
  static constexpr bool kBoxesA = kBoxesOfDy, kBoxesB = kBoxesOfX, kPaired = Shape::kPaired;

  Operand dy, x;
  U* dw;
  bool add;

  __device__ int64_t depth(const Tile& tile) const { return tile.end - tile.begin; }
  __device__ int64_t height(const Tile& tile) const { return dy.rows.width - tile.top; }
  template <bool kBoxes, int kColumns, bool kPairs = false>
  __device__ static auto load(const Operand& from, const Tile& tile, int64_t left) {
    const int first = static_cast<int>(tile.begin), column = static_cast<int>(left);
    if constexpr (kBoxes) return BoxLoader<Along::width, kColumns, kPairs>{from.map, 0, first, column, tile.shared};
    else return WidthLoader<kColumns>(source_of(from.rows, tile.end), first, column);
  }
  __device__ auto load_a(const Tile& tile) const { return load<kBoxesA, kHeight>(dy, tile, tile.top); }
  __device__ auto load_b(const Tile& tile) const { return load<kBoxesB, kWidth, kPaired>(x, tile, tile.left); }
  __device__ int width(const Tile& tile) const { return static_cast<int>(x.rows.width - tile.left); }
  __device__ TileRows<U> place(const Tile& tile) const {
    U* const first = dw + (tile.expert * dy.rows.width + tile.top) * x.rows.width + tile.left;
    return find_tile_rows<U>(height(tile), width(tile), [&](int r) { return first + r * x.rows.width; });
  }
};

__device__ int count_steps(int64_t depth) { return static_cast<int>((depth + kDepth - 1) / kDepth); }

template <class Product>
__device__ void load_tiles(const Product& product, TileWalk<Product::kPaired> walk, Ring<Product::kWidth> ring,
                           BlockQueue<Product::kPaired> queue) {
  if (queue.takes()) queue.take(walk.table.taken);
  for (int number = queue.get(); number < walk.table.tiles; number = queue.get()) {
    if (queue.takes()) queue.take(walk.table.taken);
    const Tile tile = walk.find(number, Product::kWidth);
    const int steps = count_steps(product.depth(tile));
    if (steps == 0) continue;
    auto a = product.load_a(tile);
    auto b = product.load_b(tile);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      a.prepare(step);
      b.prepare(step);
      wait_for_phase(ring.read(), ring.parity ^ 1);
      b.load(step, ring.b(), ring.filled());
      a.load(step, ring.a(), ring.filled());
      arrive_after_copies(ring.filled());
      ring.advance();
    }
  }
}

// sums = a b over all stages of a tile, of which there is one at least. One batch of products is always under way: a
// stage is released one step late.
template <class Product>
__device__ void multiply(int group, int steps, Ring<Product::kWidth>& ring, float (&sums)[Product::kWidth / 2]) {
  constexpr int kBytesA = Product::kA == Along::depth ? 32 : 16 * kRowBytes;  // of 16 summands
  constexpr int kBytesB = Product::kB == Along::depth ? 32 : 16 * kRowBytes;
  unsigned last = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    wait_for_phase(ring.filled(), ring.parity);
    if constexpr (!Product::kBoxesA || !Product::kBoxesB) fence_products();
    begin_products();
#pragma unroll
    for (int i = 0; i < kDepth / 16; ++i)
      multiply_async<Product::kA, Product::kB>(sums,
                                               describe_tile(ring.a() + group * kPanelBytes + i * kBytesA, kPanelBytes),
                                               describe_tile(ring.b() + i * kBytesB, kPanelBytes), step > 0 || i > 0);
    commit_products();
    wait_for_products<1>();
    if (step > 0) release<Product::kPaired>(last);
    last = ring.read();
    ring.advance();
  }
  wait_for_products<0>();
  keep_sums(sums);
  release<Product::kPaired>(last);
}

// Beyond the last row and the last column of the result there is nothing to multiply.
template <bool kPaired, int kWidth>
__device__ void skip(int steps, Ring<kWidth>& ring) {
  for (int step = 0; step < steps; ++step) {
    wait_for_phase(ring.filled(), ring.parity);
    release<kPaired>(ring.read());
    ring.advance();
  }
}

template <class Product>
__device__ void multiply_tiles(const Product& product, TileWalk<Product::kPaired> walk, Ring<Product::kWidth> ring,
                               BlockQueue<Product::kPaired> queue, int group) {
  for (int number = queue.get(); number < walk.table.tiles; number = queue.get()) {
    const Tile tile = walk.find(number, Product::kWidth);
    const int steps = count_steps(product.depth(tile));
    if (product.height(tile) <= group * kHeight / 2 || (Product::kPaired && product.width(tile) <= 0)) {
      skip<Product::kPaired>(steps, ring);
      continue;
    }
    const auto place = product.place(tile);
    if (product.add) place.prefetch(Product::kWidth);
    float sums[Product::kWidth / 2] = {};
    if (steps > 0) multiply<Product>(group, steps, ring, sums);
    place.store(sums, product.add);
  }
}

template <class Product>
__device__ void compute_tiles(const Product& product, TileTable table) {
  constexpr bool kPaired = Product::kPaired;
  Ring<Product::kWidth> ring{first_tile_address()};
  BlockQueue<kPaired> queue{ring.memory + Ring<Product::kWidth>::kBytes};
  if (threadIdx.x == 0) {
    ring.init(kWarpgroup + Product::kBoxesA + Product::kBoxesB, (kPaired ? kPair : 1) * 2 * kWarpgroup / 32);
    queue.init();
  }
  fence_barriers();
  if constexpr (kPaired) sync_pair();
  else __syncthreads();
  const int group = shuffle_from(static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (group == 0) {
    shrink_registers<kCopyRegisters>();
    load_tiles(product, {table}, ring, queue);
  } else {
    grow_registers<kSumRegisters>();
    multiply_tiles(product, {table}, ring, queue, group - 1);
  }
  if constexpr (kPaired) sync_pair();  // a block's memory lives as long as the block
}

template <class Product>
__global__ void __launch_bounds__(kBlockThreads, 1)
    tiles_kernel(const __grid_constant__ Product product, TileTable table) {
  compute_tiles(product, table);
}
template <class Product>
__global__ void __launch_bounds__(kBlockThreads, 1) __cluster_dims__(kPair, 1, 1)
    pairs_kernel(const __grid_constant__ Product product, TileTable table) {
  compute_tiles(product, table);
}

template <class Product>
constexpr size_t kSharedBytes = kAtomBytes + Ring<Product::kWidth>::kBytes + BlockQueue<Product::kPaired>::kBytes;

template <class Product>
void launch_tiles(Stream& stream, const Tiling& tiling, const Processors& processors, const Product& product) {
  constexpr bool kPaired = Product::kPaired;
  constexpr auto kKernel = [] {
    if constexpr (kPaired) return pairs_kernel<Product>;
    else return tiles_kernel<Product>;
  }();
  static_assert((kMaxExperts + 2) * sizeof(ExpertTiles) + 64 <= kGroupedWorkspaceBytes);  // frames round up to 64
  WorkspaceFrame frame(stream.workspace());
  ExpertTiles* const memory = device_copy(stream, frame, std::span<const ExpertTiles>(tiling.counter_and_experts));
  const TileTable table{memory + 1, tiling.tiles(), static_cast<int>(tiling.columns), &memory->first_tile};
  check(allow_shared_bytes(reinterpret_cast<const void*>(kKernel), kSharedBytes<Product>), "asking for shared memory");
  const int blocks =
      kPaired ? kPair * std::min(tiling.tiles(), processors.pairs) : std::min(tiling.tiles(), processors.blocks);
  launch(stream, kKernel, blocks, kBlockThreads, kSharedBytes<Product>, product, table);
}

// Calls body with the shape of the tiles.
template <class Body>
bool with_shape(const Tiling& tiling, const Body& body) {
  if (tiling.paired) return body(TileShape<kWideTile, true>{});
  if (tiling.width == kWideTile) return body(TileShape<kWideTile, false>{});
  return body(TileShape<kNarrowTile, false>{});
}

// Calls body(std::true_type) or body(std::false_type).
template <class Body>
bool with_flag(bool flag, const Body& body) {
  return flag ? body(std::true_type{}) : body(std::false_type{});
}

template <Along kAlong, int kColumns>
bool describe_operand(Operand& operand, int64_t rows) {
  const Matrices all{operand.rows.data, 1, rows, operand.rows.width, rows * operand.rows.width};
  return describe_matrices(all, BoxLoader<kAlong, kColumns>::kBoxRows, &operand.map);
}

// False where the copy engine cannot read the operands: weights must lie at even distances.
template <Along kWeights, class U>
bool multiply_rows(Stream& stream, const Tiling& tiling, const Processors& processors, const Matrices& weights,
                   const Rows<const bf16>& x, const Rows<U>& y, bool add) {
  if (tiling.rows() == 0) return true;
  return with_shape(tiling, [&](auto shape) {
    return with_flag(x.index == nullptr, [&](auto boxes) {
      constexpr bool kBoxes = decltype(boxes)::value;
      using Product = RowsProduct<kWeights, U, decltype(shape), kBoxes>;
      Product product{{}, {{}, x}, y, add};
      if (!describe_matrices(weights, Product::LoaderB::kBoxRows, &product.weights)) return false;
      if (kBoxes && !describe_operand<Along::depth, kHeight>(product.x, tiling.rows())) return false;
      launch_tiles(stream, tiling, processors, product);
      return true;
    });
  });
}

// Boxes bring one operand without an index, x rather than dy: its tiles are wider.
template <class U>
bool multiply_columns(Stream& stream, const Tiling& tiling, const Processors& processors, const Rows<const bf16>& dy,
                      const Rows<const bf16>& x, U* dw, bool add) {
  return with_shape(tiling, [&](auto shape) {
    return with_flag(x.index == nullptr, [&](auto boxes_of_x) {
      return with_flag(!boxes_of_x && dy.index == nullptr, [&](auto boxes_of_dy) {
        constexpr bool kBoxesOfX = decltype(boxes_of_x)::value, kBoxesOfDy = decltype(boxes_of_dy)::value && !kBoxesOfX;
        using Shape = TileShape<decltype(shape)::kWidth, decltype(shape)::kPaired && kBoxesOfX>;
        using Product = WeightsProduct<U, Shape, kBoxesOfDy, kBoxesOfX>;
        Product product{{{}, dy}, {{}, x}, dw, add};
        if (kBoxesOfDy && !describe_operand<Along::width, kHeight>(product.dy, tiling.rows())) return false;
        if (kBoxesOfX && !describe_operand<Along::width, Product::kWidth>(product.x, tiling.rows())) return false;
        launch_tiles(stream, tiling, processors, product);
        return true;
      });
    });
  });
}

// The weights as one tensor, where they lie at even distances.
bool find_matrices(std::span<const Weight> weights, Matrices* out) {
  const auto data = [&](size_t e) { return static_cast<const bf16*>(weights[e].packed_forward.data); };
  const int64_t n = weights[0].n, k = weights[0].k;
  *out = {data(0), static_cast<int64_t>(weights.size()), n, k, weights.size() > 1 ? data(1) - data(0) : n * k};
  for (size_t e = 0; e < weights.size(); ++e)
    if (data(e) == nullptr || !is_aligned(data(e)) || data(e) != out->first + static_cast<int64_t>(e) * out->spacing)
      return false;
  return out->spacing >= n * k;
}

// As many for any kernel of pairs: each block takes the memory of a processor.
int count_pairs() {
  using AnyProduct = RowsProduct<Along::depth, bf16, TileShape<kWideTile, true>, true>;
  const auto* const kernel = reinterpret_cast<const void*>(pairs_kernel<AnyProduct>);
  int pairs = 0;
  check(allow_shared_bytes(kernel, kSharedBytes<AnyProduct>), "asking for shared memory");
  check(count_clusters(kernel, kPair, kBlockThreads, kSharedBytes<AnyProduct>, &pairs), "asking for pairs of blocks");
  return pairs;
}

struct HopperState : StreamState {
  bool known = false, warned = false;
  Processors processors;
};

// What runs these kernels: no block on any other GPU.
const Processors& find_processors(Stream& stream) {
  auto& state = stream.state<HopperState>();
  if (!state.known) {
    DeviceProperties p;
    check(read_properties(stream.device().index, &p), "reading the device's properties");
    state.known = true;
    if (p.major == 9 && p.minor == 0 && can_describe_matrices()) state.processors = {p.processors, count_pairs()};
  }
  return state.processors;
}

bool find_operands(Stream& stream, const SortedRows& x, std::span<const Weight> weights, const SortedRows& y,
                   Matrices* matrices) {
  return find_processors(stream).blocks > 0 && fits_chunks(x) && y.data.cols() % kChunk == 0 &&
         is_aligned(y.data.data) && find_matrices(weights, matrices);
}

// Of operands that fit: the kernels that take over are slower. Says so once.
bool warn_unless(Stream& stream, bool done) {
  bool& warned = stream.state<HopperState>().warned;
  if (!done && !warned)
    std::fputs("warning: the driver refuses tensor maps: products of experts go to slower kernels\n", stderr);
  warned = warned || !done;
  return done;
}

}  // namespace

bool fits_warpgroups(Stream& stream, const SortedRows& x, std::span<const Weight> weights, const SortedRows& y) {
  Matrices matrices;
  return find_operands(stream, x, weights, y, &matrices);
}

// Blocks of a pair wait for each other where a tile ends: on an H200 that costs 5 % at a depth of 768, while from 1408
// on pairs gain 0 to 11 %.
constexpr int64_t kPairDepth = 1024;

bool multiply_by_warpgroups(Stream& stream, ProductKind kind, const SortedRows& x, std::span<const int64_t> offsets,
                            std::span<const Weight> weights, const SortedRows& y, Store store) {
  Matrices matrices;
  if (!find_operands(stream, x, weights, y, &matrices)) return false;
  Processors processors = find_processors(stream);
  if (x.data.cols() < kPairDepth) processors.pairs = 0;
  const Tiling tiling =
      cut_tiles(offsets, y.data.cols(), processors, [](int64_t rows) { return ceil_div(rows, kHeight); });
  const bool add = store == Store::accumulate;
  bool done = false;
  with_float_type(y.data.dtype, [&](auto type) {
    using U = decltype(type);
    const auto multiply_along =
        kind == ProductKind::forward ? multiply_rows<Along::depth, U> : multiply_rows<Along::width, U>;
    done = multiply_along(stream, tiling, processors, matrices, rows_of<const bf16>(x), rows_of<U>(y), add);
  });
  return warn_unless(stream, done);
}

bool multiply_weights_by_warpgroups(Stream& stream, const SortedRows& dy, const SortedRows& x,
                                    std::span<const int64_t> offsets, TensorView dw_eNK, Store store) {
  Processors processors = find_processors(stream);
  if (processors.blocks == 0 || !fits_chunks(dy) || !fits_chunks(x) || !is_aligned(dw_eNK.data)) return false;
  const bool add = store == Store::accumulate;
  const int64_t row_tiles = ceil_div(dy.data.cols(), kHeight);
  if (x.index != nullptr) processors.pairs = 0;  // they share boxes of x
  const Tiling tiling =
      cut_tiles(offsets, x.data.cols(), processors, [&](int64_t rows) { return rows == 0 && add ? 0 : row_tiles; });
  bool done = false;
  with_float_type(dw_eNK.dtype, [&](auto type) {
    done = multiply_columns(stream, tiling, processors, rows_of<const bf16>(dy), rows_of<const bf16>(x),
                            dw_eNK.as<decltype(type)>(), add);
  });
  return warn_unless(stream, done);
}

}  // namespace mw::gpu
