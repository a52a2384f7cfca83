// Rates of the six expert products of one MoE layer on Hopper's warpgroup kernels, with random and with zero operands,
// and the cycles that each role of a block spends waiting, copying, multiplying and storing. Zero operands draw little
// power, so they show the rate at the full clock.
//   bench_hopper_products --shape qwen3-30b mixtral --json FILE
#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/median.h"
#include "hopper_layer.h"
#include "ops/device.h"

namespace {

using namespace mw;
using namespace mw::gpu;
using Json = nlohmann::ordered_json;
using bench::MoeShape;

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
  return median(std::move(times));
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

Json label(Kind kind, DType gradients, Store store) {
  Json row = {{"product", kNames[static_cast<int>(kind)]}};
  if (kind >= Kind::d_up) {
    row["gradients"] = gradients == DType::f32 ? "fp32" : "bf16";
    row["adds"] = store == Store::accumulate;
  }
  return row;
}

Json measure_rate(Layer& layer, Stream& stream, Kind kind, DType gradients, Store store, double seconds) {
  Json row = label(kind, gradients, store);
  const double time = time_calls(stream, seconds, [&] { layer.run(kind, gradients, store, NoMeter()); });
  row["ms"] = time * 1e3;
  row["tflops"] = layer.flops(kind) / time * 1e-12;
  return row;
}

Json measure(Layer& layer, Stream& stream, Kind kind, DType gradients, Store store, int blocks, double seconds) {
  const DeviceBuffer cells(static_cast<size_t>(blocks * kRoles * kCells) * sizeof(unsigned));
  const double flops = layer.flops(kind);
  Json row = label(kind, gradients, store);
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

void print_rate(const Json& row) {
  fmt::print("  {:<7}{:>5} {:<4} {:7.3f} ms, {:4.0f} TFLOP/s\n", row["product"].get<std::string>(),
             row.value("gradients", ""), row.value("adds", false) ? "adds" : "", row["ms"].get<double>(),
             row["tflops"].get<double>());
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

struct Options {
  std::vector<std::string> shapes = {"qwen3-30b"}, products{std::begin(kNames), std::end(kNames)};
  int64_t tokens = 16384;
  double seconds = 0.1;
  bool rates = false;
  std::string json;
};

Json measure_shape(const std::string& name, const Options& o, Stream& stream) {
  MoeShape shape = kShapes.at(name);
  shape.tokens = o.tokens;
  fmt::print("{} D={} F={} E={} K={} T={}\n", name, shape.width, shape.expert_width, shape.experts, shape.top_k,
             o.tokens);
  Layer layer(shape, stream);
  layer.fill(false);
  const int blocks = find_processors(stream).blocks;
  MW_CHECK(blocks > 0, "this GPU has no warpgroup kernels");
  Json rows = Json::array();
  for (int i = 0; i < kKinds; ++i) {
    const Kind kind = static_cast<Kind>(i);
    if (std::find(o.products.begin(), o.products.end(), kNames[i]) == o.products.end()) continue;
    for (const DType gradients : {DType::f32, DType::bf16})
      for (const Store store : {Store::overwrite, Store::accumulate}) {
        const bool other = gradients == DType::bf16 || store == Store::accumulate;
        if (kind < Kind::d_up && other) continue;
        rows.push_back(o.rates ? measure_rate(layer, stream, kind, gradients, store, o.seconds)
                               : measure(layer, stream, kind, gradients, store, blocks, o.seconds));
        o.rates ? print_rate(rows.back()) : print_row(rows.back());
      }
  }
  return {{"shape", name}, {"tokens", o.tokens}, {"products", rows}};
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app{"Times the products of experts on Hopper's warpgroup kernels, and where their blocks spend cycles."};
  app.add_option("--shape", o.shapes, "named shapes")->check(CLI::IsMember(kShapes))->capture_default_str();
  app.add_option("--product", o.products, "products to time")->check(CLI::IsMember(o.products))->capture_default_str();
  app.add_option("--tokens", o.tokens, "tokens")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--seconds", o.seconds, "time to warm up, and then to measure each case")->capture_default_str();
  app.add_flag("--rates", o.rates, "only times with random operands, without the cycles of roles");
  app.add_option("--json", o.json, "write a list of results");
  CLI11_PARSE(app, argc, argv);
  try {
    const Device device = Device{DeviceKind::cuda, 0};
    Stream stream = open_stream(device, 1);
    const DeviceBuffer workspace(static_cast<size_t>(kGroupedWorkspaceBytes));
    stream.workspace().attach(workspace.memory, workspace.bytes);
    fmt::print("{}\n", describe(device));
    Json results = Json::array();
    for (const std::string& name : o.shapes) results.push_back(measure_shape(name, o, stream));
    if (!o.json.empty()) write_text_file_atomically(o.json, results.dump(2) + "\n");
  } catch (const mw::Error& error) {
    fmt::print(stderr, "bench_hopper_products: error: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
