// Bytes of packed weights, and scratch bytes of a CPU's matrix products. The operators follow these rules, and plans,
// which link no operators, count memory with them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace mw {

// Bytes of each packed form of an [N, K] weight (ops/matmul.h) in a bf16 run: an upper bound, computed without asking
// the library that packs. Rows and columns are rounded up to 64; 2 bytes an element with native bf16, else 4.
constexpr int64_t packed_weight_bytes(int64_t n, int64_t k, bool native_bf16) {
  return (n + 63) / 64 * 64 * ((k + 63) / 64 * 64) * (native_bf16 ? 2 : 4);
}

namespace cpu {

constexpr std::array<int64_t, 7> kPanelHeights = {16, 32, 64, 128, 256, 512, 1024};
// Panels that need scratch are kept below this size, whatever the height that would suit the product best.
constexpr int64_t kScratchLimit = int64_t{32} << 20;
// Weight gradients up to this size are multiplied in scratch, which caches hold, and then added: the library's own sum
// reads its result tile by tile, at a quarter of the memory's rate.
constexpr int64_t kSumLimit = int64_t{16} << 20;

constexpr int64_t kGap = 16;  // fp32 elements between rows of some operands in scratch

// A row has at most one fp32 operand of either width in scratch, one of them with a gap; tiles have one bf16 operand.
// Each of the two panels, and a sum, is rounded up to 64 bytes.
constexpr int64_t matmul_workspace_bytes(int64_t max_n, int64_t max_k) {
  const int64_t row_bytes = (max_n + kGap + max_k) * 4, sum_bytes = std::min(max_n * max_k * 4, kSumLimit);
  return std::min(kPanelHeights.back() * row_bytes + sum_bytes,
                  std::max(kScratchLimit, kPanelHeights.front() * row_bytes + sum_bytes)) +
         192;
}

}  // namespace cpu
}  // namespace mw
