#include "ops/router.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "ops/cpu/loops.h"
#include "ops/cpu/simd_math.h"

namespace mw::cpu {
namespace {

// Statistics are summed per block of tokens and then over the blocks in order; the borders depend on the token count
// alone.
constexpr int64_t kMaxBlocks = 128;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kLowest = std::numeric_limits<float>::lowest();
constexpr float kTinySum = 1e-20f;  // keeps 0 / 0 out when all sigmoid scores underflow

int64_t tokens_per_block(int64_t tokens) { return std::max<int64_t>(1, (tokens + kMaxBlocks - 1) / kMaxBlocks); }

int64_t blocks_of(int64_t tokens) {
  const int64_t block = tokens_per_block(tokens);
  return (tokens + block - 1) / block;
}

// As integers, floats of the same sign order like their bits; so written, the maximum vectorises without -ffast-math.
float largest_of(const float* x, int64_t E) {
  const auto flip_negative = [](int32_t bits) { return bits ^ ((bits >> 31) & 0x7fffffff); };
  int32_t largest = std::numeric_limits<int32_t>::min();
#pragma omp simd reduction(max : largest)
  for (int64_t e = 0; e < E; ++e) {
    const int32_t key = flip_negative(std::bit_cast<int32_t>(x[e]));
    largest = key > largest ? key : largest;
  }
  return std::bit_cast<float>(flip_negative(largest));
}

float log_sum_exp(const float* x, int64_t E) {
  const float largest = largest_of(x, E);
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t e = 0; e < E; ++e) sum += fast_exp(x[e] - largest);
  return largest + std::log(sum);
}

struct TokenScores {
  float total;    // sum of the scores over E, by which p is normalised
  float log_sum;  // logsumexp of the logits, where wanted
};

// Scores of one token into s.
TokenScores compute_scores(ScoreFunction function, const float* x, float* s, int64_t E, bool want_log_sum) {
  float sum = 0.0f;
  if (function == ScoreFunction::sigmoid) {
#pragma omp simd reduction(+ : sum)
    for (int64_t e = 0; e < E; ++e) {
      const float score = fast_sigmoid(x[e]);
      s[e] = score;
      sum += score;
    }
    return {sum + kTinySum, want_log_sum ? log_sum_exp(x, E) : 0.0f};
  }
  const float largest = largest_of(x, E);
#pragma omp simd reduction(+ : sum)
  for (int64_t e = 0; e < E; ++e) {
    const float power = fast_exp(x[e] - largest);
    s[e] = power;
    sum += power;
  }
#pragma omp simd
  for (int64_t e = 0; e < E; ++e) s[e] /= sum;
  return {1.0f, want_log_sum ? largest + std::log(sum) : 0.0f};
}

// The largest `wanted` values in descending order, ties to the lower index. Values of -inf never enter.
struct TopList {
  float* keys;
  int32_t* ids;
  int64_t wanted;
  int64_t size = 0;
  float threshold = kMinusInfinity;  // what a key must exceed to enter

  void offer(float key, int64_t id) {
    if (key > threshold) insert(key, id);
  }

