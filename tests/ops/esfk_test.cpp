// The fused backward pass of the experts' products: its gradients, and its bits beside those of its parts.
#include <gtest/gtest.h>

#include <memory>

#include "ops/expert_helpers.h"

namespace mw::test {
namespace {

// Experts' products with a bias: y = W_i x + b_i.
OpCase make_case(const Routing& routing, Shape shape, DType dtype, ExpertProducts by) {
  OpCase c;
  c.name = fmt::format("esfk/{}/{}/{}x{}", name_of(dtype), routing.name, shape.n, shape.k);
  const int64_t e = routing.experts(), rows = routing.rows();
  const auto n = static_cast<size_t>(shape.n), k = static_cast<size_t>(shape.k);
  c.inputs["x"] = random_tensor("x", {rows, shape.k}, dtype);
  c.inputs["w"] = make_weights(e, shape, dtype);
  c.inputs["b"] = random_tensor("b", {e, shape.n}, DType::f32);
  const auto shared = std::make_shared<Routing>(routing);
  // body(expert, place of the row in x, place in y)
  const auto for_each_row = [=](const auto& body) {
    for (size_t expert = 0; expert < static_cast<size_t>(e); ++expert)
      for (int64_t r = shared->offsets[expert]; r < shared->offsets[expert + 1]; ++r)
        body(expert, place(shared->x_index, r), place(shared->y_index, r));
  };
  c.forward = [=](Stream& stream, const Tensors& in) {
    const TestWeights w(stream, in.at("w"), dtype);
    const Owned x = to_operand(in.at("x"));
    const Owned y = make_output(dtype, {rows, shape.n});
    esmm(stream, {x.view, index_or_null(shared->x_index)}, shared->offsets, w.weights,
         {y.view, index_or_null(shared->y_index)}, by);
    CaseTensor out = to_case_tensor(y);
    for_each_row([&](size_t expert, size_t, size_t to) {
      for (size_t i = 0; i < n; ++i) out.values[to * n + i] += in.at("b").values[expert * n + i];
    });
    return Tensors{{"y", out}};
  };
  c.backward = [=](Stream& stream, const Tensors& in, const Tensors& d) {
    const TestWeights w(stream, in.at("w"), dtype);
    const Owned x = to_operand(in.at("x")), dy = to_operand(d.at("y"));
    const Owned dx = make_output(dtype, {rows, shape.k}), dw = make_output(DType::f32, {e, shape.n, shape.k}),
                db = make_zeros({e, shape.n});
    const int32_t* const x_index = index_or_null(shared->x_index);
    esfk(stream, {dy.view, index_or_null(shared->y_index)}, {x.view, x_index}, shared->offsets, w.weights,
         {dx.view, x_index}, dw.view, Store::overwrite, db.view, by);
    return Tensors{{"x", to_case_tensor(dx)}, {"w", to_case_tensor(dw)}, {"b", to_case_tensor(db)}};
  };
  c.reference = [=](const Tensors& in) {
    const auto &x = in.at("x").values, &w = in.at("w").values, &b = in.at("b").values;
    std::vector<double> y(static_cast<size_t>(rows) * n);
    for_each_row([&](size_t expert, size_t from, size_t to) {
      for (size_t i = 0; i < n; ++i) {
        double sum = static_cast<double>(b[expert * n + i]);
        for (size_t j = 0; j < k; ++j)
          sum += static_cast<double>(x[from * k + j]) * static_cast<double>(w[(expert * n + i) * k + j]);
        y[to * n + i] = sum;
      }
    });
    return std::map<std::string, std::vector<double>>{{"y", y}};
  };
  c.tolerance = dtype == DType::bf16 ? 1e-2 : 1e-5;
  c.gradient_tolerance = dtype == DType::bf16 ? 1e-2 : 1e-3;
  c.reason = dtype == DType::bf16 ? "results are rounded to bf16: 2^-9 of the element" : "fp32 sums of up to 300 terms";
  return c;
}

TEST(Esfk, GradientsMatchReference) {
  TestStream test;
  for (const ExpertProducts by : product_kinds())
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const Routing& routing : make_routings())
        if (!has_repeats(routing.x_index)) {
          const OpCase c = make_case(routing, {96, 40}, dtype, by);
          check_forward(c, test.stream);
          check_gradient(c, test.stream);
        }
}

// Compares with esmm_d_input, estmm and ess: gradients of either dtype, overwritten and added to.
void expect_bits_of_parts(Stream& stream, const Routing& routing, Shape shape, DType dtype) {
  const int64_t e = routing.experts(), rows = routing.rows();
  const TestWeights w(stream, make_weights(e, shape, dtype), dtype);
  const Owned x = to_operand(random_tensor("x", {rows, shape.k}, dtype)),
              dy = to_operand(random_tensor("dy", {rows, shape.n}, dtype));
  const SortedRows x_rows{x.view, index_or_null(routing.x_index)}, dy_rows{dy.view, index_or_null(routing.y_index)};
  const CaseTensor db0 = random_tensor("db", {e, shape.n}, DType::f32);
  for (const DType gradients : {DType::f32, DType::bf16}) {
    if (gradients == DType::bf16 && dtype == DType::f32) continue;
    const CaseTensor dw0 = random_tensor("dw", {e, shape.n, shape.k}, gradients);
    for (const Store store : {Store::overwrite, Store::accumulate}) {
      SCOPED_TRACE(fmt::format("{}x{} {} {} {} {}", shape.n, shape.k, routing.name, name_of(dtype), name_of(gradients),
                               store == Store::accumulate ? "added" : ""));
      const auto differentiate = [&](bool at_once) {
        // Rows of dx in sorted order, because x may have a row twice.
        const Owned dx = make_output(dtype, {rows, shape.k}), dw = to_operand(dw0), db = to_operand(db0);
        if (at_once) {
          esfk(stream, dy_rows, x_rows, routing.offsets, w.weights, {dx.view}, dw.view, store, db.view);
        } else {
          esmm_d_input(stream, dy_rows, routing.offsets, w.weights, {dx.view});
          estmm(stream, dy_rows, x_rows, routing.offsets, dw.view, store);
          ess(stream, dy_rows, routing.offsets, db.view);
        }
        wait_for_device();
        return std::vector<DeviceVector<std::byte>>{dx.memory, dw.memory, db.memory};
      };
      const auto parts = differentiate(false);
      for (int i = 0; i < (on_gpu() ? 3 : 1); ++i) EXPECT_TRUE(differentiate(true) == parts);
    }
  }
}

TEST(Esfk, BitsAreThoseOfItsParts) {
  TestStream test;
  for (const Routing& routing : make_routings())
    for (const DType dtype : {DType::f32, DType::bf16}) expect_bits_of_parts(test.stream, routing, {64, 96}, dtype);
}

// More tiles than Hopper has processors, for single blocks and for pairs.
TEST(Esfk, BitsOfManyTilesAreThoseOfItsParts) {
  if (!on_gpu()) GTEST_SKIP() << "a CPU computes the parts one after the other";
  TestStream test;
  Routing many{"many", {0, 600, 600, 960, 1700}, {}, {}};
  for (const Shape shape : {Shape{11 * 256 - 8, 4 * 128 + 8}, Shape{4 * 128 + 8, 11 * 256 - 8}})
    expect_bits_of_parts(test.stream, many, shape, DType::bf16);
  many.name = "many_gathered", many.x_index = make_permutation("many", many.rows());
  expect_bits_of_parts(test.stream, many, {11 * 256 - 8, 4 * 128 + 8}, DType::bf16);
}

}  // namespace
}  // namespace mw::test
