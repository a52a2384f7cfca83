// Random layouts of a small run, the same for the same seed on every machine.
#pragma once

#include <random>
#include <string>

#include "support/random_placement.h"
#include "support/small_run.h"

namespace mw::test {

struct RandomLayout {
  RunSpec run;
  SharedPlacements placements;
  std::string text;  // for messages
};

// A layout of `ranks` ranks (1 to 8) for small_run() with four layers and micro-batches of eight samples. `base` says
// what the layouts of a pair share.
inline RandomLayout random_layout(RunSpec base, int ranks, int64_t zero, std::mt19937_64& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  RandomLayout out;
  RunSpec& run = out.run = std::move(base);
  run.native.layers = 4;
  run.train.micro_batches = 2;
  run.mesh.zero = zero;
  int pp = 1, tp = 1, dp = ranks;
  const auto divide = [&](int by) { return dp % by == 0 && below(2) == 0 ? (dp /= by, by) : 1; };
  pp = divide(2) * (ranks == 3 || ranks == 6 ? divide(3) : 1);
  if (pp > 4) pp = 3, dp = ranks / pp;
  tp = divide(2);
  run.mesh.pp = pp;
  run.mesh.tp = tp;
  if (tp > 1 && below(2) == 0) run.moe.tp_mode = MoeTpMode::ted;
  const int share = run.moe.tp_mode == MoeTpMode::ted ? dp : dp * tp;  // of which EP takes a divisor
  int ep = 1 + below(share);
  while (share % ep != 0 || ep > run.native.experts) --ep;
  run.mesh.ep = ep;
  if (below(2) == 0) run.mesh.placement = RankPlacement::dp_first;
  const ScheduleKind schedules[] = {ScheduleKind::one_f_one_b, ScheduleKind::gpipe, ScheduleKind::zb_h1,
                                    ScheduleKind::zb_v};
  if (pp > 1) run.mesh.schedule = schedules[below(pp == 2 ? 4 : 3)];
  const char* const shares[] = {"", "1", "5,3", "2,4,2", "1,3,2,2", "2,2,2,1,1", "1,2,1,1,1,2", "2,1,1,1,1,1,1"};
  if (dp > 1 && (8 % dp != 0 || below(3) == 0)) run.mesh.shares = shares[dp < 8 ? dp : 0];
  if (run.train.dtype == DType::bf16 && below(2) == 0) run.moments = DType::bf16;
  const ModelSpec model = build_native_model(run.native);
  if (below(4) != 0) out.placements = random_placements(model, ep, random());
  out.text =
      fmt::format("[pp {} tp {} {} dp {} ep {} {} zero {} {} shares '{}' moments {} {}]", pp, tp,
                  word_of(run.moe.tp_mode), dp, ep, word_of(run.mesh.placement), zero, word_of(run.mesh.schedule),
                  run.mesh.shares, word_of(run.moments), out.placements == nullptr ? "blocks" : "placed");
  return out;
}

}  // namespace mw::test
