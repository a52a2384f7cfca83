// Dense matrix products and grouped GEMM over experts. Weights are [N, K] ("out, in"): y = x W^T.
//
// Grouped GEMM: the rows of one expert are contiguous in sorted order, and each expert multiplies its rows by its own
// weight. An optional row index fuses the gather (or scatter) of rows into the product. The names are those of the
// paper Hexa-MoE: esmm is the grouped GEMM of forward, estmm its transposed form, which gives weight gradients, ess the
// sum of rows by expert, which gives bias gradients, and esfk all gradients of a product together.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/kinds.h"
#include "base/product_bytes.h"
#include "core/stream.h"
#include "core/tensor.h"
#include "ops/square_sums.h"

namespace mw {

// A weight matrix in the forms that products read: fp32 products read `values`; bf16 products read the packed forms, in
// a layout that only the backend knows.
struct Weight {
  int64_t n = 0, k = 0;
  TensorView values;           // f32 [N, K]: the master weights
  TensorView packed_forward;   // for y = x W^T; packed_weight_bytes as u8, not quantized; empty in fp32 runs
  TensorView packed_backward;  // for dx = dy W; the same
};

// Fills both packed forms from `values`. Overwrites. The forms stay valid until the master weights change.
void pack_weight(Stream& stream, const Weight& weight);

namespace cpu {

// How bf16 products run on this CPU: natively where that is fastest: on AMX by our own kernels, on CPUs that run
// AVX-512 bf16 instructions at full rate by the library. Elsewhere operands are converted to fp32 panel by panel.
// Respects ONEDNN_MAX_CPU_ISA. MOEWRIGHT_CPU_BF16 overrides the choice: "library" for the library's native products,
// where it has them, "fp32" for the conversion. Constant within a process.
struct MatmulTraits {
  bool native_bf16 = false;  // packed weights are bf16, otherwise fp32
  bool amx = false;          // our own kernels compute bf16 products
  const char* library = "";  // "oneDNN 2.6.3", "OpenMP loops"
};
MatmulTraits matmul_traits();

// Median GFLOP/s over `repeats` runs of the matrix library itself, for one [size, size] x [size, size] product of f32
// or bf16 operands, the second one plain or pre-packed: the ceiling for benchmarks and probes. 0 where there is no
// library, or it has no such product.
double measure_library_gflops(DType dtype, int64_t size, bool packed, int threads, int repeats = 20);

}  // namespace cpu

// An upper bound of the scratch bytes of one product in this file, with matrices up to `max_n` x `max_k`: panels of
// rows that are gathered, padded or converted. Grouped products may need esmm_workspace_bytes in addition. Memory that
// a library keeps for itself (at most some MiB per thread) is not included.
int64_t matmul_workspace_bytes(int64_t max_n, int64_t max_k, DeviceKind device = DeviceKind::cpu);

// Additional scratch bytes of esmm, esmm_d_input and estmm, with at most max_rows rows per expert, weights up to
// [max_n, max_k] and gradients in f32 or bf16. Not 0 in two cases: on a GPU, if the setting `by` lets the vendor's
// library compute products of this size; on a CPU, if gradients are bf16, because one expert's gradient is summed in
// fp32 first.
int64_t esmm_workspace_bytes(ExpertProducts by, int64_t max_rows, int64_t max_n, int64_t max_k,
                             DeviceKind device = DeviceKind::cpu, DType gradients = DType::f32);

// Whether a product overwrites its destination or adds to it.
enum class Store : uint8_t { overwrite, accumulate };

// y[M, N] = x[M, K] W^T. x: f32 or bf16. y: f32 or bf16. With an f32 x the product reads weight.values and is computed
// in fp32 (no TF32); with a bf16 x it reads packed_forward. Sums are fp32. M = 0 and N = 0 are legal, also in
// matmul_d_input and matmul_d_weight. Deterministic for a given thread count.
void matmul(Stream& stream, TensorView x_MK, const Weight& weight, TensorView y_MN);

// dx[M, K] (=|+=) dy[M, N] W. Dtypes as in matmul (packed_backward); a library may round a product to bf16 before it
// adds it to bf16 values.
void matmul_d_input(Stream& stream, TensorView dy_MN, const Weight& weight, TensorView dx_MK,
                    Store store = Store::overwrite);

// dw[N, K] (=|+=) dy[M, N]^T x[M, K]. dy and x: the same dtype, f32 or bf16. dw: f32.
void matmul_d_weight(Stream& stream, TensorView dy_MN, TensorView x_MK, TensorView dw_NK,
                     Store store = Store::accumulate);

// Rows of an operand in expert-sorted order: sorted row r is data[index[r]], or data[r] when index is null.
struct SortedRows {
  TensorView data;  // [rows, width]
  const int32_t* index = nullptr;
};

// Grouped GEMM of forward: y[r] = W_i x[r] for every sorted row r of expert i. offsets, here and below, has one entry
// more than there are experts: expert i owns sorted rows [offsets[i], offsets[i+1]). Experts without rows are legal
// everywhere. Overwrites the rows of y.data that y.index names (all, without an index); the index must name no row
// twice. by: which kernels compute esmm, esmm_d_input and estmm on a GPU: our grouped GEMM, one product of the vendor's
// library per expert, or the faster of the two. Ignored on CPUs.
void esmm(Stream& stream, SortedRows x_RK, std::span<const int64_t> offsets, std::span<const Weight> weights,
          SortedRows y_RN, ExpertProducts by = ExpertProducts::automatic);

// dx[r] = W_i^T dy[r] for every sorted row r of expert i. Overwrites dx as esmm does y.
void esmm_d_input(Stream& stream, SortedRows dy_RN, std::span<const int64_t> offsets, std::span<const Weight> weights,
                  SortedRows dx_RK, ExpertProducts by = ExpertProducts::automatic);

// GPUs only: a name for the kernels that esmm chooses for operands such as x, weights and y, with so many rows per
// expert on average; for example "warpgroups (wgmma)". Computes nothing: only shapes, dtypes and alignment matter, and
// x.data and y.data may point to null. `weights` must not be empty.
std::string describe_esmm(Stream& stream, SortedRows x_RK, std::span<const Weight> weights, SortedRows y_RN,
                          double rows_of_an_expert, ExpertProducts by);

// What estmm and esfk do with the weight gradients of a call.
struct GradientStore {
  Store store = Store::accumulate;
  // With Store::overwrite on Hopper: the squares of what is stored are added here, and its elements are counted. Other
  // kernels add nothing, and count only gradients of calls without rows, which are 0. null: no squares; otherwise it
  // has limbs. Must outlive the call.
  SquareSums* squares = nullptr;

