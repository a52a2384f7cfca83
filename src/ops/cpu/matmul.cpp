#include "ops/matmul.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/loops.h"
#include "ops/cpu/operators.h"
#include "ops/cpu/panel_product.h"
#include "ops/cpu/tile_matmul.h"

namespace mw::cpu {
namespace {

// oneDNN reads the transposed operand of a weight gradient column by column. Where rows lie a multiple of 1 KiB apart,
// the lines of a column share few sets of the cache: on AVX2 a product then runs at two thirds of its rate. Such rows
// are copied with a gap, up to a width where the copy costs what it saves.
constexpr int64_t kBadStride = 256, kWidestGapped = 4096;  // fp32 elements

int64_t gradient_row(int64_t width, DType dtype) {
  return dtype == DType::f32 && width % kBadStride == 0 && width <= kWidestGapped ? width + kGap : width;
}

// What one more product costs, in rows: the call itself with packed weights; with others, weights are read through a
// transposition, or d_weight is read and written once more.
constexpr int64_t kPackedOverhead = 16;
constexpr int64_t kPlainOverhead = 32;

// Rows' worth of work to cover `rows` rows with panels of at most kPanelHeights[level].
int64_t covering_cost(int64_t rows, size_t level, int64_t overhead) {
  const int64_t height = kPanelHeights[level];
  const int64_t rest = rows % height;
  int64_t cost = rows / height * (height + overhead);
  if (rest > 0)
    cost += std::min(height + overhead, level > 0 ? covering_cost(rest, level - 1, overhead) : height + overhead);
  return cost;
}

// How the rows of one product are cut into panels.
struct PanelPlan {
  int64_t whole_limit;   // height at most of a panel without padding
  int64_t padded_limit;  // and of a panel with
  int64_t overhead;

  // whole_bytes, padded_bytes: scratch bytes a row, of `scratch` in all.
  PanelPlan(int64_t whole_bytes, int64_t padded_bytes, int64_t overhead_rows, int64_t scratch = kScratchLimit)
      : whole_limit(whole_bytes == 0 ? kPanelHeights.back() : scratch / whole_bytes),
        padded_limit(scratch / padded_bytes),
        overhead(overhead_rows) {}

  int64_t next_height(int64_t rows) const {
    for (size_t level = kPanelHeights.size() - 1; level > 0; --level) {
      const int64_t height = kPanelHeights[level];
      if (rows >= height ? height <= whole_limit
                         : height <= padded_limit && height + overhead <= covering_cost(rows, level - 1, overhead))
        return height;
    }
    return kPanelHeights.front();
  }
};

std::byte* row_of(const SortedRows& rows, int64_t row) {
  const int64_t at = rows.index ? rows.index[row] : row;
  return static_cast<std::byte*>(rows.data.data) + at * rows.data.cols() * size_of(rows.data.dtype);
}

// Sorted rows [begin, begin + count) as they lie in memory, if nothing has to be gathered, converted or padded.
bool is_direct(const SortedRows& rows, DType dtype, int64_t count, int64_t height) {
  return !rows.index && rows.data.dtype == dtype && count == height;
}

int64_t scratch_row_bytes(const SortedRows& rows, DType dtype, bool padded) {
  return !padded && is_direct(rows, dtype, 1, 1) ? 0 : rows.data.cols() * size_of(dtype);
}

// The matrix unit that computes products of bf16 panels here, or null if they go to the library.
const TileUnit* tile_unit() { return matmul_traits().amx ? amx_unit() : nullptr; }

TileRows tile_rows(const SortedRows& rows, int64_t begin) {
  const auto* data = static_cast<const bf16*>(rows.data.data);
  const int64_t stride = rows.data.cols();
  return rows.index ? TileRows{data, stride, rows.index + begin} : TileRows{data + begin * stride, stride, nullptr};
}

// The panel of sorted rows [begin, begin + count), zero rows below up to `height`. Rows lie `stride` elements apart.
const void* load_panel(Stream& stream, WorkspaceFrame& frame, const SortedRows& rows, DType dtype, int64_t begin,
                       int64_t count, int64_t height, int64_t stride) {
  const int64_t width = rows.data.cols();
  if (stride == width && is_direct(rows, dtype, count, height)) return row_of(rows, begin);
  const size_t row_bytes = static_cast<size_t>(width * size_of(dtype)),
               stride_bytes = static_cast<size_t>(stride * size_of(dtype));
  auto* panel = frame.take<std::byte>(static_cast<size_t>(height) * stride_bytes);
  const bool convert = rows.data.dtype != dtype;  // bf16 to f32
  for_blocks(stream, height, rows_per_block(width), [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      std::byte* to = panel + static_cast<size_t>(i) * stride_bytes;
      if (i >= count) {
        std::memset(to, 0, row_bytes);
      } else if (convert) {
        const auto* from = reinterpret_cast<const bf16*>(row_of(rows, begin + i));
        auto* to_f32 = reinterpret_cast<float*>(to);
        for (int64_t j = 0; j < width; ++j) to_f32[j] = to_float(from[j]);
      } else {
        std::memcpy(to, row_of(rows, begin + i), row_bytes);
      }
    }
  });
  return panel;
}

// to (=|+=) from, rounded once.
void round_row(const float* from, bf16* to, int64_t count, Store store) {
  if (store == Store::overwrite)
    for (int64_t i = 0; i < count; ++i) to[i] = to_bf16(from[i]);
  else
    for (int64_t i = 0; i < count; ++i) to[i] = to_bf16(to_float(to[i]) + from[i]);
}

// Brings the first `count` rows of a result panel of `dtype` to sorted rows [begin, begin + count).
void store_panel(Stream& stream, const void* panel, DType dtype, const SortedRows& rows, int64_t begin, int64_t count,
                 Store store) {
  const int64_t width = rows.data.cols();
  const size_t row_bytes = static_cast<size_t>(width * size_of(dtype));
  for_blocks(stream, count, rows_per_block(width), [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const std::byte* from = static_cast<const std::byte*>(panel) + static_cast<size_t>(i) * row_bytes;
      std::byte* to = row_of(rows, begin + i);
      if (rows.data.dtype != dtype) {
        round_row(reinterpret_cast<const float*>(from), reinterpret_cast<bf16*>(to), width, store);
      } else if (store == Store::accumulate) {
        for (int64_t j = 0; j < width; ++j) reinterpret_cast<float*>(to)[j] += reinterpret_cast<const float*>(from)[j];
      } else {
        std::memcpy(to, from, row_bytes);
      }
    }
  });
}

