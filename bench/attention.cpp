// Attention alone in bf16, forward and backward, by sequence length: with documents, a window or sinks beside without.
//   bench_attention --heads 32 --kv-heads 4 --width 128 --document 1024 --json FILE
//   bench_attention --heads 64 --kv-heads 8 --width 64 --sinks
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "comm/comm.h"
#include "core/rng.h"
#include "engine/engine.h"
#include "ops/device.h"
#include "ops/sinks.h"
#include "probe/meter.h"
#include "probe/probe_tensors.h"

namespace {

using namespace mw;

struct Options {
  std::vector<int64_t> lengths = {1024, 2048, 4096, 8192};
  int64_t tokens = 16384, heads = 32, kv_heads = 4, width = 128, value_width = 0, document = 0, window = 0;
  bool sinks = false, any_order = false;
  double seconds = 0.5;
  std::string json;
};

struct Result {
  double forward = 0, backward = 0;  // seconds
  double flops = 0;                  // of forward, of the scores that are seen
};

// The first key that each token of a sequence sees, and the number of keys that all of them see.
std::vector<int32_t> first_keys(const Options& o, const AttentionShape& shape, double& seen) {
  std::vector<int32_t> first;
  for (int64_t i = 0; i < shape.sequences * shape.seq_len; ++i) {
    const int64_t t = i % shape.seq_len;
    int64_t key = o.document > 0 ? t - t % o.document : 0;
    if (o.window > 0) key = std::max(key, t - o.window + 1);
    first.push_back(static_cast<int32_t>(key));
    seen += static_cast<double>(t - key + 1);
  }
  return first;
}

class Attention {
 public:
  Attention(Comm& world, Stream& stream, const Options& o, int64_t seq_len, bool hides)
      : stream_(stream), meter_(world, stream, o.seconds), sinks_(o.sinks && hides), shape_(shape_of(o, seq_len)) {
    shape_.documents = hides && (o.document > 0 || o.window > 0);
    const Options none;
    first_ = first_keys(shape_.documents ? o : none, shape_, seen_);
    t_.emplace(stream, slots());
    stream.workspace().attach((*t_)("work").data, static_cast<size_t>((*t_)("work").bytes()));
    std::vector<bf16> drawn;  // drawing one for every element would take most of the time
    const RngKey key = make_rng_key(1, "attention");
    for (uint64_t i = 0; i < 1'000'003; ++i) drawn.push_back(to_bf16(normal_at(key, i)));
    for (const char* name : {"q", "k", "v", "d_o"}) {
      std::vector<bf16> values(static_cast<size_t>((*t_)(name).numel()));
      for (size_t i = 0; i < values.size(); ++i) values[i] = drawn[(i + static_cast<size_t>(name[0])) % drawn.size()];
      write_values<bf16>(stream, values, (*t_)(name));
    }
    write_values<int32_t>(stream, first_, (*t_)("first"));
  }

  Result measure() {
    forward();
    Result r;
    r.forward = meter_.seconds_of([&] { forward(); });
    r.backward = meter_.seconds_of([&] { backward(); });
    r.flops = 2 * seen_ * static_cast<double>(shape_.heads * (shape_.head_dim + shape_.value_dim));
    return r;
  }
  std::string kernels() {
    return stream_.device().kind == DeviceKind::cpu ? "CPU" : describe_attention(stream_, shape_, DType::bf16);
  }

 private:
  static AttentionShape shape_of(const Options& o, int64_t seq_len) {
    AttentionShape s{std::max<int64_t>(1, o.tokens / seq_len),   seq_len, o.heads, o.kv_heads, o.width,
                     o.value_width > 0 ? o.value_width : o.width};
    s.scale = 1.0f / std::sqrt(static_cast<float>(o.width));
    return s;
  }
  std::vector<TensorSlot> slots() const {
    const AttentionShape& s = shape_;
    const int64_t T = s.sequences * s.seq_len;
    const std::vector<int64_t> q = {T, s.heads, s.head_dim}, k = {T, s.kv_heads, s.head_dim},
                               v = {T, s.kv_heads, s.value_dim}, o = {T, s.heads, s.value_dim}, rows = {s.heads, T};
    const int64_t scratch = attention_workspace_bytes(s, DType::bf16, 1, stream_.device().kind);
    return {{"q", DType::bf16, q, 0},
            {"k", DType::bf16, k, 0},
            {"v", DType::bf16, v, 0},
            {"o", DType::bf16, o, 0},
            {"d_o", DType::bf16, o, 0},
            {"d_q", DType::bf16, q, 0},
            {"d_k", DType::bf16, k, 0},
            {"d_v", DType::bf16, v, 0},
            {"lse", DType::f32, rows, 0},
            {"delta", DType::f32, rows, 0},
            {"first", DType::i32, {T}, 0},
            {"sinks", DType::f32, {s.heads}, 0},
            {"d_sinks", DType::f32, {s.heads}, 0},
            {"work", DType::u8, {std::max<int64_t>(scratch, 1)}, 0}};
  }
  TensorView at(const char* name) { return (*t_)(name); }
  TensorView first() { return shape_.documents ? at("first") : TensorView(); }
  void forward() {
    attention(stream_, shape_, at("q"), at("k"), at("v"), at("o"), at("lse"), first());
    if (sinks_) add_sinks(stream_, shape_, at("sinks"), at("o"), at("lse"));
  }
  void backward() {
    attention_backward(stream_, shape_, at("q"), at("k"), at("v"), at("o"), at("lse"), at("d_o"), at("d_q"), at("d_k"),
                       at("d_v"), first(), sinks_ ? at("delta") : TensorView());
    if (sinks_) sinks_backward(stream_, shape_, DType::bf16, at("sinks"), at("lse"), at("delta"), at("d_sinks"));
  }

