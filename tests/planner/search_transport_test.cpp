// The search's choice of a transport, where the run leaves it open.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>

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

// Of the layouts that fit and that `counts` admits.
template <class Counts>
Layout fastest_of(const Request& request, const Counts& counts) {
  const SearchResult found = search(request);
  const Weighed* fastest = nullptr;
  for (const Weighed& weighed : found.weighed)
    if (fit_of(request, weighed.needed) == MemoryFit::with_margin && counts(weighed.layout) &&
        (fastest == nullptr || weighed.seconds < fastest->seconds))
      fastest = &weighed;
  return fastest == nullptr ? Layout{} : fastest->layout;
}

TEST(SearchTransport, TriesThoseByNodeWhereGroupsFillNodesAndBypassOnOne) {
  std::map<std::string, int64_t> tried;
  for (const Layout& layout : layouts_of(qwen_on_slow_nodes("auto"))) {
    ++tried[layout.transport];
    const int64_t ranks =
        int64_t{layout.ep} *
        (layout.placement == RankPlacement::ep_first ? 1 : 32 / layout.pp / layout.ep);  // that it spans
    const bool on_nodes = ranks > 8 && ranks % 8 == 0, on_one = ranks <= 8;
    EXPECT_TRUE(layout.transport != "halo" || on_nodes) << describe(layout);
    EXPECT_TRUE(layout.transport != "bypass" || on_nodes || on_one) << describe(layout);
    EXPECT_TRUE(layout.ep > 1 || layout.transport.empty()) << describe(layout);
  }
  EXPECT_EQ(tried.size(), 5U);  // the run's, halo, bypass, gather_weights, gather_tokens
  EXPECT_GT(tried["halo"], 50);
  EXPECT_GT(tried["bypass"], tried["halo"]);
  EXPECT_GT(tried["gather_weights"], tried["halo"]);
  EXPECT_GT(tried["gather_tokens"], tried["halo"]);
}

// Rows of a rank's four experts can be counted where all eight choices of merged rows cannot.
TEST(SearchTransport, TriesThoseWhoseRowsCanBeCounted) {
  Request request = qwen_on_slow_nodes("auto");
  request.run.train.seq_len = 1 << 20;
  const Layout layout = parse_layout("ep=32 micro_batches=1", {});
  const auto count = [&](int64_t samples_of_rank, const std::string& name) {
    request.run.train.global_batch = 32 * samples_of_rank;
    const std::vector<Layout> layouts = layouts_of(request);
    const auto matches = [&](const Layout& found) {
      return found.ep == 32 && found.pp == 1 && found.tp == 1 && found.micro_batches == 1 && found.transport == name;
    };
    EXPECT_EQ(holds_rows(request, layout, name), std::any_of(layouts.begin(), layouts.end(), matches)) << name;
    return std::count_if(layouts.begin(), layouts.end(), matches);
  };
  EXPECT_GT(count(7, "halo"), 0);
  EXPECT_GT(count(8, "halo"), 0);
  EXPECT_GT(count(7, "bypass"), 0);
  EXPECT_EQ(count(8, "bypass"), 0);
}

// Two chunks of bypass hold two sets of tokens, and both add to the gradients of all experts. Two chunks of flat have
// experts of their own.
TEST(SearchTransport, ChargesChunksOfTokensForTheirProducts) {
  Request request = qwen_on_slow_nodes("auto");
  request.profile = shipped_profile("h200x8");
  request.ranks = 16;
  const auto time_of = [&](const std::string& words, int64_t row_chunks) {
    request.run.moe.row_chunks = row_chunks;
    Estimator estimator(request.model, request.run, request.profile, request.load, request.ranks);
    return estimator.simulated(parse_layout("micro_batches=4 recompute=moe " + words, {})).time;
  };
  // How much longer the second chunk makes compute; what overlaps with exchanges takes longer in either case.
  const auto added = [&](const std::string& words) {
    EXPECT_GT(time_of(words, 1).exchange, time_of(words, 2).exchange) << words;
    return time_of(words, 2).compute / time_of(words, 1).compute - 1;
  };
  EXPECT_GT(added("ep=2 transport=bypass"), 1.5 * added("ep=2 transport=flat"));
  EXPECT_GT(added("ep=8 transport=bypass"), 1.5 * added("ep=8 transport=flat"));
  EXPECT_EQ(time_of("ep=2 transport=bypass", 0).total(), time_of("ep=2 transport=bypass", 1).total());
  EXPECT_EQ(time_of("ep=8 transport=bypass", 0).total(), time_of("ep=8 transport=bypass", 2).total());
}