// The dtype that panels of a tensor have in products.
DType panel_dtype(DType dtype) {
  return dtype == DType::bf16 && matmul_traits().native_bf16 ? DType::bf16 : DType::f32;
}

const void* weight_data(ProductKind kind, const Weight& weight, bool packed) {
  if (!packed) return weight.values.data;
  const TensorView& form = kind == ProductKind::forward ? weight.packed_forward : weight.packed_backward;
  MW_CHECK(form.data && form.bytes() >= packed_weight_bytes(weight.n, weight.k, matmul_traits().native_bf16),
           "weight [{}, {}] has packed form {}", weight.n, weight.k, form.describe());
  return form.data;
}

// y[r] (=|+=) the product of x[r] for sorted rows [begin, end).
void multiply_rows(Stream& stream, ProductKind kind, const SortedRows& x, const Weight& weight, const SortedRows& y,
                   int64_t begin, int64_t end, Store store) {
  if (begin == end) return;
  const bool packed = x.data.dtype == DType::bf16;
  const DType in = panel_dtype(x.data.dtype);
  // What is added to bf16 values is not rounded before.
  const DType out = in == DType::bf16 && store == Store::overwrite ? y.data.dtype : DType::f32;
  const void* w = weight_data(kind, weight, packed);
  if (const TileUnit* tiles = in == DType::bf16 ? tile_unit() : nullptr) {
    const bool forward = kind == ProductKind::forward;
    const int64_t stride = y.data.cols();
    std::byte* data = static_cast<std::byte*>(y.data.data) + (y.index ? 0 : begin * stride * size_of(y.data.dtype));
    multiply_by_tiles(stream, *tiles, tile_rows(x, begin), end - begin, static_cast<const bf16*>(w),
                      forward ? weight.k : weight.n, stride,
                      {data, y.data.dtype, stride, y.index ? y.index + begin : nullptr, store == Store::accumulate});
    return;
  }
  const PanelPlan plan(scratch_row_bytes(x, in, false) + scratch_row_bytes(y, out, false),
                       scratch_row_bytes(x, in, true) + scratch_row_bytes(y, out, true),
                       packed ? kPackedOverhead : kPlainOverhead);
  for (int64_t row = begin; row < end;) {
    const int64_t height = plan.next_height(end - row);
    const int64_t count = std::min(height, end - row);
    WorkspaceFrame frame(stream.workspace());
    const void* a = load_panel(stream, frame, x, in, row, count, height, x.data.cols());
    PanelProduct product{kind, height, weight.n, weight.k, in, out, packed, store, x.data.cols()};
    if (is_direct(y, out, count, height)) {
      run_panel(stream, product, a, w, row_of(y, row));
    } else {
      product.store = Store::overwrite;
      void* c = frame.take_bytes(static_cast<size_t>(height * y.data.cols() * size_of(out)));
      run_panel(stream, product, a, w, c);
      store_panel(stream, c, out, y, row, count, store);
    }
    row += count;
  }
}

