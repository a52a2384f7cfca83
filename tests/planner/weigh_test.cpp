#include "planner/weigh.h"

#include <fmt/format.h>

#include <map>

#include "planner/helpers.h"

namespace mw::test {
namespace {

// What is left out does not fit, and the rest weighs what it weighs alone.
void expect_all_that_fit(const Request& request) {
  const std::vector<Layout> layouts = layouts_of(request);
  std::map<std::string, Weighed> weighed;
  for (const Weighed& one : weigh(request, layouts)) weighed.emplace(describe(one.layout), one);
  EXPECT_LT(weighed.size(), layouts.size());
  Estimator estimator(request.model, request.run, request.profile, request.load, request.ranks);
  int64_t fitting = 0;
  for (const Layout& layout : layouts) {
    const Estimate alone = estimator.closed_form(layout);
    const auto found = weighed.find(describe(layout));
    if (fit_of(request, alone.needed) == MemoryFit::with_margin) ++fitting;
    if (found == weighed.end()) {
      EXPECT_EQ(fit_of(request, alone.needed), MemoryFit::none) << describe(layout);
      continue;
    }
    EXPECT_EQ(found->second.needed, alone.needed) << describe(layout);
    EXPECT_EQ(found->second.seconds, alone.time.total()) << describe(layout);
  }
  EXPECT_GT(fitting, 0);
  bool fits = false;
  weigh(request, layouts, &fits);
  EXPECT_TRUE(fits);
}

Request of_model(const char* name, int ranks, int64_t batch, const char* profile, double gibibytes) {
  Request request;
  request.model = config_model(name);
  request.run.train.seq_len = 4096;
  request.run.train.global_batch = batch;
  request.profile = shipped_profile(profile);
  request.profile.memory_bytes = static_cast<int64_t>(gibibytes * 0x1p30);
  request.ranks = ranks;
  return request;
}

TEST(Weigh, LeavesOutOnlyWhatDoesNotFit) {
  for (const double gibibytes : {45.0, 80.0})
    expect_all_that_fit(of_model("qwen3-30b-a3b", 16, 48, "h200x8", gibibytes));
  expect_all_that_fit(of_model("deepseek-v2-lite", 8, 32, "h200x8", 48));
}

TEST(Weigh, LeavesOutOnlyWhatDoesNotFitWithUnequalShares) {
  Request request = of_model("deepseek-v2-lite", 8, 36, "h200x8", 60);
  request.run.mesh.shares = "2,1";
  expect_all_that_fit(request);
}

TEST(Weigh, FindsThatNothingFits) {
  const Request request = of_model("qwen3-30b-a3b", 8, 16, "h200x8", 2);
  bool fits = true;
  const std::vector<Layout> layouts = layouts_of(request);
  EXPECT_LT(weigh(request, layouts, &fits).size(), layouts.size() / 4);
  EXPECT_FALSE(fits);
}

TEST(Weigh, ComparesMemoryOfLayoutsThatDifferInNothingElse) {
  const auto layout = [](const std::string& text) { return parse_layout(text, {}); };
  const Layout less = layout("pp=2 ep=4 zero=1 micro_batches=8 recompute=moe");
  EXPECT_TRUE(needs_no_less(less, less));
  for (const char* more : {"zero=0", "micro_batches=4", "recompute=none", "zero=0 micro_batches=1 recompute=none"})
    EXPECT_TRUE(needs_no_less(parse_layout(more, less), less)) << more;
  for (const char* other : {"micro_batches=16", "recompute=full", "recompute=selective", "pp=4", "ep=2", "tp=2",
                            "schedule=gpipe", "placement=dp_first", "micro_batches=4 recompute=full"})
    EXPECT_FALSE(needs_no_less(parse_layout(other, less), less)) << other;
}

}  // namespace
}  // namespace mw::test
