// Cases of attention for kernels that run on the CPU: how they are made and run, plain loops in double precision, and
// the comparison with them.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/rng.h"
#include "emulated/stream.h"
#include "ops/gpu/attention_tiles.h"  // with the stand-in of launch.h

namespace mw::gpu {

constexpr size_t kScratch = 64;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

inline size_t at(int64_t i) { return static_cast<size_t>(i); }

inline std::vector<bf16> draw(const char* name, int64_t count) {
  const RngKey key = make_rng_key(3, name);
  std::vector<bf16> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(to_bf16(1.5f * normal_at(key, static_cast<uint64_t>(i))));
  return values;
}
inline std::vector<bf16> numberless(int64_t count) { return {at(count), to_bf16(kNaN)}; }

struct Case {
  AttentionShape shape;
  std::vector<int32_t> first;  // of each query
  int64_t gap = 0;             // rows without numbers behind each sequence's keys
  bool by_sequence = false;    // lse and delta go backward as [B, H, S], as a library leaves them
};

// Documents of `length` tokens, the first one shorter by the sequence's number; 0: none. With a window, every token
// sees `window` keys at most.
inline Case make_case(AttentionShape shape, int64_t length, int64_t window = 0) {
  shape.scale = 0.5f / std::sqrt(static_cast<float>(shape.head_dim));
  shape.documents = length > 0 || window > 0;
  Case c{shape, {}};
  for (int64_t b = 0; shape.documents && b < shape.sequences; ++b)
    for (int64_t t = 0; t < shape.seq_len; ++t) {
      const int64_t key = shape.past + t;
      int64_t first = length > 0 ? std::max<int64_t>(0, (key + b) / length * length - b) : 0;
      if (window > 0) first = std::max(first, key - window + 1);
      c.first.push_back(static_cast<int32_t>(first));
    }
  return c;
}

struct Problem {
  explicit Problem(Case which)
      : c(std::move(which)),
        rows(c.shape.past + c.shape.seq_len + c.gap),
        tokens(c.shape.sequences * c.shape.seq_len),
        q(draw("q", tokens * c.shape.heads * c.shape.head_dim)),
        k(draw("k", c.shape.sequences * rows * c.shape.kv_heads * c.shape.head_dim)),
        v(draw("v", c.shape.sequences * rows * c.shape.kv_heads * c.shape.value_dim)),
        d_o(draw("d_o", tokens * c.shape.heads * c.shape.value_dim)),
        o(numberless(tokens * c.shape.heads * c.shape.value_dim)),
        lse(at(c.shape.heads * tokens), kNaN),
        delta(at(c.shape.heads * tokens)),
        d_q(numberless(tokens * c.shape.heads * c.shape.head_dim)),
        d_k(numberless(tokens * c.shape.kv_heads * c.shape.head_dim)),
        d_v(numberless(tokens * c.shape.kv_heads * c.shape.value_dim)) {
    const AttentionShape& s = c.shape;
    for (int64_t row = 0; row < s.sequences * rows; ++row) {
      if (row % rows < s.past + s.seq_len) continue;
      for (auto [x, width] : {std::pair(&k, s.kv_heads * s.head_dim), std::pair(&v, s.kv_heads * s.value_dim)})
        for (int64_t i = 0; i < width; ++i) (*x)[at(row * width + i)] = to_bf16(kNaN);
    }
  }

  template <class Forward>
  void run_forward(const Forward& forward) {
    emulated::EmulatedStream emulated(kScratch);
    const AttentionShape& s = c.shape;
    const auto view = [](std::vector<bf16>& x, int64_t n, int64_t heads, int64_t width) {
      return TensorView(x.data(), DType::bf16, {n, heads, width});
    };
    forward(emulated.stream, s, view(q, tokens, s.heads, s.head_dim),
            view(k, s.sequences * rows, s.kv_heads, s.head_dim), view(v, s.sequences * rows, s.kv_heads, s.value_dim),
            view(o, tokens, s.heads, s.value_dim), {lse.data(), DType::f32, {s.heads, tokens}},
            s.documents ? TensorView(c.first.data(), DType::i32, {tokens}) : TensorView());
  }
  template <class Backward>
  void run_backward(const Backward& backward, int64_t scratch_bytes) {
    emulated::EmulatedStream emulated(scratch_bytes);
    const AttentionShape& s = c.shape;
    for (int64_t head = 0; head < s.heads; ++head)
      for (int64_t t = 0; t < tokens; ++t) {
        float sum = 0;
        for (int64_t i = 0; i < s.value_dim; ++i) {
          const size_t place = at((t * s.heads + head) * s.value_dim + i);
          sum += to_float(o[place]) * to_float(d_o[place]);
        }
        delta[at(head * tokens + t)] = sum;
      }
    const std::vector<float> delta_HT = delta;
    std::vector<float> lse_given = lse;
    if (c.by_sequence)
      for (int64_t head = 0; head < s.heads; ++head)
        for (int64_t t = 0; t < tokens; ++t) {
          const size_t to = at((t / s.seq_len * s.heads + head) * s.seq_len + t % s.seq_len);
          lse_given[to] = lse[at(head * tokens + t)];
          delta[to] = delta_HT[at(head * tokens + t)];
        }
    const LsePlace place = c.by_sequence ? LsePlace{s.seq_len, s.heads * s.seq_len} : LsePlace{tokens, s.seq_len};
    backward(emulated.stream, s,
             attention_detail::Operands<bf16>{q.data(), k.data(), v.data(), o.data(), lse_given.data(), d_o.data(),
                                              s.documents ? c.first.data() : nullptr, delta.data(), place, d_q.data(),
                                              d_k.data(), d_v.data()});
  }