  void insert(float key, int64_t id) {
    int64_t slot = size < wanted ? size++ : size - 1;
    for (; slot > 0 && key > keys[slot - 1]; --slot) {
      keys[slot] = keys[slot - 1];
      ids[slot] = ids[slot - 1];
    }
    keys[slot] = key;
    ids[slot] = static_cast<int32_t>(id);
    if (size == wanted) threshold = keys[size - 1];
  }
};

// Scratch of one block of tokens.
struct Scratch {
  float* scores_E;
  float* choice_E;  // s + bias
  float* top_keys_E;
  int32_t* top_ids_E;
  float* groups_E;
};

// Sum of the `best` largest of the group's values.
float score_group(const float* values, int64_t count, int64_t best, const Scratch& scratch) {
  TopList top{scratch.top_keys_E, scratch.top_ids_E, std::min(best, count)};
  for (int64_t e = 0; e < count; ++e) top.offer(values[e], e);
  float sum = 0.0f;
  for (int64_t i = 0; i < top.size; ++i) sum += top.keys[i];
  return std::max(sum, kLowest);
}

// Sets the choice of every expert outside the kept groups to -inf; returns the gap between the last kept and the next
// group.
float mask_groups(const RouterRule& rule, const Scratch& scratch) {
  if (rule.kept_groups == rule.groups) return std::numeric_limits<float>::infinity();
  const int64_t width = rule.experts / rule.groups;
  for (int64_t g = 0; g < rule.groups; ++g)
    scratch.groups_E[g] = score_group(scratch.choice_E + g * width, width, rule.group_best, scratch);
  TopList top{scratch.top_keys_E, scratch.top_ids_E, rule.kept_groups + 1};
  for (int64_t g = 0; g < rule.groups; ++g) top.offer(scratch.groups_E[g], g);
  const float gap = top.keys[rule.kept_groups - 1] - top.keys[rule.kept_groups];
  for (int64_t i = 0; i < rule.kept_groups; ++i) scratch.groups_E[top.ids[i]] = kMinusInfinity;
  for (int64_t g = 0; g < rule.groups; ++g)
    if (scratch.groups_E[g] != kMinusInfinity) std::fill_n(scratch.choice_E + g * width, width, kMinusInfinity);
  return gap;
}

// Chooses the K experts of one token; returns the gap to the choice that was nearly made.
float choose_experts(const RouterRule& rule, const float* bias, const Scratch& scratch, int32_t* ids) {
  const int64_t E = rule.experts, K = rule.top_k;
  // A NaN or -inf becomes the lowest number: still behind all others, but a legal choice.
#pragma omp simd
  for (int64_t e = 0; e < E; ++e) {
    const float choice = bias == nullptr ? scratch.scores_E[e] : scratch.scores_E[e] + bias[e];
    scratch.choice_E[e] = choice > kLowest ? choice : kLowest;
  }
  const float group_gap = mask_groups(rule, scratch);
  TopList top{scratch.top_keys_E, scratch.top_ids_E, std::min(K + 1, E)};
  for (int64_t e = 0; e < E; ++e) top.offer(scratch.choice_E[e], e);
  std::copy_n(top.ids, K, ids);
  const float gap = top.size > K ? top.keys[K - 1] - top.keys[K] : std::numeric_limits<float>::infinity();
  return std::min(gap, group_gap);
}

void weigh_choices(const RouterRule& rule, const float* s, const int32_t* ids, float* weights) {
  float sum = 0.0f;
  for (int64_t k = 0; k < rule.top_k; ++k) sum += s[ids[k]];
  const float divisor = rule.renormalise ? std::max(sum + kTinySum, rule.least_sum) : 1.0f;
  for (int64_t k = 0; k < rule.top_k; ++k) weights[k] = s[ids[k]] / divisor * rule.scale;
}

// Out of range ids of a replayed routing must not become out of range reads.
void check_ids(const int32_t* ids, int64_t count, int64_t E) {
  uint32_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, static_cast<uint32_t>(ids[i]));
  MW_CHECK(count == 0 || static_cast<int64_t>(largest) < E, "expert id {} of {}", static_cast<int32_t>(largest), E);
}

// sums[e] += softmax(x)[e]
void add_softmax(const float* x, float log_sum, double* sums, int64_t E) {
#pragma omp simd
  for (int64_t e = 0; e < E; ++e) sums[e] += static_cast<double>(fast_exp(x[e] - log_sum));
}

// sums[e] += p[e]
void add_probabilities(const float* s, float total, double* sums, int64_t E) {
  const float inverse = 1.0f / total;
#pragma omp simd
  for (int64_t e = 0; e < E; ++e) sums[e] += static_cast<double>(s[e] * inverse);
}

// Sums of one block of tokens.
struct BlockSums {
  double* counts_E;
  double* prob_sums_E;
  double* z_sum;
};

// d_s[e]: gradient of the scores from that of p = s / total (softmax scores are p themselves).
void differentiate_probabilities(ScoreFunction function, const float* s, float total, const float* d_prob, float* d_s,
                                 int64_t E) {
  if (d_prob == nullptr) {
    std::fill_n(d_s, E, 0.0f);
    return;
  }
  float mean = 0.0f;
  if (function == ScoreFunction::sigmoid) {
#pragma omp simd reduction(+ : mean)
    for (int64_t e = 0; e < E; ++e) mean += d_prob[e] * s[e];
    mean /= total;
  }
#pragma omp simd
  for (int64_t e = 0; e < E; ++e) d_s[e] = (d_prob[e] - mean) / total;
}

