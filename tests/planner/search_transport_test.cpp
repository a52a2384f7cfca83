// The search's choice of a transport, where the run leaves it open.
#include <algorithm>

#include "planner/helpers.h"
#include "planner/search.h"

namespace mw::test {
namespace {

// Nodes of 8 ranks, whose links to other nodes are slow.
Request qwen_on_slow_nodes(const std::string& transport) {
  Request request;
  request.model = config_model("qwen3-30b-a3b");
  request.run.train.seq_len = 4096;
  request.run.train.global_batch = 64;
  request.run.moe.transport = transport;
  request.profile = shipped_profile("frontier");
  request.ranks = 32;
  return request;
}

TEST(SearchTransport, TriesThoseByNodeWhereGroupsFillNodes) {
  int64_t named = 0;
  for (const Layout& layout : layouts_of(qwen_on_slow_nodes("auto"))) {
    if (layout.transport.empty()) continue;
    ++named;
    EXPECT_TRUE(layout.transport == "halo" || layout.transport == "bypass") << describe(layout);
    const int64_t ranks =
        int64_t{layout.ep} *
        (layout.placement == RankPlacement::ep_first ? 1 : 32 / layout.pp / layout.ep);  // that it spans
    EXPECT_GT(ranks, 8) << describe(layout);
    EXPECT_EQ(ranks % 8, 0) << describe(layout);
  }
  EXPECT_GT(named, 100);
}

TEST(SearchTransport, KeepsToTheOneOfTheRun) {
  for (const char* transport : {"flat", "bypass", "gather_weights"})
    for (const Layout& layout : layouts_of(qwen_on_slow_nodes(transport))) EXPECT_EQ(layout.transport, "");
}

TEST(SearchTransport, ChoosesBypassOverSlowLinks) {
  const Request request = qwen_on_slow_nodes("auto");
  const SearchResult found = search(request);
  ASSERT_FALSE(found.best.empty());
  const auto over_nodes = [](const Estimate& e) { return e.layout.ep > 8; };
  const auto best = std::find_if(found.best.begin(), found.best.end(), over_nodes);
  ASSERT_NE(best, found.best.end());
  EXPECT_EQ(best->layout.transport, "bypass") << describe(best->layout);
}

// A rank then needs room for gathered weights and their gradients, and none for the rows of others.
TEST(SearchTransport, WeighsGatheredWeightsWhereAsked) {
  const Request request = qwen_on_slow_nodes("auto");
  Layout layout = parse_layout("ep=8 micro_batches=2 recompute=moe transport=gather_weights", {});
  Estimator estimator(request.model, request.run, request.profile, request.load, request.ranks);
  const Estimate gathered = estimator.simulated(layout);
  layout.transport = "flat";
  const Estimate flat = estimator.simulated(layout);
  EXPECT_GT(gathered.time.exchange, 0);
  const auto exchange = static_cast<size_t>(ByteKind::exchange);
  EXPECT_EQ(gathered.memory.front().table.routed_max, 0);
  EXPECT_GT(gathered.memory.front().table.by_kind[exchange], flat.memory.front().table.by_kind[exchange]);
}

TEST(SearchTransport, RefusesGatheredWeightsWithGradientsInBf16) {
  Request request = qwen_on_slow_nodes("gather_weights");
  request.run.train.dtype = DType::bf16;
  request.run.expert_gradients = DType::bf16;
  EXPECT_THROW(layouts_of(request), Error);
}

// A layout that names its transport is estimated as a run with that transport, and its words are read back.
TEST(SearchTransport, IsEstimatedAsARunWithIt) {
  const Request open = qwen_on_slow_nodes("auto"), set = qwen_on_slow_nodes("bypass");
  Layout layout = parse_layout("pp=2 ep=16 micro_batches=4 recompute=moe transport=bypass", {});
  EXPECT_EQ(parse_layout(describe(layout), {}), layout);
  EXPECT_EQ(with_layout(open.run, layout).moe.transport, "bypass");
  Estimator of_open(open.model, open.run, open.profile, open.load, open.ranks);
  Estimator of_set(set.model, set.run, set.profile, set.load, set.ranks);
  const Estimate named = of_open.simulated(layout);
  layout.transport.clear();
  const Estimate by_key = of_set.simulated(layout), flat = of_open.simulated(layout);
  EXPECT_EQ(named.time.total(), by_key.time.total());
  EXPECT_EQ(named.needed, by_key.needed);
  EXPECT_LT(named.time.exchange, flat.time.exchange);
}

}  // namespace
}  // namespace mw::test
