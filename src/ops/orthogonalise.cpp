#include <utility>
#include <vector>

#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/muon.h"

namespace mw {
namespace {

constexpr int kSteps = 5;  // odd: the result is in the memory of x
constexpr float kA = 3.4445f, kB = -4.775f, kC = 2.0315f;

// Equal matrices [n, k], one after the other, as operands of grouped products.
struct Matrices {
  TensorView all;  // [b, n, k]
  int64_t n() const { return all.dim(1); }
  int64_t k() const { return all.dim(2); }
  SortedRows rows() const { return {all.reshape({all.dim(0) * n(), k()})}; }
  std::vector<int64_t> offsets() const {
    std::vector<int64_t> list;
    for (int64_t i = 0; i <= all.dim(0); ++i) list.push_back(i * n());
    return list;
  }
  // bf16 products read packed forms, which are plain copies here.
  std::vector<Weight> weights() const {
    std::vector<Weight> list;
    for (int64_t i = 0; i < all.dim(0); ++i) {
      Weight weight;
      weight.n = n();
      weight.k = k();
      const TensorView matrix = all.at(i);
      if (all.dtype == DType::f32) weight.values = matrix;
      else weight.packed_forward = weight.packed_backward = TensorView(matrix.data, DType::u8, {matrix.bytes()});
      list.push_back(weight);
    }
    return list;
  }
};

constexpr ExpertProducts kKernels = ExpertProducts::grouped;  // they need no scratch on a GPU

// out = x^T x or x x^T, whichever is smaller.
void multiply_gram(Stream& stream, const Matrices& x, const Matrices& out) {
  if (x.n() > x.k()) estmm(stream, x.rows(), x.rows(), x.offsets(), out.all, Store::overwrite, kKernels);
  else esmm(stream, x.rows(), x.offsets(), x.weights(), out.rows(), kKernels);
}

// out = a b.
void multiply(Stream& stream, const Matrices& a, const Matrices& b, const Matrices& out) {
  esmm_d_input(stream, a.rows(), a.offsets(), b.weights(), out.rows(), kKernels);
}

}  // namespace

TensorView orthogonalise(Stream& stream, TensorView x_bNK, DType dtype, const OrthogonaliseScratch& scratch) {
  MW_CHECK(x_bNK.rank == 3 && x_bNK.dtype == DType::f32, "matrices are {}, expected f32 [b, N, K]", x_bNK.describe());
  const int64_t b = x_bNK.dim(0), n = x_bNK.dim(1), k = x_bNK.dim(2), side = std::min(n, k);
  MW_CHECK(dtype == DType::f32 ||
               (dtype == DType::bf16 && stream.device().kind != DeviceKind::cpu && n % 64 == 0 && k % 64 == 0),
           "{} in {} on this device", x_bNK.describe(), name_of(dtype));
  const auto take = [&](TensorView memory, int64_t rows, int64_t columns) {
    const TensorView view(memory.data, dtype, {b, rows, columns});
    MW_CHECK(view.bytes() <= memory.bytes(), "{} in {}", view.describe(), memory.describe());
    return Matrices{view};
  };
  Matrices now = take(scratch.next, n, k), next = take(x_bNK, n, k);
  const Matrices gram = take(scratch.gram, side, side), square = take(scratch.square, side, side);
  normalise_matrices(stream, x_bNK, take_front(scratch.sums, {b, kNormParts}), now.all);
  for (int step = 0; step < kSteps; ++step) {
    multiply_gram(stream, now, gram);
    multiply(stream, gram, gram, square);
    scaled_sum(stream, kB, gram.all, kC, square.all, square.all);
    if (n > k) multiply(stream, now, square, next);
    else multiply(stream, square, now, next);
    scaled_sum(stream, kA, now.all, 1.0f, next.all, next.all);
    std::swap(now, next);
  }
  return now.all;
}

}  // namespace mw
