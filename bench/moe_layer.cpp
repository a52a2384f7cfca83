// Forward and backward of one MoE layer, router and combine included, on a CPU or a GPU. Beside the times: on a GPU the
// layer's floor (bench/roofline.h), on a CPU what the matrix library reaches on large products in the same run.
//   bench_moe_layer --device gpu --shape qwen3-30b mixtral --tokens 16384 32768 --json FILE
//   bench_moe_layer 1024 512 32 4 8192
//   mpirun -np 4 bench_moe_layer --device gpu --shape qwen3-30b --tokens 8192 --transport bypass    a rank on each GPU
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/median.h"
#include "base/text.h"
#include "comm/cores.h"
#include "comm/world.h"
#include "core/rng.h"
#include "engine/engine.h"
#include "engine/memory_meter.h"
#include "formats/io/checksum.h"
#include "model/layer_builder.h"
#include "model/platform.h"
#include "ops/device.h"
#include "roofline.h"

namespace {

using namespace mw;
using bench::MoeShape;

const std::map<std::string, MoeShape> kShapes = {{"xmoe-small", {2048, 1408, 64, 6, 0}},
                                                 {"xmoe-medium", {5120, 1536, 128, 6, 0}},
                                                 {"xmoe-large", {7168, 2048, 256, 8, 0}},
                                                 {"mixtral", {4096, 14336, 8, 2, 0}},
                                                 {"qwen3-30b", {2048, 768, 128, 8, 0}}};
constexpr int kWarmUp = 2;              // repeats
constexpr double kWarmUpSeconds = 0.5;  // at least, on a GPU: until the clock follows the power limit
constexpr int64_t kRowTile = 128;       // of the padded floor
// How far a skewed router prefers expert over expert, in standard deviations of its logits: the fullest expert of 128
// with top-k 8 gets about 4 times the mean.
constexpr double kSkew = 0.25;

struct Options {
  std::string device = "cpu", routing = "random", experts_by = "auto", gradients = "fp32", transport = "auto", json;
  std::vector<std::string> shapes;
  std::vector<int64_t> sizes = {1024, 512, 32, 4, 8192}, tokens = {16384};
  int repeats = 20, calls = 1, threads = 0;
  bool scopes = false;
  bench::Ceiling ceiling;
};

// The experts lie on all ranks of the world.
RunSpec one_layer_run(const MoeShape& s, const Options& o, int ranks) {
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
  run.train.global_batch = ranks;
  run.train.dtype = DType::bf16;
  run.mesh.ep = ranks;
  run.moe.transport = o.transport;
  run.moe.expert_products = enum_of<ExpertProducts>(o.experts_by).value();
  run.expert_gradients = enum_of<DType>(o.gradients).value();
  return run;
}

// No optimizer runs here, and beside its moments one GPU would not hold the largest layer.
Plan plan_layer(World& world, const MoeShape& shape, const Options& options, Device device, int threads) {
  const int ranks = world.comm().size();
  const RunSpec run = one_layer_run(shape, options, ranks);
  const ModelSpec model = build_native_model(run.native);
  Platform platform = measure_platform(model, run, make_mesh(run.mesh, ranks), threads, device.kind);
  platform.nodes = world.place().nodes;
  Plan plan = make_plan(model, run, ranks, world.comm().rank(), platform);
  std::erase_if(plan.parameter_rows, [](const ByteRow& row) { return row.kind == ByteKind::moment; });
  return plan;
}

Device find_device(World& world, const std::string& name) {
  return name == "cpu" ? Device{} : choose_device(DeviceChoice::automatic, world.place().rank);
}

// Bytes that the process holds, or that are taken of the GPU; only differences mean something.
int64_t memory_taken(Device device) { return device.kind == DeviceKind::cpu ? resident_bytes() : -free_bytes(device); }

// Seconds of one call.
struct Times {
  double forward = 0, both = 0;
  double backward() const { return both - forward; }
};

// The MoE layer of a one-layer model, with its inputs. The host reaches no tensor but by copies.
class Bench {
 public:
  Bench(World& world, const MoeShape& shape, const Options& options, Device device, int threads)
      : plan_(plan_layer(world, shape, options, device, threads)),
        comm_(world.comm()),
        comms_(make_mesh_comms(comm_, plan_.mesh, device)),
        stream_(open_stream(device, threads)),
        params_(plan_, arenas_of(device)),
        store_(to_slots(plan_.activation_rows), arenas_of(device)) {
    attach_workspaces(store_, stream_, *comms_.ep);
    params_.initialise(1, stream_);
    x_ = store_.fixed("work.normed");
    d_out_ = store_.fixed("work.d_branch");
    out_ = store_.fixed("act.final_x");
    d_x_ = store_.fixed("work.d_x");
    std::vector<bf16> x = normal_values("x", 1.0f);
    if (options.routing == "skewed") skew_routing(x);
    upload(x_, x.data());
    upload(d_out_, normal_values("d_out", 1e-3f).data());
    params_.repack(stream_);
    layer_ = make_moe_layer(plan_, 0, 0, params_, store_, comms_, nullptr);
    aux_.d_prob.assign(static_cast<size_t>(shape.experts), 1e-6f);
  }

