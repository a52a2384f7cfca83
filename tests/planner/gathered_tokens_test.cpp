// Time and memory of layouts whose MoE layers gather tokens.
#include <algorithm>

#include "planner/helpers.h"
#include "planner/layer_time.h"
#include "planner/search.h"

namespace mw::test {
namespace {

// On links of a byte a second: tokens go to the three others and come back, in both passes.
TEST(GatheredTokens, TakeTime) {
  NativeModel native;
  native.vocab = 64;
  native.width = 256;
  native.layers = 1;
  native.expert_width = 512;
  native.heads = native.kv_heads = 4;
  native.head_dim = 64;
  native.experts = 8;
  native.top_k = 2;
  RunSpec run;
  run.train.dtype = DType::bf16;
  run.train.seq_len = 1024;
  run.train.global_batch = 4;
  run.mesh.ep = 4;
  run.moe.transport = "gather_tokens";
  const LayerKinds kinds(build_native_model(native), run.moe.transport);
  PlatformProfile profile = shipped_profile("h200x8");
  const auto time_of = [&](double bytes_per_s, Recompute recompute) {
    profile.levels = {{"near", 8, {0, bytes_per_s}, {0, bytes_per_s}, {0, bytes_per_s}}};
    run.recompute = recompute;
    LayerTimeModel model(kinds, run, profile, ExpertLoad{}, 4);
    return model.of(layout_of(run), make_mesh(run.mesh, 4)).kinds.front();
  };
  // Experts and gate weights go out with the tokens, gate gradients come back.
  const double tokens = 3 * 1024 * 256 * 2, choices = 3 * 1024 * 2 * 4;
  const LayerTime slow = time_of(1, Recompute::none);
  EXPECT_NEAR(slow.forward_exchange, 2 * tokens + 2 * choices, 1e-3 * choices);
  EXPECT_NEAR(slow.backward_exchange, 2 * tokens + choices, 1e-3 * choices);
  EXPECT_NEAR(time_of(1, Recompute::moe).backward_exchange, 3 * tokens + 3 * choices, 1e-3 * choices);
  // The widest slice counts.
  const double even = time_of(1e12, Recompute::none).forward;
  run.mesh.width_shares = "1,1,5,1";
  EXPECT_GT(time_of(1e12, Recompute::none).forward, even);
}

Request request_of(const char* width_shares) {
  Request request;
  request.model = odd_model();
  request.run = small_run();
  request.run.moe.transport = "gather_tokens";
  request.run.mesh.width_shares = width_shares;
  request.profile = shipped_profile("h200x8");
  request.ranks = 4;
  return request;
}

void expect_memory_of_the_rank_that_has_most(const Request& request) {
  for (const char* text : {"ep=4 micro_batches=2", "ep=4 zero=1 micro_batches=2", "tp=2 ep=4 zero=1 micro_batches=2"}) {
    const Layout layout = parse_layout(text, {});
    check_layout(request, layout);
    Estimator estimator(request.model, request.run, request.profile, request.load, request.ranks);
    int64_t most = 0;
    for (int rank = 0; rank < 4; ++rank) {
      const Plan plan = make_plan(request.model, with_layout(request.run, layout), 4, rank,
                                  platform_of(request.profile, request.run));
      most = std::max(most, summarise(all_rows(plan)).total());
    }
    const auto expected = static_cast<double>(most);  // where ZeRO cuts, up to the rounding of cuts
    EXPECT_NEAR(static_cast<double>(estimator.closed_form(layout).memory.front().table.total()), expected,
                1e-4 * expected)
        << request.run.mesh.width_shares << " " << text;
  }
}

TEST(GatheredTokens, NeedTheMemoryOfTheRankThatHasMost) {
  for (const char* shares : {"", "1,3,2,6", "1,6,2,3"}) expect_memory_of_the_rank_that_has_most(request_of(shares));
}

TEST(GatheredTokens, NeedTheMemoryOfTheRankThatHasMostBesideWholeExperts) {
  Request request = request_of("1,3,2,6");
  request.run.moe.transport = "flat*2,gather_tokens*3";
  expect_memory_of_the_rank_that_has_most(request);  // rank 0 has most experts, rank 3 the widest slices
  request.run.mesh.expert_shares = "6,1,5,1";
  request.run.mesh.width_shares = "1,1,5,6";
  expect_memory_of_the_rank_that_has_most(request);  // rank 2 has most of both together
}

TEST(GatheredTokens, AreSearchedForWhereExpertsCanBeCut) {
  for (const Layout& layout : layouts_of(request_of("1,3,2,6"))) EXPECT_EQ(layout.ep, 4) << describe(layout);
  Request ted = request_of("");
  ted.run.moe.tp_mode = MoeTpMode::ted;
  for (const Layout& layout : layouts_of(ted)) EXPECT_EQ(layout.tp, 1) << describe(layout);
  EXPECT_FALSE(layouts_of(ted).empty());
}

}  // namespace
}  // namespace mw::test
