// The largest attention logits on GPUs: the very source, run on the CPU, against plain loops.
#include "ops/gpu/attention_logits.cu"  // with the stand-in of launch.h

#include <gtest/gtest.h>

#include <vector>

#include "core/rng.h"
#include "emulated/stream.h"

namespace mw::gpu {
namespace {

template <class T>
std::vector<T> drawn(const char* name, int64_t count, float shift) {
  const RngKey key = make_rng_key(3, name);
  std::vector<T> values;
  for (int64_t i = 0; i < count; ++i) {
    const float value = normal_at(key, static_cast<uint64_t>(i)) + shift;
    if constexpr (std::is_same_v<T, float>) values.push_back(value);
    else values.push_back(to_bf16(value));
  }
  return values;
}

float wide(float value) { return value; }
float wide(bf16 value) { return to_float(value); }

// window: keys that a token sees, up to its own; 0: all. With `negative`, every logit is below zero.
template <class T>
void check(DType dtype, const AttentionShape& s, int window, bool negative) {
  const int64_t T_all = s.sequences * s.seq_len, H = s.heads, G = s.kv_heads, h = s.head_dim;
  std::vector<T> q = drawn<T>("q", T_all * H * h, negative ? 9 : 0),
                 k = drawn<T>("k", T_all * G * h, negative ? -9 : 0);
  std::vector<int32_t> first(static_cast<size_t>(T_all));
  for (int64_t t = 0; t < T_all; ++t)
    first[static_cast<size_t>(t)] =
        window == 0 ? 0 : static_cast<int32_t>(std::max<int64_t>(0, t % s.seq_len - window + 1));
  std::vector<float> expected(static_cast<size_t>(H), kLowestScore);
  expected.back() = -0.25f;  // of an earlier micro-batch
  std::vector<float> largest = expected;
  for (int64_t t = 0; t < T_all; ++t)
    for (int64_t head = 0; head < H; ++head)
      for (int64_t seen = t - t % s.seq_len + first[static_cast<size_t>(t)]; seen <= t; ++seen) {
        double logit = 0;
        for (int64_t d = 0; d < h; ++d)
          logit += double{wide(q[static_cast<size_t>((t * H + head) * h + d)])} *
                   wide(k[static_cast<size_t>((seen * G + head / (H / G)) * h + d)]);
        float& most = expected[static_cast<size_t>(head)];
        most = std::max(most, static_cast<float>(s.scale * logit));
      }
  emulated::EmulatedStream emulated(1 << 12);
  gpu::largest_logits(emulated.stream, s, {q.data(), dtype, {T_all, H, h}}, {k.data(), dtype, {T_all, G, h}},
                      {largest.data(), DType::f32, {H}},
                      window == 0 ? TensorView{} : TensorView{first.data(), DType::i32, {T_all}});
  for (size_t head = 0; head < largest.size(); ++head)
    EXPECT_NEAR(largest[head], expected[head], 1e-5 * std::abs(expected[head]) + 1e-6)
        << "head " << head << ", " << s.seq_len << " tokens, window " << window;
}

TEST(LargestLogitsOfGpus, AreThoseOfPlainLoops) {
  for (const int64_t tokens : {1, 63, 64, 65, 130})
    for (const int window : {0, 1, 70})
      for (const bool negative : {false, true}) {
        AttentionShape shape{2, tokens, 4, 2, 24, 24, 0.25f};
        shape.documents = window > 0;
        check<float>(DType::f32, shape, window, negative);
        check<bf16>(DType::bf16, shape, window, negative);
      }
}

}  // namespace
}  // namespace mw::gpu
