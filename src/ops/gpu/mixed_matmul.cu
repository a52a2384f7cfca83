// Mixed products on tensor cores. An fp32 value is the sum of three bf16 parts, and a product of two parts is exact in
// fp32: bf16 products of the parts that matter, with fp32 sums, are together an fp32 product. The library computes
// them, except on Hopper large products with a weight and the ones that are added to a bf16 result, which our own
// kernels compute. Where neither takes a product, rows are converted to fp32.
#include "ops/mixed_matmul.h"

#include <array>

#include "ops/converted_matmul.h"
#include "ops/gpu/bf16_parts.h"
#include "ops/gpu/blas.h"
#include "ops/gpu/grouped.h"
#include "ops/gpu/launch.h"
#include "ops/gpu/mixed.h"
#include "ops/gpu/operators.h"
#include "ops/gpu/pack.h"

namespace mw::gpu {
namespace {

constexpr int kPack = kWidePack<float>;
constexpr int64_t kPartBytes = int64_t{24} << 20;  // bounds the parts of a chunk of rows
constexpr int64_t kRowStep = 128;                  // chunks of whole tiles
constexpr int64_t kConvertedRows = 4096;

int64_t chunk_rows(int64_t rows, int64_t n) {
  const int64_t row_bytes = kParts * n * size_of(DType::f32);
  return std::min(rows, std::max(kRowStep, kPartBytes / row_bytes / kRowStep * kRowStep));
}

// Rows of `width` values become rows of three times as many parts: all of the part named first, then the others.
template <int... kPart>
struct Split {
  const float* from;
  bf16* to;
  int64_t width;
  template <int N>
  __device__ void apply(int64_t i) const {
    const Pack<float, N> values = load<N>(from + i);
    Pack<bf16, N> parts[kParts];
#pragma unroll
    for (int k = 0; k < N; ++k) split_value(values.at[k], parts[0].at[k], parts[1].at[k], parts[2].at[k]);
    bf16* at = to + i + i / width * (kParts - 1) * width;
    ((store(at, parts[kPart]), at += width), ...);
  }
};

// The way back, for results of products with parts.
template <Store kStore>
struct SumParts {
  const float* from;
  float* to;
  int64_t width;
  template <int N>
  __device__ void apply(int64_t i) const {
    const float* at = from + i + i / width * (kParts - 1) * width;
    const Pack<float, N> first = load<N>(at), second = load<N>(at + width), third = load<N>(at + 2 * width);
    Pack<float, N> out{};
    if constexpr (kStore == Store::accumulate) out = load<N>(to + i);
#pragma unroll
    for (int k = 0; k < N; ++k) out.at[k] += sum_of_parts(first.at[k], second.at[k], third.at[k]);
    store(to + i, out);
  }
};

// to += from, rounded once.
struct AddRounded {
  const float* from;
  bf16* to;
  template <int N>
  __device__ void apply(int64_t i) const {
    Pack<float, N> sum = load<N>(from + i);
    const Pack<bf16, N> before = load<N>(to + i);
#pragma unroll
    for (int k = 0; k < N; ++k) sum.at[k] += to_float(before.at[k]);
    store(to + i, round_pack<bf16>(sum));
  }
};

template <int... kPart>
TensorView split(Stream& stream, WorkspaceFrame& frame, TensorView values_RW) {
  const int64_t count = values_RW.numel(), width = values_RW.cols();
  const Split<kPart...> body{values_RW.as<float>(), frame.take<bf16>(static_cast<size_t>(kParts * count)), width};
  for_each_pack<kPack>(stream, count, width % kPack == 0 && allow_packs<kPack>(body.from), body);
  return {body.to, DType::bf16, {values_RW.rows(), kParts * width}};
}

// [3 N, K]: the parts below each other.
template <int... kPart>
TensorView split_weight(Stream& stream, WorkspaceFrame& frame, const Weight& weight) {
  return split<kPart...>(stream, frame, weight.values.reshape({1, weight.n * weight.k}))
      .reshape({kParts * weight.n, weight.k});
}

template <Store kStore>
void sum_parts(Stream& stream, TensorView parts, TensorView sums_RW) {
  const SumParts<kStore> body{parts.as<float>(), sums_RW.as<float>(), sums_RW.cols()};
  const bool allowed = body.width % kPack == 0 && allow_packs<kPack>(body.from, body.to);
  for_each_pack<kPack>(stream, sums_RW.numel(), allowed, body);
}

// Rows of a result in fp32 that wait to be added: few enough to stay in the cache.
int64_t sum_rows(int64_t rows, int64_t n) { return std::min(chunk_rows(rows, n), kConvertedRows); }

int64_t bytes_taken(int64_t bytes) { return ceil_div(bytes, 64) * 64; }

// dx += dy_parts w_parts, rounded once.
bool add_by_warpgroups(Stream& stream, TensorView dy_parts, TensorView w_parts, TensorView dx) {
  const std::array<int64_t, 2> offsets = {0, dx.rows()};
  const Weight weight{w_parts.rows(), w_parts.cols(), {}, w_parts, {}};
  return multiply_by_warpgroups(stream, ProductKind::d_input, {dy_parts}, offsets, {&weight, 1}, {dx},
                                Store::accumulate);
}

// The same by the library. It would round the product to bf16 before the addition, so the product stays in fp32 and is
// added by a kernel of ours.
bool add_by_library(Stream& stream, TensorView dy_parts, TensorView w_parts, TensorView dx) {
  WorkspaceFrame frame(stream.workspace());
  const TensorView sums(frame.take<float>(static_cast<size_t>(dx.numel())), DType::f32, {dx.rows(), dx.cols()});
  if (!multiply_by_library(stream, {dy_parts, w_parts, sums})) return false;
  const AddRounded body{sums.as<float>(), dx.as<bf16>()};
  constexpr int kAdded = kWidePack<bf16>;
  for_each_pack<kAdded>(stream, dx.numel(), allow_packs<kAdded>(body.from) && allow_packs<kAdded>(body.to), body);
  return true;
}

}  // namespace

int64_t mixed_matmul_workspace_bytes(int64_t rows, int64_t n, int64_t k) {
  const int64_t parts = kParts * size_of(DType::f32);
  return bytes_taken(parts * ceil_div(n, kPartColumns) * kPartColumns * k) +
         bytes_taken(parts * n * chunk_rows(rows, n)) +
         std::max(converted_matmul_bytes(rows, k, kConvertedRows),
                  bytes_taken(sum_rows(rows, n) * k * size_of(DType::f32))) +
         matmul_workspace_bytes(n, k);
}

void mixed_matmul(Stream& stream, TensorView x_MK, const Weight& weight, TensorView y_MN) {
  const int64_t rows = x_MK.rows(), n = weight.n, chunk = chunk_rows(rows, n);
  if (rows == 0 || multiply_parts_by_warpgroups(stream, x_MK, weight, y_MN)) return;
  WorkspaceFrame frame(stream.workspace());
  const TensorView w = split_weight<0, 1, 2>(stream, frame, weight);
  const TensorView parts(frame.take<float>(static_cast<size_t>(kParts * n * chunk)), DType::f32, {chunk, kParts * n});
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t count = std::min(chunk, rows - begin);
    const TensorView x = x_MK.slice(begin, count), y = y_MN.slice(begin, count);
    BlasProduct product{x, w, parts.slice(0, count)};
    product.transpose_b = true;
    if (multiply_by_library(stream, product)) sum_parts<Store::overwrite>(stream, product.c, y);
    else converted_matmul(stream, x, weight, y, kConvertedRows);
  }
}