  Times measure(int repeats, int calls) {
    Times times;
    times.forward = median_seconds(repeats, calls, [&] { forward(); });
    times.both = median_seconds(repeats, calls, [&] {
      forward();
      backward();
    });
    return times;
  }

  // Milliseconds on the GPU of each scope in one forward and backward pass, inner scopes included.
  std::map<std::string, double> scope_times(int repeats) {
    Trace& trace = stream_.trace();
    trace.time_device(&stream_.queue());
    trace.keep_events(true);
    const size_t first = trace.events().size();
    for (int i = 0; i < repeats; ++i) {
      forward();
      backward();
    }
    trace.settle();
    std::map<std::string, double> ms;
    for (size_t i = first; i < trace.events().size(); ++i)
      if (const TraceEvent& event = trace.events()[i]; event.lane == Lane::compute)
        ms[event.label] += static_cast<double>(event.end_ns - event.begin_ns) * 1e-6 / repeats;
    trace.keep_events(false);
    trace.time_device(nullptr);
    return ms;
  }

  // One checksum over the output and every gradient of a forward and a backward pass.
  std::string checksum() {
    params_.zero_gradients(stream_);
    forward();
    backward();
    Xxh3Stream hash;
    std::vector<std::byte> piece(size_t{64} << 20);
    for (const TensorView& t : {out_, d_x_, params_.find("layers.0.moe.router").grad,
                                params_.find("layers.0.moe.w_up").grad, params_.find("layers.0.moe.w_down").grad}) {
      const auto* data = static_cast<const std::byte*>(t.data);
      for (size_t done = 0, bytes = static_cast<size_t>(t.bytes()); done < bytes; done += piece.size()) {
        const size_t count = std::min(piece.size(), bytes - done);
        stream_.queue().copy(piece.data(), data + done, count);
        stream_.wait();
        hash.update({piece.data(), count});
      }
    }
    return hash.hex();
  }

  // Rows of the fullest expert over the mean, in the latest forward pass.
  double imbalance() const {
    const std::vector<double>& counts = layer_->statistics().counts;
    const double rows = static_cast<double>(plan_.batch.tokens() * plan_.model.layers[0].moe.top_k);
    return *std::max_element(counts.begin(), counts.end()) * static_cast<double>(counts.size()) / rows;
  }

  // What the table of bytes keeps from the layer's forward to its backward: the rows from its input on.
  int64_t saved_bytes() const {
    int64_t bytes = 0;
    for (const ByteRow& row : plan_.activation_rows) {
      if (row.name == "act.0.x_mid") bytes = 0;
      if (row.name.starts_with("act.0.")) bytes += row.bytes();
    }
    return bytes;
  }

  Trace& trace() { return stream_.trace(); }

 private:
  void forward() { layer_->forward(stream_, x_, x_, out_, plan_.batch.seq_len, true, nullptr); }
  // As in the first micro-batch of a step.
  void backward() { layer_->backward(stream_, x_, d_out_, d_x_, aux_, Store::overwrite); }

  // Seconds of one call on the slowest rank: the median over regions of `calls` calls back to back.
  double median_seconds(int repeats, int calls, const auto& work) {
    std::vector<double> seconds;
    double warm_up = stream_.device().kind == DeviceKind::cpu ? 0 : kWarmUpSeconds;
    for (int i = -kWarmUp; i < repeats; ++i) {
      params_.zero_gradients(stream_);
      stream_.wait();
      if (i == 0) stream_.trace().reset();
      comm_.barrier();
      const auto begin = std::chrono::steady_clock::now();
      for (int c = 0; c < calls; ++c) work();
      stream_.wait();
      double taken = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      comm_.all_reduce_max(std::span(&taken, 1));
      if (i >= 0) seconds.push_back(taken / calls);
      else if ((warm_up -= taken) > 0) --i;
    }
    return median(seconds);
  }

