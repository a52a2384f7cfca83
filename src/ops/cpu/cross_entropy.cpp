#include "ops/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "ops/cpu/loops.h"
#include "ops/cpu/simd_math.h"

namespace mw::cpu {
namespace {

// A maximum per lane, which compilers vectorise without leave to reorder comparisons with NaN. A NaN is passed over
// here and comes out of the sum of exponentials. The start is finite, so that a logit of -inf adds e^-inf = 0.
template <class L>
float largest(const L* x, int64_t count) {
  constexpr int64_t kLanes = 64;
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, std::numeric_limits<float>::lowest());
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float logit = to_float(x[i + lane]);
      lanes[lane] = logit > lanes[lane] ? logit : lanes[lane];
    }
  float value = *std::max_element(lanes, lanes + kLanes);
  for (; i < count; ++i) value = to_float(x[i]) > value ? to_float(x[i]) : value;
  return value;
}

template <class L>
float sum_of_exponentials(const L* x, float shift, int64_t count) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += fast_exp(to_float(x[i]) - shift);
  return sum;
}

// The same sum; leaves the exponentials in x.
float keep_exponentials(float* x, float shift, int64_t count) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) {
    x[i] = fast_exp(x[i] - shift);
    sum += x[i];
  }
  return sum;
}

template <class T>
void scaled(const float* x, float factor, T* d, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) d[i] = from_float<T>(factor * x[i]);
}

// d = factor * e^(x - shift). d may be x.
template <class L, class T>
void scaled_exponentials(const L* x, float shift, float factor, T* d, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) d[i] = from_float<T>(factor * fast_exp(to_float(x[i]) - shift));
}

// Of one row, over one part of the vocabulary or all parts.
struct Statistics {
  float top, sum;  // largest logit, sum of e^(logit - top)
  float own;       // logit of the label
};

float loss_of(const Statistics& s) { return std::log(s.sum) - (s.own - s.top); }

// label: a column, or none of [0, count) where it lies in another part.
template <bool kHasExponentials, class L, class T>
void write_gradient(const L* x, const Statistics& s, int64_t label, float scale, T* d, int64_t count) {
  if constexpr (kHasExponentials) scaled(x, scale / s.sum, d, count);
  else scaled_exponentials(x, s.top, scale / s.sum, d, count);
  if (label >= 0 && label < count) d[label] = from_float<T>(scale * (fast_exp(s.own - s.top) / s.sum - 1.0f));
}

template <class L>
Statistics statistics_of(const L* x, int64_t label, int64_t count) {
  Statistics s{};
  s.top = largest(x, count);
  s.sum = sum_of_exponentials(x, s.top, count);
  s.own = label >= 0 && label < count ? to_float(x[label]) : 0.0f;
  return s;
}

// Parts of one row: the p-th lies at parts[p * stride].
Statistics unite(const float* parts, int64_t stride, int64_t count) {
  Statistics all{std::numeric_limits<float>::lowest(), 0, 0};
  for (int64_t p = 0; p < count; ++p) all.top = std::max(all.top, parts[p * stride]);
  for (int64_t p = 0; p < count; ++p) {
    const float* part = parts + p * stride;
    all.sum += part[1] * fast_exp(part[0] - all.top);
    all.own += part[2];
  }
  return all;
}

void check_labels(const TensorView& labels_C, int64_t vocab) {
  const int32_t* labels = labels_C.as<int32_t>();
  for (int64_t c = 0; c < labels_C.numel(); ++c)
    MW_CHECK(labels[c] == kIgnoreLabel || (labels[c] >= 0 && labels[c] < vocab),
             "row {} has label {}, expected {} or [0, {})", c, labels[c], kIgnoreLabel, vocab);
}

// Calls body(logits, d) with pointers to logits and gradient, null without one. Logits in bf16 have a gradient in bf16.
template <class Body>
void with_logits(const TensorView& logits, const TensorView& d_logits, const Body& body) {
  const bool is_there = d_logits.data != nullptr;
  if (logits.dtype == DType::bf16) body(logits.as<bf16>(), is_there ? d_logits.as<bf16>() : nullptr);
  else if (!is_there) body(logits.as<float>(), static_cast<float*>(nullptr));
  else with_float_type(d_logits.dtype, [&](auto type) { body(logits.as<float>(), d_logits.as<decltype(type)>()); });
}

