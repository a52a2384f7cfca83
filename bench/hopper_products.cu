// Rates of the six expert products of one MoE layer on Hopper's warpgroup kernels, with random and with zero operands,
// and the cycles that each role of a block spends waiting, copying, multiplying and storing. Zero operands draw little
// power, so they show the rate at the full clock.
//   bench_hopper_products --shape qwen3-30b mixtral --json FILE
#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/file.h"
#include "ops/device.h"
#include "ops/gpu/grouped_products.h"
#include "roofline.h"

namespace {

using namespace mw;
using namespace mw::gpu;
using Json = nlohmann::ordered_json;
using bench::MoeShape;

const std::map<std::string, MoeShape> kShapes = {{"xmoe-small", {2048, 1408, 64, 6, 0}},
                                                 {"xmoe-medium", {5120, 1536, 128, 6, 0}},
                                                 {"mixtral", {4096, 14336, 8, 2, 0}},
                                                 {"qwen3-30b", {2048, 768, 128, 8, 0}}};
constexpr double kFlopsPerCycle = 4096;  // of a processor's tensor cores, bf16
constexpr int kCells = kSpentKinds + 1;  // of a role: cycles by what they were spent on, and all of them

// Sums up what each role of a block spends its cycles on. [blocks, roles, kCells]
template <bool kProducts>
struct CycleMeter {
  static constexpr bool kMultiplies = kProducts;
  unsigned* cells;
  unsigned spent[kSpentKinds] = {}, began = 0;

  __device__ static unsigned now() {
    unsigned cycles;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(cycles)::"memory");
    return cycles;
  }
  __device__ void begin() { began = now(); }
  template <class Body>
  __device__ void time(Spent what, const Body& body) {
    const unsigned start = now();
    body();
    spent[static_cast<int>(what)] += now() - start;
  }
  __device__ void end(int role) const {
    if (threadIdx.x % kWarpgroup != 0) return;
    unsigned* const own = cells + (static_cast<int>(blockIdx.x) * kRoles + role) * kCells;
    for (int i = 0; i < kSpentKinds; ++i) own[i] = spent[i];
    own[kSpentKinds] = now() - began;
  }
};

__global__ void fill_kernel(uint16_t* to, int64_t count) {
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
  Layer(const MoeShape& s, Stream& stream)
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

 private:
  TensorView make(DType dtype, std::initializer_list<int64_t> dims) {
    TensorView view(nullptr, dtype, dims);
    buffers_.push_back(std::make_unique<DeviceBuffer>(static_cast<size_t>(view.bytes())));
    view.data = buffers_.back()->memory;
    return view;
  }

  MoeShape shape_;
  int64_t rows_;
  Stream& stream_;
  std::vector<int64_t> offsets_ = {0};
  DeviceBuffer index_memory_;
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
  TensorView x_, h_, a_, y_, up_, down_, gradient_;
  std::vector<Weight> up_weights_, down_weights_;
};

