// Products through cuBLASLt. It thinks in columns: a row-major matrix is the transpose of a column-major one, so
// c = op(a) op(b) is asked for as c^T = op(b)^T op(a)^T. Algorithms are chosen once per shape; where rows vary, once
// per range of row counts.
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

// Choosing takes tens of microseconds, and an expert has hardly ever as many rows as before: row counts up to the same
// multiple of this share the algorithm of that multiple.
constexpr int64_t kRowRange = 256;
// What bounds memory where row counts make many choices; all of them are then made anew.
constexpr size_t kMostChoices = 1 << 14;
// Rows that vary begin anywhere. All that kernels ask of an address are accesses of 16 bytes.
constexpr uint32_t kWidestAccess = 16;

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

// Rows and widths of a and c, dtypes, transposes, whether c is added to, alignments.
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

template <class T>
void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, T value) {
  check(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value), "describing a product");
}
template <class T>
void prefer(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value), "describing a preference");
}

void describe(Layout& layout, const TensorView& matrix, int64_t rows) {
  check(cublasLtMatrixLayoutCreate(&layout.handle, to_blas(matrix.dtype), static_cast<uint64_t>(matrix.cols()),
                                   static_cast<uint64_t>(rows), matrix.cols()),
        "describing a matrix");
}

// The product as if a had so many rows. The library's first operand is our second.
struct Problem {
  Problem(const BlasProduct& p, int64_t rows) {
    check(cublasLtMatmulDescCreate(&operation.handle, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product");
    set(operation.handle, CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(operation.handle, CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    describe(first, p.b, p.transpose_a ? rows : p.b.rows());
    describe(second, p.a, rows);
    describe(result, p.c, p.transpose_a ? p.c.rows() : rows);
  }
  Operation operation;
  Layout first, second, result;
};

struct Alignments {
  uint32_t a, b, c;
};

Alignments alignments_of(const BlasProduct& p) {
  const uint32_t most = p.rows_vary ? kWidestAccess : 256;
  const auto of = [most](const TensorView& matrix) { return std::min(most, alignment_of(matrix.data)); };
  return {of(p.a), of(p.b), of(p.c)};
}

Choice ask_library(cublasLtHandle_t handle, const BlasProduct& p, const Problem& problem, Alignments align) {
  Preference preference;
  check(cublasLtMatmulPreferenceCreate(&preference.handle), "describing a preference");
  prefer(preference.handle, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<size_t>(kBlasScratchBytes));
  prefer(preference.handle, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, align.b);
  prefer(preference.handle, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, align.a);
  prefer(preference.handle, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, align.c);
  prefer(preference.handle, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, align.c);
  // Partial sums must not be rounded to bf16 one by one.
  if (p.store == Store::accumulate && p.c.dtype == DType::bf16)
    prefer(preference.handle, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  cublasLtMatmulHeuristicResult_t best{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, problem.operation.handle, problem.first.handle, problem.second.handle,
                                     problem.result.handle, problem.result.handle, preference.handle, 1, &best, &count);
  return {status == CUBLAS_STATUS_SUCCESS && count > 0, best.algo};
}

// What the library chooses for the product as if a had so many rows. It depends on nothing that came before.
Choice choose(BlasState& state, const BlasProduct& p, int64_t rows) {
  const Alignments align = alignments_of(p);
  const Key key{rows,      p.a.cols(),    p.c.cols(),    p.a.dtype,
                p.c.dtype, p.transpose_a, p.transpose_b, p.store == Store::accumulate,
                align.a,   align.b,       align.c};
  const auto found = state.choices.find(key);
  if (found != state.choices.end()) return found->second;
  if (state.choices.size() >= kMostChoices) state.choices.clear();
  return state.choices.emplace(key, ask_library(state.handle, p, Problem(p, rows), align)).first->second;
}

// Whether an algorithm that was chosen for another number of rows runs this product: nothing promises that it does, but
// the library tells without choosing again.
bool serves(cublasLtHandle_t handle, const Choice& choice, const Problem& problem) {
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(handle, problem.operation.handle, problem.first.handle, problem.second.handle,
                              problem.result.handle, problem.result.handle, &choice.algorithm, &result);
  return status == CUBLAS_STATUS_SUCCESS && result.state == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= static_cast<size_t>(kBlasScratchBytes);
}

}  // namespace

bool has_library() { return true; }

bool multiply_by_library(Stream& stream, const BlasProduct& p) {
  const int64_t rows = p.a.rows();
  if (rows == 0 || p.a.cols() == 0 || p.c.cols() == 0) return false;
  auto& state = stream.state<BlasState>();
  const Problem problem(p, rows);
  const int64_t like = p.rows_vary ? ceil_div(rows, kRowRange) * kRowRange : rows;
  Choice choice = choose(state, p, like);
  if (choice.found && like != rows && !serves(state.handle, choice, problem)) choice = choose(state, p, rows);
  if (!choice.found) return false;

  WorkspaceFrame frame(stream.workspace());
  auto address = reinterpret_cast<uintptr_t>(frame.take_bytes(static_cast<size_t>(kBlasWorkspaceBytes)));
  address = (address + kBlasAlignment - 1) / kBlasAlignment * kBlasAlignment;
  const float one = 1.0f, beta = p.store == Store::accumulate ? 1.0f : 0.0f;
  check(cublasLtMatmul(state.handle, problem.operation.handle, &one, p.b.data, problem.first.handle, p.a.data,
                       problem.second.handle, &beta, p.c.data, problem.result.handle, p.c.data, problem.result.handle,
                       &choice.algorithm, reinterpret_cast<void*>(address), static_cast<size_t>(kBlasScratchBytes),
                       native(stream)),
        fmt::format("a product of {}{} and {}{} into {}", p.a.describe(), p.transpose_a ? "^T" : "", p.b.describe(),
                    p.transpose_b ? "^T" : "", p.c.describe())
            .c_str());
  return true;
}

}  // namespace mw::gpu
