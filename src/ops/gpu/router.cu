// The router: one wave per token. Lane l owns experts l, l + kWave, ... of its token and no lane reads what another has
// stored, so that nothing waits. Statistics are summed per chunk of tokens and then over the chunks, both in an order
// that the sizes alone fix.
#include "ops/router.h"

#include <limits>
#include <vector>

#include "ops/gpu/launch.h"
#include "ops/gpu/operators.h"
#include "ops/gpu/reduce.h"
#include "ops/gpu/sort.h"

namespace mw::gpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLowest = std::numeric_limits<float>::lowest();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kTinySum = 1e-20f;  // keeps 0 / 0 out when all sigmoid scores underflow

constexpr int kWavesPerBlock = 4;
constexpr int64_t kMaxRouteBlocks = 1 << 16;
// Floats of shared memory per wave. A router that needs more keeps them in the workspace, for fewer waves at a time.
constexpr int64_t kMaxSharedFloats = 2560;
constexpr int64_t kSpillBlocks = 64;

constexpr int64_t kMaxChunks = 256, kMinTokensPerChunk = 16;

struct Chunks {
  int64_t tokens_per_chunk, count;
};

Chunks cut_tokens(int64_t tokens) {
  const int64_t per_chunk = std::max(kMinTokensPerChunk, ceil_div(tokens, kMaxChunks));
  return {per_chunk, ceil_div(tokens, per_chunk)};
}

// What the scores of one token are made of, beside its logits.
struct TokenSums {
  float largest, powers;  // of the logits; sum of e^(x - largest)
  float total;            // sum of the scores over E, by which p is normalised
  float log_sum;          // logsumexp of the logits
};

struct Scores {
  ScoreFunction function;
  const float* x;
  TokenSums sums;

  __device__ float softmax(int e) const { return expf(x[e] - sums.largest) / sums.powers; }
  __device__ float operator()(int e) const {
    return function == ScoreFunction::softmax ? softmax(e) : 1.0f / (1.0f + expf(-x[e]));
  }
  // d score / d x, for softmax without the part that all logits share.
  __device__ float slope(int e) const {
    const float s = (*this)(e);
    return function == ScoreFunction::softmax ? s : s * (1.0f - s);
  }
};

// want_softmax: also for sigmoid scores, whose sums otherwise hold `total` alone.
__device__ Scores compute_scores(ScoreFunction function, const float* x, int E, bool want_softmax, int lane) {
  Scores scores{function, x, {-kInfinity, 0.0f, 1.0f, 0.0f}};
  TokenSums& sums = scores.sums;
  if (function == ScoreFunction::softmax || want_softmax) {
    for (int e = lane; e < E; e += kWave) sums.largest = x[e] > sums.largest ? x[e] : sums.largest;
    sums.largest = reduce_wave(sums.largest, Maximum());
    for (int e = lane; e < E; e += kWave) sums.powers += expf(x[e] - sums.largest);
    sums.powers = reduce_wave(sums.powers, Sum());
    sums.log_sum = sums.largest + logf(sums.powers);
  }
  if (function == ScoreFunction::sigmoid) {
    float total = 0.0f;
    for (int e = lane; e < E; e += kWave) total += scores(e);
    sums.total = reduce_wave(total, Sum()) + kTinySum;
  }
  return scores;
}

// Chooses the K experts of one token; returns the gap to the choice that was nearly made. ids[k] is stored by lane
// k % kWave. scratch: a float per expert, then one per group if not all groups are kept.
__device__ float choose_experts(const RouterRule& rule, const Scores& scores, const float* bias, float* scratch,
                                int32_t* ids, int lane) {
  const int E = static_cast<int>(rule.experts), K = static_cast<int>(rule.top_k);
  // A NaN or -inf becomes the lowest number: still behind all others, but a legal choice.
  for (int e = lane; e < E; e += kWave) {
    const float choice = bias == nullptr ? scores(e) : scores(e) + bias[e];
    scratch[e] = choice > kLowest ? choice : kLowest;
  }
  float group_gap = kInfinity;
  if (rule.kept_groups < rule.groups) {
    const int groups = static_cast<int>(rule.groups);
    group_gap = keep_groups(scratch, scratch + E, groups, E / groups, rule.kept_groups, rule.group_best, lane);
  }
  SortKey own = largest_own(scratch, 0, E, kNoLimit, lane), last = 0;
  for (int k = 0; k < K; ++k) {
    last = reduce_wave(own, Maximum());
    if (lane == k % kWave) ids[k] = index_of(last);
    if (own == last) own = largest_own(scratch, 0, E, last, lane);  // only the winner's lane needs another
  }
  const SortKey next = reduce_wave(own, Maximum());
  const float gap = next != 0 ? value_of(last) - value_of(next) : kInfinity;
  return group_gap < gap ? group_gap : gap;
}

