// Stands in for hipBLASLt's header in a build without it: what the project uses of its interface, by plain loops on the
// CPU. Functions are counted, and an algorithm serves the sizes of a range only, as no library promises more.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

enum hipblasStatus_t { HIPBLAS_STATUS_SUCCESS = 0, HIPBLAS_STATUS_INVALID_VALUE = 3, HIPBLAS_STATUS_NOT_SUPPORTED = 7 };
enum hipblasOperation_t { HIPBLAS_OP_N = 111, HIPBLAS_OP_T = 112 };
enum hipblasComputeType_t { HIPBLAS_COMPUTE_32F = 2 };
enum hipDataType { HIP_R_32F = 0, HIP_R_16BF = 14 };
enum hipblasLtMatmulDescAttributes_t { HIPBLASLT_MATMUL_DESC_TRANSA = 0, HIPBLASLT_MATMUL_DESC_TRANSB = 1 };
enum hipblasLtMatmulPreferenceAttributes_t { HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1 };

struct StandInCounts {
  int questions = 0, products = 0, alive = 0;
};
inline StandInCounts stand_in_counts;

struct StandInOperation {
  int32_t transposes[2] = {HIPBLAS_OP_N, HIPBLAS_OP_N};
};
struct StandInMatrix {
  hipDataType type;
  uint64_t rows, columns;
  int64_t stride;
};
struct StandInPreference {
  uint64_t scratch_bytes = 0;
};
using hipblasLtHandle_t = void*;
using hipblasLtMatmulDesc_t = StandInOperation*;
using hipblasLtMatrixLayout_t = StandInMatrix*;
using hipblasLtMatmulPreference_t = StandInPreference*;
struct hipblasLtMatmulAlgo_t {
  uint8_t data[16] = {0};
  size_t max_workspace_bytes = 0;
};
struct hipblasLtMatmulHeuristicResult_t {
  hipblasLtMatmulAlgo_t algo;
  size_t workspaceSize = 0;
  hipblasStatus_t state = HIPBLAS_STATUS_SUCCESS;
};

template <class T>
hipblasStatus_t stand_in_make(T** out, T value) {
  *out = new T(value);
  ++stand_in_counts.alive;
  return HIPBLAS_STATUS_SUCCESS;
}
template <class T>
hipblasStatus_t stand_in_free(T* made) {
  delete made;
  --stand_in_counts.alive;
  return HIPBLAS_STATUS_SUCCESS;
}

inline hipblasStatus_t hipblasLtCreate(hipblasLtHandle_t* handle) {
  int* made = nullptr;
  const hipblasStatus_t status = stand_in_make(&made, 0);
  *handle = made;
  return status;
}
inline hipblasStatus_t hipblasLtDestroy(const hipblasLtHandle_t handle) {
  return stand_in_free(static_cast<int*>(handle));
}
inline hipblasStatus_t hipblasLtMatmulDescCreate(hipblasLtMatmulDesc_t* operation, hipblasComputeType_t, hipDataType) {
  return stand_in_make(operation, {});
}
inline hipblasStatus_t hipblasLtMatmulDescDestroy(const hipblasLtMatmulDesc_t operation) {
  return stand_in_free(operation);
}
inline hipblasStatus_t hipblasLtMatmulDescSetAttribute(hipblasLtMatmulDesc_t operation,
                                                       hipblasLtMatmulDescAttributes_t attribute, const void* value,
                                                       size_t bytes) {
  if (bytes != sizeof(int32_t)) return HIPBLAS_STATUS_INVALID_VALUE;
  operation->transposes[attribute] = *static_cast<const int32_t*>(value);
  return HIPBLAS_STATUS_SUCCESS;
}
inline hipblasStatus_t hipblasLtMatrixLayoutCreate(hipblasLtMatrixLayout_t* matrix, hipDataType type, uint64_t rows,
                                                   uint64_t columns, int64_t stride) {
  return stand_in_make(matrix, {type, rows, columns, stride});
}
inline hipblasStatus_t hipblasLtMatrixLayoutDestroy(const hipblasLtMatrixLayout_t matrix) {
  return stand_in_free(matrix);
}
inline hipblasStatus_t hipblasLtMatmulPreferenceCreate(hipblasLtMatmulPreference_t* preference) {
  return stand_in_make(preference, {});
}
inline hipblasStatus_t hipblasLtMatmulPreferenceDestroy(const hipblasLtMatmulPreference_t preference) {
  return stand_in_free(preference);
}
inline hipblasStatus_t hipblasLtMatmulPreferenceSetAttribute(hipblasLtMatmulPreference_t preference,
                                                             hipblasLtMatmulPreferenceAttributes_t, const void* value,
                                                             size_t bytes) {
  if (bytes != sizeof(uint64_t)) return HIPBLAS_STATUS_INVALID_VALUE;
  preference->scratch_bytes = *static_cast<const uint64_t*>(value);
  return HIPBLAS_STATUS_SUCCESS;
}