// Loss and gradient of each row of `columns` logits from statistics(row), which ignored rows do not ask for.
// kHasExponentials: it leaves e^(logit - top) in the place of the logits.
template <bool kHasExponentials, class L, class T, class RowStatistics>
void differentiate(Stream& stream, const L* logits, int64_t columns, int64_t first_column, const TensorView& labels_C,
                   float scale, const TensorView& loss_C, T* d_logits, const RowStatistics& statistics) {
  const int64_t rows = labels_C.numel();
  const int32_t* labels = labels_C.as<int32_t>();
  float* loss = loss_C.as<float>();
  for_blocks(stream, rows, rows_per_block(columns), [=](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      T* d = d_logits == nullptr ? nullptr : d_logits + c * columns;
      if (labels[c] == kIgnoreLabel) {
        loss[c] = 0.0f;
        if (d != nullptr) std::fill(d, d + columns, T{});
        continue;
      }
      const Statistics s = statistics(c);
      loss[c] = loss_of(s);
      if (d != nullptr)
        write_gradient<kHasExponentials>(logits + c * columns, s, labels[c] - first_column, scale, d, columns);
    }
  });
}

}  // namespace

void cross_entropy(Stream& stream, TensorView logits_CV, TensorView labels_C, float scale, TensorView loss_C,
                   TensorView d_logits_CV) {
  const int64_t V = logits_CV.dim(1);
  check_labels(labels_C, V);
  const int32_t* labels = labels_C.as<int32_t>();
  with_logits(logits_CV, d_logits_CV, [&](auto* logits, auto* d_logits) {
    const auto find = [=](int64_t c) { return statistics_of(logits + c * V, labels[c], V); };
    if constexpr (std::is_same_v<decltype(logits), float*>)
      if (d_logits != nullptr)
        return differentiate<true>(stream, logits, V, 0, labels_C, scale, loss_C, d_logits, [=](int64_t c) {
          float* x = logits + c * V;
          Statistics s{largest(x, V), 0, x[labels[c]]};
          s.sum = keep_exponentials(x, s.top, V);
          return s;
        });
    differentiate<false>(stream, logits, V, 0, labels_C, scale, loss_C, d_logits, find);
  });
}

void softmax_statistics(Stream& stream, TensorView logits_Cv, VocabPart part, TensorView labels_C,
                        TensorView statistics_C3) {
  check_labels(labels_C, part.vocab);
  const int64_t columns = logits_Cv.dim(1);
  const int32_t* labels = labels_C.as<int32_t>();
  float* statistics = statistics_C3.as<float>();
  with_logits(logits_Cv, {}, [&](const auto* logits, auto*) {
    for_blocks(stream, logits_Cv.dim(0), rows_per_block(columns), [=](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        const Statistics s = statistics_of(logits + c * columns, labels[c] - part.begin, columns);
        float* out = statistics + c * kSoftmaxStatistics;
        out[0] = s.top;
        out[1] = s.sum;
        out[2] = s.own;
      }
    });
  });
}

void cross_entropy_of_part(Stream& stream, TensorView logits_Cv, VocabPart part, TensorView labels_C,
                           TensorView statistics_PC3, float scale, TensorView loss_C, TensorView d_logits_Cv) {
  check_labels(labels_C, part.vocab);
  const int64_t parts = statistics_PC3.dim(0), stride = logits_Cv.dim(0) * kSoftmaxStatistics;
  const float* statistics = statistics_PC3.as<float>();
  with_logits(logits_Cv, d_logits_Cv, [&](const auto* logits, auto* d_logits) {
    differentiate<false>(stream, logits, logits_Cv.dim(1), part.begin, labels_C, scale, loss_C, d_logits,
                         [=](int64_t c) { return unite(statistics + c * kSoftmaxStatistics, stride, parts); });
  });
}

}  // namespace mw::cpu
