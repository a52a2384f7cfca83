#include "ops/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "ops/elementwise.h"
#include "ops/expert_helpers.h"

namespace mw::test {
namespace {

using References = std::map<std::string, std::vector<double>>;

constexpr Shape kShapes[] = {{33, 47}, {96, 40}, {256, 24}};  // gradients 256 wide are copied with a gap on CPUs
constexpr int64_t kRowCounts[] = {0, 1, 15, 16, 17, 100, 1025};

void set_tolerance(OpCase& op_case, DType out) {
  op_case.tolerance = out == DType::bf16 ? 5e-3 : 1e-5;
  op_case.gradient_tolerance = out == DType::bf16 ? 1e-2 : 1e-3;
  op_case.reason =
      out == DType::bf16 ? "results are rounded to bf16: 2^-9 of the element" : "fp32 sums of up to 1025 terms";
}

// y = x W^T and its gradients; with `accumulate`, dx is added to what is there.
OpCase make_dense_case(int64_t m, Shape shape, DType dtype, DType out, bool accumulate) {
  OpCase c;
  c.name = fmt::format("matmul/{}/{}/{}x{}x{}{}", name_of(dtype), name_of(out), m, shape.n, shape.k,
                       accumulate ? "/+=" : "");
  c.inputs["x"] = random_tensor("x", {m, shape.k}, dtype);
  c.inputs["w"] = make_weights(1, shape, dtype);
  c.forward = [=](Stream& stream, const Tensors& in) {
    const TestWeights w(stream, in.at("w"), dtype);
    const Owned x = to_operand(in.at("x"));
    Owned y = make_output(out, {m, shape.n});
    matmul(stream, x.view, w.weights[0], y.view);
    return Tensors{{"y", to_case_tensor(y)}};
  };
  // Gradients where the output has the dtype of the run.
  if (out == dtype)
    c.backward = [=](Stream& stream, const Tensors& in, const Tensors& d) {
      const TestWeights w(stream, in.at("w"), dtype);
      const Owned x = to_operand(in.at("x")), dy = to_operand(d.at("y"));
      const float before = dtype == DType::f32 ? 1.0f : 0.0f;  // a sum in bf16 is rounded
      const std::vector<float> there(static_cast<size_t>(m * shape.k), before);
      Owned dx = accumulate ? to_operand({{m, shape.k}, there, dtype}) : make_output(dtype, {m, shape.k});
      Owned dw = make_zeros({1, shape.n, shape.k});
      matmul_d_input(stream, dy.view, w.weights[0], dx.view, accumulate ? Store::accumulate : Store::overwrite);
      matmul_d_weight(stream, dy.view, x.view, dw.view.at(0));
      CaseTensor sums = to_case_tensor(dx);
      for (float& sum : sums.values) sum -= accumulate ? before : 0.0f;
      return Tensors{{"x", sums}, {"w", to_case_tensor(dw)}};
    };
  c.reference = [=](const Tensors& in) {
    const auto &x = in.at("x").values, &w = in.at("w").values;
    std::vector<double> y(static_cast<size_t>(m * shape.n));
    for (int64_t r = 0; r < m; ++r)
      for (int64_t i = 0; i < shape.n; ++i)
        for (int64_t j = 0; j < shape.k; ++j)
          y[static_cast<size_t>(r * shape.n + i)] += static_cast<double>(x[static_cast<size_t>(r * shape.k + j)]) *
                                                     static_cast<double>(w[static_cast<size_t>(i * shape.k + j)]);
    return References{{"y", y}};
  };
  set_tolerance(c, out);
  return c;
}

OpCase make_expert_case(const Routing& routing, Shape shape, DType dtype,
                        ExpertProducts by = ExpertProducts::automatic) {
  OpCase c;
  c.name = fmt::format("esmm/{}/{}/{}x{}{}", name_of(dtype), routing.name, shape.n, shape.k,
                       by == ExpertProducts::per_expert ? "/per_expert" : "");
  const int64_t e = routing.experts(), rows = routing.rows();
  c.inputs["x"] = random_tensor("x", {rows, shape.k}, dtype);
  c.inputs["w"] = make_weights(e, shape, dtype);
  const auto shared = std::make_shared<Routing>(routing);
  c.forward = [=](Stream& stream, const Tensors& in) {
    const TestWeights w(stream, in.at("w"), dtype);
    const Owned x = to_operand(in.at("x"));
    Owned y = make_output(dtype, {rows, shape.n});
    esmm(stream, {x.view, index_or_null(shared->x_index)}, shared->offsets, w.weights,
         {y.view, index_or_null(shared->y_index)}, by);
    return Tensors{{"y", to_case_tensor(y)}};
  };
  c.backward = [=](Stream& stream, const Tensors& in, const Tensors& d) {
    const TestWeights w(stream, in.at("w"), dtype);
    const Owned x = to_operand(in.at("x")), dy = to_operand(d.at("y"));
    const SortedRows dy_rows{dy.view, index_or_null(shared->y_index)};
    Owned dw = make_zeros({e, shape.n, shape.k});
    estmm(stream, dy_rows, {x.view, index_or_null(shared->x_index)}, shared->offsets, dw.view, Store::accumulate, by);
    Tensors gradients{{"w", to_case_tensor(dw)}};
    if (!has_repeats(shared->x_index)) {
      Owned dx = make_output(dtype, {rows, shape.k});
      esmm_d_input(stream, dy_rows, shared->offsets, w.weights, {dx.view, index_or_null(shared->x_index)}, by);
      gradients["x"] = to_case_tensor(dx);
    }
    return gradients;
  };
  c.reference = [=](const Tensors& in) {
    const auto &x = in.at("x").values, &w = in.at("w").values;
    std::vector<double> y(static_cast<size_t>(rows * shape.n));
    const auto n = static_cast<size_t>(shape.n), k = static_cast<size_t>(shape.k);
    for (int64_t expert = 0; expert < e; ++expert)
      for (int64_t r = shared->offsets[static_cast<size_t>(expert)];
           r < shared->offsets[static_cast<size_t>(expert) + 1]; ++r)
        for (size_t i = 0; i < n; ++i) {
          double sum = 0;
          for (size_t j = 0; j < k; ++j)
            sum += static_cast<double>(x[place(shared->x_index, r) * k + j]) *
                   static_cast<double>(w[(static_cast<size_t>(expert) * n + i) * k + j]);
          y[place(shared->y_index, r) * n + i] = sum;
        }
    return References{{"y", y}};
  };
  set_tolerance(c, dtype);
  return c;
}

OpCase make_ess_case(const Routing& routing, int64_t width, DType dtype) {
  OpCase c;
  c.name = fmt::format("ess/{}/{}/{}", name_of(dtype), routing.name, width);
  const int64_t e = routing.experts();
  c.inputs["dy"] = random_tensor("dy", {routing.rows(), width}, dtype);
  c.inputs["db0"] = random_tensor("db0", {e, width}, DType::f32, 10.0f);
  const auto shared = std::make_shared<Routing>(routing);
  c.forward = [=](Stream& stream, const Tensors& in) {
    const Owned dy = to_operand(in.at("dy"));
    Owned db = to_operand(in.at("db0"));
    ess(stream, {dy.view, index_or_null(shared->y_index)}, shared->offsets, db.view);
    return Tensors{{"db", to_case_tensor(db)}};
  };
  c.reference = [=](const Tensors& in) {
    const auto& dy = in.at("dy").values;
    std::vector<double> db(in.at("db0").values.begin(), in.at("db0").values.end());
    for (int64_t expert = 0; expert < e; ++expert)
      for (int64_t r = shared->offsets[static_cast<size_t>(expert)];
           r < shared->offsets[static_cast<size_t>(expert) + 1]; ++r)
        for (int64_t j = 0; j < width; ++j)
          db[static_cast<size_t>(expert * width + j)] +=
              static_cast<double>(dy[place(shared->y_index, r) * static_cast<size_t>(width) + static_cast<size_t>(j)]);
    return References{{"db", db}};
  };
  c.tolerance = 1e-5;
  c.reason = "fp32 sums of up to 300 rows";
  return c;
}

TEST(Matmul, DenseMatchesReference) {
  TestStream test;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Shape shape : kShapes)
      for (const int64_t m : kRowCounts) {
        const OpCase c = make_dense_case(m, shape, dtype, dtype, false);
        check_forward(c, test.stream);
        check_gradient(c, test.stream);
        const DType other = dtype == DType::f32 ? DType::bf16 : DType::f32;
        check_forward(make_dense_case(m, shape, dtype, other, false), test.stream);
      }
}

TEST(Matmul, AddsToWhatIsThere) {
  TestStream test;
  for (const Shape shape : kShapes)
    for (const int64_t m : kRowCounts)
      for (const DType dtype : {DType::f32, DType::bf16})
        check_gradient(make_dense_case(m, shape, dtype, dtype, true), test.stream);
}

// Into bf16: within a rounding of the product and one of the sum.
TEST(Matmul, AddsToBf16WithinTwoRoundings) {
  TestStream test;
  const int64_t m = 37, n = 96, k = 64;
  const CaseTensor dy = random_tensor("dy", {m, n}, DType::bf16),
                   before = random_tensor("dx", {m, k}, DType::bf16, 20.0f);
  const TestWeights w(test.stream, make_weights(1, {n, k}, DType::bf16), DType::bf16);
  const Owned d = to_operand(dy), exact = make_output(DType::f32, {m, k}), onto = to_operand(before);
  matmul_d_input(test.stream, d.view, w.weights[0], exact.view);
  matmul_d_input(test.stream, d.view, w.weights[0], onto.view, Store::accumulate);
  test.stream.wait();
  const std::vector<float> product = to_case_tensor(exact).values, sum = to_case_tensor(onto).values;
  for (size_t i = 0; i < sum.size(); ++i) {
    const float expected = before.values[i] + product[i];
    EXPECT_NEAR(sum[i], expected, 0x1.01p-8f * (std::abs(expected) + std::abs(product[i]))) << i;
  }
}

// Of a size that CPUs add up in scratch, and of one beyond.
TEST(Matmul, WeightGradientAddsToWhatIsThere) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Shape shape : {Shape{33, 47}, Shape{70'000, 64}}) {
      TestStream test(2, static_cast<size_t>(matmul_workspace_bytes(shape.n, shape.k, device_kind())));
      const Owned dy = to_operand(random_tensor("dy", {100, shape.n}, dtype)),
                  x = to_operand(random_tensor("x", {100, shape.k}, dtype));
      Owned once = make_zeros({shape.n, shape.k}),
            onto = to_operand(random_tensor("dw", {shape.n, shape.k}, DType::f32, 10.0f));
      std::vector<double> expected(static_cast<size_t>(shape.n * shape.k));
      for (size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<double>(onto.view.as<float>()[i]);
      matmul_d_weight(test.stream, dy.view, x.view, once.view);
      for (int i = 0; i < 2; ++i) matmul_d_weight(test.stream, dy.view, x.view, onto.view);
      wait_for_device();
      for (size_t i = 0; i < expected.size(); ++i) expected[i] += 2.0 * static_cast<double>(once.view.as<float>()[i]);
      EXPECT_LE(largest_error(to_case_tensor(onto).values, expected), 1e-5) << name_of(dtype) << " " << shape.n;
    }
}

TEST(Matmul, ExpertsMatchReference) {
  TestStream test;
  for (const ExpertProducts by : product_kinds())
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const Shape shape : kShapes)
        for (const Routing& routing : make_routings()) {
          const OpCase c = make_expert_case(routing, shape, dtype, by);
          check_forward(c, test.stream);
          check_gradient(c, test.stream);
        }
}

// A CPU takes every choice, and computes the same.
TEST(Matmul, EveryChoiceOfProductsIsTaken) {
  TestStream test;
  const Routing routing = make_routings()[6];
  ASSERT_EQ(routing.name, "gather_scatter");
  for (const ExpertProducts by : {ExpertProducts::automatic, ExpertProducts::grouped, ExpertProducts::per_expert})
    check_forward(make_expert_case(routing, {96, 40}, DType::f32, by), test.stream);
  EXPECT_EQ(esmm_workspace_bytes(ExpertProducts::per_expert, 1 << 20, 4096, 4096), 0);
}

TEST(Matmul, ExpertWeightGradientsAreAddedOrOverwritten) {
  TestStream test;
  for (const ExpertProducts by : product_kinds())
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const Shape shape : {Shape{33, 47}, Shape{136, 328}})
        for (const Routing& routing : make_routings()) {
          SCOPED_TRACE(fmt::format("{} {} {}x{}", name_of(dtype), routing.name, shape.n, shape.k));
          const Owned dy = to_operand(random_tensor("dy", {routing.rows(), shape.n}, dtype)),
                      x = to_operand(random_tensor("x", {routing.rows(), shape.k}, dtype));
          const SortedRows dy_rows{dy.view, index_or_null(routing.y_index)},
              x_rows{x.view, index_or_null(routing.x_index)};
          const std::vector<int64_t> dims{routing.experts(), shape.n, shape.k};
          // What `dw` holds and what is added to it, or replaces it.
          const auto gradient = [&](const CaseTensor& dw, Store store) {
            const Owned kept = to_operand(dw);
            estmm(test.stream, dy_rows, x_rows, routing.offsets, kept.view, store, by);
            return to_case_tensor(kept).values;
          };
          const auto size = static_cast<size_t>(routing.experts() * shape.n * shape.k);
          const CaseTensor zeros{dims, std::vector<float>(size)}, nans{dims, std::vector<float>(size, NAN)},
              before = random_tensor("dw", dims, DType::bf16, 10.0f), wide{dims, before.values};
          const std::vector<float> sums = gradient(zeros, Store::accumulate);
          const std::vector<double> alone(sums.begin(), sums.end());
          std::vector<double> added = alone;
          for (size_t i = 0; i < size; ++i) added[i] += static_cast<double>(before.values[i]);
          EXPECT_LE(largest_error(gradient(nans, Store::overwrite), alone), 1e-5);
          EXPECT_LE(largest_error(gradient(wide, Store::accumulate), added), 1e-5);
          if (dtype == DType::f32) continue;
          // Kept in bf16: fp32 sums, rounded once.
          const CaseTensor bf16_nans{dims, nans.values, DType::bf16};
          EXPECT_LE(largest_error(gradient(bf16_nans, Store::overwrite), alone), 0x1p-8);
          EXPECT_LE(largest_error(gradient(before, Store::accumulate), added), 0x1p-8);
        }
}

