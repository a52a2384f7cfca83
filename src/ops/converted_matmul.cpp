#include "ops/converted_matmul.h"

#include <algorithm>

#include "ops/elementwise.h"

namespace mw {
namespace {

// Calls body(begin, count, space) for each piece of the rows, with space for it in fp32.
template <class Body>
void for_chunks(Stream& stream, int64_t rows, int64_t k, int64_t chunk_rows, Body&& body) {
  for (int64_t begin = 0; begin < rows; begin += chunk_rows) {
    const int64_t count = std::min(chunk_rows, rows - begin);
    WorkspaceFrame frame(stream.workspace());
    body(begin, count, TensorView(frame.take<float>(static_cast<size_t>(count * k)), DType::f32, {count, k}));
  }
}

}  // namespace

void converted_matmul(Stream& stream, TensorView x_MK, const Weight& weight, TensorView y_MN, int64_t chunk_rows) {
  for_chunks(stream, x_MK.rows(), weight.k, chunk_rows, [&](int64_t begin, int64_t count, TensorView x32) {
    convert(stream, x_MK.slice(begin, count), x32);
    matmul(stream, x32, weight, y_MN.slice(begin, count));
  });
}

void converted_matmul_d_input(Stream& stream, TensorView dy_MN, const Weight& weight, TensorView dx_MK,
                              int64_t chunk_rows) {
  for_chunks(stream, dy_MN.rows(), weight.k, chunk_rows, [&](int64_t begin, int64_t count, TensorView dx32) {
    const TensorView dx = dx_MK.slice(begin, count);
    convert(stream, dx, dx32);
    matmul_d_input(stream, dy_MN.slice(begin, count), weight, dx32, Store::accumulate);
    convert(stream, dx32, dx);
  });
}

void converted_matmul_d_weight(Stream& stream, TensorView dy_MN, TensorView x_MK, TensorView dw_NK,
                               int64_t chunk_rows) {
  for_chunks(stream, x_MK.rows(), x_MK.cols(), chunk_rows, [&](int64_t begin, int64_t count, TensorView x32) {
    convert(stream, x_MK.slice(begin, count), x32);
    matmul_d_weight(stream, dy_MN.slice(begin, count), x32, dw_NK);
  });
}

int64_t converted_matmul_bytes(int64_t rows, int64_t k, int64_t chunk_rows) {
  const int64_t bytes = std::min(rows, chunk_rows) * k * size_of(DType::f32);
  return (bytes + 63) / 64 * 64;
}

}  // namespace mw
