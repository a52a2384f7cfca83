// Stands in for src/ops/gpu/tensor_map.h in a build without a GPU: what attention takes from it.
#pragma once

#include "ops/gpu/wgmma.h"

namespace mw::gpu {

struct Heads {
  const void* first;
  int64_t sequences, stride, tokens, heads, width;
};
struct TensorMap {
  Heads heads;
  int rows;
};
inline bool describe_heads(const Heads& heads, int box_tokens, TensorMap* out) {
  *out = {heads, box_tokens};
  return true;
}

// The copy happens at once: a stage that products still read is overwritten as soon as it was released.
inline void copy_box_of_head(unsigned to, const TensorMap& map, int sequence, int token, int head, int column,
                             unsigned barrier) {
  const Heads& h = map.heads;
  for (int row = 0; row < map.rows; ++row)
    for (int i = 0; i < 64; ++i) {
      bf16 value = to_bf16(0.0f);
      if (token + row < h.tokens && column + i < h.width)
        value = static_cast<const bf16*>(
            h.first)[((sequence * h.stride + token + row) * h.heads + head) * h.width + column + i];
      std::memcpy(in_shared(swizzle(to + static_cast<unsigned>(row * kRowBytes + i * 2))), &value, sizeof value);
    }
  EmulatedBarrier& b = barriers.at(barrier);
  b.bytes -= map.rows * kRowBytes;
  b.end_if_complete();
  emulated::tell_waiting();
}

}  // namespace mw::gpu
