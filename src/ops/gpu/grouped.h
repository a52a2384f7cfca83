// Grouped GEMM on the device, over rows sorted by expert. A dense product is the case of one expert.
#pragma once

#include <span>

#include "core/stream.h"
#include "ops/matmul.h"

namespace mw::gpu {

enum class ProductKind : uint8_t { forward, d_input };

// Maximum number of experts per call, which no model exceeds (config/model_spec.h): bounds the tables that are copied
// to the device, at most two at a time.
constexpr int64_t kMaxExperts = 1 << 16;
constexpr int64_t kGroupedWorkspaceBytes = 4 * (kMaxExperts + 16) * 8;

// The general kernels, for any dtype, width and GPU: fp32 multiply-adds from shared memory, true fp32 for fp32
// operands. Contracts as esmm, esmm_d_input and estmm; Store::accumulate requires an f32 y.
void multiply_grouped(Stream& stream, ProductKind kind, const SortedRows& x, std::span<const int64_t> offsets,
                      std::span<const Weight> weights, const SortedRows& y, Store store);
void multiply_weights_grouped(Stream& stream, const SortedRows& dy, const SortedRows& x,
                              std::span<const int64_t> offsets, TensorView dw_eNK, GradientStore to);

// The same on tensor cores, for bf16 operands whose rows are aligned to 16 bytes. Returns false and does nothing for
// other operands, and where the build supports no tensor cores.
bool multiply_on_tensor_cores(Stream& stream, ProductKind kind, const SortedRows& x, std::span<const int64_t> offsets,
                              std::span<const Weight> weights, const SortedRows& y, Store store);
bool accumulate_on_tensor_cores(Stream& stream, const SortedRows& dy, const SortedRows& x,
                                std::span<const int64_t> offsets, TensorView dw_eNK);

// The same on the warpgroup instructions (wgmma) of NVIDIA's compute capability 9.0. Also requires weights at equal
// distances in memory.
bool multiply_by_warpgroups(Stream& stream, ProductKind kind, const SortedRows& x, std::span<const int64_t> offsets,
                            std::span<const Weight> weights, const SortedRows& y, Store store);
bool multiply_weights_by_warpgroups(Stream& stream, const SortedRows& dy, const SortedRows& x,
                                    std::span<const int64_t> offsets, TensorView dw_eNK, GradientStore to);

// Both at once, for rows of several experts: dx as multiply_by_warpgroups computes it with ProductKind::d_input, dw as
// multiply_weights_by_warpgroups does, with the same bits. Also returns false where there are no rows.
bool differentiate_by_warpgroups(Stream& stream, const SortedRows& dy, const SortedRows& x,
                                 std::span<const int64_t> offsets, std::span<const Weight> weights,
                                 const SortedRows& dx, TensorView dw_eNK, GradientStore to);

// The same as one dense product per expert that has rows. Rows addressed through an index are copied to scratch and
// back in pieces: this takes per_expert_workspace_bytes, for weights up to [max_n, max_k], in addition to the scratch
// of dense products.
void multiply_per_expert(Stream& stream, ProductKind kind, const SortedRows& x, std::span<const int64_t> offsets,
                         std::span<const Weight> weights, const SortedRows& y);
void multiply_weights_per_expert(Stream& stream, const SortedRows& dy, const SortedRows& x,
                                 std::span<const int64_t> offsets, TensorView dw_eNK, Store store);
int64_t per_expert_workspace_bytes(int64_t max_n, int64_t max_k);
// Whether multiply_weights_per_expert rounds each sum once: fp32 gradients, or ones in bf16 that are overwritten and
// whose rows come in one piece. The library rounds a sum to bf16 before it adds it to another.
bool rounds_sums_once(const SortedRows& dy, const SortedRows& x, std::span<const int64_t> offsets, DType dw,
                      Store store);

// Counts the elements of gradients whose squares are added, or are all 0.
inline void count_squares(const GradientStore& to, const TensorView& dw_eNK) {
  if (to.store == Store::overwrite && to.squares != nullptr) to.squares->elements += dw_eNK.numel();
}

// Whether multiply_by_warpgroups or multiply_on_tensor_cores supports such operands; the rows need no memory.
bool fits_warpgroups(Stream& stream, const SortedRows& x, std::span<const Weight> weights, const SortedRows& y);
bool fits_tensor_cores(const SortedRows& x, std::span<const Weight> weights, const SortedRows& y);
// The instructions that multiply_on_tensor_cores uses, for the header of a run: "mma.sync", "mfma"; empty where there
// are none.
const char* tensor_core_instructions();

}  // namespace mw::gpu
