// Forward and backward of one MoE layer on the CPU (router and combine included), beside what the matrix library
// reaches on large products in the same run.
//   bench_moe_layer [--json FILE] [D F E K T] [threads]
// Model FLOPs: 6 T K D F forward and 12 T K D F backward (three matrices per expert, router not counted).
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "comm/cores.h"
#include "core/rng.h"
#include "formats/checksum.h"
#include "model/layer_builder.h"
#include "model/platform.h"

namespace {

using namespace mw;

constexpr int kRepeats = 20;

struct Shape {
  int64_t width = 1024, expert_width = 512, experts = 32, top_k = 4, tokens = 8192;
};

RunSpec bench_run(const Shape& s) {
  RunSpec run;
  run.native.vocab = 64;
  run.native.width = s.width;
  run.native.layers = 1;
  run.native.heads = 1;
  run.native.head_dim = 2;
  run.native.experts = s.experts;
  run.native.top_k = s.top_k;
  run.native.expert_width = s.expert_width;
  run.train.seq_len = s.tokens;
  run.train.global_batch = 1;
  run.train.dtype = "bf16";
  return run;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The MoE layer of a one-layer model, with its inputs.
class Bench {
 public:
  Bench(const Shape& shape, int threads)
      : run_(bench_run(shape)),
        model_(build_native_model(run_.native)),
        mesh_(make_mesh(run_.mesh, 1)),
        plan_(make_plan(model_, run_, 1, 0, measure_platform(model_, run_, mesh_, threads))),
        self_(make_self_comm()),
        comms_(make_mesh_comms(*self_, mesh_)),
        stream_(threads),
        params_(plan_),
        store_(make_slots()) {
    stream_.workspace().attach(store_.fixed("work.ops").data, static_cast<size_t>(store_.fixed("work.ops").bytes()));
    params_.initialise(1);
    params_.repack(stream_);
    layer_ = make_moe_layer(plan_, 0, params_, store_, comms_);
    x_ = fill("x", 1.0f);
    d_out_ = fill("d_out", 1e-3f);
    out_ = store_.fixed("bench.out");
    d_x_ = store_.fixed("bench.d_x");
    aux_.d_prob.assign(static_cast<size_t>(shape.experts), 1e-6f);
  }

  void forward() { layer_->forward(stream_, x_, x_, out_, plan_.batch.seq_len, true, nullptr); }
  void backward() { layer_->backward(stream_, x_, d_out_, d_x_, aux_); }
  void zero_gradients() { params_.zero_gradients(stream_); }
  // One checksum over the output and every gradient.
  std::string checksum() {
    Xxh3Stream hash;
    for (const TensorView& t : {out_, d_x_, params_.find("layers.0.moe.router").grad,
                                params_.find("layers.0.moe.w_up").grad, params_.find("layers.0.moe.w_down").grad})
      hash.update({static_cast<const std::byte*>(t.data), static_cast<size_t>(t.bytes())});
    return hash.hex();
  }
  Trace& trace() { return stream_.trace(); }

 private:
  std::vector<TensorSlot> make_slots() const {
    std::vector<TensorSlot> slots = to_slots(plan_.activation_rows);
    for (const char* name : {"bench.x", "bench.d_out", "bench.out", "bench.d_x"})
      slots.push_back({name, DType::bf16, {plan_.batch.tokens(), model_.width}, 0});
    return slots;
  }
  TensorView fill(const std::string& name, float scale) {
    const TensorView view = store_.fixed("bench." + name);
    const RngKey key = make_rng_key(7, name);
    for (int64_t i = 0; i < view.numel(); ++i)
      view.as<bf16>()[i] = to_bf16(scale * normal_at(key, static_cast<uint64_t>(i)));
    return view;
  }

  RunSpec run_;
  ModelSpec model_;
  Mesh mesh_;
  Plan plan_;
  std::unique_ptr<Comm> self_;
  MeshComms comms_;
  Stream stream_;
  ParamStore params_;
  TensorStore store_;
  std::unique_ptr<MoeLayer> layer_;
  TensorView x_, d_out_, out_, d_x_;
  AuxGradient aux_;
};

double seconds_of(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double library_gflops(int threads) {
  double best = 0;
  for (const int64_t size : {1024, 2048})
    for (const bool packed : {false, true})
      best = std::max(best, cpu::measure_library_gflops(DType::bf16, size, packed, threads, kRepeats));
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  std::string json_path;
  std::vector<int64_t> numbers;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) json_path = argv[++i];
    else numbers.push_back(std::atoll(argv[i]));
  }
  Shape s;
  if (numbers.size() >= 5) s = {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]};
  const int threads = numbers.size() == 6   ? static_cast<int>(numbers[5])
                      : numbers.size() == 1 ? static_cast<int>(numbers[0])
                                            : threads_per_rank(0, 1);
  Bench bench(s, threads);

