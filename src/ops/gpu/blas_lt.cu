// Products through cuBLASLt, or hipBLASLt on AMD. They think in columns: a row-major matrix is the transpose of a
// column-major one, so c = op(a) op(b) is asked for as c^T = op(b)^T op(a)^T. Algorithms are chosen once per shape;
// where rows of a small product vary, once per range of row counts.
#include <map>
#include <tuple>

#include "ops/gpu/blas.h"
#include "ops/gpu/launch.h"
#include "ops/gpu/vendor_blas.h"

namespace mw::gpu {
namespace {

void check(lt::Status status, const char* what) {
  if (!lt::succeeded(status)) fail(Exit::internal, fmt::format("{} failed: {}", what, lt::reason_of(status)));
}

// Choosing takes tens of microseconds, and an expert has hardly ever as many rows as before: row counts up to the same
// multiple of this share the algorithm of that multiple. A large product takes longer than choosing does, and the
// algorithm of its own row count is up to 7 % faster (Mixtral's experts on an H200).
constexpr int64_t kRowRange = 256;
constexpr double kLargeFlops = 1e11;
// What bounds memory where row counts make many choices; all of them are then made anew.
constexpr size_t kMostChoices = 1 << 14;
// Rows that vary begin anywhere. All that kernels ask of an address are accesses of 16 bytes.
constexpr uint32_t kWidestAccess = 16;

// The largest power of two up to 256 that divides the address.
uint32_t alignment_of(const void* memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  return static_cast<uint32_t>(address == 0 ? 256 : std::min<uintptr_t>(256, address & (~address + 1)));
}

// Owns one description of the library's.
template <class Handle>
struct Description {
  template <class... Arguments>
  explicit Description(const char* what, const Arguments&... arguments) {
    check(lt::create(&handle, arguments...), what);
  }
  ~Description() { (void)lt::destroy(handle); }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;
  Handle handle = nullptr;
};

// Rows and widths of a and c, dtypes, transposes, whether c is added to, alignments.
using Key = std::tuple<int64_t, int64_t, int64_t, DType, DType, bool, bool, bool, uint32_t, uint32_t, uint32_t>;

struct Choice {
  bool found = false;
  lt::Algorithm algorithm;
};

struct BlasState : StreamState {
  BlasState() { check(lt::create(&handle), "starting the matrix library"); }
  ~BlasState() override { (void)lt::destroy_library(handle); }
  lt::Handle handle = nullptr;
  std::map<Key, Choice> choices;
};

// The product as if a had so many rows. The library's first operand is our second.
class Problem {
 public:
  Problem(const BlasProduct& p, int64_t rows)
      : operation_("describing a product"),
        first_(kMatrix, p.b.dtype == DType::bf16, p.transpose_b ? summands(p, rows) : p.b.cols(),
               p.transpose_b ? p.b.rows() : summands(p, rows)),
        second_(kMatrix, p.a.dtype == DType::bf16, p.a.cols(), rows),
        result_(kMatrix, p.c.dtype == DType::bf16, p.c.cols(), p.transpose_a ? p.c.rows() : rows) {
    check(lt::transpose_operands(operation_.handle, p.transpose_b, p.transpose_a), "describing a product");
  }
  lt::Problem get() const { return {operation_.handle, first_.handle, second_.handle, result_.handle}; }

 private:
  static constexpr const char* kMatrix = "describing a matrix";
  static int64_t summands(const BlasProduct& p, int64_t rows) { return p.transpose_a ? rows : p.a.cols(); }
  Description<lt::Operation> operation_;
  Description<lt::Matrix> first_, second_, result_;
};

// The number of rows whose algorithm a product of so many takes.
int64_t rows_to_choose_by(const BlasProduct& p, int64_t rows) {
  const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(p.a.cols() * p.c.cols());
  return p.rows_vary && flops < kLargeFlops ? ceil_div(rows, kRowRange) * kRowRange : rows;
}

lt::Demands demands_of(const BlasProduct& p) {
  const uint32_t most = p.rows_vary ? kWidestAccess : 256;
  const auto alignment = [most](const TensorView& matrix) { return std::min(most, alignment_of(matrix.data)); };
  // Partial sums must not be rounded to bf16 one by one.
  return {static_cast<size_t>(kBlasScratchBytes), alignment(p.b), alignment(p.a), alignment(p.c),
          p.store == Store::accumulate && p.c.dtype == DType::bf16};
}

Choice ask_library(lt::Handle handle, const lt::Problem& problem, const lt::Demands& demands) {
  if (!lt::can_meet(demands)) return {};
  const Description<lt::Preference> preference("describing a preference");
  check(lt::state(preference.handle, demands), "describing a preference");
  lt::Answer best{};
  int count = 0;
  const lt::Status status = lt::ask(handle, problem, preference.handle, &best, &count);
  return {lt::succeeded(status) && count > 0, best.algo};
}

// What the library chooses for the product as if a had so many rows. It depends on nothing that came before.
Choice choose(BlasState& state, const BlasProduct& p, int64_t rows) {
  const lt::Demands demands = demands_of(p);
  const Key key{rows,
                p.a.cols(),
                p.c.cols(),
                p.a.dtype,
                p.c.dtype,
                p.transpose_a,
                p.transpose_b,
                p.store == Store::accumulate,
                demands.first_alignment,
                demands.second_alignment,
                demands.result_alignment};
  const auto found = state.choices.find(key);
  if (found != state.choices.end()) return found->second;
  if (state.choices.size() >= kMostChoices) state.choices.clear();
  return state.choices.emplace(key, ask_library(state.handle, Problem(p, rows).get(), demands)).first->second;
}

// Whether an algorithm that was chosen for another number of rows runs this product: nothing promises that it does, but
// the library tells without choosing again.
bool serves(lt::Handle handle, const Choice& choice, const lt::Problem& problem) {
  size_t scratch_bytes = 0;
  return lt::runs(handle, problem, choice.algorithm, &scratch_bytes) &&
         scratch_bytes <= static_cast<size_t>(kBlasScratchBytes);
}

}  // namespace

bool has_library() { return true; }

bool multiply_by_library(Stream& stream, const BlasProduct& p) {
  const int64_t rows = p.a.rows();
  if (rows == 0 || p.a.cols() == 0 || p.c.cols() == 0) return false;
  auto& state = stream.state<BlasState>();
  const Problem problem(p, rows);
  const int64_t like = rows_to_choose_by(p, rows);
  Choice choice = choose(state, p, like);
  if (choice.found && like != rows && !serves(state.handle, choice, problem.get())) choice = choose(state, p, rows);
  if (!choice.found) return false;

  WorkspaceFrame frame(stream.workspace());
  auto address = reinterpret_cast<uintptr_t>(frame.take_bytes(static_cast<size_t>(kBlasWorkspaceBytes)));
  address = (address + kBlasAlignment - 1) / kBlasAlignment * kBlasAlignment;
  check(lt::multiply(state.handle, problem.get(), p.b.data, p.a.data, p.store == Store::accumulate ? 1.0f : 0.0f,
                     p.c.data, choice.algorithm, reinterpret_cast<void*>(address),
                     static_cast<size_t>(kBlasScratchBytes), native(stream)),
        fmt::format("a product of {}{} and {}{} into {}", p.a.describe(), p.transpose_a ? "^T" : "", p.b.describe(),
                    p.transpose_b ? "^T" : "", p.c.describe())
            .c_str());
  return true;
}

}  // namespace mw::gpu