struct RouteTask {
  RouterRule rule;
  const float *logits_TE, *bias_E;
  bool forced, want_softmax;
  int32_t* ids_TK;
  float *weights_TK, *gaps_T;
  int64_t tokens, chunks, scratch_floats;
  float* spill = nullptr;  // scratch of all waves, where shared memory is too small
  // Statistics; null when not wanted.
  TokenSums* sums_T = nullptr;
  uint32_t* counts_cE = nullptr;
  uint32_t* bad_ids = nullptr;  // becomes 1 when a forced id is none
};

__device__ bool is_expert(int32_t id, int64_t experts) { return id >= 0 && id < experts; }

// A forced id that is none must not become a read out of range.
__device__ float score_or_nan(const Scores& scores, int32_t id, int64_t experts) {
  return is_expert(id, experts) ? scores(id) : kNan;
}

__device__ void weigh_choices(const RouteTask& task, const Scores& scores, const int32_t* ids, float* weights,
                              int lane) {
  const RouterRule& rule = task.rule;
  float divisor = 1.0f;
  if (rule.renormalise) {
    float sum = 0.0f;
    for (int64_t k = lane; k < rule.top_k; k += kWave) sum += score_or_nan(scores, ids[k], rule.experts);
    divisor = fmaxf(reduce_wave(sum, Sum()) + kTinySum, rule.least_sum);
  }
  for (int64_t k = lane; k < rule.top_k; k += kWave)
    weights[k] = score_or_nan(scores, ids[k], rule.experts) / divisor * rule.scale;
}

__device__ void count_choices(const RouteTask& task, const int32_t* ids, int lane) {
  uint32_t* counts = task.counts_cE + static_cast<int64_t>(blockIdx.x) % task.chunks * task.rule.experts;
  for (int64_t k = lane; k < task.rule.top_k; k += kWave) {
    if (is_expert(ids[k], task.rule.experts)) atomicAdd(counts + ids[k], 1u);
    else *task.bad_ids = 1;
  }
}

__global__ void route_kernel(RouteTask task) {
  extern __shared__ float shared_scratch[];
  const int lane = static_cast<int>(threadIdx.x) % kWave, wave_of_block = static_cast<int>(threadIdx.x) / kWave;
  const int64_t wave = static_cast<int64_t>(blockIdx.x) * kWavesPerBlock + wave_of_block;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWavesPerBlock;
  float* scratch = task.spill != nullptr ? task.spill + wave * task.scratch_floats
                                         : shared_scratch + wave_of_block * task.scratch_floats;
  const int64_t E = task.rule.experts, K = task.rule.top_k;
  for (int64_t t = wave; t < task.tokens; t += step) {
    int32_t* ids = task.ids_TK + t * K;
    const Scores scores =
        compute_scores(task.rule.score, task.logits_TE + t * E, static_cast<int>(E), task.want_softmax, lane);
    if (!task.forced) {
      const float gap = choose_experts(task.rule, scores, task.bias_E, scratch, ids, lane);
      if (task.gaps_T != nullptr && lane == 0) task.gaps_T[t] = gap;
    }
    weigh_choices(task, scores, ids, task.weights_TK + t * K, lane);
    if (task.counts_cE != nullptr) count_choices(task, ids, lane);
    if (task.sums_T != nullptr && lane == 0) task.sums_T[t] = scores.sums;
  }
}