  std::vector<bf16> normal_values(const std::string& name, float scale) const {
    std::vector<bf16> values(static_cast<size_t>(plan_.batch.tokens() * plan_.model.width));
    const RngKey key = make_rng_key(7 + static_cast<uint64_t>(comm_.rank()), name);
    const auto count = static_cast<int64_t>(values.size());
#pragma omp parallel for schedule(static) num_threads(stream_.threads())
    for (int64_t i = 0; i < count; ++i)
      values[static_cast<size_t>(i)] = to_bf16(scale * normal_at(key, static_cast<uint64_t>(i)));
    return values;
  }

  // Feature 0 of every token becomes 1, so that the router's weights of this feature are a bias: the logarithm of
  // Zipf's law over the experts, which lie in no order of load.
  void skew_routing(std::vector<bf16>& x) {
    const int64_t width = plan_.model.width;
    for (int64_t i = 0; i < std::ssize(x); i += width) x[static_cast<size_t>(i)] = to_bf16(1.0f);
    const TensorView router = params_.find("layers.0.moe.router").master;
    std::vector<float> w_ED(static_cast<size_t>(router.numel()));
    stream_.queue().copy(w_ED.data(), router.data, static_cast<size_t>(router.bytes()));
    stream_.wait();
    const double deviation = plan_.model.init_std * std::sqrt(static_cast<double>(width));
    for (int64_t e = 0, experts = router.dim(0); e < experts; ++e)
      w_ED[static_cast<size_t>(e * width)] =
          static_cast<float>(-kSkew * deviation * std::log1p(static_cast<double>(e * 37 % experts)));
    upload(router, w_ED.data());
  }

  void upload(const TensorView& to, const void* from) {
    stream_.queue().copy(to.data, from, static_cast<size_t>(to.bytes()));
    stream_.wait();
  }

