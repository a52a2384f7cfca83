// Master weights as optimizers read and write them on a CPU.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace mw::cpu {

// fp32 weights in one piece, and their copy in bf16 where one is wanted.
struct WholeWeights {
  float* values;
  bf16* copy;
  float at(int64_t i) const { return values[i]; }
  void set(int64_t i, float value) const { values[i] = value; }
  void finish(int64_t begin, int64_t end) const {
    if (copy == nullptr) return;
    for (int64_t i = begin; i < end; ++i) copy[i] = to_bf16(values[i]);
  }
};

struct SplitWeights {
  bf16* near;
  uint16_t* rest;
  float at(int64_t i) const { return join_float(near[i], rest[i]); }
  void set(int64_t i, float value) const {
    const SplitFloat parts = split_float(value);
    near[i].bits = parts.near.bits;  // a struct as a whole would keep the compiler from vectorizing
    rest[i] = parts.rest;
  }
  void finish(int64_t, int64_t) const {}
};

// Moments: fp32, or bf16 by stochastic rounding with the lower 16 bits of `chance`.
inline void store_moment(float& to, float value, uint32_t) { to = value; }
inline void store_moment(bf16& to, float value, uint32_t chance) { to = to_bf16_by_chance(value, chance); }

}  // namespace mw::cpu