// Three products of parts matter to a bf16 result: first * first, first * second and second * first.
void mixed_matmul_d_input(Stream& stream, TensorView dy_MN, const Weight& weight, TensorView dx_MK) {
  const int64_t rows = dy_MN.rows(), chunk = chunk_rows(rows, weight.n), step = sum_rows(rows, weight.n);
  if (rows == 0) return;
  WorkspaceFrame frame(stream.workspace());
  const TensorView w = split_weight<0, 1, 0>(stream, frame, weight);
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t end = std::min(begin + chunk, rows);
    WorkspaceFrame of_chunk(stream.workspace());
    const TensorView parts = split<0, 0, 1>(stream, of_chunk, dy_MN.slice(begin, end - begin));
    if (add_by_warpgroups(stream, parts, w, dx_MK.slice(begin, end - begin))) continue;
    for (int64_t first = begin; first < end; first += step) {
      const int64_t count = std::min(step, end - first);
      const TensorView dx = dx_MK.slice(first, count);
      if (!add_by_library(stream, parts.slice(first - begin, count), w, dx))
        converted_matmul_d_input(stream, dy_MN.slice(first, count), weight, dx, kConvertedRows);
    }
  }
}

void mixed_matmul_d_weight(Stream& stream, TensorView dy_MN, TensorView x_MK, TensorView dw_NK) {
  const int64_t rows = x_MK.rows(), n = dw_NK.dim(0), k = dw_NK.dim(1), chunk = chunk_rows(rows, n);
  if (rows == 0) return;
  WorkspaceFrame frame(stream.workspace());
  const TensorView parts(frame.take<float>(static_cast<size_t>(kParts * n * k)), DType::f32, {kParts * n, k});
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t count = std::min(chunk, rows - begin);
    const TensorView dy = dy_MN.slice(begin, count), x = x_MK.slice(begin, count);
    WorkspaceFrame of_chunk(stream.workspace());
    BlasProduct product{split<0, 1, 2>(stream, of_chunk, dy), x, parts};
    product.transpose_a = true;
    if (multiply_by_library(stream, product)) sum_parts<Store::accumulate>(stream, parts, dw_NK.reshape({1, n * k}));
    else converted_matmul_d_weight(stream, dy, x, dw_NK, kConvertedRows);
  }
}

}  // namespace mw::gpu