// dw += dy^T x over sorted rows [begin, end).
void multiply_d_weight(Stream& stream, const SortedRows& dy, const SortedRows& x, TensorView dw_NK, int64_t begin,
                       int64_t end, Store store) {
  const int64_t n = dy.data.cols(), k = x.data.cols();
  const DType in = panel_dtype(x.data.dtype);
  if (const TileUnit* tiles = in == DType::bf16 ? tile_unit() : nullptr) {
    const int64_t limit = std::max(kTileBlock, kScratchLimit / tile_scratch_bytes(1, k) * kTileBlock);
    const int64_t height = std::min(limit, kPanelHeights.back());
    for (int64_t row = begin; row < end; row += height, store = Store::accumulate)
      multiply_transposed_by_tiles(stream, *tiles, tile_rows(dy, row), tile_rows(x, row), std::min(height, end - row),
                                   n, k, dw_NK.as<float>(), store == Store::accumulate);
    return;
  }
  const int64_t sum_bytes = dw_NK.bytes() <= kSumLimit ? dw_NK.bytes() : 0;
  const int64_t dy_row = gradient_row(n, in), gap_bytes = (dy_row - n) * size_of(in);
  const int64_t padded_bytes = scratch_row_bytes(dy, in, true) + gap_bytes;
  const PanelPlan plan(
      (gap_bytes > 0 ? padded_bytes : scratch_row_bytes(dy, in, false)) + scratch_row_bytes(x, in, false),
      padded_bytes + scratch_row_bytes(x, in, true), kPlainOverhead, kScratchLimit - sum_bytes);
  for (int64_t row = begin; row < end;) {
    const int64_t height = plan.next_height(end - row);
    const int64_t count = std::min(height, end - row);
    WorkspaceFrame frame(stream.workspace());
    const void* a = load_panel(stream, frame, dy, in, row, count, height, dy_row);
    const void* b = load_panel(stream, frame, x, in, row, count, height, k);
    PanelProduct product{ProductKind::d_weight, height, n, k, in, DType::f32, false, store, dy_row};
    if (store == Store::accumulate && sum_bytes > 0) {
      product.store = Store::overwrite;
      void* sum = frame.take_bytes(static_cast<size_t>(sum_bytes));
      run_panel(stream, product, a, b, sum);
      store_panel(stream, sum, DType::f32, {dw_NK}, 0, n, Store::accumulate);
    } else {
      run_panel(stream, product, a, b, dw_NK.data);
    }
    store = Store::accumulate;
    row += count;
  }
}

// y (=|+=) x, rounded once.
void store_rounded(Stream& stream, const float* x, TensorView y, Store store) {
  bf16* to = y.as<bf16>();
  constexpr int64_t kBlock = 8192;
  for_blocks(stream, y.numel(), kBlock,
             [=](int64_t begin, int64_t end) { round_row(x + begin, to + begin, end - begin, store); });
}

void multiply_experts(Stream& stream, ProductKind kind, const SortedRows& x, std::span<const int64_t> offsets,
                      std::span<const Weight> weights, const SortedRows& y) {
  for (size_t e = 0; e < weights.size(); ++e)
    multiply_rows(stream, kind, x, weights[e], y, offsets[e], offsets[e + 1], Store::overwrite);
}

}  // namespace

// Rows behind an index are gathered panel by panel, in scratch that the products above have too. A gradient that is
// kept in bf16 is summed in fp32.
int64_t esmm_workspace_bytes(ExpertProducts, int64_t, int64_t max_n, int64_t max_k, DType gradients) {
  return gradients == DType::f32 ? 0 : max_n * max_k * size_of(DType::f32) + 64;
}