// Median seconds of one call of `body`, called again and again for `seconds`.
double time_calls(Stream& stream, double seconds, const auto& body) {
  NativeEvent begin, end;
  check(create_timed_event(&begin), "making an event");
  check(create_timed_event(&end), "making an event");
  std::vector<double> times;
  for (double total = 0; total < 2 * seconds;) {
    check(record_event(begin, native(stream)), "recording an event");
    body();
    check(record_event(end, native(stream)), "recording an event");
    check(synchronise_event(end), "waiting for an event");
    float ms = 0;
    check(elapsed_milliseconds(&ms, begin, end), "reading an event");
    total += ms * 1e-3;
    if (total > seconds) times.push_back(ms * 1e-3);  // the first half warms up, to the clock that power allows
  }
  check(destroy_event(begin), "destroying an event");
  check(destroy_event(end), "destroying an event");
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// Shares of cycles by role, means over blocks; and the cycles of the longest block.
Json read_cells(const std::vector<unsigned>& cells, int blocks, double* longest) {
  constexpr const char* kRoleNames[kRoles] = {"copy", "multiply_upper", "multiply_lower"};
  constexpr const char* kSpentNames[kSpentKinds] = {"number", "stage", "work", "store"};
  Json roles;
  *longest = 0;
  for (int role = 0; role < kRoles; ++role) {
    double sums[kCells] = {};
    for (int b = 0; b < blocks; ++b)
      for (int i = 0; i < kCells; ++i) sums[i] += cells[static_cast<size_t>((b * kRoles + role) * kCells + i)];
    for (int b = 0; b < blocks; ++b)
      *longest = std::max(*longest,
                          static_cast<double>(cells[static_cast<size_t>((b * kRoles + role) * kCells + kSpentKinds)]));
    for (int i = 0; i < kSpentKinds; ++i) roles[kRoleNames[role]][kSpentNames[i]] = sums[i] / sums[kSpentKinds];
  }
  return roles;
}

Json measure(Layer& layer, Stream& stream, Kind kind, DType gradients, Store store, int blocks, double seconds) {
  const DeviceBuffer cells(static_cast<size_t>(blocks * kRoles * kCells) * sizeof(unsigned));
  const double flops = layer.flops(kind);
  Json row = {{"product", kNames[static_cast<int>(kind)]}};
  if (kind >= Kind::d_up) {
    row["gradients"] = name_of(gradients);
    row["adds"] = store == Store::accumulate;
  }
  for (const bool zeros : {false, true}) {
    layer.fill(zeros);
    const auto add = [&](const std::string& name, auto meter) {
      const double time = time_calls(stream, seconds, [&] { layer.run(kind, gradients, store, meter); });
      row[name] = flops / time * 1e-12;
      return time;
    };
    const std::string suffix = zeros ? "_zeros" : "";
    add("tflops" + suffix, NoMeter());
    const double metered = add("tflops_metered" + suffix, CycleMeter<true>{static_cast<unsigned*>(cells.memory)});
    std::vector<unsigned> values(cells.bytes / sizeof(unsigned));
    check(copy(values.data(), cells.memory, cells.bytes), "reading cycles");
    double longest = 0;
    row["spent" + suffix] = read_cells(values, blocks, &longest);
    row["cycles" + suffix] = longest;
    row["mhz" + suffix] = longest / metered * 1e-6;
    row["tensor_share_of_cycles" + suffix] = flops / (kFlopsPerCycle * blocks) / longest;
    if (!zeros) add("tflops_copies_alone", CycleMeter<false>{static_cast<unsigned*>(cells.memory)});
  }
  return row;
}

void print_row(const Json& row) {
  const auto number = [&](const char* name) { return row[name].get<double>(); };
  fmt::print(
      "  {:<7}{:>5} {:<4} TFLOP/s: {:4.0f}, zeros {:4.0f}, copies alone {:4.0f}, metered {:4.0f} at {:4.0f} MHz; share "
      "of tensor cycles {:.3f}\n",
      row["product"].get<std::string>(), row.value("gradients", ""), row.value("adds", false) ? "adds" : "",
      number("tflops"), number("tflops_zeros"), number("tflops_copies_alone"), number("tflops_metered"), number("mhz"),
      number("tensor_share_of_cycles"));
  for (const char* which : {"spent", "spent_zeros"})
    for (const auto& [role, shares] : row[which].items()) {
      fmt::print("    {:<11} {:<14}", which, role);
      for (const auto& [what, share] : shares.items()) fmt::print(" {} {:.3f}", what, share.get<double>());
      fmt::print("\n");
    }
}

Json measure_shape(const std::string& name, MoeShape shape, int64_t tokens, Stream& stream, double seconds) {
  shape.tokens = tokens;
  fmt::print("{} D={} F={} E={} K={} T={}\n", name, shape.width, shape.expert_width, shape.experts, shape.top_k,
             tokens);
  Layer layer(shape, stream);
  const int blocks = find_processors(stream).blocks;
  MW_CHECK(blocks > 0, "this GPU has no warpgroup kernels");
  Json rows = Json::array();
  for (int kind = 0; kind < kKinds; ++kind)
    for (const DType gradients : {DType::f32, DType::bf16})
      for (const Store store : {Store::overwrite, Store::accumulate}) {
        const bool other = gradients == DType::bf16 || store == Store::accumulate;
        if (static_cast<Kind>(kind) < Kind::d_up && other) continue;
        rows.push_back(measure(layer, stream, static_cast<Kind>(kind), gradients, store, blocks, seconds));
        print_row(rows.back());
      }
  return {{"shape", name}, {"tokens", tokens}, {"products", rows}};
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> shapes = {"qwen3-30b"};
  int64_t tokens = 16384;
  double seconds = 0.1;
  std::string json;
  CLI::App app{"Times the products of experts on Hopper's warpgroup kernels, and where their blocks spend cycles."};
  app.add_option("--shape", shapes, "named shapes")->check(CLI::IsMember(kShapes))->capture_default_str();
  app.add_option("--tokens", tokens, "tokens")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--seconds", seconds, "time to warm up, and then to measure each case")->capture_default_str();
  app.add_option("--json", json, "write a list of results");
  CLI11_PARSE(app, argc, argv);
  try {
    const Device device = Device{DeviceKind::cuda, 0};
    Stream stream = open_stream(device, 1);
    const DeviceBuffer workspace(static_cast<size_t>(kGroupedWorkspaceBytes));
    stream.workspace().attach(workspace.memory, workspace.bytes);
    fmt::print("{}\n", describe(device));
    Json results = Json::array();
    for (const std::string& name : shapes)
      results.push_back(measure_shape(name, kShapes.at(name), tokens, stream, seconds));
    if (!json.empty()) write_text_file_atomically(json, results.dump(2) + "\n");
  } catch (const mw::Error& error) {
    fmt::print(stderr, "bench_hopper_products: error: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