  std::vector<double> forward, backward;
  std::string first_checksum, second_checksum;
  for (int i = -2; i < kRepeats; ++i) {
    bench.zero_gradients();
    if (i == 0) bench.trace().reset();
    const double f = seconds_of([&] { bench.forward(); }), b = seconds_of([&] { bench.backward(); });
    if (i == -2) first_checksum = bench.checksum();
    if (i == -1) second_checksum = bench.checksum();
    if (i < 0) continue;
    forward.push_back(f);
    backward.push_back(b);
  }
  const double library = library_gflops(threads);
  const double flops = 6.0 * static_cast<double>(s.tokens * s.top_k) * static_cast<double>(s.width * s.expert_width);
  const double f = median(forward), b = median(backward), rate = 3 * flops / (f + b) * 1e-9;
  const cpu::MatmulTraits traits = cpu::matmul_traits();
  fmt::print("MoE layer D={} F={} E={} K={} T={}, bf16, {} threads, {}, products in {}\n", s.width, s.expert_width,
             s.experts, s.top_k, s.tokens, threads, traits.library, traits.native_bf16 ? "bf16" : "fp32");
  fmt::print("forward  {:8.1f} ms  {:7.1f} GFLOP/s\nbackward {:8.1f} ms  {:7.1f} GFLOP/s\n", f * 1e3, flops / f * 1e-9,
             b * 1e3, 2 * flops / b * 1e-9);
  fmt::print("both     {:8.1f} ms  {:7.1f} GFLOP/s = {:.1f} % of the library's best bf16 product ({:.1f} GFLOP/s)\n",
             (f + b) * 1e3, rate, 100 * rate / library, library);
  fmt::print("two runs are {}\n", first_checksum == second_checksum ? "bit-equal" : "NOT bit-equal");
  for (int w = 0; w < kWorkKinds; ++w)
    if (const double t = bench.trace().seconds(static_cast<Work>(w)); t > 0)
      fmt::print("  {:<12} {:6.1f} ms per call\n", name_of(static_cast<Work>(w)), t / kRepeats * 1e3);
  if (!json_path.empty()) {
    const nlohmann::ordered_json out = {{"benchmark", "moe_layer"},
                                        {"width", s.width},
                                        {"expert_width", s.expert_width},
                                        {"experts", s.experts},
                                        {"top_k", s.top_k},
                                        {"tokens", s.tokens},
                                        {"dtype", "bf16"},
                                        {"threads", threads},
                                        {"library", traits.library},
                                        {"native_bf16", traits.native_bf16},
                                        {"forward_ms", f * 1e3},
                                        {"backward_ms", b * 1e3},
                                        {"gflops", rate},
                                        {"library_gflops", library},
                                        {"fraction", rate / library},
                                        {"bit_equal", first_checksum == second_checksum}};
    write_text_file_atomically(json_path, out.dump(2) + "\n");
  }
  return first_checksum == second_checksum ? 0 : 1;
}