// Adds the gradient of the chosen scores from that of the gate weights to d_s.
void differentiate_weights(const RouterRule& rule, const float* s, const int32_t* ids, const float* d_weights,
                           float* d_s) {
  float mean = 0.0f, factor = rule.scale;
  if (rule.renormalise) {
    float sum = kTinySum;
    for (int64_t k = 0; k < rule.top_k; ++k) {
      sum += s[ids[k]];
      mean += d_weights[k] * s[ids[k]];
    }
    // Where the least sum stands in for the sum, that is a constant.
    mean = sum < rule.least_sum ? 0.0f : mean / sum;
    factor /= std::max(sum, rule.least_sum);
  }
  for (int64_t k = 0; k < rule.top_k; ++k) d_s[ids[k]] += factor * (d_weights[k] - mean);
}

// d_s becomes the gradient of the logits.
void differentiate_scores(ScoreFunction function, const float* s, float* d_s, int64_t E) {
  if (function == ScoreFunction::sigmoid) {
#pragma omp simd
    for (int64_t e = 0; e < E; ++e) d_s[e] *= s[e] * (1.0f - s[e]);
    return;
  }
  float mean = 0.0f;
#pragma omp simd reduction(+ : mean)
  for (int64_t e = 0; e < E; ++e) mean += d_s[e] * s[e];
#pragma omp simd
  for (int64_t e = 0; e < E; ++e) d_s[e] = s[e] * (d_s[e] - mean);
}

// Adds the gradient of the logits from that of p = softmax(x).
void add_softmax_gradient(const float* x, float log_sum, const float* d_prob, float* d_x, int64_t E) {
  float mean = 0.0f;
#pragma omp simd reduction(+ : mean)
  for (int64_t e = 0; e < E; ++e) mean += d_prob[e] * fast_exp(x[e] - log_sum);
#pragma omp simd
  for (int64_t e = 0; e < E; ++e) d_x[e] += fast_exp(x[e] - log_sum) * (d_prob[e] - mean);
}

void add_log_sum_gradient(const float* x, float log_sum, float d_log_sum, float* d_x, int64_t E) {
#pragma omp simd
  for (int64_t e = 0; e < E; ++e) d_x[e] += d_log_sum * fast_exp(x[e] - log_sum);
}

}  // namespace

int64_t router_workspace_bytes(int64_t tokens, int64_t experts) {
  const int64_t blocks = std::min(tokens, kMaxBlocks);
  const int64_t arrays =
      blocks * experts * static_cast<int64_t>(2 * sizeof(double) + 4 * sizeof(float) + sizeof(int32_t));
  return arrays + blocks * static_cast<int64_t>(sizeof(double)) + 8 * 64;
}