  Case c;
  int64_t rows, tokens;  // of a sequence's keys, with the gap; of all queries
  std::vector<bf16> q, k, v, d_o, o;
  std::vector<float> lse, delta;
  std::vector<bf16> d_q, d_k, d_v;
};

struct Expected {
  std::vector<double> o, lse, d_q, d_k, d_v;
};

inline Expected compute(const Problem& p) {
  const AttentionShape& s = p.c.shape;
  Expected e{std::vector<double>(p.o.size()), std::vector<double>(p.lse.size()), std::vector<double>(p.q.size()),
             std::vector<double>(p.k.size()), std::vector<double>(p.v.size())};
  for (int64_t t = 0; t < p.tokens; ++t)
    for (int64_t head = 0; head < s.heads; ++head) {
      const int64_t query = (t * s.heads + head) * s.head_dim, out = (t * s.heads + head) * s.value_dim,
                    last = s.past + t % s.seq_len, first = s.documents ? p.c.first[at(t)] : 0;
      const auto row = [&](int64_t key) {
        return (t / s.seq_len * p.rows + key) * s.kv_heads + head / (s.heads / s.kv_heads);
      };
      const auto dot = [](const std::vector<bf16>& a, int64_t i, const std::vector<bf16>& b, int64_t j, int64_t n) {
        double sum = 0;
        for (int64_t d = 0; d < n; ++d) sum += double{to_float(a[at(i + d)])} * double{to_float(b[at(j + d)])};
        return sum;
      };
      std::vector<double> weights;
      double top = -std::numeric_limits<double>::infinity(), sum = 0;
      for (int64_t key = first; key <= last; ++key) {
        weights.push_back(double{s.scale} * dot(p.q, query, p.k, row(key) * s.head_dim, s.head_dim));
        top = std::max(top, weights.back());
      }
      for (double& weight : weights) sum += weight = std::exp(weight - top);
      e.lse[at(head * p.tokens + t)] = top + std::log(sum);
      double mean = 0;
      for (int64_t i = 0; i < s.value_dim; ++i)
        mean += double{to_float(p.o[at(out + i)])} * double{to_float(p.d_o[at(out + i)])};
      for (int64_t key = first; key <= last; ++key) {
        const double weight = weights[at(key - first)] / sum;
        const int64_t k = row(key) * s.head_dim, v = row(key) * s.value_dim;
        const double d_score = double{s.scale} * weight * (dot(p.d_o, out, p.v, v, s.value_dim) - mean);
        for (int64_t i = 0; i < s.value_dim; ++i) {
          e.o[at(out + i)] += weight * double{to_float(p.v[at(v + i)])};
          e.d_v[at(v + i)] += weight * double{to_float(p.d_o[at(out + i)])};
        }
        for (int64_t i = 0; i < s.head_dim; ++i) {
          e.d_q[at(query + i)] += d_score * double{to_float(p.k[at(k + i)])};
          e.d_k[at(k + i)] += d_score * double{to_float(p.q[at(query + i)])};
        }
      }
    }
  return e;
}

// Weights of the softmax and gradients of scores are rounded to bf16, and so are results.
template <class T>
void expect_close(const std::vector<T>& got, const std::vector<double>& expected, double tolerance, const char* what,
                  const Case& c) {
  ASSERT_EQ(got.size(), expected.size());
  double largest = 1e-3, error = 0;
  bool is_number = true;
  for (size_t i = 0; i < got.size(); ++i) {
    double value = 0;
    if constexpr (std::is_same_v<T, float>) value = double{got[i]};
    else value = double{to_float(got[i])};
    largest = std::max(largest, std::abs(expected[i]));
    error = std::max(error, std::abs(value - expected[i]));
    is_number = is_number && !std::isnan(value);
  }
  EXPECT_TRUE(is_number && error <= tolerance * largest)
      << what << ": " << error << " of " << largest << (is_number ? "" : ", a NaN") << "; " << c.shape.sequences << "x"
      << c.shape.seq_len << " after " << c.shape.past << ", heads " << c.shape.heads << "/" << c.shape.kv_heads
      << " of " << c.shape.head_dim << "/" << c.shape.value_dim << (c.shape.documents ? ", documents" : "");
}

template <class Forward, class Backward>
void check(const Case& c, const Forward& forward, const Backward& backward, int64_t backward_scratch_bytes = kScratch) {
  Problem p(c);
  p.run_forward(forward);
  if (c.shape.past == 0) p.run_backward(backward, backward_scratch_bytes);
  const Expected e = compute(p);
  expect_close(p.o, e.o, 8e-3, "o", c);
  expect_close(p.lse, e.lse, 1e-5, "lse", c);
  if (c.shape.past > 0) return;
  expect_close(p.d_q, e.d_q, 1.2e-2, "d_q", c);
  expect_close(p.d_k, e.d_k, 1.2e-2, "d_k", c);
  expect_close(p.d_v, e.d_v, 1.2e-2, "d_v", c);
}

}  // namespace mw::gpu
