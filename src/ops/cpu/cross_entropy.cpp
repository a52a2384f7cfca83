#include "ops/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "ops/cpu/loops.h"
#include "ops/cpu/simd_math.h"

namespace mw::cpu {
namespace {

// A maximum per lane, which compilers vectorise without leave to reorder comparisons with NaN. A NaN is passed over
// here and comes out of the sum of exponentials.
float largest(const float* x, int64_t count) {
  constexpr int64_t kLanes = 64;
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, x[0]);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
  float value = *std::max_element(lanes, lanes + kLanes);
  for (; i < count; ++i) value = x[i] > value ? x[i] : value;
  return value;
}

float sum_of_exponentials(const float* x, float shift, int64_t count) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += fast_exp(x[i] - shift);
  return sum;
}

// d = factor * e^(x - shift). d may be x.
template <class T>
void scaled_exponentials(const float* x, float shift, float factor, T* d, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) d[i] = from_float<T>(factor * fast_exp(x[i] - shift));
}

// One row: returns its loss, and writes its gradient unless d is null.
template <class T>
float differentiate_row(const float* x, int32_t label, float scale, T* d, int64_t V) {
  if (label == kIgnoreLabel) {
    if (d != nullptr) std::fill(d, d + V, T{});
    return 0.0f;
  }
  const float top = largest(x, V);
  const float sum = sum_of_exponentials(x, top, V);
  const float margin = x[label] - top;  // read before d overwrites it
  if (d != nullptr) {
    scaled_exponentials(x, top, scale / sum, d, V);
    d[label] = from_float<T>(scale * (fast_exp(margin) / sum - 1.0f));
  }
  return std::log(sum) - margin;
}

}  // namespace

void cross_entropy(Stream& stream, TensorView logits_CV, TensorView labels_C, float scale, TensorView loss_C,
                   TensorView d_logits_CV) {
  const int64_t C = logits_CV.dim(0), V = logits_CV.dim(1);
  const int32_t* labels = labels_C.as<int32_t>();
  for (int64_t c = 0; c < C; ++c)
    MW_CHECK(labels[c] == kIgnoreLabel || (labels[c] >= 0 && labels[c] < V),
             "row {} has label {}, expected {} or [0, {})", c, labels[c], kIgnoreLabel, V);

  const float* logits = logits_CV.as<float>();
  float* loss = loss_C.as<float>();
  const auto run = [&](auto* d_logits) {
    using T = std::remove_pointer_t<decltype(d_logits)>;
    for_blocks(stream, C, rows_per_block(V), [=](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        T* d = d_logits == nullptr ? nullptr : d_logits + c * V;
        loss[c] = differentiate_row(logits + c * V, labels[c], scale, d, V);
      }
    });
  };
  if (d_logits_CV.data == nullptr) {
    run(static_cast<float*>(nullptr));
    return;
  }
  with_float_type(d_logits_CV.dtype, [&](auto type) { run(d_logits_CV.as<decltype(type)>()); });
}

}  // namespace mw::cpu