// Rows and widths of more than one tile of any kernel, the last tile a narrow one: multiples of 8, as tensor cores
// want.
TEST(Matmul, ExpertsOfSeveralTilesMatchReference) {
  TestStream test;
  for (const ExpertProducts by : product_kinds())
    for (const Routing& routing : make_routings()) {
      const OpCase c = make_expert_case(routing, {264, 136}, DType::bf16, by);
      check_forward(c, test.stream);
      check_gradient(c, test.stream);
    }
}

TEST(Matmul, ExpertsEqualMatmulBitForBit) {
  if (on_gpu()) GTEST_SKIP() << "dense products go to a library there";
  TestStream test;
  const std::vector<int64_t> offsets = {0, 17, 17, 117, 400};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const TestWeights w(test.stream, make_weights(4, {96, 40}, dtype), dtype);
    const Owned x = to_operand(random_tensor("x", {400, 40}, dtype)),
                dy = to_operand(random_tensor("dy", {400, 96}, dtype));
    Owned y = make_output(dtype, {400, 96}), one_y = make_output(dtype, {400, 96});
    Owned dx = make_output(dtype, {400, 40}), one_dx = make_output(dtype, {400, 40});
    Owned dw = make_zeros({4, 96, 40}), one_dw = make_zeros({4, 96, 40});
    esmm(test.stream, {x.view}, offsets, w.weights, {y.view});
    esmm_d_input(test.stream, {dy.view}, offsets, w.weights, {dx.view});
    estmm(test.stream, {dy.view}, {x.view}, offsets, dw.view);
    for (size_t e = 0; e < 4; ++e) {
      const int64_t begin = offsets[e], count = offsets[e + 1] - begin;
      matmul(test.stream, x.view.slice(begin, count), w.weights[e], one_y.view.slice(begin, count));
      matmul_d_input(test.stream, dy.view.slice(begin, count), w.weights[e], one_dx.view.slice(begin, count));
      matmul_d_weight(test.stream, dy.view.slice(begin, count), x.view.slice(begin, count),
                      one_dw.view.at(static_cast<int64_t>(e)));
    }
    EXPECT_EQ(y.memory, one_y.memory);
    EXPECT_EQ(dx.memory, one_dx.memory);
    EXPECT_EQ(dw.memory, one_dw.memory);
  }
}

