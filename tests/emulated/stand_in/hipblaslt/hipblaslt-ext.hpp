// Stands in for hipBLASLt's extensions, as hipblaslt.h beside it.
#pragma once

#include "hipblaslt/hipblaslt.h"

namespace hipblaslt_ext {

inline hipblasStatus_t matmulIsAlgoSupported(hipblasLtHandle_t, hipblasLtMatmulDesc_t, const void*,
                                             hipblasLtMatrixLayout_t, hipblasLtMatrixLayout_t, const void*,
                                             hipblasLtMatrixLayout_t, hipblasLtMatrixLayout_t result,
                                             hipblasLtMatmulAlgo_t& algorithm, size_t& scratch_bytes) {
  scratch_bytes = 0;
  return algorithm.data[0] == stand_in_algorithm(*result) ? HIPBLAS_STATUS_SUCCESS : HIPBLAS_STATUS_INVALID_VALUE;
}

}  // namespace hipblaslt_ext
