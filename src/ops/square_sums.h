// Sums of squares of matrices, for the norm of gradients: products that store a gradient can add its squares on the
// way, so that nobody reads it again.
#pragma once

#include <cstdint>
#include <span>

#include "core/exact_sum.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace mw {

// A matrix is divided into tiles of so many elements, from its first element on; those at its edges are smaller. The
// squares of a tile are summed in an order that depends on nothing else (on CPUs in double, on GPUs in fp32: elements
// beyond 5e17 make the total not a number, those below 1e-22 count as 0), and the sums of tiles are added exactly. A
// total therefore does not depend on where the matrices lie, nor on who adds their squares.
constexpr int kSquareRows = 16, kSquareColumns = 64;

// A total on the device that is not complete yet.
struct SquareSums {
  static constexpr int64_t kSets = 64;  // of limbs: additions to the same address wait for each other
  TensorView limbs;                     // i64 [kSets, ExactSum::kLimbs]; empty: no total
  int64_t elements = 0;                 // whose squares it includes, once the stream has come to this point
};

// The total of sets of limbs on the host.
inline ExactSum total_of(std::span<const int64_t> sets) {
  ExactSum total;
  for (size_t i = 0; i < sets.size(); ++i) total.limbs()[i % ExactSum::kLimbs] += sets[i];
  total.normalise();
  return total;
}
// Empties a total that has limbs.
void clear(Stream& stream, SquareSums& sums);
// The squares of matrices [e, N, K], f32 or bf16, and of those that `begun` includes, whose limbs may change.
// Normalised. Waits for the stream once.
ExactSum sum_squares_by_tile(Stream& stream, std::span<const TensorView> matrices_eNK, const SquareSums& begun = {});

}  // namespace mw
