// What bounds the warpgroup kernels on Hopper: cycles of one step of products whose operands stay in shared memory, by
// their order and the width of the tile; and the rate at which blocks store tiles, by how many store at a time.
//   bench_hopper_limits --json FILE
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/median.h"
#include "ops/device.h"
#include "ops/gpu/launch.h"
#include "ops/gpu/tile_loaders.h"
#include "ops/gpu/tile_ring.h"
#include "ops/gpu/tile_stores.h"

namespace {

using namespace mw;
using namespace mw::gpu;
using Json = nlohmann::ordered_json;

constexpr int kThreadsOfBlock = 3 * kWarpgroup;  // the first warpgroup is idle
constexpr int kSteps = 20000, kTiles = 256, kProcessors = 132;

__device__ inline unsigned read_clock() {
  unsigned cycles;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(cycles)::"memory");
  return cycles;
}

// The steps of a product as grouped_wgmma.h has them, on stages that nobody fills again.
template <Along kA, Along kB, int kWidth>
__global__ void __launch_bounds__(kThreadsOfBlock, 1) resident_kernel(bool zeros, unsigned* cycles, float* out) {
  using Stages = Ring<kWidth>;
  const unsigned memory = first_tile_address();
  for (int i = static_cast<int>(threadIdx.x); i < Stages::kStages * Stages::kStageBytes / 4; i += kThreadsOfBlock) {
    unsigned z = (static_cast<unsigned>(i) + blockIdx.x * 7919u) * 2654435761u;
    z ^= z >> 15;
    z *= 2246822519u;
    z ^= z >> 13;
    store_shared(memory + i * 4, zeros ? 0 : (z & 0x80ff80ffu) | 0x3f003f00u);  // [0.5, 2), either sign
  }
  fence_writes();
  __syncthreads();
  const int group = shuffle_from(static_cast<int>(threadIdx.x) / kWarpgroup, 0) - 1;
  if (group < 0) return;
  constexpr int kBytesA = kA == Along::depth ? 32 : 16 * kRowBytes, kBytesB = kB == Along::depth ? 32 : 16 * kRowBytes;
  float sums[kWidth / 2] = {};
  Stages ring{memory};
  const unsigned begin = read_clock();
#pragma unroll 1
  for (int step = 0; step < kSteps; ++step) {
    begin_products();
#pragma unroll
    for (int i = 0; i < kDepth / 16; ++i)
      multiply_async<kA, kB>(sums, describe_tile(ring.a() + group * kPanelBytes + i * kBytesA, kPanelBytes),
                             describe_tile(ring.b() + i * kBytesB, kPanelBytes), true);
    commit_products();
    wait_for_products<1>();
    ring.advance();
  }
  wait_for_products<0>();
  keep_sums(sums);
  const unsigned end = read_clock();
  float total = 0;
  for (const float sum : sums) total += sum;
  out[blockIdx.x * 2 * kWarpgroup + threadIdx.x - kWarpgroup] = total;
  if (threadIdx.x == kWarpgroup) cycles[blockIdx.x] = end - begin;
}

// Each block stores tiles of 128 rows below each other.
template <class U>
__global__ void __launch_bounds__(kThreadsOfBlock, 1) store_kernel(U* to, bool add) {
  constexpr int kWidth = 256;
  if (threadIdx.x < kWarpgroup) return;
  float sums[kWidth / 2];
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i) sums[i] = static_cast<float>(threadIdx.x + i);
  const int64_t pitch = static_cast<int64_t>(gridDim.x) * kWidth;
  for (int tile = 0; tile < kTiles; ++tile) {
    keep_sums(sums);
    U* const first = to + static_cast<int64_t>(tile) * kHeight * pitch + blockIdx.x * kWidth;
    find_tile_rows<U>(kHeight, kWidth, [&](int r) { return first + r * pitch; }).store(sums, add);
  }
}

struct DeviceBuffer {
  void* memory = nullptr;
  explicit DeviceBuffer(size_t bytes) {
    if (cudaMalloc(&memory, bytes) != cudaSuccess) fail(Exit::memory, fmt::format("no {} bytes on the GPU", bytes));
  }
  ~DeviceBuffer() { cudaFree(memory); }
  DeviceBuffer(const DeviceBuffer&) = delete;
};

// Median seconds of seven calls after two.
double time_calls(Stream& stream, const auto& body) {
  NativeEvent begin, end;
  check(create_timed_event(&begin), "making an event");
  check(create_timed_event(&end), "making an event");
  std::vector<double> times;
  for (int i = -2; i < 7; ++i) {
    check(record_event(begin, native(stream)), "recording an event");
    body();
    check(record_event(end, native(stream)), "recording an event");
    check(synchronise_event(end), "waiting for an event");
    float ms = 0;
    check(elapsed_milliseconds(&ms, begin, end), "reading an event");
    if (i >= 0) times.push_back(ms * 1e-3);
  }
  check(destroy_event(begin), "destroying an event");
  check(destroy_event(end), "destroying an event");
  return median(std::move(times));
}

