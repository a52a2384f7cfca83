// The rank with most memory, which a plan names, is the one of all ranks' tables of bytes that has most.
#include <random>

#include "planner/estimate.h"
#include "planner/helpers.h"

namespace mw::test {
namespace {

// Under even loads rows fit into what is committed at the start.
int64_t needed_of(const ByteSummary& table) { return table.fixed + table.routed_committed; }

// tolerance: ZeRO's cuts are rounded, relative to all memory.
void expect_largest(Request request, const char* text, double tolerance = 0) {
  request.load = ExpertLoad{1e9};
  const Layout layout = parse_layout(text, {});
  check_layout(request, layout);
  Estimator estimator(request.model, request.run, request.profile, request.load, request.ranks);
  const Platform platform = platform_of(request.profile, request.run);
  int64_t most = 0;
  for (int rank = 0; rank < request.ranks; ++rank)
    most = std::max(most, needed_of(summarise(all_rows(make_plan(request.model, with_layout(request.run, layout),
                                                                 request.ranks, rank, platform)))));
  int64_t planned = 0;
  for (const RankMemory& rank : estimator.closed_form(layout).memory)
    planned = std::max(planned, needed_of(rank.table));
  EXPECT_NEAR(static_cast<double>(planned), static_cast<double>(most), tolerance * static_cast<double>(most))
      << text << ", mesh.shares = " << request.run.mesh.shares
      << ", mesh.expert_shares = " << request.run.mesh.expert_shares << ", " << request.run.moe.transport
      << ", ranks_per_node = " << request.run.mesh.ranks_per_node;
}

Request with_shares(int ranks, const char* shares, const char* transport) {
  Request request = odd_on(ranks);
  request.run.mesh.shares = shares;
  request.run.moe.transport = transport;
  return request;
}

// The rank with most samples is in the EP group with fewer, and the other way round.
TEST(LargestRank, HasMostWhereSharesDiffer) {
  for (const char* transport : {"flat", "padded"})
    for (const char* shares : {"5,1,4,4", "1,5,4,4", "1,1,1,6", "3,3,3,3"})
      for (const char* layout : {"ep=2", "ep=2 placement=dp_first", "ep=4 micro_batches=2", "ep=2 micro_batches=3"})
        expect_largest(with_shares(4, shares, transport), layout);
  for (const char* shares : {"5,1,4,4", "1,6,1,1"})
    expect_largest(with_shares(8, shares, "flat"), "tp=2 ep=4 micro_batches=2");
}

// Where a group's nodes have different numbers of its ranks, those of smaller nodes are gateways of more.
TEST(LargestRank, IsAGatewayOfMostWhereNodesDiffer) {
  for (const char* transport : {"halo", "bypass"})
    for (const int64_t ranks_per_node : {2, 3, 4, 5, 8})
      for (const char* layout : {"ep=8", "ep=4 placement=dp_first", "ep=4", "ep=2 tp=2"}) {
        Request request = odd_on(8);
        request.run.mesh.ranks_per_node = ranks_per_node;
        request.run.moe.transport = transport;
        expect_largest(request, layout);
      }
}

// The rank with the larger shard of heads is another one than the first with most experts.
TEST(LargestRank, HasMostOfShardsAndExperts) {
  Request request = odd_on(6);
  NativeModel n;
  n.vocab = n.width = 256;
  n.heads = n.kv_heads = 4;
  n.head_dim = 256;
  n.experts = 4;
  n.top_k = 2;
  n.expert_width = 32;
  n.layers = 6;
  request.model = build_native_model(n);
  request.run.moe.transport = "flat";
  for (const char* shares : {"1,3", "3,1"}) {
    request.run.mesh.expert_shares = shares;
    for (const char* layout : {"tp=3 ep=2", "tp=3 ep=2 placement=dp_first", "tp=2 ep=2"})
      expect_largest(request, layout);
  }
  request.run.mesh.expert_shares.clear();
  request.run.moe.transport = "gather_tokens";
  request.run.mesh.width_shares = "1,2,3";
  expect_largest(request, "tp=3 ep=3 placement=dp_first");
}

// Samples, experts, shards, nodes and stages that all differ at once: drawn ones, and those that were wrong before.
TEST(LargestRank, HasMostOfAllTogether) {
  const auto expect_of = [](int ranks, const char* layout, const char* transport, const char* shares,
                            const char* experts, int64_t ranks_per_node) {
    Request request = with_shares(ranks, shares, transport);
    request.run.mesh.expert_shares = experts;
    request.run.mesh.ranks_per_node = ranks_per_node;
    expect_largest(request, layout);
  };
  expect_of(4, "tp=2 ep=2 micro_batches=2", "halo", "1,4", "1,3", 2);
  expect_of(8, "pp=2 tp=2 ep=2 micro_batches=2", "flat", "1,6", "1,2", 0);
  expect_of(12, "tp=2 ep=3", "flat", "2,2,5,2,6,2", "", 0);
  expect_of(8, "tp=2 ep=8 placement=dp_first", "flat", "2,6,6,2", "3,3,1,2,2,1,1,3", 0);
  expect_of(4, "ep=4", "flat", "5,5,3,5", "1,1,3,3", 0);
  expect_of(8, "ep=8", "halo", "1,2,3,1,2,3,1,2", "3,1,2,1,3,2,1,1", 3);
  expect_of(6, "pp=2 ep=3 micro_batches=8", "halo", "", "", 2);
  expect_of(8, "pp=2 ep=4 micro_batches=4", "bypass", "", "", 5);
  // Nodes with more experts than that of the rank with most; stages that nodes cut in another way.
  expect_of(4, "ep=4 placement=dp_first", "bypass", "", "4,6,6,6", 2);
  expect_of(16, "pp=2 tp=2 ep=4 micro_batches=4 placement=dp_first", "halo", "", "2,6,4,6", 2);
  expect_of(8, "pp=2 tp=1 ep=4 micro_batches=4", "bypass", "5,4,4,4", "5,1,5,2", 2);
  expect_of(8, "pp=2 tp=2 ep=2 micro_batches=4", "halo", "", "", 5);
  expect_of(8, "pp=2 tp=2 ep=2 micro_batches=4", "bypass", "", "2,4", 5);
  std::mt19937_64 random(11);
  const auto draw = [&](uint64_t below) { return static_cast<int64_t>(random() % below); };
  const auto list = [&](int64_t count) {
    std::string text;
    for (int64_t i = 0; i < count; ++i) text += fmt::format("{}{}", i > 0 ? "," : "", 1 + draw(6));
    return text;
  };
  for (int i = 0; i < 300; ++i) {
    const int64_t tp = 1 + draw(2), dp = 2 << draw(2), pp = 1 + draw(2), stage = tp * dp;
    const int64_t ep = std::min<int64_t>(int64_t{2} << draw(3), stage);
    const std::string layout =
        fmt::format("pp={} tp={} ep={} micro_batches=4{}", pp, tp, ep, draw(2) == 0 ? " placement=dp_first" : "");
    const char* transports[] = {"flat", "padded", "halo", "bypass"};
    expect_of(static_cast<int>(pp * stage), layout.c_str(), transports[draw(4)], draw(2) == 0 ? "" : list(dp).c_str(),
              draw(2) == 0 ? "" : list(ep).c_str(), 1 + draw(6));
  }
}

// ZeRO's first cut is the embedding, whose master weights stay whole; other ranks with as many experts cut matrices.
TEST(LargestRank, CutsMatricesWhereExpertsDiffer) {
  Request request = odd_on(8);
  request.model = config_model("qwen1.5-moe-a2.7b");
  request.profile = shipped_profile("h200x8");
  request.run.moe.transport = "flat";
  request.run.expert_gradients = DType::bf16;
  request.run.train.seq_len = 4096;
  request.run.train.global_batch = 8;
  expect_largest(request, "ep=8 zero=1 recompute=full", 0.001);
}

}  // namespace
}  // namespace mw::test
