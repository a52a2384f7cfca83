// Products through cuBLASLt. It thinks in columns: a row-major matrix is the transpose of a column-major one, so
// c = op(a) op(b) is asked for as c^T = op(b)^T op(a)^T. Algorithms are chosen once per shape.
#include <cublasLt.h>

#include <map>
#include <tuple>

#include "ops/gpu/blas.h"
#include "ops/gpu/launch.h"

namespace mw::gpu {
namespace {

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail(Exit::internal, fmt::format("{} failed: {}", what, cublasLtGetStatusString(status)));
}

cudaDataType_t to_blas(DType dtype) { return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

// The largest power of two up to 256 that divides the address.
uint32_t alignment_of(const void* memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  return static_cast<uint32_t>(address == 0 ? 256 : std::min<uintptr_t>(256, address & (~address + 1)));
}

// Owns one description of the library's.
template <class Handle, cublasStatus_t (*kDestroy)(Handle)>
struct Description {
  Description() = default;
  ~Description() {
    if (handle != nullptr) (void)kDestroy(handle);
  }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;
  Handle handle = nullptr;
};
using Operation = Description<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Description<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Description<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

using Key = std::tuple<int64_t, int64_t, int64_t, DType, DType, bool, bool, bool, uint32_t, uint32_t, uint32_t>;

struct Choice {
  bool found = false;
  cublasLtMatmulAlgo_t algorithm;
};

struct BlasState : StreamState {
  BlasState() { check(cublasLtCreate(&handle), "starting cuBLASLt"); }
  ~BlasState() override { (void)cublasLtDestroy(handle); }
  cublasLtHandle_t handle = nullptr;
  std::map<Key, Choice> choices;
};

void describe(Layout& layout, const TensorView& matrix) {
  check(cublasLtMatrixLayoutCreate(&layout.handle, to_blas(matrix.dtype), static_cast<uint64_t>(matrix.cols()),
                                   static_cast<uint64_t>(matrix.rows()), matrix.cols()),
        "describing a matrix");
}

template <class T>
void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, T value) {
  check(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value), "describing a product");
}
template <class T>
void prefer(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value), "describing a preference");
}

}  // namespace

bool multiply_by_library(Stream& stream, const BlasProduct& p) {
  const int64_t m = p.c.rows(), n = p.c.cols(), k = p.transpose_a ? p.a.rows() : p.a.cols();
  if (m == 0 || n == 0 || k == 0) return false;
  auto& state = stream.state<BlasState>();
  Operation operation;
  check(cublasLtMatmulDescCreate(&operation.handle, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product");
  // The library's first operand is our second.
  set(operation.handle, CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(operation.handle, CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  Layout first, second, result;
  describe(first, p.b);
  describe(second, p.a);
  describe(result, p.c);

  const uint32_t align_a = alignment_of(p.a.data), align_b = alignment_of(p.b.data), align_c = alignment_of(p.c.data);
  const bool add = p.store == Store::accumulate;
  const Key key{m, n, k, p.a.dtype, p.c.dtype, p.transpose_a, p.transpose_b, add, align_a, align_b, align_c};
  auto found = state.choices.find(key);
  if (found == state.choices.end()) {
    Preference preference;
    check(cublasLtMatmulPreferenceCreate(&preference.handle), "describing a preference");
    prefer(preference.handle, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<size_t>(kBlasScratchBytes));
    prefer(preference.handle, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, align_b);
    prefer(preference.handle, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, align_a);
    prefer(preference.handle, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, align_c);
    prefer(preference.handle, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, align_c);
    cublasLtMatmulHeuristicResult_t best{};
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(state.handle, operation.handle, first.handle, second.handle, result.handle,
                                       result.handle, preference.handle, 1, &best, &count);
    Choice choice;
    choice.found = status == CUBLAS_STATUS_SUCCESS && count > 0;
    choice.algorithm = best.algo;
    found = state.choices.emplace(key, choice).first;
  }
  if (!found->second.found) return false;

  WorkspaceFrame frame(stream.workspace());
  auto address = reinterpret_cast<uintptr_t>(frame.take_bytes(static_cast<size_t>(kBlasWorkspaceBytes)));
  address = (address + kBlasAlignment - 1) / kBlasAlignment * kBlasAlignment;
  const float one = 1.0f, beta = add ? 1.0f : 0.0f;
  check(cublasLtMatmul(state.handle, operation.handle, &one, p.b.data, first.handle, p.a.data, second.handle, &beta,
                       p.c.data, result.handle, p.c.data, result.handle, &found->second.algorithm,
                       reinterpret_cast<void*>(address), static_cast<size_t>(kBlasScratchBytes), native(stream)),
        fmt::format("a product of {}{} and {}{} into {}", p.a.describe(), p.transpose_a ? "^T" : "", p.b.describe(),
                    p.transpose_b ? "^T" : "", p.c.describe())
            .c_str());
  return true;
}

}  // namespace mw::gpu