  Stream& stream_;
  Meter meter_;
  bool sinks_;
  AttentionShape shape_;
  double seen_ = 0;
  std::vector<int32_t> first_;
  std::optional<ProbeTensors> t_;
};

// Plans count 2.5 times the FLOPs of forward for backward.
nlohmann::json report(const std::string& what, int64_t seq_len, const std::string& kernels, const Result& r) {
  const double forward = r.flops / r.forward * 1e-12, backward = 2.5 * r.flops / r.backward * 1e-12;
  fmt::print("{:>6} tokens a sequence, {}: forward {:.3f} ms ({:.0f} TFLOP/s), backward {:.3f} ms ({:.0f})  {}\n",
             seq_len, what, r.forward * 1e3, forward, r.backward * 1e3, backward, kernels);
  return {{"seq_len", seq_len},
          {"what", what},
          {"kernels", kernels},
          {"forward_ms", r.forward * 1e3},
          {"backward_ms", r.backward * 1e3},
          {"forward_tflops", forward},
          {"backward_tflops", backward}};
}

void run(const Options& o) {
  const std::unique_ptr<Comm> world = make_self_comm();
  Stream stream = open_stream(choose_device(DeviceChoice::automatic, 0), 1);
  stream.set_deterministic(!o.any_order);
  std::string what;
  if (o.document > 0) what = fmt::format("documents of {}", o.document);
  if (o.window > 0) what += fmt::format("{}a window of {}", what.empty() ? "" : ", ", o.window);
  if (o.sinks) what += what.empty() ? "sinks" : ", sinks";
  nlohmann::json results = nlohmann::json::array();
  for (const int64_t seq_len : o.lengths)
    for (const bool hides : {false, true}) {
      if (hides && what.empty()) continue;
      Attention attention(*world, stream, o, seq_len, hides);
      results.push_back(report(hides ? what : "plain", seq_len, attention.kernels(), attention.measure()));
    }
  if (!o.json.empty())
    write_output_text(o.json, nlohmann::json{{"benchmark", "attention"},
                                             {"tokens", o.tokens},
                                             {"heads", o.heads},
                                             {"kv_heads", o.kv_heads},
                                             {"width", o.width},
                                             {"value_width", o.value_width > 0 ? o.value_width : o.width},
                                             {"any_order", o.any_order},
                                             {"results", results}}
                                      .dump(1) +
                                  "\n");
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Times attention in bf16.");
  app.add_option("--seq-len", o.lengths, "tokens of a sequence; several: one after the other");
  app.add_option("--tokens", o.tokens, "tokens in all, at least one sequence")->capture_default_str();
  app.add_option("--heads", o.heads, "query heads")->capture_default_str();
  app.add_option("--kv-heads", o.kv_heads, "heads of keys and values")->capture_default_str();
  app.add_option("--width", o.width, "of a query and a key")->capture_default_str();
  app.add_option("--value-width", o.value_width, "of a value; 0: the same");
  app.add_option("--document", o.document, "tokens of a document; 0: a sequence is one");
  app.add_option("--window", o.window, "keys that a token sees; 0: all");
  app.add_flag("--sinks", o.sinks, "with attention sinks");
  app.add_flag("--any-order", o.any_order, "gradients may add up in any order, as with train.deterministic = false");
  app.add_option("--seconds", o.seconds, "of each measurement, about")->capture_default_str();
  app.add_option("--json", o.json, "file for the results");
  CLI11_PARSE(app, argc, argv);
  try {
    run(o);
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "bench_attention: error: {}\n  hint: {}\n", error.what(), error.hint());
    return static_cast<int>(error.code());
  }
}