TEST(Matmul, GatherAndScatterMoveRowsOnly) {
  TestStream test;
  const std::vector<Routing> routings = make_routings();
  const auto gathered =
      std::find_if(routings.begin(), routings.end(), [](const Routing& r) { return r.name == "gather"; });
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const TestWeights w(test.stream, make_weights(gathered->experts(), {33, 47}, dtype), dtype);
    const int64_t rows = gathered->rows();
    const Owned x = to_operand(random_tensor("x", {rows, 47}, dtype));
    Owned sorted = make_output(dtype, {rows, 47});
    const auto row_bytes = static_cast<size_t>(47 * size_of(dtype));
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(sorted.memory.data() + static_cast<size_t>(r) * row_bytes,
                  x.memory.data() + place(gathered->x_index, r) * row_bytes, row_bytes);
    Owned y = make_output(dtype, {rows, 33}), expected = make_output(dtype, {rows, 33});
    esmm(test.stream, {x.view, gathered->x_index.data()}, gathered->offsets, w.weights, {y.view});
    esmm(test.stream, {sorted.view}, gathered->offsets, w.weights, {expected.view});
    EXPECT_EQ(y.memory, expected.memory);
  }
}

// Products large enough for several threads, gathered and scattered.
TEST(Matmul, SameBitsWhateverCameBefore) {
  const std::vector<Routing> routings = make_routings();
  const Routing routing =
      *std::find_if(routings.begin(), routings.end(), [](const Routing& r) { return r.name == "gather_scatter"; });
  for (const ExpertProducts by : product_kinds())
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const OpCase c = make_expert_case(routing, {200, 310}, dtype, by);
      const Tensors d = {{"y", random_tensor("d_y", {routing.rows(), 200}, dtype)}};
      Tensors on_one_thread;
      for (const int threads : {1, 2}) {
        TestStream used(threads), fresh(threads);
        check_forward(make_dense_case(1025, {33, 47}, dtype, dtype, false), used.stream);
        check_forward(c, used.stream);
        Tensors a = c.forward(used.stream, c.inputs), b = c.forward(fresh.stream, c.inputs);
        a.merge(c.backward(used.stream, c.inputs, d));
        b.merge(c.backward(fresh.stream, c.inputs, d));
        if (threads == 1) on_one_thread = a;
        for (const auto& [name, tensor] : a) {
          EXPECT_EQ(std::memcmp(tensor.values.data(), b.at(name).values.data(), tensor.values.size() * sizeof(float)),
                    0)
              << c.name << ": " << name;
          const std::vector<float>& other = on_one_thread.at(name).values;
          EXPECT_LE(largest_error(tensor.values, {other.begin(), other.end()}), c.tolerance) << c.name << ": " << name;
        }
      }
    }
}

