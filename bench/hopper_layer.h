// Operands of the expert products of one MoE layer on a GPU, for benchmarks of Hopper's kernels.
#pragma once

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/gpu/grouped_products.h"
#include "roofline.h"

namespace mw::gpu {

inline const std::map<std::string, bench::MoeShape> kShapes = {{"xmoe-small", {2048, 1408, 64, 6, 0}},
                                                               {"xmoe-medium", {5120, 1536, 128, 6, 0}},
                                                               {"xmoe-large", {7168, 2048, 256, 8, 0}},
                                                               {"mixtral", {4096, 14336, 8, 2, 0}},
                                                               {"qwen3-30b", {2048, 768, 128, 8, 0}}};

static __global__ void fill_kernel(uint16_t* to, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    uint64_t z = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 31) * 0xbf58476d1ce4e5b9u;
    z ^= z >> 29;
    to[i] = to_bf16((static_cast<float>(z & 0xffffff) - 8388608.0f) * 0x1p-23f).bits;  // uniform in [-1, 1)
  }
}

struct DeviceBuffer {
  void* memory = nullptr;
  size_t bytes;
  explicit DeviceBuffer(size_t size) : bytes(size) {
    if (cudaMalloc(&memory, bytes) != cudaSuccess) fail(Exit::memory, fmt::format("no {} bytes on the GPU", bytes));
  }
  ~DeviceBuffer() { cudaFree(memory); }
  DeviceBuffer(const DeviceBuffer&) = delete;
};

enum class Kind { up, down, d_a, d_x, d_up, d_down };
constexpr const char* kNames[] = {"up", "down", "d_a", "d_x", "d_up", "d_down"};
constexpr int kKinds = 6;

// Operands of one layer's products, rows routed at random.
class Layer {
 public:
  Layer(const bench::MoeShape& s, Stream& stream)
      : shape_(s), rows_(s.tokens * s.top_k), stream_(stream), index_memory_(static_cast<size_t>(rows_) * 4) {
    std::mt19937 random(7);
    std::vector<std::vector<int32_t>> tokens(static_cast<size_t>(s.experts));
    std::vector<size_t> experts(tokens.size());
    for (size_t e = 0; e < experts.size(); ++e) experts[e] = e;
    for (int64_t t = 0; t < s.tokens; ++t)
      for (size_t k = 0; k < static_cast<size_t>(s.top_k); ++k) {
        std::swap(experts[k], experts[k + random() % (experts.size() - k)]);
        tokens[experts[k]].push_back(static_cast<int32_t>(t));
      }
    std::vector<int32_t> index;
    for (const auto& own : tokens) {
      index.insert(index.end(), own.begin(), own.end());
      offsets_.push_back(std::ssize(index));
    }
    check(copy(index_memory_.memory, index.data(), index_memory_.bytes), "copying an index");
    const int64_t d = s.width, f = s.expert_width, e = s.experts;
    x_ = make(DType::bf16, {s.tokens, d});
    h_ = make(DType::bf16, {rows_, 2 * f});
    a_ = make(DType::bf16, {rows_, f});
    y_ = make(DType::bf16, {rows_, d});
    up_ = make(DType::bf16, {e, 2 * f, d});
    down_ = make(DType::bf16, {e, d, f});
    gradient_ = make(DType::f32, {e, 2 * f, d});
    for (int64_t i = 0; i < e; ++i) {
      up_weights_.push_back({2 * f, d, {}, up_.at(i), {}});
      down_weights_.push_back({d, f, {}, down_.at(i), {}});
    }
  }

  void fill(bool zeros) {
    for (const TensorView& t : {x_, h_, a_, y_, up_, down_}) {
      if (zeros) check(fill_async(t.data, 0, static_cast<size_t>(t.bytes()), native(stream_)), "filling memory");
      else launch(stream_, fill_kernel, 4096, 256, 0, static_cast<uint16_t*>(t.data), t.numel());
    }
    stream_.wait();
  }

  double flops(Kind kind) const {
    const bool both = kind == Kind::up || kind == Kind::d_x || kind == Kind::d_up;
    return (both ? 4.0 : 2.0) * static_cast<double>(rows_) * static_cast<double>(shape_.width * shape_.expert_width);
  }

  // gradients, store: of weights' gradients.
  template <class Meter>
  void run(Kind kind, DType gradients, Store store, const Meter& meter) {
    const SortedRows x{x_, static_cast<const int32_t*>(index_memory_.memory)}, h{h_}, a{a_}, y{y_};
    const auto forward = ProductKind::forward, backward = ProductKind::d_input;
    const int64_t d = shape_.width, f = shape_.expert_width, e = shape_.experts;
    bool done = false;
    const auto multiply = [&](ProductKind direction, const SortedRows& from, const auto& weights,
                              const SortedRows& to) {
      done = multiply_metered(stream_, direction, from, offsets_, weights, to, Store::overwrite, meter);
    };
    const auto differentiate = [&](const SortedRows& dy, const SortedRows& from, int64_t n, int64_t k) {
      const TensorView dw(gradient_.data, gradients, {e, n, k});
      done = multiply_weights_metered(stream_, dy, from, offsets_, dw, store, meter);
    };
    switch (kind) {
      case Kind::up: multiply(forward, x, up_weights_, h); break;
      case Kind::down: multiply(forward, a, down_weights_, y); break;
      case Kind::d_a: multiply(backward, x, down_weights_, a); break;
      case Kind::d_x: multiply(backward, h, up_weights_, y); break;
      case Kind::d_up: differentiate(h, x, 2 * f, d); break;
      case Kind::d_down: differentiate(x, a, d, f); break;
    }
    MW_CHECK(done, "the warpgroup kernels do not take {}", kNames[static_cast<int>(kind)]);
  }

  // The gradients of the first products, d_x and d_up, at once.
  template <class Meter>
  void run_both(DType gradients, Store store, const Meter& of_d_x, const Meter& of_d_up) {
    const SortedRows x{x_, static_cast<const int32_t*>(index_memory_.memory)};
    const TensorView d_up(gradient_.data, gradients, {shape_.experts, 2 * shape_.expert_width, shape_.width});
    MW_CHECK(differentiate_metered(stream_, {h_}, x, offsets_, up_weights_, {y_}, d_up, store, of_d_x, of_d_up),
             "the warpgroup kernels do not take both gradients at once");
  }

 private:
  TensorView make(DType dtype, std::initializer_list<int64_t> dims) {
    TensorView view(nullptr, dtype, dims);
    buffers_.push_back(std::make_unique<DeviceBuffer>(static_cast<size_t>(view.bytes())));
    view.data = buffers_.back()->memory;
    return view;
  }

  bench::MoeShape shape_;
  int64_t rows_;
  Stream& stream_;
  std::vector<int64_t> offsets_ = {0};
  DeviceBuffer index_memory_;
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
  TensorView x_, h_, a_, y_, up_, down_, gradient_;
  std::vector<Weight> up_weights_, down_weights_;
};

}  // namespace mw::gpu
