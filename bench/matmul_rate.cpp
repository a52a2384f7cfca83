// GFLOP/s of the matrix products of ops/matmul.h beside those of the matrix library itself. Medians of 20 runs.
//   bench_matmul_rate [threads]
//   bench_matmul_rate threads --dtype fp32|bf16 --shapes ROWS:N:K:EXPERTS...
// The second form prints a line of JSON for each shape: the seconds that one product of each kind (forward, d_input and
// d_weight) takes for a weight [N, K] and ROWS rows, of each of that many experts where there are several.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/median.h"
#include "core/rng.h"
#include "core/tensor_store.h"
#include "ops/matmul.h"

namespace {

using namespace mw;

constexpr int kRepeats = 20;

// Tensors that live as long as the benchmark, filled with normal values.
TensorView make_tensor(DType dtype, std::initializer_list<int64_t> shape) {
  static std::vector<std::vector<float>> memory;
  TensorView view(nullptr, dtype, shape);
  memory.emplace_back(static_cast<size_t>(view.bytes() / 4 + 1));
  view.data = memory.back().data();
  const RngKey key = make_rng_key(1, "bench");
  const int64_t period = 4096;
  for (int64_t i = 0; i < view.numel() && dtype != DType::u8; ++i) {
    const float value = normal_at(key, static_cast<uint64_t>(i % period));
    if (dtype == DType::bf16) view.as<bf16>()[i] = to_bf16(value);
    else view.as<float>()[i] = value;
  }
  return view;
}

Weight make_weight(Stream& stream, int64_t n, int64_t k) {
  const int64_t bytes = packed_weight_bytes(n, k, cpu::matmul_traits().native_bf16);
  const Weight weight{n, k, make_tensor(DType::f32, {n, k}), make_tensor(DType::u8, {bytes}),
                      make_tensor(DType::u8, {bytes})};
  pack_weight(stream, weight);
  return weight;
}

double median_seconds(const std::function<void()>& run) {
  std::vector<double> seconds;
  for (int i = -2; i < kRepeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    if (i >= 0) seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return median(std::move(seconds));
}

double gflops(int64_t m, int64_t n, int64_t k, const std::function<void()>& run) {
  return 2e-9 * static_cast<double>(m) * static_cast<double>(n * k) / median_seconds(run);
}

void measure_library(int threads) {
  for (const DType dtype : {DType::bf16, DType::f32})
    for (const int64_t size : {1024, 2048})
      fmt::print("library {:>4} {}^3: plain {:6.0f}  packed {:6.0f}\n", name_of(dtype), size,
                 cpu::measure_library_gflops(dtype, size, false, threads, kRepeats),
                 cpu::measure_library_gflops(dtype, size, true, threads, kRepeats));
}

void measure_dense(Stream& stream, DType dtype, int64_t n, int64_t k) {
  const Weight weight = make_weight(stream, n, k);
  const TensorView dw = make_tensor(DType::f32, {n, k});
  for (const int64_t m : {16, 64, 100, 256, 1024}) {
    const TensorView x = make_tensor(dtype, {m, k}), y = make_tensor(dtype, {m, n});
    fmt::print("{:>4} N={} K={} M={:>4}: matmul {:6.0f}  d_input {:6.0f}  d_weight {:6.0f}\n", name_of(dtype), n, k, m,
               gflops(m, n, k, [&] { matmul(stream, x, weight, y); }),
               gflops(m, n, k, [&] { matmul_d_input(stream, y, weight, x); }),
               gflops(m, n, k, [&] { matmul_d_weight(stream, y, x, dw); }));
  }
}

void measure_experts(Stream& stream, DType dtype, int64_t experts, int64_t rows_each, int64_t n, int64_t k) {
  std::vector<Weight> weights;
  std::vector<int64_t> offsets = {0};
  for (int64_t e = 0; e < experts; ++e) {
    weights.push_back(make_weight(stream, n, k));
    offsets.push_back(offsets.back() + rows_each);
  }
  const int64_t rows = offsets.back(), tokens = rows / 4;
  const TensorView tokens_x = make_tensor(dtype, {tokens, k}), y = make_tensor(dtype, {rows, n}),
                   dx = make_tensor(dtype, {rows, k});
  const TensorView dw = make_tensor(DType::f32, {experts, n, k});
  std::vector<int32_t> index(static_cast<size_t>(rows));
  const RngKey key = make_rng_key(2, "bench");
  for (size_t i = 0; i < index.size(); ++i)
    index[i] = static_cast<int32_t>(bits_at(key, i) % static_cast<uint64_t>(tokens));
  const SortedRows x{tokens_x, index.data()};
  fmt::print(
      "{:>4} {} experts x {} rows, N={} K={}: esmm {:6.0f}  esmm_d_input {:6.0f}  estmm {:6.0f}  pack {:.2f} ms each\n",
      name_of(dtype), experts, rows_each, n, k, gflops(rows, n, k, [&] { esmm(stream, x, offsets, weights, {y}); }),
      gflops(rows, n, k, [&] { esmm_d_input(stream, {y}, offsets, weights, {dx}); }),
      gflops(rows, n, k, [&] { estmm(stream, {y}, x, offsets, dw); }),
      1e3 * median_seconds([&] { pack_weight(stream, weights[0]); }));
}

// A shape as a training step has it: every expert's weights and gradients are other memory than the last one's, and
// all rows are contiguous.
void measure_shape(Stream& stream, DType dtype, int64_t rows_each, int64_t n, int64_t k, int64_t experts) {
  std::vector<Weight> weights;
  std::vector<int64_t> offsets = {0};
  for (int64_t e = 0; e < experts; ++e) {
    weights.push_back(make_weight(stream, n, k));
    offsets.push_back(offsets.back() + rows_each);
  }
  const TensorView x = make_tensor(dtype, {offsets.back(), k}), y = make_tensor(dtype, {offsets.back(), n}),
                   dw = make_tensor(DType::f32, {experts, n, k});
  const auto total = [&](const auto& forward, const auto& d_input, const auto& d_weight) {
    return median_seconds(forward) + median_seconds(d_input) + median_seconds(d_weight);
  };
  const double seconds =
      experts == 1 ? total([&] { matmul(stream, x, weights[0], y); }, [&] { matmul_d_input(stream, y, weights[0], x); },
                           [&] { matmul_d_weight(stream, y, x, dw.at(0)); })
                   : total([&] { esmm(stream, {x}, offsets, weights, {y}); },
                           [&] { esmm_d_input(stream, {y}, offsets, weights, {x}); },
                           [&] { estmm(stream, {y}, {x}, offsets, dw, Store::overwrite); });
  const double flops = 6.0 * static_cast<double>(rows_each * experts) * static_cast<double>(n * k);
  fmt::print("{{\"rows\": {}, \"n\": {}, \"k\": {}, \"experts\": {}, \"seconds\": {:.6g}, \"gflops\": {:.1f}}}\n",
             rows_each, n, k, experts, seconds, 1e-9 * flops / seconds);
}

int measure_shapes(int threads, DType dtype, std::span<char*> shapes) {
  Stream stream(threads);
  for (const char* text : shapes) {
    long long rows = 0, n = 0, k = 0, experts = 0;
    if (std::sscanf(text, "%lld:%lld:%lld:%lld", &rows, &n, &k, &experts) != 4) {
      fmt::print(stderr, "shape {}: expected ROWS:N:K:EXPERTS\n", text);
      return 2;
    }
    TensorStore scratch({{"scratch", DType::u8, {matmul_workspace_bytes(n, k)}, 0}});
    stream.workspace().attach(scratch.fixed("scratch").data, static_cast<size_t>(scratch.fixed_bytes()));
    measure_shape(stream, dtype, rows, n, k, experts);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  if (argc > 4 && std::string_view(argv[2]) == "--dtype" && std::string_view(argv[4]) == "--shapes")
    return measure_shapes(threads, std::string_view(argv[3]) == "bf16" ? DType::bf16 : DType::f32,
                          std::span(argv + 5, argv + argc));
  Stream stream(threads);
  TensorStore scratch({{"scratch", DType::u8, {matmul_workspace_bytes(1024, 1024)}, 0}});
  stream.workspace().attach(scratch.fixed("scratch").data, static_cast<size_t>(scratch.fixed_bytes()));
  const cpu::MatmulTraits traits = cpu::matmul_traits();
  fmt::print("{}, bf16 products in {}, {} threads\n", traits.library, traits.native_bf16 ? "bf16" : "fp32", threads);
  measure_library(threads);
  for (const DType dtype : {DType::bf16, DType::f32}) measure_dense(stream, dtype, 512, 1024);
  measure_dense(stream, DType::bf16, 1024, 512);
  measure_dense(stream, DType::bf16, 128, 256);
  for (const int64_t rows : {1024, 100}) {
    measure_experts(stream, DType::bf16, 32, rows, 512, 1024);
    measure_experts(stream, DType::bf16, 32, rows, 1024, 512);
  }
}