constexpr const char* name_of(Along along) { return along == Along::depth ? "depth" : "width"; }

template <Along kA, Along kB, int kWidth>
void measure_order(Stream& stream, Json& rows) {
  constexpr size_t kBytes = kAtomBytes + Ring<kWidth>::kBytes;
  const auto kernel = resident_kernel<kA, kB, kWidth>;
  check(allow_shared_bytes(reinterpret_cast<const void*>(kernel), kBytes), "asking for shared memory");
  const DeviceBuffer cycles(kProcessors * sizeof(unsigned)), out(kProcessors * 2 * kWarpgroup * sizeof(float));
  for (const bool zeros : {false, true}) {
    const double seconds = time_calls(stream, [&] {
      launch(stream, kernel, kProcessors, kThreadsOfBlock, kBytes, zeros, static_cast<unsigned*>(cycles.memory),
             static_cast<float*>(out.memory));
    });
    std::vector<unsigned> values(kProcessors);
    check(copy(values.data(), cycles.memory, kProcessors * sizeof(unsigned)), "reading cycles");
    double mean = 0;
    for (const unsigned value : values) mean += static_cast<double>(value) / kProcessors;
    const double flops = 2.0 * kHeight * kWidth * kDepth * kSteps * kProcessors;
    rows.push_back({{"first", name_of(kA)},
                    {"second", name_of(kB)},
                    {"width", kWidth},
                    {"operands", zeros ? "zeros" : "random"},
                    {"cycles_of_step", mean / kSteps},
                    {"least_cycles", 4 * kWidth},
                    {"mhz", mean / seconds * 1e-6},
                    {"tflops", flops / seconds * 1e-12}});
    fmt::print(
        "  first along {}, second along {}, {:3} wide, {:<6}: {:7.1f} cycles a step ({} at least), {:4.0f} MHz, "
        "{:4.0f} TFLOP/s\n",
        name_of(kA), name_of(kB), kWidth, zeros ? "zeros" : "random", mean / kSteps, 4 * kWidth, mean / seconds * 1e-6,
        flops / seconds * 1e-12);
  }
}

template <int kWidth>
void measure_orders(Stream& stream, Json& rows) {
  measure_order<Along::depth, Along::depth, kWidth>(stream, rows);
  measure_order<Along::depth, Along::width, kWidth>(stream, rows);
  measure_order<Along::width, Along::depth, kWidth>(stream, rows);
  measure_order<Along::width, Along::width, kWidth>(stream, rows);
}

template <class U>
void measure_stores(Stream& stream, bool add, Json& rows) {
  constexpr int64_t kTileBytes = int64_t{kHeight} * 256 * sizeof(U);
  for (const int blocks : {1, 4, 16, 33, 66, 132}) {
    const DeviceBuffer memory(static_cast<size_t>(kTileBytes * kTiles * blocks));
    check(fill_async(memory.memory, 0, static_cast<size_t>(kTileBytes * kTiles * blocks), native(stream)), "filling");
    const double seconds = time_calls(stream, [&] {
      launch(stream, store_kernel<U>, blocks, kThreadsOfBlock, 0, static_cast<U*>(memory.memory), add);
    });
    const double rate = static_cast<double>(kTileBytes * kTiles) / seconds;
    const char* const dtype = sizeof(U) == 4 ? "f32" : "bf16";
    rows.push_back({{"dtype", dtype},
                    {"adds", add},
                    {"blocks", blocks},
                    {"gb_per_s_of_block", rate * 1e-9},
                    {"us_of_tile", seconds / kTiles * 1e6}});
    fmt::print("  {:>3} blocks {} tiles of {:<4}: {:6.1f} GB/s each, {:5.2f} us a tile, {:5.2f} TB/s together\n",
               blocks, add ? "add" : "store", dtype, rate * 1e-9, seconds / kTiles * 1e6, rate * blocks * 1e-12);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string json;
  CLI::App app{"Measures products of operands in shared memory, and stores of tiles, on one Hopper GPU."};
  app.add_option("--json", json, "write the results");
  CLI11_PARSE(app, argc, argv);
  try {
    const Device device = Device{DeviceKind::cuda, 0};
    Stream stream = open_stream(device, 1);
    fmt::print("{}\n", describe(device));
    Json steps = Json::array(), stores = Json::array();
    measure_orders<256>(stream, steps);
    measure_orders<128>(stream, steps);
    measure_stores<float>(stream, false, stores);
    measure_stores<float>(stream, true, stores);
    measure_stores<bf16>(stream, false, stores);
    const Json result = {{"resident_products", steps}, {"stores", stores}};
    if (!json.empty()) write_text_file_atomically(json, result.dump(2) + "\n");
  } catch (const mw::Error& error) {
    fmt::print(stderr, "bench_hopper_limits: error: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
