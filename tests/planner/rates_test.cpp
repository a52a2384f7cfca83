// How shares of a profile's rates change estimates.
#include "planner/helpers.h"

namespace mw::test {
namespace {

// A share at the model's own width, between or beyond the table's, is that share of the rates at every length.
TEST(Estimate, AttentionFollowsItsHeadWidth) {
  struct Case {
    ModelSpec model;
    RateTable shares;
  };
  const std::vector<Case> cases = {{odd_model(), {{5, 0.25}, {20, 0.75}}},  // 10 for both
                                   {odd_model(), {{2, 0.1}, {5, 0.5}}},
                                   {config_model("deepseek-v2-lite"), {{128, 1}, {160, 0.5}}}};  // 192 and 128
  for (const Case& c : cases) {
    Request request = odd_on(1);
    request.model = c.model;
    const Layout layout = layout_of(request.run);
    const auto seconds = [&](const PlatformProfile& profile) {
      return Estimator(request.model, request.run, profile, request.load, 1).simulated(layout).time.total();
    };
    for (const bool forward : {true, false}) {
      PlatformProfile shared = request.profile, halved = request.profile;
      (forward ? shared.bf16.attention_forward_widths : shared.bf16.attention_backward_widths) = c.shares;
      RateTable& rates = forward ? halved.bf16.attention_forward : halved.bf16.attention_backward;
      for (RatePoint& point : rates) point.per_second /= 2;
      EXPECT_GT(seconds(halved), 1.0001 * seconds(request.profile));
      EXPECT_NEAR(seconds(shared) / seconds(halved), 1, 1e-9) << c.shares[0].size << " " << forward;
    }
  }
}

// The narrower side of the model's expert matrices counts, and one beyond the table is as its end.
TEST(Estimate, ExpertProductsFollowTheirWidth) {
  Request request = odd_on(1);
  const Layout layout = layout_of(request.run);
  const auto seconds = [&](const PlatformProfile& profile) {
    return Estimator(request.model, request.run, profile, request.load, 1).simulated(layout).time.total();
  };
  for (const bool rows : {true, false}) {
    PlatformProfile narrow = request.profile, halved = request.profile;
    (rows ? narrow.bf16.expert_widths : narrow.bf16.expert_weight_widths) = {{4096, 0.5}, {8192, 1}};
    for (RatePoint& point : rows ? halved.bf16.expert_products : halved.bf16.expert_weight_products)
      point.per_second /= 2;
    EXPECT_GT(seconds(halved), 1.0001 * seconds(request.profile));
    EXPECT_NEAR(seconds(narrow) / seconds(halved), 1, 1e-9) << rows;
  }
}

// Only where a run asks for it, and only in the backward pass.
TEST(Estimate, AttentionInAnyOrderIsFaster) {
  Request request = odd_on(1);
  const Layout layout = layout_of(request.run);
  const auto seconds = [&](const PlatformProfile& profile, bool deterministic) {
    RunSpec run = request.run;
    run.train.deterministic = deterministic;
    return Estimator(request.model, run, profile, request.load, 1).simulated(layout).time.total();
  };
  PlatformProfile known = request.profile, halved = request.profile;
  EXPECT_EQ(seconds(known, false), seconds(known, true)) << "of a machine with one form";
  known.bf16.attention_any_order = 0.5;
  for (RatePoint& point : halved.bf16.attention_backward) point.per_second /= 2;
  EXPECT_EQ(seconds(known, true), seconds(request.profile, true));
  EXPECT_NEAR(seconds(known, false) / seconds(halved, true), 1, 1e-9);
  EXPECT_GT(seconds(known, false), 1.0001 * seconds(known, true));
}

// Only where a run keeps them apart, each pass by its own share.
TEST(Estimate, AttentionOfDocumentsHasItsOwnRates) {
  Request request = odd_on(1);
  const Layout layout = layout_of(request.run);
  const auto seconds = [&](const PlatformProfile& profile, bool documents) {
    RunSpec run = request.run;
    run.data.document_mask = documents;
    return Estimator(request.model, run, profile, request.load, 1).simulated(layout).time.total();
  };
  PlatformProfile known = request.profile, slowed = request.profile;
  EXPECT_EQ(seconds(known, false), seconds(known, true)) << "of a machine that skips what is hidden";
  known.bf16.attention_forward_documents = 0.25;
  known.bf16.attention_backward_documents = 0.5;
  for (RatePoint& point : slowed.bf16.attention_forward) point.per_second /= 4;
  for (RatePoint& point : slowed.bf16.attention_backward) point.per_second /= 2;
  EXPECT_EQ(seconds(known, false), seconds(request.profile, false));
  EXPECT_NEAR(seconds(known, true) / seconds(slowed, false), 1, 1e-9);
  EXPECT_GT(seconds(known, true), 1.0001 * seconds(known, false));
}

// By the same kernels: at the rate of the scores that are seen among documents, which a share of all scores hides.
TEST(Estimate, WindowsGoAtTheRateOfDocuments) {
  Request request = odd_on(1);
  const Layout layout = layout_of(request.run);
  for (LayerSpec& layer : request.model.layers) layer.attention.window = request.run.train.seq_len / 2;
  const auto seconds = [&](const PlatformProfile& profile) {
    return Estimator(request.model, request.run, profile, request.load, 1).simulated(layout).time.total();
  };
  PlatformProfile known = request.profile, slowed = request.profile;
  known.bf16.attention_forward_documents = known.bf16.attention_backward_documents = 2;
  for (RateTable* rates : {&slowed.bf16.attention_forward, &slowed.bf16.attention_backward})
    for (RatePoint& point : *rates) point.per_second /= 2;
  EXPECT_NEAR(seconds(known) / seconds(slowed), 1, 1e-9);
  EXPECT_GT(seconds(known), 1.0001 * seconds(request.profile));
}

}  // namespace
}  // namespace mw::test