// An algorithm is the number of columns of the result in hundreds: it serves those alone.
inline uint8_t stand_in_algorithm(const StandInMatrix& result) { return static_cast<uint8_t>(result.columns / 100); }

inline hipblasStatus_t hipblasLtMatmulAlgoGetHeuristic(hipblasLtHandle_t, hipblasLtMatmulDesc_t,
                                                       hipblasLtMatrixLayout_t, hipblasLtMatrixLayout_t,
                                                       hipblasLtMatrixLayout_t, hipblasLtMatrixLayout_t result,
                                                       hipblasLtMatmulPreference_t preference, int asked,
                                                       hipblasLtMatmulHeuristicResult_t answers[], int* count) {
  ++stand_in_counts.questions;
  *count = 0;
  if (asked < 1) return HIPBLAS_STATUS_INVALID_VALUE;
  if (preference->scratch_bytes == 0) return HIPBLAS_STATUS_NOT_SUPPORTED;
  answers[0] = {};
  answers[0].algo.data[0] = stand_in_algorithm(*result);
  *count = 1;
  return HIPBLAS_STATUS_SUCCESS;
}

inline hipblasStatus_t hipblasLtMatmul(hipblasLtHandle_t, hipblasLtMatmulDesc_t operation, const void* alpha,
                                       const void* a, hipblasLtMatrixLayout_t a_matrix, const void* b,
                                       hipblasLtMatrixLayout_t b_matrix, const void* beta, const void* c,
                                       hipblasLtMatrixLayout_t, void* d, hipblasLtMatrixLayout_t d_matrix,
                                       const hipblasLtMatmulAlgo_t* algorithm, void*, size_t, void*) {
  if (algorithm->data[0] != stand_in_algorithm(*d_matrix)) return HIPBLAS_STATUS_NOT_SUPPORTED;
  ++stand_in_counts.products;
  const bool a_turned = operation->transposes[0] == HIPBLAS_OP_T, b_turned = operation->transposes[1] == HIPBLAS_OP_T;
  const auto read = [](const void* data, const StandInMatrix& m, uint64_t row, uint64_t column) {
    const size_t at = row + column * static_cast<size_t>(m.stride);
    return m.type == HIP_R_32F ? static_cast<const float*>(data)[at]
                               : mw::to_float(static_cast<const mw::bf16*>(data)[at]);
  };
  const uint64_t summands = a_turned ? a_matrix->rows : a_matrix->columns;
  if (summands != (b_turned ? b_matrix->columns : b_matrix->rows)) return HIPBLAS_STATUS_INVALID_VALUE;
  if (d_matrix->rows != (a_turned ? a_matrix->columns : a_matrix->rows)) return HIPBLAS_STATUS_INVALID_VALUE;
  if (d_matrix->columns != (b_turned ? b_matrix->rows : b_matrix->columns)) return HIPBLAS_STATUS_INVALID_VALUE;
  for (uint64_t row = 0; row < d_matrix->rows; ++row)
    for (uint64_t column = 0; column < d_matrix->columns; ++column) {
      float sum = 0;
      for (uint64_t k = 0; k < summands; ++k)
        sum += (a_turned ? read(a, *a_matrix, k, row) : read(a, *a_matrix, row, k)) *
               (b_turned ? read(b, *b_matrix, column, k) : read(b, *b_matrix, k, column));
      sum *= *static_cast<const float*>(alpha);
      const float factor = *static_cast<const float*>(beta);
      if (factor != 0) sum += factor * read(c, *d_matrix, row, column);  // c may be anything otherwise
      const size_t at = row + column * static_cast<size_t>(d_matrix->stride);
      if (d_matrix->type == HIP_R_32F) static_cast<float*>(d)[at] = sum;
      else static_cast<mw::bf16*>(d)[at] = mw::to_bf16(sum);
    }
  return HIPBLAS_STATUS_SUCCESS;
}
