// Stands in for src/ops/gpu/wgmma.h in a build without a GPU. Kernels of warps: a wave of the emulation is one of them
// where emulated::lanes_of_wave is 32.
#pragma once

#include <bit>
#include <functional>
#include <limits>
#include <map>
#include <vector>

#include "ops/gpu/mma.h"

struct uint4 {
  unsigned x, y, z, w;
};
struct float4 {
  float x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }

namespace mw::gpu {

constexpr int kWarpgroup = 128, kRowBytes = 128, kAtomBytes = 8 * kRowBytes;
enum class Along : int { depth, width };

inline void prefetch(const void*) {}
inline void add_async(float* to, float4 values) {
  to[0] += values.x;
  to[1] += values.y;
  to[2] += values.z;
  to[3] += values.w;
}

// Shared memory, and the addresses that each thread has stored at, in order.
inline std::vector<unsigned> shared_stores[emulated::kMaxThreads];
inline void store_shared(unsigned to, unsigned word) {
  shared_stores[emulated::this_thread()].push_back(to);
  std::memcpy(in_shared(to), &word, sizeof word);
}
inline void store_shared(unsigned to, unsigned first, unsigned second) {
  store_shared(to, first);
  std::memcpy(in_shared(to + 4), &second, sizeof second);
}
inline void store_matrices(unsigned to, const unsigned (&words)[4]) {
  shared_stores[emulated::this_thread()].push_back(to);
  for (int matrix = 0; matrix < 4; ++matrix) {
    const unsigned row = shuffle(to, [=](int lane) { return lane / 32 * 32 + 8 * matrix + lane % 32 / 4; });
    std::memcpy(in_shared(row + threadIdx.x % 4 * 4), &words[matrix], sizeof(unsigned));
  }
}
inline unsigned load_shared(unsigned from) {
  unsigned word = 0;
  std::memcpy(&word, in_shared(from), sizeof word);
  return word;
}
inline void load_shared(unsigned from, float& first, float& second) {
  first = std::bit_cast<float>(load_shared(from));
  second = std::bit_cast<float>(load_shared(from + 4));
}

// Barriers by their address in the cluster. Others run right after an arrival: what they were told of must be done.
struct EmulatedBarrier {
  int arrivals = 0, left = 0, bytes = 0;
  unsigned phase = 0, run = 0;
  void end_if_complete() {
    if (left > 0 || bytes != 0) return;
    left = arrivals;
    ++phase;
  }
};
inline std::map<unsigned, EmulatedBarrier> barriers;
inline EmulatedBarrier& barrier_at(unsigned address) {
  in_shared(address);  // refuses that of a block that has ended
  EmulatedBarrier& b = barriers[name_everywhere(address)];
  if (b.run != emulated::this_run()) emulated::refuse("nobody has initialised this barrier yet");
  return b;
}
inline void init_barrier(unsigned barrier, int arrivals) {
  barriers[name_everywhere(barrier)] = {arrivals, arrivals, 0, 0, emulated::this_run()};
}
inline void arrive_expecting(unsigned barrier, int bytes) {
  EmulatedBarrier& b = barrier_at(barrier);
  b.bytes += bytes;
  --b.left;
  b.end_if_complete();
  emulated::tell_waiting();
}
inline void arrive(unsigned barrier) {
  arrive_expecting(barrier, 0);
  emulated::wait_for_others();
}
inline void arrive_after_copies(unsigned barrier) {
  commit_copies();
  wait_for_copies<0>();
  arrive(barrier);
}
inline void wait_for_phase(unsigned barrier, unsigned parity) {
  while (barrier_at(barrier).phase % 2 == parity) emulated::wait_for_others();
}

constexpr int kPair = 2;
inline int place_in_pair() { return static_cast<int>(emulated::this_block()); }
inline unsigned address_in(int block, unsigned address) { return name_in(static_cast<unsigned>(block), address); }
inline void arrive_there(unsigned barrier) { arrive(barrier); }
inline void send_there(unsigned to, unsigned word, unsigned barrier) {
  store_shared(to, word);
  arrive(barrier);
}

inline void sync_pair() { emulated::wait_for_cluster(); }

// Barrier of the threads of a warpgroup.
inline void sync_warpgroup() {
  struct Meeting {
    int arrived = 0;
    unsigned phase = 0;
  };
  static Meeting meetings[emulated::kMaxThreads / kWarpgroup];
  Meeting& meeting = meetings[emulated::this_thread() / kWarpgroup];
  const unsigned phase = meeting.phase;
  if (++meeting.arrived == kWarpgroup) {
    meeting = {0, phase + 1};
    emulated::tell_waiting();
  }
  while (meeting.phase == phase) emulated::wait_for_others();
}
inline void let_next_kernel_begin() {}
inline void wait_for_kernel_before() {}
// Not the first address: kernels must add it.
inline unsigned first_tile_address() { return kAtomBytes; }

inline void fence_writes() {}
inline void fence_barriers() {}
template <int kRegisters>
void grow_registers() {}
template <int kRegisters>
void shrink_registers() {}

// Where 16 bytes of a swizzled tile lie that would lie at `address` otherwise.
inline unsigned swizzle(unsigned address) { return address ^ (address / kRowBytes % 8) << 4; }

// A tile's address in the lower half, the distance of panels in the upper. Of blocks: a bit, and both distances.
inline uint64_t describe_tile(unsigned address, unsigned panel_bytes) { return uint64_t{panel_bytes} << 32 | address; }
inline uint64_t describe_blocks(unsigned address, unsigned width_bytes, unsigned summand_bytes) {
  return uint64_t{1} << 63 | uint64_t{width_bytes} << 48 | uint64_t{summand_bytes} << 32 | address;
}
inline unsigned place_in_blocks(uint64_t blocks, unsigned line, unsigned summand) {
  const auto width_bytes = static_cast<unsigned>(blocks >> 48 & 0x7fff),
             summand_bytes = static_cast<unsigned>(blocks >> 32 & 0xffff);
  return static_cast<unsigned>(blocks) + line / 8 * width_bytes + summand / 8 * summand_bytes + summand % 8 * 16 +
         line % 8 * 2;
}
inline uint64_t move_tile(uint64_t descriptor, unsigned bytes) { return descriptor + bytes; }
template <Along kLayout>
float element(uint64_t tile, unsigned line, unsigned summand) {
  const auto address = static_cast<unsigned>(tile), panel = static_cast<unsigned>(tile >> 32);
  const unsigned at = kLayout == Along::depth ? address + line * kRowBytes + summand * 2
                                              : address + line / 64 * panel + summand * kRowBytes + line % 64 * 2;
  const bool blocks = tile >> 63 != 0;
  if (blocks && kLayout == Along::depth) emulated::refuse("blocks are operands along the width");
  bf16 value{};
  std::memcpy(&value, in_shared(blocks ? place_in_blocks(tile, line, summand) : swizzle(at)), sizeof value);
  return to_float(value);
}

// Products of a thread that it has not waited for: batches, and the open one. They happen when it waits for them, or
// when their batch is closed. Operands in registers are read only then.
using EmulatedBatch = std::vector<std::function<void()>>;
inline bool products_happen_at_once = false;
inline std::vector<EmulatedBatch> batches[emulated::kMaxThreads];
inline EmulatedBatch open_batch[emulated::kMaxThreads];

inline void begin_products() {}
template <int kPending>
void wait_for_products() {
  emulated::wait_for_wave();  // a product reads registers of other lanes
  auto& own = batches[emulated::this_thread()];
  while (own.size() > kPending) {
    for (const auto& product : own.front()) product();
    own.erase(own.begin());
  }
  emulated::wait_for_wave();
}
inline void commit_products() {
  batches[emulated::this_thread()].push_back(std::exchange(open_batch[emulated::this_thread()], {}));
  if (products_happen_at_once) wait_for_products<0>();
}
template <int kCount>
void keep_sums(float (&)[kCount]) {}
template <int kCount>
void leave_undefined(float (&d)[kCount]) {
  for (float& sum : d) sum = std::numeric_limits<float>::quiet_NaN();
}

// value_of(row, summand): of the first operand.
template <Along kB, int kCount, class ValueOf>
void add_to_batch(float (&d)[kCount], uint64_t b, bool add, const ValueOf& value_of) {
  open_batch[emulated::this_thread()].push_back([&d, b, add, value_of] {
    const unsigned lane = threadIdx.x % kWarpLanes, warp = threadIdx.x % kWarpgroup / kWarpLanes;
    float rows[2][16];
    for (unsigned half = 0; half < 2; ++half)
      for (unsigned k = 0; k < 16; ++k) rows[half][k] = value_of(16 * warp + lane / 4 + 8 * half, k);
    for (unsigned i = 0; i < kCount; ++i) {
      float sum = add ? d[i] : 0.0f;
      const unsigned column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      for (unsigned k = 0; k < 16; ++k) sum += rows[i / 2 % 2][k] * element<kB>(b, column, k);
      d[i] = sum;
    }
  });
}
template <Along kA, Along kB, int kCount>
void multiply_async(float (&d)[kCount], uint64_t a, uint64_t b, bool add) {
  add_to_batch<kB>(d, b, add, [a](unsigned row, unsigned k) { return element<kA>(a, row, k); });
}
template <Along kA, Along kB, int kCount>
void multiply_first_async(float (&d)[kCount], uint64_t a, uint64_t b) {
  multiply_async<kA, kB>(d, a, b, false);
}
template <Along kB, int kCount>
void multiply_async(float (&d)[kCount], const unsigned (&a)[4], uint64_t b, bool add) {
  static std::map<uint64_t, const unsigned*> given[emulated::kMaxThreads];  // by the number of the thread's product
  static uint64_t calls[emulated::kMaxThreads];
  const uint64_t call = calls[emulated::this_thread()]++;
  given[emulated::this_thread()][call] = a;
  if (call >= 64) given[emulated::this_thread()].erase(call - 64);
  const unsigned first = emulated::this_thread() / kWarpLanes * kWarpLanes;
  add_to_batch<kB>(d, b, add, [first, call](unsigned row, unsigned k) {
    const unsigned* words = given[first + row % 8 * 4 + k % 8 / 2].at(call);
    return to_float(bf16{static_cast<uint16_t>(words[row % 16 / 8 + k / 8 * 2] >> 16 * (k % 2))});
  });
}

}  // namespace mw::gpu
