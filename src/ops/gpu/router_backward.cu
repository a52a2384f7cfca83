// The gradient of the router, one wave per token.
#include "ops/gpu/launch.h"
#include "ops/gpu/operators.h"
#include "ops/gpu/router_scores.h"

namespace mw::gpu {
namespace {

constexpr int64_t kMaxRouteBlocks = 1 << 16;

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
template <int kOwn>
__device__ void differentiate_token(const BackwardTask& task, int64_t t, int lane) {
  const RouterRule& rule = task.rule;
  const int E = static_cast<int>(rule.experts), K = static_cast<int>(rule.top_k);
  const bool softmax = rule.score == ScoreFunction::softmax, squaring = task.z_scale != 0.0f;
  const bool of_softmax = task.d_prob_E != nullptr && has_softmax_p(rule);
  const Logits<kOwn> logits(task.logits_TE + t * E, E, lane);
  const Scores scores = compute_scores(rule.score, logits, squaring || of_softmax);
  const int32_t* ids = task.ids_TK + t * K;
  const float *d_weights = task.d_weights_TK + t * K, *d_prob = task.d_prob_E;
  float* d_x = task.d_logits_TE + t * E;

  float chosen = 0.0f, product = 0.0f;  // sums of s and of d_weight * s over the choices
  for (int k = lane; k < K; k += kWave) {
    if (!is_expert(ids[k], E)) continue;
    const float s = scores(logits.all[ids[k]]);
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

  const OwnScores<kOwn> own_scores(scores, logits);
  OwnValues<float, kOwn> d_chosen(d_x, lane);  // of the scores, but for the factor; memory is what becomes d_x
  if constexpr (kOwn == 0) logits.for_each_own([&](int, int j, float) { d_chosen[j] = 0.0f; });
  for (int k = 0; k < K; ++k) {
    const int id = ids[k];
    const float d = d_weights[k] - weight_mean;
    if constexpr (kOwn == 0) {
      if (is_expert(id, E) && id % kWave == lane) d_chosen[id / kWave] += d;
    } else {  // registers have no index that is found at run time
      logits.for_each_own([&](int e, int j, float) {
        if (e == id) d_chosen[j] += d;
      });
    }
  }

  float mean = 0.0f;
  if (d_prob != nullptr) {
    logits.for_each_own(
        [&](int e, int j, float x) { mean += d_prob[e] * (of_softmax ? scores.softmax(x) : own_scores.find(j, x)); });
    mean = reduce_wave(mean, Sum()) / (of_softmax ? 1.0f : scores.total);
  }
  if (softmax) mean += factor * (product - weight_mean * chosen);
  const float z_factor = 2.0f * task.z_scale * scores.log_sum;
  logits.for_each_own([&](int e, int j, float x) {
    const float g = d_prob != nullptr ? d_prob[e] - mean : -mean, slope = scores.slope(own_scores.find(j, x));
    float value = of_softmax ? scores.softmax(x) * g : slope * (softmax ? g : g / scores.total);
    if (squaring) value += z_factor * (softmax ? slope : scores.softmax(x));
    d_x[e] = value + slope * (factor * d_chosen[j]);
  });
}

template <int kOwn>
__global__ void __launch_bounds__(kWavesPerBlock* kWave) route_backward_kernel(BackwardTask task) {
  const int lane = static_cast<int>(threadIdx.x) % kWave, wave = static_cast<int>(threadIdx.x) / kWave;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWavesPerBlock;
  for (int64_t t = static_cast<int64_t>(blockIdx.x) * kWavesPerBlock + wave; t < task.tokens; t += step)
    differentiate_token<kOwn>(task, t, lane);
}

}  // namespace

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
  const int64_t blocks = std::min(kMaxRouteBlocks, ceil_div(T, kWavesPerBlock));
  const BackwardTask task{rule, logits, ids, d_weights, d_prob, z_scale, d_logits, T};
  with_own(rule.experts, [&](auto own) {
    launch(stream, route_backward_kernel<decltype(own)::value>, blocks, kWavesPerBlock * kWave, 0, task);
  });
}

}  // namespace mw::gpu
