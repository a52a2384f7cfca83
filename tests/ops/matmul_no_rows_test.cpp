// Products with weights that have no rows on a rank, and products of no rows.
#include <gtest/gtest.h>

#include "ops/matmul.h"
#include "support/op_case.h"

namespace mw::test {
namespace {

// Sums over nothing are zero, or leave what is there.
TEST(Matmul, WeightsMayHaveNoRows) {
  TestStream test;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Owned room = to_operand(random_tensor("w", {4, 47}, DType::f32)),
                x = to_operand(random_tensor("x", {5, 47}, dtype)),
                start = to_operand(random_tensor("dx", {5, 47}, DType::f32));
    const auto without_rows = [&](DType type) { return TensorView(room.view.data, type, {0, 47}); };
    Weight weight{0, 47, without_rows(DType::f32), {}, {}};
    if (dtype == DType::bf16) weight.packed_forward = weight.packed_backward = without_rows(DType::u8);
    pack_weight(test.stream, weight);
    const TensorView y(room.view.data, dtype, {5, 0});
    matmul(test.stream, x.view, weight, y);
    matmul_d_weight(test.stream, y, x.view, without_rows(DType::f32));
    Owned dx = make_output(dtype, {5, 47}), onto = to_operand(random_tensor("dx", {5, 47}, DType::f32));
    matmul_d_input(test.stream, y, weight, dx.view);
    matmul_d_input(test.stream, y, weight, onto.view, Store::accumulate);
    EXPECT_EQ(to_case_tensor(dx).values, std::vector<float>(5 * 47, 0.0f));
    EXPECT_EQ(to_case_tensor(onto).values, to_case_tensor(start).values);
    EXPECT_EQ(to_case_tensor(room).values, random_tensor("w", {4, 47}, DType::f32).values);
  }
}

TEST(Matmul, GradientsOfNoRowsAreZero) {
  TestStream test;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Owned room = to_operand(random_tensor("x", {1, 47}, dtype)),
                start = to_operand(random_tensor("dw", {6, 47}, DType::f32));
    const TensorView dy(room.view.data, dtype, {0, 6}), x(room.view.data, dtype, {0, 47});
    Owned dw = to_operand(random_tensor("dw", {6, 47}, DType::f32));
    matmul_d_weight(test.stream, dy, x, dw.view, Store::accumulate);
    EXPECT_EQ(to_case_tensor(dw).values, to_case_tensor(start).values);
    matmul_d_weight(test.stream, dy, x, dw.view, Store::overwrite);
    EXPECT_EQ(to_case_tensor(dw).values, std::vector<float>(6 * 47, 0.0f));
  }
}

}  // namespace
}  // namespace mw::test