// Sums of p and of logsumexp^2 over one chunk of tokens. `columns` experts at a time, a power of two up to blockDim.x;
// the threads of one column take turns at the tokens.
__global__ void sum_chunk_kernel(ScoreFunction function, bool softmax_p, const float* logits_TE,
                                 const TokenSums* sums_T, int64_t tokens, int64_t tokens_per_chunk, int E, int columns,
                                 double* prob_sums_cE, double* z_sums_c) {
  __shared__ double of_thread[kThreads];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * tokens_per_chunk;
  const int64_t end = begin + tokens_per_chunk < tokens ? begin + tokens_per_chunk : tokens;
  const int thread = static_cast<int>(threadIdx.x);
  if (z_sums_c != nullptr) {
    double sum = 0;
    for (int64_t t = begin + thread; t < end; t += blockDim.x) {
      const auto z = static_cast<double>(sums_T[t].log_sum);
      sum += z * z;
    }
    sum = reduce_block(sum, Sum());
    if (thread == 0) z_sums_c[blockIdx.x] = sum;
  }
  if (prob_sums_cE == nullptr) return;
  const int parts = static_cast<int>(blockDim.x) / columns, part = thread / columns, column = thread % columns;
  for (int first = 0; first < E; first += columns) {
    const int e = first + column;
    double sum = 0;
    if (e < E)
      for (int64_t t = begin + part; t < end; t += parts) {
        const Scores scores{function, logits_TE + t * E, sums_T[t]};
        sum += static_cast<double>(softmax_p ? scores.softmax(e) : scores(e) / scores.sums.total);
      }
    __syncthreads();  // of_thread may still be read from the columns before
    of_thread[thread] = sum;
    __syncthreads();
    if (part != 0 || e >= E) continue;
    for (int i = 1; i < parts; ++i) sum += of_thread[i * columns + column];
    prob_sums_cE[static_cast<int64_t>(blockIdx.x) * E + e] = sum;
  }
}

// The sum over the chunks of one column; 0 where it is not wanted.
template <class T>
__device__ double sum_chunks(const T* table, int64_t column, int64_t chunks, int64_t columns) {
  double sum = 0;
  if (table != nullptr)
    for (int64_t c = threadIdx.x; c < chunks; c += blockDim.x) sum += static_cast<double>(table[c * columns + column]);
  return reduce_block(sum, Sum());
}

// One block per expert, and one for the rest. result: counts_E, prob_sums_E, z_sum, bad_ids.
__global__ void sum_chunks_kernel(const uint32_t* counts_cE, const double* prob_sums_cE, const double* z_sums_c,
                                  const uint32_t* bad_ids, int64_t chunks, int64_t E, double* result) {
  const int64_t e = blockIdx.x;
  const double first = e < E ? sum_chunks(counts_cE, e, chunks, E) : sum_chunks(z_sums_c, 0, chunks, 1);
  const double second = e < E ? sum_chunks(prob_sums_cE, e, chunks, E) : static_cast<double>(*bad_ids);
  if (threadIdx.x == 0) {
    result[e < E ? e : 2 * E] = first;
    result[e < E ? E + e : 2 * E + 1] = second;
  }
}

struct BackwardTask {
  RouterRule rule;
  const float* logits_TE;
  const int32_t* ids_TK;
  const float *d_weights_TK, *d_prob_E;  // d_prob_E: null when there is none
  float z_scale;
  float* d_logits_TE;
  int64_t tokens;
};

