#include "support/row_bits.h"

#include <algorithm>
#include <vector>

#include "ops/matmul.h"
#include "support/op_case.h"

namespace mw::test {
namespace {

// All rows are alike, so that all results should be.
std::vector<float> product_of(int64_t rows) {
  constexpr int64_t kN = 24, kK = 32;
  const std::vector<float> w = random_tensor("w", {kN, kK}, DType::f32).values,
                           row = random_tensor("x", {kK}, DType::f32).values;
  DeviceVector<float> values(w.begin(), w.end()), x, y(static_cast<size_t>(rows * kN));
  for (int64_t i = 0; i < rows; ++i) x.insert(x.end(), row.begin(), row.end());
  TestStream test(1, size_t{64} << 20);
  matmul(test.stream, {x.data(), DType::f32, {rows, kK}}, Weight{kN, kK, {values.data(), DType::f32, {kN, kK}}, {}, {}},
         {y.data(), DType::f32, {rows, kN}});
  wait_for_device();
  return {y.begin(), y.end()};
}

}  // namespace

bool rows_have_same_bits() {
  static const bool same = [] {
    const std::vector<float> one = product_of(1);
    for (int64_t rows = 2; rows <= 128; ++rows) {
      const std::vector<float> many = product_of(rows);
      for (auto row = many.begin(); row != many.end(); row += std::ssize(one))
        if (!std::equal(one.begin(), one.end(), row)) return false;
    }
    return true;
  }();
  return same;
}

}  // namespace mw::test