// Hexa-MoE's data-centric mode: large micro-batches of many choices, so that rows weigh more than weights.
TEST(SearchTransport, ChoosesGatheredWeightsForLargeMicroBatches) {
  Request request = qwen_on_slow_nodes("auto");
  request.profile = shipped_profile("h200x8");
  request.ranks = 8;
  const auto fastest_with = [&](int64_t micro_batches) {
    return fastest_of(request,
                      [&](const Layout& layout) {
                        return layout.pp == 1 && layout.ep == 8 && layout.micro_batches == micro_batches;
                      })
        .transport;
  };
  // Rows have more bytes than weights and their gradients from (c + 1) E F / K = 36,864 tokens of a rank on.
  EXPECT_EQ(fastest_with(1), "gather_weights");  // 32,768 tokens: what attention hides is free
  EXPECT_EQ(fastest_with(4), "bypass");
  request.run.expert_gradients = DType::bf16;
  for (const Layout& layout : layouts_of(request)) EXPECT_NE(layout.transport, "gather_weights");
}

TEST(SearchTransport, KeepsToTheOneOfTheRun) {
  for (const char* transport : {"flat", "bypass", "gather_weights"})
    for (const Layout& layout : layouts_of(qwen_on_slow_nodes(transport))) EXPECT_EQ(layout.transport, "");
}

TEST(SearchTransport, ChoosesBypassOverSlowLinks) {
  const Layout best = fastest_of(qwen_on_slow_nodes("auto"), [](const Layout& layout) { return layout.ep > 8; });
  EXPECT_EQ(best.transport, "bypass") << describe(best);
}

// There the gateway of a row is its expert's rank, and the fullest one gets as many rows as with flat; the choices that
// travel with them are small.
TEST(SearchTransport, TakesHaloForFlatWhereMembersAreAloneOnTheirNodes) {
  Request request = qwen_on_slow_nodes("auto");
  request.run.moe.row_chunks = 1;  // chunks of halo hold tokens, chunks of flat hold experts
  Layout layout = parse_layout("ep=4 placement=dp_first micro_batches=2 recompute=moe transport=halo", {});
  Estimator estimator(request.model, request.run, request.profile, request.load, request.ranks);
  const double halo = estimator.simulated(layout).time.exchange;
  layout.transport = "flat";
  EXPECT_NEAR(halo, estimator.simulated(layout).time.exchange, 0.02 * halo);
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

// A run with mesh.expert_shares needs a layer whose rows travel to the experts.
TEST(SearchTransport, DividesExpertsInEveryLayoutWhereTheyHaveShares) {
  Request request;
  request.model = odd_model();
  request.run = small_run();
  request.run.train.global_batch = 4;
  request.profile = shipped_profile("h200x8");
  request.ranks = 4;
  for (const char* shares : {"3,1", kMeasuredShares}) {
    request.run.mesh.expert_shares = shares;
    const std::vector<Layout> layouts = layouts_of(request);
    EXPECT_TRUE(std::any_of(layouts.begin(), layouts.end(), [](const Layout& l) { return l.transport == "bypass"; }));
    for (const Layout& layout : layouts) EXPECT_NO_THROW(check_layout(request, layout)) << describe(layout);
    EXPECT_NO_THROW(search(request));
  }
}

// Shares that no size of EP has are refused by their number: mesh.ep is not the user's to set in a search.
TEST(SearchTransport, SaysThatNoGroupHasAsManyRanksAsAreListed) {
  Request request;
  request.model = odd_model();
  request.run = small_run();
  request.profile = shipped_profile("h200x8");
  const auto refusal = [&](int ranks, const char* experts, const char* widths) {
    request.ranks = ranks;
    request.run.mesh.expert_shares = experts;
    request.run.mesh.width_shares = widths;
    try {
      search(request);
    } catch (const Error& error) {
      return std::string(error.what()) + " hint: " + error.hint();
    }
    return std::string("none");
  };
  for (const int ranks : {1, 4}) {
    const std::string expected = fmt::format("no layout of {} ranks has expert-parallel groups of 3 ranks", ranks);
    EXPECT_NE(refusal(ranks, "2,3,2", "").find(expected + ", as mesh.expert_shares"), std::string::npos)
        << refusal(ranks, "2,3,2", "");
    EXPECT_NE(refusal(ranks, "", "2,3,2").find(expected + ", as mesh.width_shares"), std::string::npos)
        << refusal(ranks, "", "2,3,2");
    EXPECT_NE(refusal(ranks, "2,3,2", "").find("hint: set --ranks"), std::string::npos);
  }
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
