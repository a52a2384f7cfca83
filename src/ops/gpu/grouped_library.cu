// One dense product per expert, as X-MoE has it. A library wants rows side by side: those behind an index are gathered
// before and scattered after.
#include <algorithm>

#include "ops/gpu/dense.h"
#include "ops/gpu/grouped.h"
#include "ops/gpu/launch.h"
#include "ops/gpu/operators.h"
#include "ops/gpu/pack.h"

namespace mw::gpu {
namespace {

// Of the rows in scratch at a time: thousands, so that a product of them is as fast as one of all.
constexpr int64_t kPieceBytes = int64_t{64} << 20;
constexpr int kRowsPerBlock = kThreads / kWave;

// out[index[r]] = rows[r] in words, one wave per row.
template <class Word>
__global__ void scatter_kernel(const Word* __restrict__ rows, const int32_t* index, int64_t count, int64_t width,
                               Word* __restrict__ out) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.x / kWave;
  if (r >= count) return;
  const Word* from = rows + r * width;
  Word* to = out + static_cast<int64_t>(index[r]) * width;
  for (int64_t i = threadIdx.x % kWave; i < width; i += kWave) to[i] = from[i];
}

template <class Word>
void scatter_words(Stream& stream, const TensorView& rows, const int32_t* index, const TensorView& out) {
  const int64_t width = rows.cols() * size_of(rows.dtype) / static_cast<int64_t>(sizeof(Word));
  launch(stream, scatter_kernel<Word>, ceil_div(rows.rows(), kRowsPerBlock), kThreads, 0,
         static_cast<const Word*>(rows.data), index, rows.rows(), width, static_cast<Word*>(out.data));
}

// Rows [begin, begin + count) in sorted order: where they lie, or a place for them in scratch.
TensorView find_rows(WorkspaceFrame& frame, const SortedRows& rows, int64_t begin, int64_t count) {
  const DType dtype = rows.data.dtype;
  const int64_t width = rows.data.cols();
  if (rows.index == nullptr) return rows.data.slice(begin, count);
  return {frame.take_bytes(static_cast<size_t>(count * width * size_of(dtype))), dtype, {count, width}};
}

TensorView gather(Stream& stream, WorkspaceFrame& frame, const SortedRows& rows, int64_t begin, int64_t count) {
  const TensorView found = find_rows(frame, rows, begin, count);
  if (rows.index != nullptr) gpu::gather_rows(stream, rows.data, rows.index + begin, count, found);
  return found;
}

void scatter(Stream& stream, const TensorView& found, const SortedRows& rows, int64_t begin) {
  if (rows.index == nullptr) return;
  const int32_t* index = rows.index + begin;
  const bool wide =
      found.cols() * size_of(found.dtype) % 16 == 0 &&
      allow_packs<16>(static_cast<const uint8_t*>(found.data), static_cast<const uint8_t*>(rows.data.data));
  if (wide) return scatter_words<int4>(stream, found, index, rows.data);
  with_float_type(found.dtype, [&](auto type) { scatter_words<decltype(type)>(stream, found, index, rows.data); });
}

int64_t scratch_bytes_of_a_row(const SortedRows& rows) {
  return rows.index == nullptr ? 0 : rows.data.cols() * size_of(rows.data.dtype);
}

// Calls body(expert, begin, count) for the rows of every expert, in pieces of which each fits the scratch.
template <class Body>
void for_each_piece(std::span<const int64_t> offsets, const SortedRows& a, const SortedRows& b, const Body& body) {
  const int64_t row_bytes = scratch_bytes_of_a_row(a) + scratch_bytes_of_a_row(b);
  for (size_t e = 0; e + 1 < offsets.size(); ++e) {
    const int64_t end = offsets[e + 1],
                  most = row_bytes == 0 ? end - offsets[e] : std::max<int64_t>(1, kPieceBytes / row_bytes);
    for (int64_t begin = offsets[e]; begin < end; begin += most) body(e, begin, std::min(most, end - begin));
  }
}

}  // namespace

// A row may be larger than a piece should be. Both places in scratch are rounded up to 64 bytes.
int64_t per_expert_workspace_bytes(int64_t max_n, int64_t max_k) {
  return std::max(kPieceBytes, (max_n + max_k) * size_of(DType::f32)) + 2 * 64;
}

void multiply_per_expert(Stream& stream, ProductKind kind, const SortedRows& x, std::span<const int64_t> offsets,
                         std::span<const Weight> weights, const SortedRows& y) {
  for_each_piece(offsets, x, y, [&](size_t expert, int64_t begin, int64_t count) {
    WorkspaceFrame frame(stream.workspace());
    const TensorView from = gather(stream, frame, x, begin, count), to = find_rows(frame, y, begin, count);
    multiply_dense(stream, kind, from, weights[expert], to, Store::overwrite, true);
    scatter(stream, to, y, begin);
  });
}

bool rounds_sums_once(const SortedRows& dy, const SortedRows& x, std::span<const int64_t> offsets, DType dw,
                      Store store) {
  if (dw == DType::f32 || store == Store::accumulate) return dw == DType::f32;
  int64_t pieces = 0, experts = 0;
  for_each_piece(offsets, dy, x, [&](size_t, int64_t, int64_t) { ++pieces; });
  for (size_t e = 1; e < offsets.size(); ++e) experts += offsets[e] > offsets[e - 1] ? 1 : 0;
  return pieces == experts;
}

void multiply_weights_per_expert(Stream& stream, const SortedRows& dy, const SortedRows& x,
                                 std::span<const int64_t> offsets, TensorView dw_eNK, Store store) {
  for (size_t e = 0; e + 1 < offsets.size(); ++e)
    if (offsets[e] == offsets[e + 1] && store == Store::overwrite)
      gpu::fill_zero(stream, dw_eNK.at(static_cast<int64_t>(e)));
  for_each_piece(offsets, dy, x, [&](size_t expert, int64_t begin, int64_t count) {
    WorkspaceFrame frame(stream.workspace());
    const TensorView from = gather(stream, frame, dy, begin, count), with = gather(stream, frame, x, begin, count);
    const Store now = begin == offsets[expert] ? store : Store::accumulate;
    multiply_dense_weight(stream, from, with, dw_eNK.at(static_cast<int64_t>(expert)), now, true);
  });
}

}  // namespace mw::gpu
