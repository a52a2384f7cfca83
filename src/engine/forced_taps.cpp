#include <algorithm>
#include <map>
#include <memory>

#include "engine/step.h"
#include "moe/forced_load.h"

namespace mw {

TapProvider forced_taps(const Plan& plan, int64_t step) {
  if (plan.run.moe.forced_load == ForcedLoad::none) return {};
  // By micro-batch, of the layers of this rank. Kept for the step: a GPU may copy them late.
  using Choices = std::map<int64_t, std::vector<std::vector<int32_t>>>;
  return [&plan, step, kept = std::make_shared<Choices>()](int64_t micro_batch) {
    std::vector<std::vector<int32_t>>& choices = (*kept)[micro_batch];
    const int64_t all = plan.batch.all * plan.batch.seq_len,
                  count = routed_tokens(plan.mesh, plan.coords, plan.batch.tokens()).count;
    const bool is_new = choices.empty();  // a rank with several stages asks for each
    size_t own = 0;
    std::vector<RoutingTap> taps;
    for (int64_t i = 0; i < plan.model.layer_count(); ++i) {
      const LayerSpec& layer = plan.model.layers[static_cast<size_t>(i)];
      if (layer.feed_forward != FeedForwardKind::moe) continue;
      RoutingTap& tap = taps.emplace_back();
      if (std::none_of(plan.stages.begin(), plan.stages.end(), [&](const StagePlan& s) { return s.has_layer(i); }))
        continue;
      if (is_new)
        choices.push_back(
            forced_choices(plan.run, layer.moe, {step, i, micro_batch * all + first_routed_token(plan), count}));
      tap.replay_ids = choices[own++].data();
    }
    return taps;
  };
}

}  // namespace mw
