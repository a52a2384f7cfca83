// What the gradients of the experts' first products gain where their kernels overlap (esfk). For d_x and d_up one after
// the other and at once, in turns: the time of both, and where processors wait for the last tiles of a kernel.
//   bench_hopper_esfk --tokens 2048 16384 --json FILE
#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/median.h"
#include "hopper_layer.h"
#include "ops/device.h"

namespace {

using namespace mw;
using namespace mw::gpu;
using Json = nlohmann::ordered_json;
using Nanoseconds = unsigned long long;

constexpr int kStamps = 2;  // of a role: its begin and its end

// Notes when each role of a block begins and ends. [blocks, roles, kStamps]
struct StampMeter {
  static constexpr bool kMultiplies = true;
  Nanoseconds* stamps;
  Nanoseconds began = 0;

  __device__ static Nanoseconds now() {
    Nanoseconds time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time)::"memory");
    return time;
  }
  __device__ void begin() { began = now(); }
  template <class Body>
  __device__ void time(Spent, const Body& body) {
    body();
  }
  __device__ void end(int role) const {
    if (threadIdx.x % kWarpgroup != 0) return;
    Nanoseconds* const own = stamps + (static_cast<int>(blockIdx.x) * kRoles + role) * kStamps;
    own[0] = began;
    own[1] = now();
  }
};

// When the blocks of one kernel ran.
class Stamps {
 public:
  explicit Stamps(int blocks) : memory_(static_cast<size_t>(blocks * kRoles * kStamps) * sizeof(Nanoseconds)) {}
  // For the next kernel. Not all blocks of a processor's worth may run: those leave zeros.
  StampMeter meter(Stream& stream) {
    check(fill_async(memory_.memory, 0, memory_.bytes, native(stream)), "filling memory");
    return {static_cast<Nanoseconds*>(memory_.memory)};
  }
  void read() {
    std::vector<Nanoseconds> stamps(memory_.bytes / sizeof(Nanoseconds));
    check(copy(stamps.data(), memory_.memory, memory_.bytes), "reading stamps");
    begin = ~Nanoseconds{0}, end = 0;
    std::vector<Nanoseconds> ends;
    for (size_t block = 0; block < stamps.size(); block += kRoles * kStamps) {
      if (stamps[block] == 0) continue;
      ends.push_back(0);
      for (size_t i = block; i < block + kRoles * kStamps; i += kStamps) {
        begin = std::min(begin, stamps[i]);
        ends.back() = std::max(ends.back(), stamps[i + 1]);
      }
      end = std::max(end, ends.back());
    }
    tail = 0;
    for (const Nanoseconds block_end : ends)
      tail += static_cast<double>(end - block_end) * 1e-3 / static_cast<double>(ends.size());
  }
  Nanoseconds begin = 0, end = 0;
  double tail = 0;  // microseconds that an average block is done before the last one

 private:
  DeviceBuffer memory_;
};

// Medians over some runs, in microseconds.
Json measure_tails(Layer& layer, Stream& stream, DType gradients, Store store, bool at_once) {
  const int blocks = find_processors(stream).blocks;
  Stamps of_d_x(blocks), of_d_up(blocks);
  std::vector<double> first, second, gap;
  for (int i = 0; i < 12; ++i) {
    const StampMeter d_x = of_d_x.meter(stream), d_up = of_d_up.meter(stream);
    if (at_once) {
      layer.run_both(gradients, store, d_x, d_up);
    } else {
      layer.run(Kind::d_x, gradients, store, d_x);
      layer.run(Kind::d_up, gradients, store, d_up);
    }
    stream.wait();
    of_d_x.read();
    of_d_up.read();
    first.push_back(of_d_x.tail);
    second.push_back(of_d_up.tail);
    gap.push_back((static_cast<double>(of_d_up.begin) - static_cast<double>(of_d_x.end)) * 1e-3);
  }
  return {{"d_x_tail_us", median(first)}, {"d_up_begins_after_us", median(gap)}, {"d_up_tail_us", median(second)}};
}

