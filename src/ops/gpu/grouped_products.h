// Grouped GEMM on Hopper: how the host describes operands to the copy engine, cuts products into tiles and starts the
// kernels of grouped_wgmma.h.
#pragma once

#include "ops/gpu/grouped.h"
#include "ops/gpu/tile_products.h"

namespace mw::gpu {

// Calls body with the shape of the tiles.
template <class Body>
bool with_shape(const Tiling& tiling, const Body& body) {
  if (tiling.tile.paired) return body(TileShape<kWideTile, true>{});
  if (tiling.tile.width == kWideTile) return body(TileShape<kWideTile, false>{});
  return body(TileShape<kNarrowTile, false>{});
}

// Calls body(std::true_type) or body(std::false_type).
template <class Body>
bool with_flag(bool flag, const Body& body) {
  return flag ? body(std::true_type{}) : body(std::false_type{});
}

template <Along kAlong, int kColumns>
bool describe_operand(Operand& operand, int64_t rows) {
  const Matrices all{operand.rows.data, DType::bf16, 1, rows, operand.rows.width, rows * operand.rows.width};
  return describe_matrices(all, BoxLoader<kAlong, kColumns>::kBoxRows, &operand.map);
}

template <Results kResults>
using ResultsAs = std::integral_constant<Results, kResults>;

// Returns false where the copy engine (TMA) cannot read the operands: weights must lie at equal distances.
template <Along kWeights, class U, class Launch>
bool multiply_rows(const Launch& launch, const Tiling& tiling, const Matrices& weights, const Rows<const bf16>& x,
                   const Rows<U>& y, bool add) {
  if (tiling.rows() == 0) return true;
  const Matrices results{y.data, DType::bf16, 1, tiling.rows(), y.width, tiling.rows() * y.width};
  const auto multiply = [&](auto shape, auto boxes_of_x, auto how) {
    constexpr bool kBoxesOfX = decltype(boxes_of_x)::value;
    using Product = RowsProduct<kWeights, U, decltype(shape), kBoxesOfX, decltype(how)::value>;
    Product product{{}, {{}, x}, y, add, {}};
    if (!describe_matrices(weights, Product::LoaderB::kBoxRows, &product.weights)) return false;
    if (kBoxesOfX && !describe_operand<Along::depth, kHeight>(product.x, tiling.rows())) return false;
    if (Product::kBoxesOfY && !describe_matrices(results, kBoxRows, &product.y_map)) return false;
    launch(product);
    return true;
  };
  return with_shape(tiling, [&](auto shape) {
    constexpr bool kMayAddBoxes = kWeights == Along::width && decltype(shape)::kWidth == kWideTile;
    return with_flag(x.index == nullptr, [&](auto boxes_of_x) {
      if constexpr (std::is_same_v<U, bf16>) {
        if (y.index == nullptr && !add) return multiply(shape, boxes_of_x, ResultsAs<Results::boxes>());
        if constexpr (kMayAddBoxes && decltype(boxes_of_x)::value)
          if (y.index == nullptr) return multiply(shape, boxes_of_x, ResultsAs<Results::added_boxes>());
      }
      return multiply(shape, boxes_of_x, ResultsAs<Results::rows>());
    });
  });
}

// Where a product adds the squares of what it stores; null: nowhere.
inline unsigned long long* sets_of(const GradientStore& to) {
  const bool adds = to.store == Store::overwrite && to.squares != nullptr;
  return adds ? static_cast<unsigned long long*>(to.squares->limbs.data) : nullptr;
}

// Only one operand without an index is loaded as boxes: x rather than dy, because its tiles are wider.
template <class U, class Launch>
bool multiply_columns(const Launch& launch, const Tiling& tiling, const Rows<const bf16>& dy, const Rows<const bf16>& x,
                      TensorView dw_eNK, GradientStore to) {
  const int64_t n = dw_eNK.dim(1), k = dw_eNK.dim(2);
  const Matrices gradients{dw_eNK.data, dw_eNK.dtype, dw_eNK.dim(0), n, k, n * k};
  const auto multiply = [&](auto shape, auto boxes_of_dy, auto boxes_of_x) {
    using Product = WeightsProduct<U, decltype(shape), decltype(boxes_of_dy)::value, decltype(boxes_of_x)::value>;
    Product product{{{}, dy}, {{}, x}, {}, dw_eNK.as<U>(), to.store == Store::accumulate, sets_of(to)};
    if (!describe_matrices(gradients, kBoxRows, &product.dw_map)) return false;
    if (boxes_of_dy && !describe_operand<Along::width, Product::kRows>(product.dy, tiling.rows())) return false;
    if (boxes_of_x && !describe_operand<Along::width, Product::kWidth>(product.x, tiling.rows())) return false;
    launch(product);
    return true;
  };
  const auto gather = [&](auto shape) {
    return with_flag(dy.index == nullptr, [&](auto boxes) { return multiply(shape, boxes, std::false_type{}); });
  };
  if (tiling.tile.height == kTallHeight) return gather(TileShape<kTallWidth, false, kTallHeight>{});
  return with_shape(tiling, [&](auto shape) {
    if (x.index == nullptr) return multiply(shape, std::false_type{}, std::true_type{});
    return gather(TileShape<decltype(shape)::kWidth, false>{});
  });
}

// The weights as one tensor, if they lie at equal distances.
inline bool find_matrices(std::span<const Weight> weights, Matrices* out) {
  const auto data = [&](size_t e) { return static_cast<const bf16*>(weights[e].packed_forward.data); };
  const int64_t n = weights[0].n, k = weights[0].k;
  *out = {data(0), DType::bf16, static_cast<int64_t>(weights.size()),
          n,       k,           weights.size() > 1 ? data(1) - data(0) : n * k};
  for (size_t e = 0; e < weights.size(); ++e)
    if (data(e) == nullptr || !is_aligned(data(e)) || data(e) != data(0) + static_cast<int64_t>(e) * out->spacing)
      return false;
  return out->spacing >= n * k;
}

inline bool find_operands(Stream& stream, const SortedRows& x, std::span<const Weight> weights, const SortedRows& y,
                          Matrices* matrices) {
  return find_processors(stream).blocks > 0 && fits_chunks(x) && y.data.cols() % kChunk == 0 &&
         is_aligned(y.data.data) && find_matrices(weights, matrices);
}

// Blocks of a pair wait for each other at the end of a tile: on an H200 this costs 5 % at a depth of 768; from 1408 on,
// pairs gain 0 to 11 %.
constexpr int64_t kPairDepth = 1024;

// The tiles of esmm and esmm_d_input.
inline Tiling cut_rows(Processors processors, const SortedRows& x, std::span<const int64_t> offsets,
                       const SortedRows& y) {
  if (x.data.cols() < kPairDepth) processors.pairs = 0;
  return cut_tiles(offsets, y.data.cols(), processors, [](int64_t rows) { return ceil_div(rows, kHeight); });
}

template <class Launch>
bool multiply_rows_as(const Launch& launch, ProductKind kind, const Tiling& tiling, const SortedRows& x,
                      const Matrices& weights, const SortedRows& y, Store store) {
  bool done = false;
  with_float_type(y.data.dtype, [&](auto type) {
    using U = decltype(type);
    const auto multiply =
        kind == ProductKind::forward ? multiply_rows<Along::depth, U, Launch> : multiply_rows<Along::width, U, Launch>;
    done = multiply(launch, tiling, weights, rows_of<const bf16>(x), rows_of<U>(y), store == Store::accumulate);
  });
  return warn_unless(launch.stream, done);
}

inline bool fits_gradients(Stream& stream, const SortedRows& dy, const SortedRows& x, const TensorView& dw_eNK) {
  return find_processors(stream).blocks > 0 && fits_chunks(dy) && fits_chunks(x) && is_aligned(dw_eNK.data);
}

// Whether weight gradients of x behind an index are computed in tall tiles, which gather fewer columns of x for each
// product: 2 to 6 % faster on an H200. Not where this would leave processors idle, or compute 5 % more in vain.
inline bool is_tall(const Processors& processors, int64_t experts, int64_t n, int64_t k) {
  const int64_t tall = ceil_div(n, kTallHeight) * ceil_div(k, kTallWidth);
  const int64_t wide = ceil_div(n, kHeight) * ceil_div(k, kWideTile);
  return experts * tall >= processors.blocks && 20 * tall * kTallHeight * kTallWidth <= 21 * wide * kHeight * kWideTile;
}

// The tiles of estmm.
inline Tiling cut_gradients(Processors processors, const SortedRows& x, std::span<const int64_t> offsets,
                            const TensorView& dw_eNK, Store store) {
  const int64_t n = dw_eNK.dim(1), k = dw_eNK.dim(2);
  const auto row_tiles_by = [&](int64_t height) {
    return [=](int64_t rows) { return rows == 0 && store == Store::accumulate ? 0 : ceil_div(n, height); };
  };
  const bool adds_bf16 = dw_eNK.dtype == DType::bf16 && store == Store::accumulate;
  if (x.index == nullptr) return cut_tiles(offsets, k, processors, row_tiles_by(kHeight));
  if (!adds_bf16 && is_tall(processors, dw_eNK.dim(0), n, k))
    return cut_tiles(offsets, k, TileSize{kTallHeight, kTallWidth, false}, row_tiles_by(kTallHeight));
  processors.pairs = 0;  // they share boxes of x
  return cut_tiles(offsets, k, processors, row_tiles_by(kHeight));
}

template <class Launch>
bool multiply_gradients(const Launch& launch, const Tiling& tiling, const SortedRows& dy, const SortedRows& x,
                        TensorView dw_eNK, GradientStore to) {
  bool done = false;
  with_float_type(dw_eNK.dtype, [&](auto type) {
    done =
        multiply_columns<decltype(type)>(launch, tiling, rows_of<const bf16>(dy), rows_of<const bf16>(x), dw_eNK, to);
  });
  if (done) count_squares(to, dw_eNK);
  return warn_unless(launch.stream, done);
}

// multiply_by_warpgroups, multiply_weights_by_warpgroups and differentiate_by_warpgroups of ops/gpu/grouped.h, with a
// meter.
template <class Meter>
bool multiply_metered(Stream& stream, ProductKind kind, const SortedRows& x, std::span<const int64_t> offsets,
                      std::span<const Weight> weights, const SortedRows& y, Store store, const Meter& meter) {
  Matrices matrices;
  if (!find_operands(stream, x, weights, y, &matrices)) return false;
  const Processors& processors = find_processors(stream);
  const Tiling tiling = cut_rows(processors, x, offsets, y);
  WorkspaceFrame frame(stream.workspace());
  const auto [table] = copy_tables<1>(stream, frame, {&tiling});
  return multiply_rows_as(TilesLaunch<Meter>{stream, processors, table, meter}, kind, tiling, x, matrices, y, store);
}

template <class Meter>
bool multiply_weights_metered(Stream& stream, const SortedRows& dy, const SortedRows& x,
                              std::span<const int64_t> offsets, TensorView dw_eNK, GradientStore to,
                              const Meter& meter) {
  if (!fits_gradients(stream, dy, x, dw_eNK)) return false;
  const Processors& processors = find_processors(stream);
  const Tiling tiling = cut_gradients(processors, x, offsets, dw_eNK, to.store);
  WorkspaceFrame frame(stream.workspace());
  const auto [table] = copy_tables<1>(stream, frame, {&tiling});
  return multiply_gradients(TilesLaunch<Meter>{stream, processors, table, meter}, tiling, dy, x, dw_eNK, to);
}

// The kernel of dw begins while that of dx ends: processors that find no tile of dx left take tiles of dw. The tiles of
// dx come first because they take longer.
template <class Meter>
bool differentiate_metered(Stream& stream, const SortedRows& dy, const SortedRows& x, std::span<const int64_t> offsets,
                           std::span<const Weight> weights, const SortedRows& dx, TensorView dw_eNK, GradientStore to,
                           const Meter& of_dx, const Meter& of_dw) {
  Matrices matrices;
  if (weights.empty() || offsets.front() == offsets.back() || !find_operands(stream, dy, weights, dx, &matrices) ||
      !fits_gradients(stream, dy, x, dw_eNK))
    return false;
  const Processors& processors = find_processors(stream);
  const Tiling rows = cut_rows(processors, dy, offsets, dx);
  const Tiling gradients = cut_gradients(processors, x, offsets, dw_eNK, to.store);
  WorkspaceFrame frame(stream.workspace());
  const auto [row_table, gradient_table] = copy_tables<2>(stream, frame, {&rows, &gradients});
  return multiply_rows_as(TilesLaunch<Meter>{stream, processors, row_table, of_dx}, ProductKind::d_input, rows, dy,
                          matrices, dx, Store::overwrite) &&
         multiply_gradients(TilesLaunch<Meter>{stream, processors, gradient_table, of_dw, true}, gradients, dy, x,
                            dw_eNK, to);
}

}  // namespace mw::gpu