void pack_weight(Stream& stream, const Weight& weight) {
  for (const TensorView* form : {&weight.packed_forward, &weight.packed_backward})
    MW_CHECK(form->bytes() >= packed_weight_bytes(weight.n, weight.k, matmul_traits().native_bf16),
             "weight [{}, {}] has packed form {}", weight.n, weight.k, form->describe());
  if (const TileUnit* tiles = tile_unit()) pack_tiles(stream, *tiles, weight);
  else pack_for_panels(stream, weight);
}

void matmul(Stream& stream, TensorView x_MK, const Weight& weight, TensorView y_MN) {
  multiply_rows(stream, ProductKind::forward, {x_MK}, weight, {y_MN}, 0, x_MK.rows(), Store::overwrite);
}

void matmul_d_input(Stream& stream, TensorView dy_MN, const Weight& weight, TensorView dx_MK, Store store) {
  multiply_rows(stream, ProductKind::d_input, {dy_MN}, weight, {dx_MK}, 0, dy_MN.rows(), store);
}

void matmul_d_weight(Stream& stream, TensorView dy_MN, TensorView x_MK, TensorView dw_NK, Store store) {
  multiply_d_weight(stream, {dy_MN}, {x_MK}, dw_NK, 0, dy_MN.rows(), store);
}

void esmm(Stream& stream, SortedRows x_RK, std::span<const int64_t> offsets, std::span<const Weight> weights,
          SortedRows y_RN, ExpertProducts) {
  multiply_experts(stream, ProductKind::forward, x_RK, offsets, weights, y_RN);
}

void esmm_d_input(Stream& stream, SortedRows dy_RN, std::span<const int64_t> offsets, std::span<const Weight> weights,
                  SortedRows dx_RK, ExpertProducts) {
  multiply_experts(stream, ProductKind::d_input, dy_RN, offsets, weights, dx_RK);
}

void estmm(Stream& stream, SortedRows dy_RN, SortedRows x_RK, std::span<const int64_t> offsets, TensorView dw_eNK,
           GradientStore to, ExpertProducts) {
  const Store store = to.store;
  for (int64_t e = 0; e < dw_eNK.dim(0); ++e) {
    const auto i = static_cast<size_t>(e);
    const TensorView dw_NK = dw_eNK.at(e);
    if (offsets[i] == offsets[i + 1]) {
      if (store == Store::overwrite) cpu::fill_zero(stream, dw_NK);
    } else if (dw_NK.dtype == DType::f32) {
      multiply_d_weight(stream, dy_RN, x_RK, dw_NK, offsets[i], offsets[i + 1], store);
    } else {
      WorkspaceFrame frame(stream.workspace());
      auto* sums = frame.take<float>(static_cast<size_t>(dw_NK.numel()));
      multiply_d_weight(stream, dy_RN, x_RK, {sums, DType::f32, {dw_NK.dim(0), dw_NK.dim(1)}}, offsets[i],
                        offsets[i + 1], Store::overwrite);
      store_rounded(stream, sums, dw_NK, store);
    }
  }
}

void ess(Stream& stream, SortedRows dy_RN, std::span<const int64_t> offsets, TensorView db_eN,
         std::span<const int32_t> experts, TensorView weights_R) {
  const int64_t ranges = std::ssize(offsets) - 1, width = dy_RN.data.cols();
  float* db = db_eN.as<float>();
  const float* weights = weights_R.data == nullptr ? nullptr : weights_R.as<float>();

  // A task is a strip of columns of one expert, so that rows are summed in order whatever the threads.
  constexpr int64_t kStrip = 128;
  const int64_t strips = (width + kStrip - 1) / kStrip;
  with_float_type(dy_RN.data.dtype, [&]<class T>(T) {
    for_blocks(stream, ranges * strips, 1, [&](int64_t task, int64_t) {
      const auto e = static_cast<size_t>(task / strips);
      const int64_t begin = task % strips * kStrip, columns = std::min(kStrip, width - begin);
      float sums[kStrip] = {};
      for (int64_t row = offsets[e]; row < offsets[e + 1]; ++row) {
        const T* from = reinterpret_cast<const T*>(row_of(dy_RN, row)) + begin;
        const float weight = weights == nullptr ? 1.0f : weights[row];
        for (int64_t j = 0; j < columns; ++j) sums[j] += weight * to_float(from[j]);
      }
      float* to = db + (experts.empty() ? task / strips : int64_t{experts[e]}) * width + begin;
      for (int64_t j = 0; j < columns; ++j) to[j] += sums[j];
    });
  });
}

}  // namespace mw::cpu
