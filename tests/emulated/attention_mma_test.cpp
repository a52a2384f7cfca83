// Attention on tensor cores: the very source, run on the CPU, against plain loops.
#include "ops/gpu/attention_mma.cu"
#include "emulated/attention_case.h"
#include "ops/gpu/attention_backward_mma.cu"  // with the stand-ins of launch.h and mma.h

namespace mw::gpu {
namespace {

void check(const Case& c, bool at_once) {
  copies_happen_at_once = at_once;
  check(c, attention_on_tensor_cores, attention_gradients_on_tensor_cores);
}

// Lengths around tiles of 32 and 64, every pair of widths that kernels are compiled for and narrower ones, groups of
// heads; documents that end within tiles, hide whole ones, and hold one token; windows.
TEST(AttentionOnTensorCores, IsThatOfPlainLoops) {
  for (const bool at_once : {false, true}) {
    check(make_case({1, 1, 1, 1, 8, 8}, 0), at_once);
    check(make_case({2, 65, 2, 1, 40, 24}, 0), at_once);
    check(make_case({2, 130, 2, 1, 64, 64}, 50), at_once);
  }
  check(make_case({2, 31, 2, 1, 64, 64}, 0), true);
  check(make_case({1, 64, 2, 2, 128, 128}, 0), false);
  check(make_case({1, 97, 1, 1, 72, 128}, 0), true);
  check(make_case({1, 130, 1, 1, 192, 128}, 0), true);
  check(make_case({1, 200, 1, 1, 128, 128}, 64), true);
  check(make_case({1, 70, 2, 1, 16, 16}, 1), false);
  check(make_case({1, 161, 1, 1, 32, 32}, 96, 40), true);
  check(make_case({1, 150, 1, 1, 192, 128}, 0, 33), false);
}

TEST(AttentionOnTensorCores, FollowsEarlierKeys) {
  for (const int64_t queries : {1, 70})
    for (const int64_t window : {0, 20}) {
      Case c = make_case({2, queries, 2, 1, 64, 64, 1, false, 77}, 0, window);
      c.gap = 13;
      check(c, window > 0);
    }
}

// Queries of a document that begins within a tile see no key of the first walked one: their largest score is then the
// lowest number, which the scale must not make infinite.
TEST(AttentionOnTensorCores, TakesLargeScales) {
  for (const float scale : {1.0f, 2.0f}) {
    Case c = make_case({1, 130, 1, 1, 64, 64}, 50);
    c.shape.scale = scale;
    check(c, false);
  }
  EXPECT_TRUE(std::isfinite(kLowestScore * (1e8f * kLog2OfE)));
}

}  // namespace
}  // namespace mw::gpu
