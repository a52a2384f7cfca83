// The logits and scores of a token in the router's kernels, which give a wave to each token. Lane l owns experts l,
// l + kWave, ...
#pragma once

#include <limits>
#include <type_traits>

#include "ops/gpu/launch.h"
#include "ops/gpu/reduce.h"
#include "ops/router.h"

namespace mw::gpu {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kTinySum = 1e-20f;  // keeps 0 / 0 out when all sigmoid scores underflow

constexpr int kWavesPerBlock = 8;
// Up to so many experts, lanes own theirs in registers, otherwise in memory.
constexpr int kMaxInRegisters = 1024;

// Kernels count experts in 32 bits.
inline void check_limits(const RouterRule& rule) {
  MW_CHECK(rule.experts <= INT32_MAX / 2, "router of {} experts", rule.experts);
}

// Calls body with the number of experts that a lane owns at most, 0 for many.
template <class Body>
void with_own(int64_t experts, const Body& body) {
  if (experts <= kWave) body(std::integral_constant<int, 1>{});
  else if (experts <= 2 * kWave) body(std::integral_constant<int, 2>{});
  else if (experts <= 4 * kWave) body(std::integral_constant<int, 4>{});
  else if (experts <= 8 * kWave) body(std::integral_constant<int, 8>{});
  else if (experts <= 16 * kWave) body(std::integral_constant<int, 16>{});
  else if (experts <= kMaxInRegisters) body(std::integral_constant<int, kMaxInRegisters / kWave>{});
  else body(std::integral_constant<int, 0>{});
}

// A value of each expert that the lane owns, in registers or in memory.
template <class T, int kOwn>
struct OwnValues {
  T at[kOwn] = {};
  __device__ OwnValues(T*, int) {}
  __device__ T& operator[](int j) { return at[j]; }
};
template <class T>
struct OwnValues<T, 0> {
  T* all;
  int lane;
  __device__ OwnValues(T* of_wave, int of_lane) : all(of_wave), lane(of_lane) {}
  __device__ T& operator[](int j) { return all[lane + static_cast<int64_t>(j) * kWave]; }
};

// The logits of one token. In registers, slots beyond the last expert have logit -inf.
template <int kOwn>
struct Logits {
  const float* all;
  int experts, lane;
  float own[kOwn > 0 ? kOwn : 1];

  __device__ Logits(const float* of_token, int E, int of_lane) : all(of_token), experts(E), lane(of_lane) {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) own[j] = lane + j * kWave < experts ? all[lane + j * kWave] : -kInfinity;
  }
  // Calls body(e, j, x) for each expert of the lane: it is its j-th one and has logit x.
  template <class Body>
  __device__ void for_each_own(const Body& body) const {
    if constexpr (kOwn == 0) {
      for (int e = lane, j = 0; e < experts; e += kWave, ++j) body(e, j, all[e]);
    } else {
#pragma unroll
      for (int j = 0; j < kOwn; ++j)
        if (lane + j * kWave < experts) body(lane + j * kWave, j, own[j]);
    }
  }
  // Calls body(j, x) for each slot of the lane, also for those beyond the last expert, which spares branches.
  template <class Body>
  __device__ void for_each_slot(const Body& body) const {
    if constexpr (kOwn == 0) {
      for_each_own([&](int, int j, float x) { body(j, x); });
    } else {
#pragma unroll
      for (int j = 0; j < kOwn; ++j) body(j, own[j]);
    }
  }
};

// The scores of one token as functions of its logits.
struct Scores {
  ScoreFunction function;
  float largest = -kInfinity, powers = 0.0f;  // of the logits; sum of e^(x - largest)
  float total = 1.0f;                         // sum of the scores over E, by which p is normalised
  float log_sum = 0.0f;                       // logsumexp of the logits

  __device__ float softmax(float x) const { return expf(x - largest) / powers; }
  static __device__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
  __device__ float operator()(float x) const { return function == ScoreFunction::softmax ? softmax(x) : sigmoid(x); }
  // d score / d x at score s, for softmax without the part that all logits share.
  __device__ float slope(float s) const { return function == ScoreFunction::softmax ? s : s * (1.0f - s); }
};

// want_softmax: also computes largest, powers and log_sum for sigmoid scores.
template <int kOwn>
__device__ Scores compute_scores(ScoreFunction function, const Logits<kOwn>& logits, bool want_softmax) {
  Scores scores{function};
  if (function == ScoreFunction::softmax || want_softmax) {
    float largest = -kInfinity, powers = 0.0f;
    logits.for_each_slot([&](int, float x) { largest = x > largest ? x : largest; });
    scores.largest = reduce_wave(largest, Maximum());
    logits.for_each_slot([&](int, float x) { powers += expf(x - scores.largest); });
    scores.powers = reduce_wave(powers, Sum());
    scores.log_sum = scores.largest + logf(scores.powers);
  }
  if (function == ScoreFunction::sigmoid) {
    float total = 0.0f;
    logits.for_each_slot([&](int, float x) { total += Scores::sigmoid(x); });
    scores.total = reduce_wave(total, Sum()) + kTinySum;
  }
  return scores;
}

// Whether p is softmax(logits) although the scores are sigmoids.
inline __device__ bool has_softmax_p(const RouterRule& rule) {
  return rule.softmax_p && rule.score == ScoreFunction::sigmoid;
}

// The scores of the lane's experts, which registers keep.
template <int kOwn>
struct OwnScores {
  const Scores& scores;
  float at[kOwn > 0 ? kOwn : 1] = {};

  __device__ OwnScores(const Scores& of_token, const Logits<kOwn>& logits) : scores(of_token) {
    if constexpr (kOwn > 0) {
      if (scores.function == ScoreFunction::softmax)
        logits.for_each_slot([&](int j, float x) { at[j] = scores.softmax(x); });
      else logits.for_each_slot([&](int j, float x) { at[j] = Scores::sigmoid(x); });
    }
  }
  __device__ float find(int j, float x) const {
    if constexpr (kOwn > 0) return at[j];
    else return scores(x);
  }
};

inline __device__ bool is_expert(int32_t id, int64_t experts) { return id >= 0 && id < experts; }

}  // namespace mw::gpu
