// Attention by warpgroups: the very source, run on the CPU, against plain loops.
#include "ops/gpu/attention_wgmma.cu"
#include "emulated/attention_case.h"
#include "emulated/processors.h"
#include "ops/gpu/attention_backward_wgmma.cu"  // with the stand-ins of launch.h, wgmma.h and tensor_map.h

namespace mw::gpu {
namespace {

// Products and copies happen as late or as early as a GPU may run them. Gradients of scores of heads wider than 64 are
// stored of none, of one KV head at a time, of two, and so on, up to all sequences.
void check(const Case& c, bool at_once) {
  emulated::lanes_of_wave = 32;
  copies_happen_at_once = products_happen_at_once = at_once;
  const Processors before = emulated_processors;
  emulated_processors.blocks = 1;  // which any part occupies
  const AttentionShape& s = c.shape;
  const int64_t tiles = ceil_div(s.seq_len, warpgroup_attention::kOwned),
                of_kv_head = s.heads / s.kv_heads * warpgroup_attention::ScoreGradients::words_of(tiles) * 4;
  for (int64_t kv_heads = 0; kv_heads <= s.sequences * s.kv_heads; kv_heads += kv_heads < s.kv_heads ? 1 : s.kv_heads) {
    const int64_t scratch = 64 + kv_heads * of_kv_head;
    const auto backward = [&](Stream& stream, const AttentionShape& shape, const auto& x) {
      attention_gradients_by_warpgroups(stream, shape, x, scratch);
    };
    check(c, attention_by_warpgroups, backward, scratch);
  }
  emulated_processors = before;
  emulated::lanes_of_wave = emulated::kWaveLanes;
}

// Lengths around tiles of 64, 96 and 128, both widths that kernels are compiled for and narrower ones, groups of heads;
// documents that end within tiles, hide whole ones, and hold one token; windows.
TEST(AttentionByWarpgroups, IsThatOfPlainLoops) {
  for (const bool at_once : {false, true}) {
    check(make_case({1, 1, 1, 1, 8, 8}, 0), at_once);
    check(make_case({2, 130, 2, 1, 40, 24}, 0), at_once);
    check(make_case({1, 300, 1, 1, 64, 64}, 0), at_once);
    check(make_case({2, 200, 2, 1, 64, 64}, 50), at_once);
    check(make_case({3, 170, 2, 1, 72, 40}, 50), at_once);
  }
  check(make_case({1, 128, 2, 2, 128, 128}, 0), false);
  check(make_case({1, 97, 1, 1, 72, 128}, 0), true);
  check(make_case({1, 330, 1, 1, 128, 104}, 250), false);
  check(make_case({1, 70, 2, 1, 16, 16}, 1), false);
  check(make_case({1, 161, 1, 1, 32, 32}, 96, 40), true);
  check(make_case({2, 290, 1, 1, 96, 80}, 110), false);
  Case by_sequence = make_case({2, 140, 6, 3, 80, 72}, 0);  // three KV heads: parts of two are unequal
  by_sequence.by_sequence = true;
  check(by_sequence, true);
  check(make_case({1, 300, 1, 1, 80, 80}, 0, 60), true);
}

}  // namespace
}  // namespace mw::gpu
