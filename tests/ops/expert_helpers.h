// Weights and rows for tests of the products of experts.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "core/rng.h"
#include "ops/matmul.h"
#include "support/op_case.h"

namespace mw::test {

struct Shape {
  int64_t n, k;
};

// Weights of [e, n, k] with their packed forms (for bf16 cases only) one behind the other, as in a run.
struct TestWeights {
  TestWeights(Stream& stream, const CaseTensor& w, DType dtype) : values(to_operand(w)) {
    const int64_t e = w.shape[0], n = w.shape[1], k = w.shape[2];
    const int64_t bytes = packed_weight_bytes(n, k, cpu::matmul_traits().native_bf16);
    if (dtype == DType::bf16)
      for (Owned* form : {&packed_forward, &packed_backward}) *form = make_output(DType::u8, {e, bytes});
    for (int64_t i = 0; i < e; ++i) {
      Weight weight{n, k, values.view.at(i), {}, {}};
      if (dtype == DType::bf16) {
        weight.packed_forward = packed_forward.view.at(i);
        weight.packed_backward = packed_backward.view.at(i);
        pack_weight(stream, weight);
      }
      weights.push_back(weight);
    }
  }
  Owned values, packed_forward, packed_backward;
  std::vector<Weight> weights;
};

// Weights are fp32, rounded to bf16 for bf16 cases so that CPUs with and without bf16 products agree.
inline CaseTensor make_weights(int64_t e, Shape shape, DType dtype) {
  CaseTensor w = random_tensor("w", {e, shape.n, shape.k}, dtype);
  w.dtype = DType::f32;
  return w;
}

inline Owned make_zeros(std::vector<int64_t> shape) {
  Owned tensor = make_output(DType::f32, std::move(shape));
  std::fill(tensor.memory.begin(), tensor.memory.end(), std::byte{0});
  return tensor;
}

inline DeviceVector<int32_t> make_permutation(const char* name, int64_t count) {
  DeviceVector<int32_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  const RngKey key = make_rng_key(7, name);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[bits_at(key, i) % i]);
  return order;
}

// Which sorted rows are of which expert, and where they lie in x and y.
struct Routing {
  std::string name;
  std::vector<int64_t> offsets;
  DeviceVector<int32_t> x_index, y_index;  // empty: the sorted order itself
  int64_t experts() const { return static_cast<int64_t>(offsets.size()) - 1; }
  int64_t rows() const { return offsets.back(); }
};

inline const int32_t* index_or_null(const DeviceVector<int32_t>& index) {
  return index.empty() ? nullptr : index.data();
}
inline size_t place(const DeviceVector<int32_t>& index, int64_t row) {
  return static_cast<size_t>(index.empty() ? row : index[static_cast<size_t>(row)]);
}

// With rows of x named more than once there is no gradient of x to scatter.
inline bool has_repeats(DeviceVector<int32_t> index) {
  std::sort(index.begin(), index.end());
  return std::adjacent_find(index.begin(), index.end()) != index.end();
}

// The ways that differ on the test device.
inline std::vector<ExpertProducts> product_kinds() {
  if (!on_gpu()) return {ExpertProducts::automatic};
  return {ExpertProducts::grouped, ExpertProducts::per_expert};
}

inline std::vector<Routing> make_routings() {
  std::vector<Routing> all = {
      {"contiguous", {0, 0, 17, 33, 33, 133, 389, 390, 390}, {}, {}},
      {"one_expert", {0, 0, 0, 300, 300}, {}, {}},
      {"no_rows", {0, 0, 0, 0}, {}, {}},
      {"no_experts", {0}, {}, {}},
  };
  const Routing first = all.front();
  Routing gather = first, scatter = first, both = all[1], repeats = first;
  gather.name = "gather", gather.x_index = make_permutation("gather", gather.rows());
  scatter.name = "scatter", scatter.y_index = make_permutation("scatter", scatter.rows());
  both.name = "gather_scatter";
  both.x_index = make_permutation("gather", both.rows()), both.y_index = make_permutation("scatter", both.rows());
  repeats.name = "repeats", repeats.x_index = gather.x_index;
  for (int32_t& row : repeats.x_index) row /= 4;  // top-k: a token goes to several experts
  all.insert(all.end(), {gather, scatter, both, repeats});
  return all;
}

}  // namespace mw::test