// With c[k] the gradient of chosen score k and g[e] that of score e through p, softmax's gradient is
// s * (g - sum of g s - sum of c s), plus s * c where chosen; sigmoid's is s * (1 - s) * g, plus s * (1 - s) * c.
__device__ void differentiate_token(const BackwardTask& task, int64_t t, int lane) {
  const RouterRule& rule = task.rule;
  const int E = static_cast<int>(rule.experts), K = static_cast<int>(rule.top_k);
  const bool softmax = rule.score == ScoreFunction::softmax, squaring = task.z_scale != 0.0f;
  const bool of_softmax = rule.softmax_p && task.d_prob_E != nullptr;
  const Scores scores = compute_scores(rule.score, task.logits_TE + t * E, E, squaring || of_softmax, lane);
  const int32_t* ids = task.ids_TK + t * K;
  const float *d_weights = task.d_weights_TK + t * K, *d_prob = task.d_prob_E;
  float* d_x = task.d_logits_TE + t * E;

  float chosen = 0.0f, product = 0.0f;  // sums of s and of d_weight * s over the choices
  for (int k = lane; k < K; k += kWave) {
    if (!is_expert(ids[k], E)) continue;
    const float s = scores(ids[k]);
    chosen += s;
    product += d_weights[k] * s;
  }
  chosen = reduce_wave(chosen, Sum());
  product = reduce_wave(product, Sum());
  float factor = rule.scale, weight_mean = 0.0f;
  if (rule.renormalise) {
    // Where the least sum stands in for the sum, that is a constant.
    const float sum = chosen + kTinySum;
    weight_mean = sum < rule.least_sum ? 0.0f : product / sum;
    factor /= fmaxf(sum, rule.least_sum);
  }

  float mean = 0.0f;
  if (d_prob != nullptr) {
    for (int e = lane; e < E; e += kWave) mean += d_prob[e] * (of_softmax ? scores.softmax(e) : scores(e));
    mean = reduce_wave(mean, Sum()) / (of_softmax ? 1.0f : scores.sums.total);
  }
  if (softmax) mean += factor * (product - weight_mean * chosen);
  const float z_factor = 2.0f * task.z_scale * scores.sums.log_sum;
  for (int e = lane; e < E; e += kWave) {
    const float g = d_prob != nullptr ? d_prob[e] - mean : -mean;
    float value = of_softmax ? scores.softmax(e) * g : scores.slope(e) * (g / scores.sums.total);
    if (squaring) value += z_factor * scores.softmax(e);
    d_x[e] = value;
  }
  for (int k = 0; k < K; ++k) {
    const int id = ids[k];
    if (!is_expert(id, E) || id % kWave != lane) continue;
    d_x[id] += scores.slope(id) * (factor * (d_weights[k] - weight_mean));
  }
}

__global__ void route_backward_kernel(BackwardTask task) {
  const int lane = static_cast<int>(threadIdx.x) % kWave, wave = static_cast<int>(threadIdx.x) / kWave;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWavesPerBlock;
  for (int64_t t = static_cast<int64_t>(blockIdx.x) * kWavesPerBlock + wave; t < task.tokens; t += step)
    differentiate_token(task, t, lane);
}

// Kernels count experts in 32 bits.
void check_limits(const RouterRule& rule) {
  MW_CHECK(rule.experts <= INT32_MAX / 2, "router of {} experts", rule.experts);
}

// Experts that the threads of a block take side by side: a power of two.
int columns_of_block(int64_t experts) {
  int columns = 1;
  while (columns < experts && columns < kThreads) columns *= 2;
  return columns;
}

int64_t bytes_taken(int64_t bytes) { return ceil_div(bytes, 64) * 64; }

}  // namespace

int64_t router_workspace_bytes(int64_t tokens, int64_t experts) {
  const int64_t chunks = std::min(kMaxChunks, ceil_div(tokens, kMinTokensPerChunk)), cells = chunks * experts;
  const int64_t spill_floats = 2 * experts > kMaxSharedFloats ? kSpillBlocks * kWavesPerBlock * 2 * experts : 0;
  return bytes_taken((cells + 1) * 4) + bytes_taken(cells * 8) + bytes_taken(chunks * 8) + bytes_taken(tokens * 16) +
         bytes_taken((2 * experts + 2) * 8) + bytes_taken(spill_floats * 4);
}