  Plan plan_;
  Comm& comm_;
  MeshComms comms_;
  Stream stream_;
  ParamStore params_;
  TensorStore store_;
  std::unique_ptr<MoeLayer> layer_;
  TensorView x_, d_out_, out_, d_x_;
  AuxGradient aux_;
};

double library_tflops(int threads, int repeats) {
  double best = 0;
  for (const int64_t size : {1024, 2048})
    for (const bool packed : {false, true})
      best = std::max(best, cpu::measure_library_gflops(DType::bf16, size, packed, threads, repeats));
  return best * 1e-3;
}

void print_work(const Trace& trace, int calls) {
  for (int w = 0; w < kWorkKinds; ++w)
    if (const double t = trace.seconds(static_cast<Work>(w)); t > 0)
      fmt::print("  {:<12} {:6.1f} ms of forward+backward\n", name_of(static_cast<Work>(w)), t / calls * 1e3);
}

nlohmann::ordered_json compare_with_library(double tflops, int threads, int repeats) {
  const cpu::MatmulTraits traits = cpu::matmul_traits();
  const double library = library_tflops(threads, repeats);
  fmt::print("  {:.1f} % of the best bf16 product of {} ({:.3f} TFLOP/s), products in {}, {} threads\n",
             100 * tflops / library, traits.library, library, traits.native_bf16 ? "bf16" : "fp32", threads);
  return {{"threads", threads},
          {"library", traits.library},
          {"native_bf16", traits.native_bf16},
          {"library_tflops", library},
          {"share_of_library", tflops / library}};
}

nlohmann::ordered_json compare_with_floor(const MoeShape& shape, const Times& times, const bench::Ceiling& ceiling) {
  const bench::LayerFloor floor = layer_floor(shape, ceiling, 0), padded = layer_floor(shape, ceiling, kRowTile);
  const auto print = [](const char* what, double least, double tiled, double reached) {
    fmt::print("  floor of {:<16} {:8.3f} ms, in tiles of {} rows {:8.3f} ms; reached {:.1f} % of the latter\n", what,
               least * 1e3, kRowTile, tiled * 1e3, 100 * tiled / reached);
  };
  print("forward", floor.forward, padded.forward, times.forward);
  print("forward+backward", floor.both(), padded.both(), times.both);
  return {{"ceiling_tflops", ceiling.flops_per_s * 1e-12},
          {"ceiling_tb_per_s", ceiling.bytes_per_s * 1e-12},
          {"floor_forward_ms", floor.forward * 1e3},
          {"floor_forward_backward_ms", floor.both() * 1e3},
          {"padded_floor_forward_ms", padded.forward * 1e3},
          {"padded_floor_forward_backward_ms", padded.both() * 1e3},
          {"share_of_padded_floor_forward", padded.forward / times.forward},
          {"share_of_padded_floor", padded.both() / times.both}};
}

nlohmann::ordered_json describe_layer(const std::string& name, const MoeShape& s, const Options& o) {
  return {{"benchmark", "moe_layer"},
          {"device", o.device},
          {"shape", name},
          {"width", s.width},
          {"expert_width", s.expert_width},
          {"experts", s.experts},
          {"top_k", s.top_k},
          {"tokens", s.tokens},
          {"dtype", "bf16"},
          {"transport", o.transport},
          {"routing", o.routing},
          {"experts_by", o.experts_by},
          {"expert_gradients", o.gradients},
          {"repeats", o.repeats},
          {"calls_per_repeat", o.calls}};
}

// Prints and returns what was measured of one shape. Errors: memory, unsupported.
nlohmann::ordered_json measure_layer(World& world, const std::string& name, const MoeShape& shape, const Options& o,
                                     Device device, int threads) {
  const int ranks = world.comm().size();
  fmt::print("{} D={} F={} E={} K={} T={}, bf16, {} routing", name, shape.width, shape.expert_width, shape.experts,
             shape.top_k, shape.tokens, o.routing);
  fmt::print(
      "{}\n",
      ranks == 1 ? "" : fmt::format(", experts over {} ranks by {}, T and rates are of one rank", ranks, o.transport));
  const int64_t memory_before = memory_taken(device);
  Bench layer(world, shape, o, device, threads);
  const std::string first_checksum = layer.checksum();
  const bool bit_equal = layer.checksum() == first_checksum;
  const Times times = layer.measure(o.repeats, o.calls);
  const int64_t memory = memory_taken(device) - memory_before;

  const double flops = forward_flops(shape), forward_tflops = flops / times.forward * 1e-12,
               both_tflops = 3 * flops / times.both * 1e-12;
  fmt::print("  forward          {:9.3f} ms {:9.3f} TFLOP/s\n", times.forward * 1e3, forward_tflops);
  fmt::print("  backward         {:9.3f} ms {:9.3f} TFLOP/s\n", times.backward() * 1e3,
             2 * flops / times.backward() * 1e-12);
  fmt::print("  forward+backward {:9.3f} ms {:9.3f} TFLOP/s\n", times.both * 1e3, both_tflops);
  nlohmann::ordered_json result = describe_layer(name, shape, o);
  result.update(nlohmann::ordered_json{{"ranks", ranks},
                                       {"imbalance", layer.imbalance()},
                                       {"forward_ms", times.forward * 1e3},
                                       {"backward_ms", times.backward() * 1e3},
                                       {"forward_backward_ms", times.both * 1e3},
                                       {"forward_tflops", forward_tflops},
                                       {"forward_backward_tflops", both_tflops},
                                       {"saved_bytes", layer.saved_bytes()},
                                       {"memory_bytes", memory},
                                       {"bit_equal", bit_equal}});
  if (device.kind == DeviceKind::cpu) {
    print_work(layer.trace(), o.repeats * o.calls);
    result.update(compare_with_library(both_tflops, threads, o.repeats));
  } else {
    MoeShape on_rank = shape;
    on_rank.experts /= ranks;
    result.update(compare_with_floor(on_rank, times, o.ceiling));
    if (o.scopes)
      for (const auto& [scope, ms] : layer.scope_times(o.repeats)) {
        fmt::print("  {:<24} {:9.3f} ms\n", scope, ms);
        result["scopes_ms"][scope] = ms;
      }
  }
  fmt::print("  fullest expert {:.2f} x the mean; {} kept for backward, {} taken; two runs are {}\n", layer.imbalance(),
             format_bytes(layer.saved_bytes()), format_bytes(memory), bit_equal ? "bit-equal" : "NOT bit-equal");
  return result;
}

std::vector<std::pair<std::string, MoeShape>> wanted_shapes(const Options& o) {
  if (o.shapes.empty()) return {{"custom", {o.sizes[0], o.sizes[1], o.sizes[2], o.sizes[3], o.sizes[4]}}};
  std::vector<std::pair<std::string, MoeShape>> shapes;
  for (const std::string& name : o.shapes)
    for (const int64_t tokens : o.tokens) {
      shapes.emplace_back(name, kShapes.at(name));
      shapes.back().second.tokens = tokens;
    }
  return shapes;
}

// A shape that fails does not take the others along, unless several ranks work on it. Exit code 1 if one failed or
// computed two results.
int run(World& world, const Options& o) {
  const Device device = find_device(world, o.device);
  const int threads = threads_per_rank(o.threads, world.local_size());
  if (device.kind != DeviceKind::cpu) fmt::print("{}\n", describe(device));
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  bool good = true;
  for (const auto& [name, shape] : wanted_shapes(o)) {
    try {
      results.push_back(measure_layer(world, name, shape, o, device, threads));
      good = good && results.back()["bit_equal"];
    } catch (const Error& error) {
      if (world.comm().size() > 1) throw;
      fmt::print("  error: {}\n", error.what());
      results.push_back(describe_layer(name, shape, o));
      results.back()["error"] = error.what();
      good = false;
    }
  }
  if (!o.json.empty() && world.comm().rank() == 0) write_text_file_atomically(o.json, results.dump(2) + "\n");
  return good ? 0 : 1;
}

void print_error(const Error& error) {
  fmt::print(stderr, "bench_moe_layer: error: {}\n  hint: {}\n", error.what(), error.hint());
}

}  // namespace

