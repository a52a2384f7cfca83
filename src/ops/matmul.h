// Dense matrix products and grouped GEMM over experts. Weights are [N, K] ("out, in"): y = x W^T.
//
// Grouped products have their names from Hexa-MoE: esmm (expert-specific product: the grouped GEMM of forward), estmm
// (its transposed form: the weight gradient) and ess (expert-specific sum: the bias gradient). The rows of one expert
// are contiguous in sorted order; an optional row index fuses the gather (or scatter) of rows into the product.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/kinds.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace mw {

// A weight matrix in the forms that products read: fp32 products read `values`; bf16 products read the packed forms, in
// a layout that only the backend knows.
struct Weight {
  int64_t n = 0, k = 0;
  TensorView values;           // f32 [N, K]: the master weights
  TensorView packed_forward;   // u8: for y = x W^T; empty in fp32 runs
  TensorView packed_backward;  // u8: for dx = dy W; empty in fp32 runs
};

// Bytes of each packed form of an [N, K] weight in a bf16 run. An upper bound that needs no library: rows and columns
// are rounded up to 64; 2 bytes an element with native bf16, else 4. spec::byte_table uses the same rule.
int64_t packed_weight_bytes(int64_t n, int64_t k, bool native_bf16);

// Fills both packed forms from `values`. Overwrites. The forms stay valid until the master weights change.
void pack_weight(Stream& stream, const Weight& weight);

namespace cpu {

// How bf16 products run on this CPU: natively where that is fastest (on AMX by our own kernels, on AVX-512 at full rate
// by the library), otherwise operands are converted to fp32 panel by panel. Respects ONEDNN_MAX_CPU_ISA.
// MOEWRIGHT_CPU_BF16 overrides the choice: "library" for the library's native products, where it has them, "fp32" for
// the conversion. Constant within a process.
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

// Scratch bytes of any product in this file, at most, with matrices up to `max_n` x `max_k`: panels of rows that are
// gathered, padded or converted. Memory that a library keeps for itself (at most some MiB per thread) is not included.
int64_t matmul_workspace_bytes(int64_t max_n, int64_t max_k, DeviceKind device = DeviceKind::cpu);

// Additional scratch bytes of esmm, esmm_d_input and estmm, with at most max_rows rows per expert, weights up to
// [max_n, max_k] and gradients in f32 or bf16. 0 unless the products `by` may go to the vendor's library, or a CPU
// rounds an expert's gradient to bf16.
int64_t esmm_workspace_bytes(ExpertProducts by, int64_t max_rows, int64_t max_n, int64_t max_k,
                             DeviceKind device = DeviceKind::cpu, DType gradients = DType::f32);

// Whether a product overwrites its destination or adds to it.
enum class Store : uint8_t { overwrite, accumulate };

// y[M, N] (=|+=) x[M, K] W^T. x: f32 or bf16. y: f32 or bf16 (accumulate: f32 only). An f32 x reads weight.values and
// is true fp32; a bf16 x reads packed_forward. Sums are fp32. M = 0 and N = 0 are legal, also in the next two
// functions. Deterministic for a given thread count.
void matmul(Stream& stream, TensorView x_MK, const Weight& weight, TensorView y_MN, Store store = Store::overwrite);

// dx[M, K] (=|+=) dy[M, N] W. Dtypes as in matmul (packed_backward).
void matmul_d_input(Stream& stream, TensorView dy_MN, const Weight& weight, TensorView dx_MK,
                    Store store = Store::overwrite);

// dw[N, K] += dy[M, N]^T x[M, K]. dy and x: the same dtype, f32 or bf16. dw: f32, accumulated.
void matmul_d_weight(Stream& stream, TensorView dy_MN, TensorView x_MK, TensorView dw_NK);

// Rows of an operand in expert-sorted order: sorted row r is data[index[r]], or data[r] when index is null.
struct SortedRows {
  TensorView data;  // [rows, width]
  const int32_t* index = nullptr;
};

// offsets has one entry more than there are experts: expert i owns sorted rows [offsets[i], offsets[i+1]). Experts
// without rows are legal everywhere. Grouped GEMM: y[r] = W_i x[r] for every sorted row r of expert i. Overwrites the
// rows of y that it names; each may be named only once. by: selects the kernels of this and the next two functions on a
// GPU with a vendor library; ignored elsewhere.
void esmm(Stream& stream, SortedRows x_RK, std::span<const int64_t> offsets, std::span<const Weight> weights,
          SortedRows y_RN, ExpertProducts by = ExpertProducts::automatic);

// dx[r] = W_i^T dy[r] for every sorted row r of expert i. Overwrites.
void esmm_d_input(Stream& stream, SortedRows dy_RN, std::span<const int64_t> offsets, std::span<const Weight> weights,
                  SortedRows dx_RK, ExpertProducts by = ExpertProducts::automatic);

// On a GPU: the names of the kernels that compute grouped products of such rows with these weights (at least one), for
// a given average number of rows per expert. Rows need no memory: x and y may have null data.
std::string describe_esmm(Stream& stream, SortedRows x_RK, std::span<const Weight> weights, SortedRows y_RN,
                          double rows_of_an_expert, ExpertProducts by);

// dw[i] (=|+=) sum over rows of expert i of dy[r] x[r]^T. dw_eNK: [e, N, K], f32, or bf16 when dy and x are bf16: the
// old value is then added to the fp32 sum before it is rounded. With Store::overwrite, an expert without rows gets
// zeros.
void estmm(Stream& stream, SortedRows dy_RN, SortedRows x_RK, std::span<const int64_t> offsets, TensorView dw_eNK,
           Store store = Store::accumulate, ExpertProducts by = ExpertProducts::automatic);

// db[i] += sum over rows of expert i of dy[r]. db_eN: f32 [e, N], accumulated.
void ess(Stream& stream, SortedRows dy_RN, std::span<const int64_t> offsets, TensorView db_eN);

}  // namespace mw
