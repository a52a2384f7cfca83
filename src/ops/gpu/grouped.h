// Products over rows that lie sorted by expert, on the device. A dense product is the case of one expert.
#pragma once

#include <span>

#include "core/stream.h"
#include "ops/matmul.h"

namespace mw::gpu {

enum class ProductKind : uint8_t { forward, d_input };

// The most experts that one call takes: bounds the tables that it copies to the device.
constexpr int64_t kMaxExperts = 4096;
constexpr int64_t kGroupedWorkspaceBytes = 2 * (kMaxExperts + 16) * 8;

// Any dtype, any width, any GPU: fp32 multiply-adds from shared memory, true fp32 for fp32 operands. Contracts as
// esmm, esmm_d_input and estmm; with accumulate, an f32 y is added to.
void multiply_grouped(Stream& stream, ProductKind kind, const SortedRows& x, std::span<const int64_t> offsets,
                      std::span<const Weight> weights, const SortedRows& y, Store store);
void multiply_weights_grouped(Stream& stream, const SortedRows& dy, const SortedRows& x,
                              std::span<const int64_t> offsets, TensorView dw_eNK, Store store);

// The same for bf16 operands with rows on borders of 16 bytes. False, with nothing done, for any other, and where the
// build has no tensor cores that it knows.
bool multiply_on_tensor_cores(Stream& stream, ProductKind kind, const SortedRows& x, std::span<const int64_t> offsets,
                              std::span<const Weight> weights, const SortedRows& y, Store store);
bool accumulate_on_tensor_cores(Stream& stream, const SortedRows& dy, const SortedRows& x,
                                std::span<const int64_t> offsets, TensorView dw_eNK);

// The same on the warpgroup instructions of NVIDIA's compute capability 9.0, also for weights at even distances only.
bool multiply_by_warpgroups(Stream& stream, ProductKind kind, const SortedRows& x, std::span<const int64_t> offsets,
                            std::span<const Weight> weights, const SortedRows& y, Store store);
bool multiply_weights_by_warpgroups(Stream& stream, const SortedRows& dy, const SortedRows& x,
                                    std::span<const int64_t> offsets, TensorView dw_eNK, Store store);

// The same as one dense product per expert that has rows. Rows behind an index are copied to scratch and back, in
// pieces: per_expert_workspace_bytes, with weights up to [max_n, max_k], beside what dense products take.
void multiply_per_expert(Stream& stream, ProductKind kind, const SortedRows& x, std::span<const int64_t> offsets,
                         std::span<const Weight> weights, const SortedRows& y);
void multiply_weights_per_expert(Stream& stream, const SortedRows& dy, const SortedRows& x,
                                 std::span<const int64_t> offsets, TensorView dw_eNK, Store store);
int64_t per_expert_workspace_bytes(int64_t max_n, int64_t max_k);

// Whether multiply_by_warpgroups or multiply_on_tensor_cores takes such operands, of which rows need not exist.
bool fits_warpgroups(Stream& stream, const SortedRows& x, std::span<const Weight> weights, const SortedRows& y);
bool fits_tensor_cores(const SortedRows& x, std::span<const Weight> weights, const SortedRows& y);
// What multiply_on_tensor_cores is made of, for the header of a run: "mma.sync", "mfma"; empty where there is nothing.
const char* tensor_core_instructions();

}  // namespace mw::gpu