void route(Stream& stream, const RouterRule& rule, TensorView logits_TE, TensorView bias_E, bool forced,
           TensorView ids_TK, TensorView weights_TK, const RouterStatistics& statistics, TensorView gaps_T) {
  const int64_t T = logits_TE.dim(0), E = rule.experts, K = rule.top_k;
  const float* logits = logits_TE.as<float>();
  const float* bias = bias_E.data == nullptr ? nullptr : bias_E.as<float>();
  int32_t* ids = ids_TK.as<int32_t>();
  float* weights = weights_TK.as<float>();
  float* gaps = gaps_T.data == nullptr ? nullptr : gaps_T.as<float>();
  const bool counting = !statistics.counts_E.empty(), summing = !statistics.prob_sums_E.empty();
  const bool squaring = statistics.z_sum != nullptr;
  if (forced) check_ids(ids, T * K, E);

  const int64_t blocks = blocks_of(T), block = tokens_per_block(T);
  const auto table = static_cast<size_t>(blocks * E);
  WorkspaceFrame frame(stream.workspace());
  auto* counts = frame.take<double>(table);
  auto* prob_sums = frame.take<double>(table);
  auto* z_sums = frame.take<double>(static_cast<size_t>(blocks));
  auto* scores = frame.take<float>(table);
  auto* choices = frame.take<float>(table);
  auto* top_keys = frame.take<float>(table);
  auto* top_ids = frame.take<int32_t>(table);
  auto* groups = frame.take<float>(table);

  for_blocks(stream, T, block, [&](int64_t begin, int64_t end) {
    const int64_t b = begin / block, at = b * E;
    const Scratch scratch{scores + at, choices + at, top_keys + at, top_ids + at, groups + at};
    const BlockSums sums{counts + at, prob_sums + at, z_sums + b};
    std::fill_n(sums.counts_E, E, 0.0);
    std::fill_n(sums.prob_sums_E, E, 0.0);
    *sums.z_sum = 0.0;
    for (int64_t t = begin; t < end; ++t) {
      const float* x = logits + t * E;
      float* s = scratch.scores_E;
      const TokenScores token = compute_scores(rule.score, x, s, E, squaring || (summing && rule.softmax_p));
      if (!forced) {
        const float gap = choose_experts(rule, bias, scratch, ids + t * K);
        if (gaps != nullptr) gaps[t] = gap;
      }
      weigh_choices(rule, s, ids + t * K, weights + t * K);
      if (counting)
        for (int64_t k = 0; k < K; ++k) sums.counts_E[ids[t * K + k]] += 1.0;
      if (summing && rule.softmax_p) add_softmax(x, token.log_sum, sums.prob_sums_E, E);
      else if (summing) add_probabilities(s, token.total, sums.prob_sums_E, E);
      if (squaring) {
        const auto z = static_cast<double>(token.log_sum);
        *sums.z_sum += z * z;
      }
    }
  });

  const auto add_blocks = [&](const double* table_bE, std::span<double> sums_E) {
    std::fill(sums_E.begin(), sums_E.end(), 0.0);
    for (int64_t b = 0; b < blocks; ++b)
      for (size_t e = 0; e < sums_E.size(); ++e) sums_E[e] += table_bE[b * E + static_cast<int64_t>(e)];
  };
  add_blocks(counts, statistics.counts_E);
  add_blocks(prob_sums, statistics.prob_sums_E);
  if (squaring) {
    *statistics.z_sum = 0.0;
    for (int64_t b = 0; b < blocks; ++b) *statistics.z_sum += z_sums[b];
  }
}

void route_backward(Stream& stream, const RouterRule& rule, TensorView logits_TE, TensorView ids_TK,
                    TensorView d_weights_TK, std::span<const float> d_prob_E, float z_scale, TensorView d_logits_TE) {
  const int64_t T = logits_TE.dim(0), E = rule.experts, K = rule.top_k;
  const float* logits = logits_TE.as<float>();
  const int32_t* ids = ids_TK.as<int32_t>();
  const float* d_weights = d_weights_TK.as<float>();
  const float* d_prob = d_prob_E.empty() ? nullptr : d_prob_E.data();
  float* d_logits = d_logits_TE.as<float>();
  check_ids(ids, T * K, E);

  const int64_t block = tokens_per_block(T);
  WorkspaceFrame frame(stream.workspace());
  auto* scores = frame.take<float>(static_cast<size_t>(blocks_of(T) * E));
  for_blocks(stream, T, block, [&](int64_t begin, int64_t end) {
    float* s = scores + begin / block * E;
    for (int64_t t = begin; t < end; ++t) {
      const float* x = logits + t * E;
      float* d_x = d_logits + t * E;  // first holds the gradient of the scores
      const bool of_softmax = rule.softmax_p && d_prob != nullptr;
      const TokenScores token = compute_scores(rule.score, x, s, E, z_scale != 0.0f || of_softmax);
      differentiate_probabilities(rule.score, s, token.total, of_softmax ? nullptr : d_prob, d_x, E);
      differentiate_weights(rule, s, ids + t * K, d_weights + t * K, d_x);
      differentiate_scores(rule.score, s, d_x, E);
      if (of_softmax) add_softmax_gradient(x, token.log_sum, d_prob, d_x, E);
      if (z_scale != 0.0f) add_log_sum_gradient(x, token.log_sum, 2.0f * z_scale * token.log_sum, d_x, E);
    }
  });
}

}  // namespace mw::cpu
