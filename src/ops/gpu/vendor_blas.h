// One set of names for the vendors' matrix libraries: cuBLASLt, and hipBLASLt, which has most of its interface; as
// vendor.h does for the runtimes. Matrices of these libraries are column-major.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#if defined(__HIP__) || defined(__HIPCC__)
#include <hipblaslt/hipblaslt.h>

#include <hipblaslt/hipblaslt-ext.hpp>
#define MW_BLAS(name) hipblas##name
#define MW_BLAS_VALUE(name) HIPBLAS##name
#define MW_BLAS_DATA(name) HIP_R_##name
#else
#include <cublasLt.h>
#define MW_BLAS(name) cublas##name
#define MW_BLAS_VALUE(name) CUBLAS##name
#define MW_BLAS_DATA(name) CUDA_R_##name
#endif

namespace mw::gpu::lt {

using Status = MW_BLAS(Status_t);
using Handle = MW_BLAS(LtHandle_t);
using Operation = MW_BLAS(LtMatmulDesc_t);
using Matrix = MW_BLAS(LtMatrixLayout_t);
using Preference = MW_BLAS(LtMatmulPreference_t);
using Algorithm = MW_BLAS(LtMatmulAlgo_t);
using Answer = MW_BLAS(LtMatmulHeuristicResult_t);

inline bool succeeded(Status status) { return status == MW_BLAS_VALUE(_STATUS_SUCCESS); }

inline Status create(Handle* handle) { return MW_BLAS(LtCreate)(handle); }
inline Status destroy_library(Handle handle) { return MW_BLAS(LtDestroy)(handle); }

// Sums and factors are fp32: no TF32.
inline Status create(Operation* operation) {
  return MW_BLAS(LtMatmulDescCreate)(operation, MW_BLAS_VALUE(_COMPUTE_32F), MW_BLAS_DATA(32F));
}
inline Status transpose_operands(Operation operation, bool first, bool second) {
  const auto op = [](bool transpose) -> int32_t { return transpose ? MW_BLAS_VALUE(_OP_T) : MW_BLAS_VALUE(_OP_N); };
  const int32_t a = op(first), b = op(second);
  const Status status =
      MW_BLAS(LtMatmulDescSetAttribute)(operation, MW_BLAS_VALUE(LT_MATMUL_DESC_TRANSA), &a, sizeof a);
  if (!succeeded(status)) return status;
  return MW_BLAS(LtMatmulDescSetAttribute)(operation, MW_BLAS_VALUE(LT_MATMUL_DESC_TRANSB), &b, sizeof b);
}
inline Status destroy(Operation operation) { return MW_BLAS(LtMatmulDescDestroy)(operation); }

// A column-major bf16 or fp32 matrix with `rows` rows.
inline Status create(Matrix* matrix, bool is_bf16, int64_t rows, int64_t columns) {
  return MW_BLAS(LtMatrixLayoutCreate)(matrix, is_bf16 ? MW_BLAS_DATA(16BF) : MW_BLAS_DATA(32F),
                                       static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), rows);
}
inline Status destroy(Matrix matrix) { return MW_BLAS(LtMatrixLayoutDestroy)(matrix); }

struct Problem {
  Operation operation;
  Matrix first, second, result;  // result: also the operand of the addition
};

// What an algorithm must support.
struct Demands {
  size_t scratch_bytes;
  uint32_t first_alignment, second_alignment, result_alignment;  // bytes
  bool whole_sums;                                               // partial sums stay fp32 until the last one is added
};

inline Status create(Preference* preference) { return MW_BLAS(LtMatmulPreferenceCreate)(preference); }
inline Status destroy(Preference preference) { return MW_BLAS(LtMatmulPreferenceDestroy)(preference); }
inline Status prefer_scratch(Preference preference, size_t bytes) {
  const uint64_t most = bytes;
  return MW_BLAS(LtMatmulPreferenceSetAttribute)(preference, MW_BLAS_VALUE(LT_MATMUL_PREF_MAX_WORKSPACE_BYTES), &most,
                                                 sizeof most);
}

// May set answers to 0 without an error.
inline Status ask(Handle handle, const Problem& p, Preference preference, Answer* answer, int* answers) {
  return MW_BLAS(LtMatmulAlgoGetHeuristic)(handle, p.operation, p.first, p.second, p.result, p.result, preference, 1,
                                           answer, answers);
}

// result = product + beta * result.
inline Status multiply(Handle handle, const Problem& p, const void* first, const void* second, float beta, void* result,
                       const Algorithm& algorithm, void* scratch, size_t scratch_bytes, auto stream) {
  const float one = 1.0f;
  return MW_BLAS(LtMatmul)(handle, p.operation, &one, first, p.first, second, p.second, &beta, result, p.result, result,
                           p.result, &algorithm, scratch, scratch_bytes, stream);
}

#if defined(__HIP__) || defined(__HIPCC__)
inline std::string reason_of(Status status) { return "hipBLASLt's status " + std::to_string(static_cast<int>(status)); }

// hipBLASLt accepts no requirements about alignment or about how to sum: problems that need them are not passed to it.
inline bool can_meet(const Demands& d) {
  constexpr uint32_t kAligned = 16;
  return !d.whole_sums && d.first_alignment >= kAligned && d.second_alignment >= kAligned &&
         d.result_alignment >= kAligned;
}
inline Status state(Preference preference, const Demands& d) { return prefer_scratch(preference, d.scratch_bytes); }

// Whether an algorithm runs the problem, and the scratch that it then takes.
inline bool runs(Handle handle, const Problem& p, Algorithm algorithm, size_t* scratch_bytes) {
  const float one = 1.0f;
  return succeeded(hipblaslt_ext::matmulIsAlgoSupported(handle, p.operation, &one, p.first, p.second, &one, p.result,
                                                        p.result, algorithm, *scratch_bytes));
}
#else
inline std::string reason_of(Status status) { return cublasLtGetStatusString(status); }

inline bool can_meet(const Demands&) { return true; }
inline Status state(Preference preference, const Demands& d) {
  Status status = prefer_scratch(preference, d.scratch_bytes);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, uint32_t value) {
    if (succeeded(status)) status = cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value);
  };
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, d.first_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, d.second_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, d.result_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, d.result_alignment);
  if (d.whole_sums) prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
  return status;
}

inline bool runs(Handle handle, const Problem& p, Algorithm algorithm, size_t* scratch_bytes) {
  Answer answer{};
  const Status status =
      cublasLtMatmulAlgoCheck(handle, p.operation, p.first, p.second, p.result, p.result, &algorithm, &answer);
  *scratch_bytes = answer.workspaceSize;
  return succeeded(status) && succeeded(answer.state);
}
#endif

}  // namespace mw::gpu::lt

#undef MW_BLAS
#undef MW_BLAS_VALUE
#undef MW_BLAS_DATA