// Medians, in microseconds, of bursts of `seconds` in turns; the first quarter of them warms up.
std::vector<double> time_in_turns(Stream& stream, double seconds, int rounds,
                                  const std::vector<std::function<void()>>& arms) {
  NativeEvent begin, end;
  check(create_timed_event(&begin), "making an event");
  check(create_timed_event(&end), "making an event");
  std::vector<int> calls(arms.size(), 4);
  std::vector<std::vector<double>> times(arms.size());
  for (int round = -1; round < rounds; ++round)
    for (size_t i = 0; i < arms.size(); ++i) {
      check(record_event(begin, native(stream)), "recording an event");
      for (int c = 0; c < calls[i]; ++c) arms[i]();
      check(record_event(end, native(stream)), "recording an event");
      check(synchronise_event(end), "waiting for an event");
      float ms = 0;
      check(elapsed_milliseconds(&ms, begin, end), "reading an event");
      const double us = static_cast<double>(ms) * 1e3 / calls[i];
      if (round < 0) calls[i] = std::max(1, static_cast<int>(seconds * 1e6 / us));
      else if (4 * round >= rounds) times[i].push_back(us);
    }
  check(destroy_event(begin), "destroying an event");
  check(destroy_event(end), "destroying an event");
  std::vector<double> medians;
  for (const std::vector<double>& of_arm : times) medians.push_back(median(of_arm));
  return medians;
}

Json measure(Layer& layer, Stream& stream, DType gradients, Store store, double seconds, int rounds) {
  const std::vector<double> us = time_in_turns(stream, seconds, rounds,
                                               {[&] {
                                                  layer.run(Kind::d_x, gradients, store, NoMeter());
                                                  layer.run(Kind::d_up, gradients, store, NoMeter());
                                                },
                                                [&] { layer.run_both(gradients, store, NoMeter(), NoMeter()); }});
  return {{"gradients", name_of(gradients)},
          {"adds", store == Store::accumulate},
          {"separate_us", us[0]},
          {"esfk_us", us[1]},
          {"separate", measure_tails(layer, stream, gradients, store, false)},
          {"esfk", measure_tails(layer, stream, gradients, store, true)}};
}

}  // namespace

int main(int argc, char** argv) {
  std::string name = "qwen3-30b", json;
  std::vector<int64_t> tokens = {2048, 16384};
  double seconds = 0.01;
  int rounds = 24;
  CLI::App app{"Times both gradients of the experts' first products, one after the other and at once, on Hopper."};
  app.add_option("--shape", name, "a named shape")->check(CLI::IsMember(kShapes))->capture_default_str();
  app.add_option("--tokens", tokens, "token counts")->check(CLI::PositiveNumber);
  app.add_option("--seconds", seconds, "length of a burst")->capture_default_str();
  app.add_option("--rounds", rounds, "bursts of each way")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--json", json, "write a list of results");
  CLI11_PARSE(app, argc, argv);
  try {
    const Device device{DeviceKind::cuda, 0};
    Stream stream = open_stream(device, 1);
    const DeviceBuffer workspace(static_cast<size_t>(kGroupedWorkspaceBytes));
    stream.workspace().attach(workspace.memory, workspace.bytes);
    fmt::print("{}\n", describe(device));
    Json results = Json::array();
    for (const int64_t count : tokens) {
      bench::MoeShape shape = kShapes.at(name);
      shape.tokens = count;
      Layer layer(shape, stream);
      layer.fill(false);
      for (const DType gradients : {DType::f32, DType::bf16})
        for (const Store store : {Store::overwrite, Store::accumulate}) {
          Json row = {{"shape", name}, {"tokens", count}};
          row.update(measure(layer, stream, gradients, store, seconds, rounds));
          fmt::print("{}\n", row.dump());
          results.push_back(row);
        }
    }
    if (!json.empty()) write_text_file_atomically(json, results.dump(2) + "\n");
  } catch (const mw::Error& error) {
    fmt::print(stderr, "bench_hopper_esfk: error: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
