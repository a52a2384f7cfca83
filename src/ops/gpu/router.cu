// The router: one wave per token. Lane l owns experts l, l + kWave, ... of its token. Selection needs no barrier: no
// lane reads what another has stored. Each block routes one chunk of tokens, one wave per token, and sums its
// statistics wave after wave; a second kernel adds the chunks.
#include "ops/router.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "ops/gpu/launch.h"
#include "ops/gpu/operators.h"
#include "ops/gpu/router_scores.h"
#include "ops/gpu/sort.h"

namespace mw::gpu {
namespace {

constexpr float kLowest = std::numeric_limits<float>::lowest();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Waves of a block: so many that their scratch fits into its shared memory; one where lanes own experts in memory.
template <int kOwn>
constexpr int kWavesOf = kOwn == 0 ? 1 : kWavesPerBlock / (kOwn * kWave > 512 ? 2 : 1);
constexpr int64_t kMaxChunks = 512, kMinTokensPerChunk = 2 * kWavesPerBlock;

struct Chunks {
  int64_t tokens_per_chunk, count;
};

Chunks cut_tokens(int64_t tokens) {
  const int64_t per_chunk = std::max(kMinTokensPerChunk, ceil_div(tokens, kMaxChunks));
  return {per_chunk, ceil_div(tokens, per_chunk)};
}

// Chooses the K experts of one token; returns the gap to the choice that was nearly made. ids[k] is stored by lane
// k % kWave. scratch: where not all groups are kept, a float per expert, then one per group. key_memory: a key per
// expert, where lanes own experts in memory.
template <int kOwn>
__device__ float choose_experts(const RouterRule& rule, const Logits<kOwn>& logits, const OwnScores<kOwn>& scores,
                                const float* bias, float* scratch, uint32_t* key_memory, int32_t* ids, bool want_gap) {
  const int E = logits.experts, K = static_cast<int>(rule.top_k), lane = logits.lane;
  const int count = kOwn > 0 ? kOwn : (E - lane + kWave - 1) / kWave;
  const bool grouped = rule.kept_groups < rule.groups;
  OwnValues<uint32_t, kOwn> keys(key_memory, lane);
  const auto find_choice = [&](int e, int j, float x) {
    // A NaN or -inf becomes the lowest number: still behind all others, but a legal choice.
    const float choice = bias == nullptr ? scores.find(j, x) : scores.find(j, x) + bias[e];
    return choice > kLowest ? choice : kLowest;
  };
  float group_gap = kInfinity;
  if (!grouped) {
    logits.for_each_own([&](int e, int j, float x) { keys[j] = choice_key(find_choice(e, j, x)); });
  } else {
    logits.for_each_own([&](int e, int j, float x) { scratch[e] = find_choice(e, j, x); });
    const int groups = static_cast<int>(rule.groups);
    group_gap = keep_groups(scratch, scratch + E, groups, E / groups, rule.kept_groups, rule.group_best, lane);
    logits.for_each_own([&](int e, int j, float) { keys[j] = choice_key(scratch[e]); });
  }
  const auto find_largest = [&] {
    uint32_t largest = 0;
#pragma unroll
    for (int j = 0; j < count; ++j) largest = max(largest, keys[j]);
    return largest;
  };
  uint32_t own = find_largest(), last = 0;
  for (int k = 0; k < K; ++k) {
    last = largest_in_wave(own);
    uint32_t expert = ~0u;  // the lane's first one with this key; ties go to the lower expert
#pragma unroll
    for (int j = count - 1; j >= 0; --j) expert = keys[j] == last ? static_cast<uint32_t>(lane + j * kWave) : expert;
    const auto chosen = static_cast<int>(least_in_wave(expert));
    if (lane == k % kWave) ids[k] = chosen;
#pragma unroll
    for (int j = 0; j < count; ++j)
      if (lane + j * kWave == chosen) keys[j] = 0;
    own = find_largest();
  }
  if (!want_gap) return 0.0f;
  const uint32_t next = largest_in_wave(own);
  const float gap = next != 0 ? from_ordered_bits(last) - from_ordered_bits(next) : kInfinity;
  return group_gap < gap ? group_gap : gap;
}

struct RouteTask {
  RouterRule rule;
  const float *logits_TE, *bias_E;
  bool forced;
  int32_t* ids_TK;
  float *weights_TK, *gaps_T;
  int64_t tokens, tokens_per_chunk;
  int64_t scratch_floats = 0;  // of a wave
  // The memory of each chunk where lanes own experts in memory: scratch and keys.
  float* scratch_c = nullptr;
  uint32_t* keys_cE = nullptr;
  // Statistics of each chunk in E1 = E + 1 columns, null when none are wanted. counts: choices of each expert, then
  // forced ids that are none. sums: of p for each expert, then of logsumexp^2.
  uint32_t* counts_cE1 = nullptr;
  double* sums_cE1 = nullptr;
  bool summing = false, squaring = false;
};

// A forced id that is none must not become a read out of range.
__device__ float score_or_nan(const Scores& scores, const float* logits, int32_t id, int64_t experts) {
  return is_expert(id, experts) ? scores(logits[id]) : kNan;
}

// Lane l weighs choices l, l + kWave, ...; usually there is only the first.
__device__ void weigh_choices(const RouterRule& rule, const Scores& scores, const float* logits, const int32_t* ids,
                              float* weights, int lane) {
  const int K = static_cast<int>(rule.top_k);
  const auto score_of = [&](int k) { return score_or_nan(scores, logits, ids[k], rule.experts); };
  const float first = lane < K ? score_of(lane) : 0.0f;
  float divisor = 1.0f;
  if (rule.renormalise) {
    float sum = first;
    for (int k = lane + kWave; k < K; k += kWave) sum += score_of(k);
    divisor = fmaxf(reduce_wave(sum, Sum()) + kTinySum, rule.least_sum);
  }
  if (lane < K) weights[lane] = first / divisor * rule.scale;
  for (int k = lane + kWave; k < K; k += kWave) weights[k] = score_of(k) / divisor * rule.scale;
}

__device__ void count_choices(const RouterRule& rule, const int32_t* ids, uint32_t* counts, int lane) {
  for (int64_t k = lane; k < rule.top_k; k += kWave)
    atomicAdd(counts + (is_expert(ids[k], rule.experts) ? ids[k] : rule.experts), 1u);
}

// Wave after wave adds its sums to those of the waves before; the last one stores them in `sums`. shared_E1: shared
// memory for the sums between.
template <int kOwn>
__device__ void add_sums_of_waves(OwnValues<double, kOwn>& prob_sums, double z_sum, int E, double* shared_E1,
                                  double* sums) {
  constexpr int kWaves = kWavesOf<kOwn>;
  const int lane = static_cast<int>(threadIdx.x) % kWave, wave = static_cast<int>(threadIdx.x) / kWave;
  for (int turn = 0; turn < kWaves; ++turn) {
    if (turn == wave) {
      double* to = turn + 1 < kWaves ? shared_E1 : sums;
#pragma unroll
      for (int j = 0; j < kOwn; ++j)
        if (const int e = lane + j * kWave; e < E) to[e] = (turn > 0 ? shared_E1[e] : 0.0) + prob_sums[j];
      if (lane == 0) to[E] = (turn > 0 ? shared_E1[E] : 0.0) + z_sum;
    }
    __syncthreads();
  }
}

// Each block routes one chunk of tokens, one wave per token.
template <int kOwn>
__global__ void __launch_bounds__(kWavesOf<kOwn>* kWave, kOwn > 4 || kOwn == 0 ? 1 : 4) route_kernel(RouteTask task) {
  constexpr int kWaves = kWavesOf<kOwn>;
  __shared__ double sums_E1[kOwn * kWave + 1];
  const int lane = static_cast<int>(threadIdx.x) % kWave, wave = static_cast<int>(threadIdx.x) / kWave;
  const int64_t chunk = blockIdx.x, K = task.rule.top_k;
  const int E = static_cast<int>(task.rule.experts);
  float* scratch = kOwn == 0 ? task.scratch_c + chunk * task.scratch_floats
                             : dynamic_shared_memory<float>() + wave * task.scratch_floats;
  uint32_t* keys = kOwn == 0 ? task.keys_cE + chunk * E : nullptr;
  const bool measuring = task.counts_cE1 != nullptr;
  uint32_t* counts = nullptr;
  double *sums = nullptr, z_sum = 0;
  if (measuring) {
    counts = task.counts_cE1 + chunk * (E + 1);
    sums = task.sums_cE1 + chunk * (E + 1);
    for (int i = static_cast<int>(threadIdx.x); i <= E; i += static_cast<int>(blockDim.x)) counts[i] = 0;
    __syncthreads();
  }
  OwnValues<double, kOwn> prob_sums(sums, lane);
  if (kOwn == 0 && measuring)
    for (int e = lane; e < E; e += kWave) sums[e] = 0;

  const int64_t begin = chunk * task.tokens_per_chunk;
  const int64_t end = begin + task.tokens_per_chunk < task.tokens ? begin + task.tokens_per_chunk : task.tokens;
  const bool of_softmax = task.summing && has_softmax_p(task.rule);
  const bool want_softmax = task.squaring || of_softmax;
  for (int64_t t = begin + wave; t < end; t += kWaves) {
    int32_t* ids = task.ids_TK + t * K;
    const Logits<kOwn> logits(task.logits_TE + t * E, E, lane);
    const Scores scores = compute_scores(task.rule.score, logits, want_softmax);
    const OwnScores<kOwn> own_scores(scores, logits);
    if (!task.forced) {
      const float gap =
          choose_experts(task.rule, logits, own_scores, task.bias_E, scratch, keys, ids, task.gaps_T != nullptr);
      if (task.gaps_T != nullptr && lane == 0) task.gaps_T[t] = gap;
    }
    weigh_choices(task.rule, scores, logits.all, ids, task.weights_TK + t * K, lane);
    if (!measuring) continue;
    count_choices(task.rule, ids, counts, lane);
    if (task.summing)
      logits.for_each_slot([&](int j, float x) {
        float p = of_softmax ? scores.softmax(x) : own_scores.find(j, x);
        if (task.rule.score == ScoreFunction::sigmoid && !of_softmax) p /= scores.total;
        prob_sums[j] += static_cast<double>(p);
      });
    z_sum += static_cast<double>(scores.log_sum) * static_cast<double>(scores.log_sum);
  }
  if (!measuring) return;
  if constexpr (kOwn == 0) {
    if (lane == 0) sums[E] = z_sum;
  } else {
    add_sums_of_waves(prob_sums, z_sum, E, sums_E1, sums);
  }
}

template <class T>
__device__ double sum_chunks(const T* table, int64_t column, int64_t chunks, int64_t columns) {
  double sum = 0;
  for (int64_t c = threadIdx.x; c < chunks; c += blockDim.x) sum += static_cast<double>(table[c * columns + column]);
  return reduce_block(sum, Sum());
}

// One block per column, with a thread for each chunk. result: the sums of the counts but for the last column, those of
// the sums, the last count.
__global__ void sum_chunks_kernel(const uint32_t* counts, const double* sums, int64_t chunks, int64_t columns,
                                  double* result) {
  const int64_t column = blockIdx.x;
  const double count = sum_chunks(counts, column, chunks, columns), sum = sum_chunks(sums, column, chunks, columns);
  if (threadIdx.x != 0) return;
  result[column + 1 < columns ? column : 2 * columns - 1] = count;
  result[columns - 1 + column] = sum;
}

// A part of counts, sums of p and z_sum, which follow each other in the device's memory.
struct StatisticsPart {
  double* to;
  int64_t begin, count;
};
std::array<StatisticsPart, 3> parts_of(const RouterStatistics& statistics, int64_t E) {
  return {{{statistics.counts_E.data(), 0, std::ssize(statistics.counts_E)},
           {statistics.prob_sums_E.data(), E, std::ssize(statistics.prob_sums_E)},
           {statistics.z_sum, 2 * E, statistics.z_sum != nullptr ? 1 : 0}}};
}

// By as few copies as the destinations allow.
void read_statistics(Stream& stream, const RouterStatistics& to, const double* from, int64_t E) {
  std::array<StatisticsPart, 3> parts = parts_of(to, E);
  for (size_t i = 0; i < parts.size(); ++i) {
    const StatisticsPart part = parts[i];
    if (part.count == 0) continue;
    if (i + 1 < parts.size() && parts[i + 1].count > 0 && parts[i + 1].to == part.to + part.count) {
      parts[i + 1] = {part.to, part.begin, part.count + parts[i + 1].count};
      continue;
    }
    stream.queue().read(part.to, from + part.begin, static_cast<size_t>(part.count) * sizeof(double));
  }
}

// By one copy, for which it waits. from: also holds how many forced ids are none, behind the statistics.
void read_forced_statistics(Stream& stream, const RouterStatistics& to, const double* from, int64_t E) {
  std::vector<double> all(static_cast<size_t>(2 * E + 2));
  stream.queue().read(all.data(), from, all.size() * sizeof(double));
  stream.wait();
  MW_CHECK(all.back() == 0.0, "a forced expert id is none of {} experts", E);
  for (const StatisticsPart& part : parts_of(to, E)) std::copy_n(all.data() + part.begin, part.count, part.to);
}

int64_t bytes_taken(int64_t bytes) { return ceil_div(bytes, 64) * 64; }

}  // namespace

int64_t router_workspace_bytes(int64_t tokens, int64_t experts) {
  const int64_t chunks = std::min(kMaxChunks, ceil_div(tokens, kMinTokensPerChunk)), columns = experts + 1;
  return bytes_taken(chunks * columns * 4) + bytes_taken(chunks * columns * 8) + bytes_taken(2 * columns * 8) +
         (experts > kMaxInRegisters ? bytes_taken(chunks * 2 * experts * 4) + bytes_taken(chunks * experts * 4) : 0);
}

void route(Stream& stream, const RouterRule& rule, TensorView logits_TE, TensorView bias_E, bool forced,
           TensorView ids_TK, TensorView weights_TK, const RouterStatistics& statistics, TensorView gaps_T) {
  check_limits(rule);
  const int64_t T = logits_TE.dim(0), E = rule.experts, columns = E + 1;
  const float *logits = logits_TE.as<float>(), *bias = bias_E.data == nullptr ? nullptr : bias_E.as<float>();
  float *weights = weights_TK.as<float>(), *gaps = gaps_T.data == nullptr ? nullptr : gaps_T.as<float>();
  const bool counting = !statistics.counts_E.empty(), summing = !statistics.prob_sums_E.empty();
  const bool squaring = statistics.z_sum != nullptr;

  const Chunks chunks = cut_tokens(T);
  const auto cells = static_cast<size_t>(chunks.count * columns);
  WorkspaceFrame frame(stream.workspace());
  RouteTask task{rule, logits, bias, forced, ids_TK.as<int32_t>(), weights, gaps, T, chunks.tokens_per_chunk};
  if (counting || summing || squaring) {
    task.counts_cE1 = frame.take<uint32_t>(cells);
    task.sums_cE1 = frame.take<double>(cells);
    task.summing = summing;
    task.squaring = squaring;
  }
  with_own(E, [&](auto own) {
    constexpr int kOwn = decltype(own)::value, kWaves = kWavesOf<kOwn>;
    if (rule.kept_groups < rule.groups) task.scratch_floats = E + rule.groups;
    if (kOwn == 0) {
      task.scratch_c = frame.take<float>(static_cast<size_t>(chunks.count * task.scratch_floats));
      task.keys_cE = frame.take<uint32_t>(static_cast<size_t>(chunks.count * E));
    }
    const int64_t shared_floats = kOwn == 0 ? 0 : kWaves * task.scratch_floats;
    launch(stream, route_kernel<kOwn>, chunks.count, kWaves * kWave, static_cast<size_t>(shared_floats) * sizeof(float),
           task);
  });
  if (task.counts_cE1 == nullptr) return;

  auto* result = frame.take<double>(static_cast<size_t>(2 * columns));
  launch(stream, sum_chunks_kernel, columns, static_cast<int>(kMaxChunks), 0, task.counts_cE1, task.sums_cE1,
         chunks.count, columns, result);
  (forced ? read_forced_statistics : read_statistics)(stream, statistics, result, E);
}

}  // namespace mw::gpu