int main(int argc, char** argv) try {
  const std::unique_ptr<World> world = start_world(&argc, &argv);
  Options o;
  double peak_tflops = o.ceiling.flops_per_s * 1e-12, bandwidth_tb = o.ceiling.bytes_per_s * 1e-12;
  CLI::App app{"Times forward and backward of one MoE layer."};
  app.add_option("--device", o.device, "where to compute")->check(CLI::IsMember({"cpu", "gpu"}))->capture_default_str();
  auto* shape = app.add_option("--shape", o.shapes, "named shapes")->check(CLI::IsMember(kShapes));
  app.add_option("--tokens", o.tokens, "token counts for every named shape")->check(CLI::PositiveNumber)->needs(shape);
  app.add_option("sizes", o.sizes, "a shape of your own: D F E K T")
      ->expected(5)
      ->check(CLI::PositiveNumber)
      ->excludes(shape)
      ->capture_default_str();
  app.add_option("--routing", o.routing, "random: as initialised; skewed: a few experts get most rows")
      ->check(CLI::IsMember({"random", "skewed"}))
      ->capture_default_str();
  app.add_option("--experts-by", o.experts_by, "as moe.expert_products: who multiplies rows with experts on a GPU")
      ->check(CLI::IsMember(enum_words<ExpertProducts>()))
      ->capture_default_str();
  app.add_option("--gradients", o.gradients, "as memory.expert_gradients: dtype of the experts' weight gradients")
      ->check(CLI::IsMember(enum_words<DType>()))
      ->capture_default_str();
  app.add_option("--repeats", o.repeats, "timed repeats, of which the median counts")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--calls", o.calls, "calls back to back in each repeat")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--transport", o.transport, "flat, halo or bypass, under mpirun")->capture_default_str();
  app.add_flag("--scopes", o.scopes, "on a GPU also the time of each scope of the trace");
  app.add_option("--threads", o.threads, "host threads; 0: all cores")->check(CLI::Range(0, 4096));
  app.add_option("--peak", peak_tflops, "TFLOP/s of dense products on this GPU, for the floor")->capture_default_str();
  app.add_option("--bandwidth", bandwidth_tb, "TB/s of its memory, for the floor")->capture_default_str();
  app.add_option("--json", o.json, "write a list of results");
  CLI11_PARSE(app, argc, argv);
  if (world->comm().rank() != 0 && !std::freopen("/dev/null", "w", stdout)) return 1;
  o.ceiling = {peak_tflops * 1e12, bandwidth_tb * 1e12};
  try {
    return run(*world, o);
  } catch (const Error& error) {
    print_error(error);
    if (world->comm().size() > 1) world->abort(error.code());
    return static_cast<int>(error.code());
  }
} catch (const Error& error) {
  print_error(error);
  return static_cast<int>(error.code());
}