TEST(Matmul, ColumnSumsMatchReference) {
  TestStream test;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int64_t width : {33, 300})
      for (const Routing& routing : make_routings()) {
        const OpCase c = make_ess_case(routing, width, dtype);
        check_forward(c, test.stream);
        check_thread_invariance(c);
      }
}

// Small products run on fewer threads than the stream has: packed weights must suit them all the same.
TEST(Matmul, ManyThreadsAgreeWithTheReference) {
  for (const int threads : {5, 16})
    for (const Shape shape : {Shape{128, 320}, Shape{64, 320}, Shape{320, 128}, Shape{320, 320}})
      for (const int64_t m : {17, 300, 1100}) {
        TestStream test(threads);
        const OpCase c = make_dense_case(m, shape, DType::bf16, DType::bf16, false);
        check_forward(c, test.stream);
        const Tensors d = {{"y", random_tensor("d_y", {m, shape.n}, DType::bf16)}};
        const Tensors gradients = c.backward(test.stream, c.inputs, d);
        TestStream one(1);
        const Tensors expected = c.backward(one.stream, c.inputs, d);
        for (const auto& [name, tensor] : expected)
          EXPECT_LE(largest_error(gradients.at(name).values, {tensor.values.begin(), tensor.values.end()}), 1e-2)
              << c.name << ": gradient of " << name << " on " << threads << " threads";
      }
}

