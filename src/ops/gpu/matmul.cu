// Per-expert products go to the grouped kernels, or to the vendor's library one by one.
#include "ops/matmul.h"

#include "base/library_products.h"
#include "ops/elementwise.h"
#include "ops/gpu/blas.h"
#include "ops/gpu/dense.h"
#include "ops/gpu/grouped.h"
#include "ops/gpu/grouped_rows.h"
#include "ops/gpu/launch.h"
#include "ops/gpu/operators.h"

namespace mw::gpu {
namespace {

bool goes_to_library(ExpertProducts by, double rows_of_an_expert, int64_t n, int64_t k) {
  return has_library() && library_multiplies(by, rows_of_an_expert, n, k);
}

void multiply_experts(Stream& stream, ProductKind kind, const SortedRows& x, std::span<const int64_t> offsets,
                      std::span<const Weight> weights, const SortedRows& y, ExpertProducts by) {
  for (const Weight& weight : weights) matrix_of(weight, x.data.dtype);
  if (goes_to_library(by, average_rows(offsets), y.data.cols(), x.data.cols()))
    return multiply_per_expert(stream, kind, x, offsets, weights, y);
  multiply_grouped(stream, kind, x, offsets, weights, y, Store::overwrite);
}

constexpr int kSumThreads = 128;

// One thread sums one column of one range, in the order of the rows.
template <class T>
__global__ void sum_rows_kernel(Rows<const T> dy, const int64_t* offsets, const int32_t* experts, const float* weights,
                                float* db) {
  const int64_t width = dy.width, strips = (width + kSumThreads - 1) / kSumThreads, range = blockIdx.x / strips;
  const int64_t column = static_cast<int64_t>(blockIdx.x % strips) * kSumThreads + threadIdx.x;
  if (column >= width || offsets[range] == offsets[range + 1]) return;
  float sum = 0;
  for (int64_t r = offsets[range]; r < offsets[range + 1]; ++r)
    sum += (weights == nullptr ? 1.0f : weights[r]) * to_float(dy.row(r)[column]);
  db[(experts == nullptr ? range : static_cast<int64_t>(experts[range])) * width + column] += sum;
}

}  // namespace

int64_t matmul_workspace_bytes(int64_t, int64_t) { return kBlasWorkspaceBytes + kGroupedWorkspaceBytes; }

int64_t esmm_workspace_bytes(ExpertProducts by, int64_t max_rows, int64_t max_n, int64_t max_k, DType) {
  return goes_to_library(by, static_cast<double>(max_rows), max_n, max_k) ? per_expert_workspace_bytes(max_n, max_k)
                                                                          : 0;
}

// Products of both directions read one bf16 copy.
void pack_weight(Stream& stream, const Weight& weight) {
  gpu::convert(stream, weight.values, matrix_of(weight, DType::bf16));
}

void matmul(Stream& stream, TensorView x_MK, const Weight& weight, TensorView y_MN) {
  multiply_dense(stream, ProductKind::forward, x_MK, weight, y_MN, Store::overwrite);
}

void matmul_d_input(Stream& stream, TensorView dy_MN, const Weight& weight, TensorView dx_MK, Store store) {
  multiply_dense(stream, ProductKind::d_input, dy_MN, weight, dx_MK, store);
}

void matmul_d_weight(Stream& stream, TensorView dy_MN, TensorView x_MK, TensorView dw_NK, Store store) {
  multiply_dense_weight(stream, dy_MN, x_MK, dw_NK, store);
}

void esmm(Stream& stream, SortedRows x_RK, std::span<const int64_t> offsets, std::span<const Weight> weights,
          SortedRows y_RN, ExpertProducts by) {
  multiply_experts(stream, ProductKind::forward, x_RK, offsets, weights, y_RN, by);
}

void esmm_d_input(Stream& stream, SortedRows dy_RN, std::span<const int64_t> offsets, std::span<const Weight> weights,
                  SortedRows dx_RK, ExpertProducts by) {
  multiply_experts(stream, ProductKind::d_input, dy_RN, offsets, weights, dx_RK, by);
}

void estmm(Stream& stream, SortedRows dy_RN, SortedRows x_RK, std::span<const int64_t> offsets, TensorView dw_eNK,
           GradientStore to, ExpertProducts by) {
  if (goes_to_library(by, average_rows(offsets), dy_RN.data.cols(), x_RK.data.cols()) &&
      rounds_sums_once(dy_RN, x_RK, offsets, dw_eNK.dtype, to.store))
    return multiply_weights_per_expert(stream, dy_RN, x_RK, offsets, dw_eNK, to.store);
  multiply_weights_grouped(stream, dy_RN, x_RK, offsets, dw_eNK, to);
}

bool esfk(Stream& stream, const SortedRows& dy_RN, const SortedRows& x_RK, std::span<const int64_t> offsets,
          std::span<const Weight> weights, const SortedRows& dx_RK, TensorView dw_eNK, GradientStore to,
          ExpertProducts by) {
  if (goes_to_library(by, average_rows(offsets), dy_RN.data.cols(), x_RK.data.cols())) return false;
  return differentiate_by_warpgroups(stream, dy_RN, x_RK, offsets, weights, dx_RK, dw_eNK, to);
}

std::string describe_esmm(Stream& stream, SortedRows x_RK, std::span<const Weight> weights, SortedRows y_RN,
                          double rows_of_an_expert, ExpertProducts by) {
  if (goes_to_library(by, rows_of_an_expert, weights[0].n, weights[0].k)) return "the matrix library, one per expert";
  if (fits_warpgroups(stream, x_RK, weights, y_RN)) return "warpgroups (wgmma)";
  if (!fits_tensor_cores(x_RK, weights, y_RN)) return "plain kernels";
  return fmt::format("tensor cores ({})", tensor_core_instructions());
}

void ess(Stream& stream, SortedRows dy_RN, std::span<const int64_t> offsets, TensorView db_eN,
         std::span<const int32_t> experts, TensorView weights_R) {
  const int64_t ranges = std::ssize(offsets) - 1, width = dy_RN.data.cols();
  if (ranges == 0 || width == 0) return;
  WorkspaceFrame frame(stream.workspace());
  const int64_t* device_offsets = device_copy(stream, frame, offsets);
  const int32_t* device_experts = experts.empty() ? nullptr : device_copy(stream, frame, experts);
  with_float_type(dy_RN.data.dtype, [&](auto type) {
    using T = decltype(type);
    launch(stream, sum_rows_kernel<T>, ranges * ceil_div(width, kSumThreads), kSumThreads, 0, rows_of<const T>(dy_RN),
           device_offsets, device_experts, weights_R.data == nullptr ? nullptr : weights_R.as<float>(),
           db_eN.as<float>());
  });
}

}  // namespace mw::gpu
