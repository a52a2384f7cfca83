// Element types. bf16 is the project's own type: the same bits on CPU, CUDA and HIP. Its functions are constexpr, so
// that kernels can call them too.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace mw {

enum class DType : uint8_t { f32, bf16, i32, i64, u8, u16 };

int64_t size_of(DType dtype);           // bytes per element
std::string_view name_of(DType dtype);  // "f32", "bf16", ...

// Brain float: the upper half of an IEEE binary32.
struct bf16 {
  uint16_t bits;
};

constexpr float to_float(bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
constexpr float to_float(float x) { return x; }

// Round to nearest, ties to even; a NaN stays a NaN.
constexpr bf16 to_bf16(float x) {
  const auto word = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
  const bool nan = (word & 0x7fffffffu) > 0x7f800000u;
  return bf16{static_cast<uint16_t>(nan ? (word >> 16) | 0x40u : rounded)};
}

// A hash of two values and a seed, 32 bits: the random number of stochastic rounding. A pure function of its arguments.
// Both halves of a product of 64 bits, as wyhash mixes: optimizers on GPUs have few instructions to spare.
constexpr uint32_t chance_of(float x, float y, uint32_t seed) {
  const uint32_t left = std::bit_cast<uint32_t>(x) ^ (seed * 0x9e3779b9u);
  const uint32_t right = (std::bit_cast<uint32_t>(y) ^ 0x53c5ca59u) | 1u;
  const uint64_t product = static_cast<uint64_t>(left) * right;
  return static_cast<uint32_t>(product) ^ static_cast<uint32_t>(product >> 32);
}

// Stochastic rounding: rounds up or down with probabilities that make the expected value equal to x. chance: random
// bits, the lower 16 are used. An infinity stays one, and a quiet NaN, as arithmetic makes it, stays a NaN.
constexpr bf16 to_bf16_by_chance(float x, uint32_t chance) {
  const bool nan = x != x;  // adding could carry into its sign
  return bf16{static_cast<uint16_t>((std::bit_cast<uint32_t>(x) + (nan ? 0u : chance & 0xffffu)) >> 16)};
}

// An fp32 value as two 16-bit parts, without loss: `near` is the nearest bf16 (ties away from zero), `rest` the low 16
// bits that recover x from it. Ties must always go the same way: otherwise `rest` could not tell which way `near` was
// rounded.
struct SplitFloat {
  bf16 near;
  uint16_t rest;
};

constexpr SplitFloat split_float(float x) {
  const uint32_t word = x != x ? 0x7fc00000u : std::bit_cast<uint32_t>(x);  // adding would turn some NaNs into numbers
  return {bf16{static_cast<uint16_t>((word + 0x8000u) >> 16)}, static_cast<uint16_t>(word)};
}

// Inverse of split_float, bit for bit; a NaN stays a NaN.
constexpr float join_float(bf16 near, uint16_t rest) {
  const auto above = static_cast<uint32_t>(static_cast<int16_t>(rest));  // negative where `near` was rounded up
  return std::bit_cast<float>((static_cast<uint32_t>(near.bits) << 16) + above);
}

// from_float<T>: conversion with the element type as a template argument, for kernels written once for fp32 and bf16.
template <class T>
constexpr T from_float(float x);
template <>
constexpr float from_float<float>(float x) {
  return x;
}
template <>
constexpr bf16 from_float<bf16>(float x) {
  return to_bf16(x);
}

}  // namespace mw