TEST(Matmul, StaysWithinItsWorkspace) {
  for (const Shape shape : {Shape{33, 470}, Shape{256, 24}})
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const int64_t m : {1, 100, 1000, 2000}) {
        const auto bytes = static_cast<size_t>(matmul_workspace_bytes(shape.n, shape.k, device_kind()));
        for (const bool accumulate : {false, true}) {
          TestStream test(2, bytes);
          const OpCase c = make_dense_case(m, shape, dtype, dtype, accumulate);
          c.forward(test.stream, c.inputs);
          c.backward(test.stream, c.inputs, {{"y", random_tensor("d_y", {m, shape.n}, dtype)}});
          EXPECT_LE(test.stream.workspace().peak(), bytes);
        }
      }
  // A wide output (logits of a large vocabulary) takes smaller panels, not more scratch.
  EXPECT_LE(matmul_workspace_bytes(150'000, 2048, device_kind()), int64_t{35} << 20);
  TestStream test(2, static_cast<size_t>(matmul_workspace_bytes(150'000, 8, device_kind())));
  const OpCase wide = make_dense_case(300, {150'000, 8}, DType::bf16, DType::bf16, false);
  wide.forward(test.stream, wide.inputs);
}

TEST(Matmul, PackedBytesFollowTheRule) {
  EXPECT_EQ(packed_weight_bytes(64, 128, true), 64 * 128 * 2);
  EXPECT_EQ(packed_weight_bytes(65, 1, false), 128 * 64 * 4);
}

TEST(Matmul, MismatchedShapesNameBoth) {
  TestStream test;
  const TestWeights w(test.stream, make_weights(1, {33, 47}, DType::f32), DType::f32);
  const Owned x = to_operand(random_tensor("x", {5, 46}, DType::f32));
  Owned y = make_output(DType::f32, {5, 33});
  try {
    matmul(test.stream, x.view, w.weights[0], y.view);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("[5, 46]"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("[33, 47]"), std::string::npos) << error.what();
  }
  const Owned bf16_x = to_operand(random_tensor("x", {5, 47}, DType::bf16));
  EXPECT_THROW(matmul(test.stream, bf16_x.view, w.weights[0], y.view), Error);  // no packed form
}

// What is overwritten has no part in the sums. Libraries may add in another order to what is there.
TEST(Matmul, GradientsOverwriteWhatWasThere) {
  TestStream test;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int64_t rows : {1, 33, 700}) {
      const Owned dy = to_operand(random_tensor("dy", {rows, 40}, dtype)),
                  x = to_operand(random_tensor("x", {rows, 72}, dtype));
      Owned over = make_output(DType::f32, {40, 72}), onto = make_output(DType::f32, {40, 72});
      fill_zero(test.stream, onto.view);
      matmul_d_weight(test.stream, dy.view, x.view, onto.view, Store::accumulate);
      matmul_d_weight(test.stream, dy.view, x.view, over.view, Store::overwrite);
      const CaseTensor a = to_case_tensor(over), b = to_case_tensor(onto);
      for (size_t i = 0; i < a.values.size(); ++i) ASSERT_NEAR(a.values[i], b.values[i], 1e-4) << rows << " rows";
    }
}

}  // namespace
}  // namespace mw::test