  GradientStore(Store s = Store::accumulate, SquareSums* sums = nullptr) : store(s), squares(sums) {}
};

// Weight gradients: dw[i] (=|+=) sum over rows of expert i of dy[r] x[r]^T. dw_eNK: [e, N, K], f32; or bf16 if dy and x
// are bf16. A bf16 dw is rounded once: the rows are summed in fp32, the old value is added to this sum, and the result
// is rounded. With Store::overwrite, an expert without rows gets zeros.
void estmm(Stream& stream, SortedRows dy_RN, SortedRows x_RK, std::span<const int64_t> offsets, TensorView dw_eNK,
           GradientStore to = {}, ExpertProducts by = ExpertProducts::automatic);

// Sums of rows by expert, the gradient of a bias (ops/expert_bias.h): db[i] += sum over rows of expert i of dy[r].
// db_eN: f32 [e, N], accumulated. experts: with it range i of the rows adds to db[experts[i]], at most one range to
// each. weights: with it (f32, by sorted row) dy[r] is multiplied by weights[r].
void ess(Stream& stream, SortedRows dy_RN, std::span<const int64_t> offsets, TensorView db_eN,
         std::span<const int32_t> experts = {}, TensorView weights_R = {});

// The whole backward pass of the experts' products y = W_i x (Hexa-MoE's fused operator): esmm_d_input into dx, estmm
// into dw and, if db is not empty, ess into db, bit-identical to these operators. dx may share memory with no operand.
// On Hopper, bf16 products of the grouped kernels overlap: those of dw begin while the last tiles of dx are computed.
// Elsewhere the operators run one after the other.
void esfk(Stream& stream, SortedRows dy_RN, SortedRows x_RK, std::span<const int64_t> offsets,
          std::span<const Weight> weights, SortedRows dx_RK, TensorView dw_eNK, GradientStore to = {},
          TensorView db_eN = {}, ExpertProducts by = ExpertProducts::automatic);

}  // namespace mw