void route(Stream& stream, const RouterRule& rule, TensorView logits_TE, TensorView bias_E, bool forced,
           TensorView ids_TK, TensorView weights_TK, const RouterStatistics& statistics, TensorView gaps_T) {
  check_limits(rule);
  const int64_t T = logits_TE.dim(0), E = rule.experts;
  const float *logits = logits_TE.as<float>(), *bias = bias_E.data == nullptr ? nullptr : bias_E.as<float>();
  float *weights = weights_TK.as<float>(), *gaps = gaps_T.data == nullptr ? nullptr : gaps_T.as<float>();
  const bool counting = !statistics.counts_E.empty(), summing = !statistics.prob_sums_E.empty();
  const bool squaring = statistics.z_sum != nullptr, measuring = counting || summing || squaring;

  const Chunks chunks = cut_tokens(T);
  const auto cells = static_cast<size_t>(chunks.count * E), results = static_cast<size_t>(2 * E + 2);
  const int64_t floats = E + (rule.kept_groups < rule.groups ? rule.groups : 0);
  int32_t* ids = ids_TK.as<int32_t>();
  WorkspaceFrame frame(stream.workspace());
  const bool want_softmax = squaring || (summing && rule.softmax_p);
  RouteTask task{rule, logits, bias, forced, want_softmax, ids, weights, gaps, T, chunks.count, floats};
  int64_t blocks = std::min(kMaxRouteBlocks, ceil_div(T, kWavesPerBlock));
  auto shared_bytes = static_cast<size_t>(kWavesPerBlock * floats) * sizeof(float);
  if (floats > kMaxSharedFloats) {
    blocks = std::min(kSpillBlocks, blocks);
    task.spill = frame.take<float>(static_cast<size_t>(kSpillBlocks * kWavesPerBlock * floats));
    shared_bytes = 0;
  }
  if (measuring) {
    task.sums_T = frame.take<TokenSums>(static_cast<size_t>(T));
    task.counts_cE = frame.take<uint32_t>(cells + 1);
    task.bad_ids = task.counts_cE + cells;
    check(fill_async(task.counts_cE, 0, (cells + 1) * sizeof(uint32_t), native(stream)), "filling memory");
  }
  launch(stream, route_kernel, blocks, kWavesPerBlock * kWave, shared_bytes, task);
  if (!measuring) return;

  double* prob_sums = summing ? frame.take<double>(cells) : nullptr;
  double* z_sums = squaring ? frame.take<double>(static_cast<size_t>(chunks.count)) : nullptr;
  if (summing || squaring)
    launch(stream, sum_chunk_kernel, chunks.count, kThreads, 0, rule.score, rule.softmax_p, logits, task.sums_T, T,
           chunks.tokens_per_chunk, E, columns_of_block(E), prob_sums, z_sums);
  auto* result = frame.take<double>(results);
  launch(stream, sum_chunks_kernel, E + 1, 128, 0, task.counts_cE, prob_sums, z_sums, task.bad_ids, chunks.count, E,
         result);

  const size_t bytes = static_cast<size_t>(E) * sizeof(double);
  if (counting) stream.queue().read(statistics.counts_E.data(), result, bytes);
  if (summing) stream.queue().read(statistics.prob_sums_E.data(), result + E, bytes);
  if (squaring) stream.queue().read(statistics.z_sum, result + 2 * E, sizeof(double));
  if (!forced) return;
  double bad_ids = 0;
  stream.queue().read(&bad_ids, result + 2 * E + 1, sizeof(double));
  stream.wait();
  MW_CHECK(bad_ids == 0.0, "a forced expert id is none of {} experts", E);
}

void route_backward(Stream& stream, const RouterRule& rule, TensorView logits_TE, TensorView ids_TK,
                    TensorView d_weights_TK, std::span<const float> d_prob_E, float z_scale, TensorView d_logits_TE) {
  check_limits(rule);
  const int64_t T = logits_TE.dim(0);
  const float *logits = logits_TE.as<float>(), *d_weights = d_weights_TK.as<float>();
  const int32_t* ids = ids_TK.as<int32_t>();
  float *d_logits = d_logits_TE.as<float>(), *d_prob = nullptr;
  WorkspaceFrame frame(stream.workspace());
  if (!d_prob_E.empty()) {
    d_prob = frame.take<float>(d_prob_E.size());
    stream.queue().write(d_prob, d_prob_E.data(), d_prob_E.size_bytes());
  }
  launch(stream, route_backward_kernel, std::min(kMaxRouteBlocks, ceil_div(T, kWavesPerBlock)), kWavesPerBlock * kWave,
         0, BackwardTask{rule, logits, ids, d_weights, d_prob, z_scale, d_logits, T});
}

}  // namespace mw::gpu
