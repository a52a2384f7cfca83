// Plans for ranks of several speeds.
#include "planner/unequal_ranks.h"

#include "layout/divided.h"
#include "layout/shares.h"
#include "planner/estimate.h"
#include "planner/helpers.h"

namespace mw::test {
namespace {

// Two ranks, the first three times as fast.
struct Unequal {
  ModelSpec model;
  RunSpec run;
  PlatformProfile profile = shipped_profile("xeon_amx_2_cores");
  ExpertLoad load{1e9};
  Unequal() {
    NativeModel n;
    n.vocab = 256;
    n.width = 256;
    n.layers = 12;
    n.heads = n.kv_heads = 4;
    n.head_dim = 64;
    n.experts = 16;
    n.top_k = 2;
    n.expert_width = 1024;
    model = build_native_model(n);
    run.train.seq_len = 512;
    run.train.global_batch = 20;
    run.train.micro_batches = 1;
    run.mesh.ep = 2;
    profile.rank_kinds = {{1, 3.0}, {1, 1.0}};
  }
  double seconds(const Layout& layout) const {
    Estimator estimator(model, run, profile, load, 2);
    return estimator.closed_form(layout).time.compute;
  }
  double seconds() const { return seconds(layout_of(run)); }
  RunSpec chosen() const {
    const Layout layout = layout_of(run);
    return with_shares_of(profile, model, run, layout, mesh_of(layout, 2));
  }
};

TEST(UnequalRanks, GetWhatARunWouldMeasure) {
  Unequal ranks;
  ranks.run.mesh.shares = ranks.run.mesh.expert_shares = ranks.run.mesh.width_shares = kMeasuredShares;
  ranks.run.moe.transport = "flat";
  EXPECT_EQ(describe_shares(ranks.run, ranks.chosen()), "mesh.shares = 15,5; mesh.expert_shares = 12,4");
  ranks.run.moe.transport = "gather_tokens";
  EXPECT_EQ(describe_shares(ranks.run, ranks.chosen()), "mesh.shares = 15,5; mesh.width_shares = 12,4");
  ranks.run.mesh = {};
  ranks.run.mesh.pp = 2;
  ranks.run.mesh.stage_layers = kMeasuredShares;
  EXPECT_EQ(describe_shares(ranks.run, ranks.chosen()), "mesh.stage_layers = 9,3");
  ranks.profile.rank_kinds.reset();
  EXPECT_EQ(describe_shares(ranks.run, ranks.chosen()), "");
}

// With equal parts the slowest rank computes as long as if all were like it; with the shares that a run would measure
// about half as long, which no other split undercuts.
TEST(UnequalRanks, TakeAsLongAsTheSlowest) {
  for (const char* transport : {"gather_weights", "flat", "gather_tokens"}) {
    Unequal ranks;
    ranks.run.moe.transport = transport;
    const double equal = ranks.seconds();
    Unequal alike = ranks;
    alike.profile.rank_kinds.reset();
    EXPECT_DOUBLE_EQ(equal, alike.seconds()) << transport;
    const bool slices = ranks.run.moe.transport == "gather_tokens";
    std::string& of_experts = slices ? ranks.run.mesh.width_shares : ranks.run.mesh.expert_shares;
    if (ranks.run.moe.transport != "gather_weights") of_experts = kMeasuredShares;
    ranks.run.mesh.shares = kMeasuredShares;
    const double chosen = ranks.seconds();
    EXPECT_NEAR(chosen / equal, 0.5, 0.04) << transport;
    if (!of_experts.empty()) of_experts = "12,4";
    for (int own = 1; own < 20; ++own) {
      ranks.run.mesh.shares = list_of_shares({own, 20 - own});
      EXPECT_GE(ranks.seconds(), chosen * (own == 15 ? 1 : 0.999)) << transport << own;
    }
  }
}

TEST(UnequalRanks, HaveStagesByTheirSpeed) {
  Unequal ranks;
  ranks.run.mesh = {};
  ranks.run.mesh.pp = 2;
  ranks.run.train.micro_batches = 10;
  const double equal = ranks.seconds();
  ranks.run.mesh.stage_layers = kMeasuredShares;
  EXPECT_NEAR(ranks.seconds() / equal, 0.5, 0.05);
  ranks.run.mesh.stage_layers = "3,9";
  EXPECT_NEAR(ranks.seconds() / equal, 1.5, 0.05);
}

}  // namespace
}  // namespace mw::test
