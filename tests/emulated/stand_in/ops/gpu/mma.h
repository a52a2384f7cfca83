// Stands in for src/ops/gpu/mma.h in a build without a GPU. A wave of the emulation holds two warps.
#pragma once

#include <cmath>
#include <cstring>
#include <vector>

#include "base/dtype.h"
#include "ops/gpu/capability.h"
#include "ops/gpu/launch.h"

namespace mw::gpu {

// Addresses in a block's dynamic shared memory.
inline unsigned shared_address(const void* p) {
  return static_cast<unsigned>(static_cast<const std::byte*>(p) - dynamic_shared_memory<std::byte>());
}
// In a cluster also those of another block: as the block's own, with its place and this bit.
constexpr unsigned kNamesBlock = 1u << 31, kBlockShift = 28;
inline unsigned name_in(unsigned block, unsigned address) { return kNamesBlock | block << kBlockShift | address; }
inline unsigned name_everywhere(unsigned address) {
  return address & kNamesBlock ? address : name_in(emulated::this_block(), address);
}
inline std::byte* in_shared(unsigned address) {
  if ((address & kNamesBlock) == 0) return dynamic_shared_memory<std::byte>() + address;
  const unsigned block = (address & ~kNamesBlock) >> kBlockShift;
  if (!emulated::is_running(block)) emulated::refuse("the block of this shared memory has ended");
  return dynamic_shared_memory<std::byte>(block) + (address & ((1u << kBlockShift) - 1));
}

// Copies of a thread that it has not waited for. They happen when the thread waits for them, or at once, the latest
// and the earliest moment at which a GPU may make them.
inline bool copies_happen_at_once = false;
struct EmulatedCopy {
  unsigned to;
  const void* from;
  size_t bytes;
  bool valid;
  void make() const {
    if (valid) std::memcpy(in_shared(to), from, bytes);
    else std::memset(in_shared(to), 0, bytes);
  }
};
inline std::vector<std::vector<EmulatedCopy>> copy_groups[emulated::kMaxThreads];
inline std::vector<EmulatedCopy> open_group[emulated::kMaxThreads];

inline void copy_bytes(const EmulatedCopy& copy) {
  if (copies_happen_at_once) copy.make();
  else open_group[emulated::this_thread()].push_back(copy);
}
inline void copy_chunk(unsigned to, const bf16* from, bool valid) { copy_bytes({to, from, 16, valid}); }
inline void copy_word(unsigned to, const void* from, bool valid) { copy_bytes({to, from, 4, valid}); }
inline void commit_copies() {
  copy_groups[emulated::this_thread()].push_back(std::exchange(open_group[emulated::this_thread()], {}));
}
template <int kPending>
void wait_for_copies() {
  auto& groups = copy_groups[emulated::this_thread()];
  while (groups.size() > kPending) {
    for (const EmulatedCopy& copy : groups.front()) copy.make();
    groups.erase(groups.begin());
  }
}

constexpr unsigned kWarpLanes = 32;

template <bool kTransposed>
void load_matrices(unsigned (&out)[4], unsigned row) {
  static const bf16* given[emulated::kMaxThreads][2];
  static unsigned calls[emulated::kMaxThreads];
  const unsigned turn = calls[emulated::this_thread()]++ % 2, lane = threadIdx.x % kWarpLanes,
                 warp = emulated::this_thread() - lane;
  given[emulated::this_thread()][turn] = reinterpret_cast<const bf16*>(in_shared(row));
  emulated::wait_for_wave();
  for (unsigned m = 0; m < 4; ++m) {
    const auto at = [&](unsigned r, unsigned c) -> uint32_t { return given[warp + 8 * m + r][turn][c].bits; };
    const unsigned pair = 2 * (lane % 4), other = lane / 4;
    out[m] = kTransposed ? at(pair, other) | at(pair + 1, other) << 16 : at(other, pair) | at(other, pair + 1) << 16;
  }
}

inline void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  struct Given {
    unsigned a[4], b[2];
  };
  static Given given[emulated::kMaxThreads][2];
  static unsigned calls[emulated::kMaxThreads];
  const unsigned turn = calls[emulated::this_thread()]++ % 2, lane = threadIdx.x % kWarpLanes,
                 warp = emulated::this_thread() - lane;
  given[emulated::this_thread()][turn] = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
  emulated::wait_for_wave();
  const auto value = [](unsigned word, unsigned k) {
    return to_float(bf16{static_cast<uint16_t>(word >> 16 * (k % 2))});
  };
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
    for (unsigned k = 0; k < 16; ++k)
      c[i] += value(given[warp + row % 8 * 4 + k % 8 / 2][turn].a[row / 8 + 2 * (k / 8)], k) *
              value(given[warp + column * 4 + k % 8 / 2][turn].b[k / 8], k);
  }
}

}  // namespace mw::gpu
