#include <cstdlib>
#include <numeric>
#include <vector>

#include "comm/comm.h"
#include "comm/cores.h"
#include "comm/world.h"
#include "formats/helpers.h"

namespace mw::test {
namespace {

TEST(SelfComm, IsAGroupOfOne) {
  const auto comm = make_self_comm();
  EXPECT_EQ(comm->rank(), 0);
  EXPECT_EQ(comm->size(), 1);
  comm->barrier();
  const auto child = comm->split(3, -5);
  EXPECT_EQ(child->rank(), 0);
  EXPECT_EQ(child->size(), 1);
}

TEST(SelfComm, ReductionsLeaveValues) {
  const auto comm = make_self_comm();
  std::vector<float> f = {1.5f, -2};
  std::vector<double> d = {0.1, 3};
  std::vector<int64_t> n = {INT64_MAX, -4};
  comm->all_reduce_sum(std::span(f));
  comm->all_reduce_sum(std::span(d));
  comm->all_reduce_max(std::span(d));
  comm->all_reduce_sum(std::span(n));
  comm->all_reduce_max(std::span(n));
  comm->all_reduce_sum(std::span<float>());
  EXPECT_EQ(f, (std::vector<float>{1.5f, -2}));
  EXPECT_EQ(d, (std::vector<double>{0.1, 3}));
  EXPECT_EQ(n, (std::vector<int64_t>{INT64_MAX, -4}));
}

TEST(SelfComm, Broadcasts) {
  const auto comm = make_self_comm();
  std::vector<int> values = {1, 2, 3};
  comm->broadcast(std::as_writable_bytes(std::span(values)), 0);
  EXPECT_EQ(values, (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(broadcast_text(*comm, "", 0), "");
  const std::string text("a\0b", 3);
  EXPECT_EQ(broadcast_text(*comm, text, 0), text);
}

TEST(SelfComm, ExchangesRowsAtTheirOffsets) {
  const auto comm = make_self_comm();
  std::vector<int32_t> send(20), receive(20, -1);
  std::iota(send.begin(), send.end(), 0);
  RowExchange exchange{send.data(), {3}, {2}, receive.data(), {3}, {5}, 8};  // rows of two
  auto pending = comm->all_to_all(exchange);
  pending->wait();
  pending->wait();  // twice is legal
  for (int i = 0; i < 20; ++i) EXPECT_EQ(receive[static_cast<size_t>(i)], i >= 10 && i < 16 ? i - 6 : -1) << i;
  const RowExchange nothing{nullptr, {0}, {0}, nullptr, {0}, {0}, 8};
  comm->all_to_all(nothing)->wait();
  comm->all_to_all(nothing);  // not waited for
}

// A process that sends to itself may do so inside one buffer.
TEST(SelfComm, ExchangeMayOverlap) {
  const auto comm = make_self_comm();
  std::vector<int32_t> rows = {0, 1, 2, 3, 4, 5};
  comm->all_to_all({rows.data(), {4}, {0}, rows.data(), {4}, {1}, 4})->wait();
  EXPECT_EQ(rows, (std::vector<int32_t>{0, 0, 1, 2, 3, 5}));
}

TEST(SelfComm, ScattersAndGathersItsOnePart) {
  const auto comm = make_self_comm();
  Stream stream(1);
  std::vector<float> values = {1, 2, 3};
  std::vector<int64_t> counts = {3}, bytes = {12};
  comm->reduce_scatter_sum(stream, values, counts)->wait();
  comm->all_gather(stream, std::as_writable_bytes(std::span(values)), bytes)->wait();
  EXPECT_EQ(values, (std::vector<float>{1, 2, 3}));
  counts = {0};
  comm->reduce_scatter_sum(stream, {}, counts)->wait();
  comm->all_gather(stream, {}, counts)->wait();
  error_of([&] { comm->reduce_scatter_sum(stream, values, counts); }, Exit::internal);
  counts = {4};
  error_of([&] { comm->reduce_scatter_sum(stream, values, counts); }, Exit::internal);
}

TEST(ForEachPart, TakesUnevenPartsAndEmptyOnes) {
  std::vector<int> values = {0, 1, 2, 3, 4};
  const std::vector<int64_t> counts = {0, 2, 0, 3, 0};
  std::vector<std::vector<int>> parts(5);
  for_each_part(std::span(values), counts, [&](std::span<int> part, int member) {
    parts[static_cast<size_t>(member)].assign(part.begin(), part.end());
  });
  EXPECT_EQ(parts, (std::vector<std::vector<int>>{{}, {0, 1}, {}, {2, 3, 4}, {}}));
}

TEST(MeshComms, OfOneRank) {
  const auto world = make_self_comm();
  const MeshComms comms = make_mesh_comms(*world, Mesh{});
  EXPECT_EQ(comms.dp->size(), 1);
  EXPECT_EQ(comms.ep->size(), 1);
  EXPECT_EQ(comms.edp->size(), 1);
  Mesh two;
  two.world = two.dp = two.ep = 2;
  error_of([&] { make_mesh_comms(*world, two); }, Exit::internal);
}

// A world of one that claims to share its node with others.
class CrowdedWorld : public World {
 public:
  Comm& comm() override { return *comm_; }
  std::string library() const override { return "test"; }
  NodePlace place() const override { return {4, 6}; }
  int nodes() const override { return 1; }
  JoinKey key() const override { return {}; }
  [[noreturn]] void abort(Exit) override { std::abort(); }

 private:
  std::unique_ptr<Comm> comm_ = make_self_comm();
};

// A GPU is taken by the place that the launcher gave, whatever the run file says of shares.
TEST(NodePlace, ComesFromTheLauncherAndTheRunFile) {
  const CrowdedWorld world;
  MeshSpec mesh;
  EXPECT_EQ(place_on_node(world, mesh).ranks, 6);
  EXPECT_EQ(place_on_node(world, mesh).rank, 4);
  mesh.ranks_per_node = 3;
  EXPECT_EQ(place_on_node(world, mesh).ranks, 3);
  EXPECT_EQ(place_on_node(world, mesh).nodes, (NodeMap{3, {}}));
  EXPECT_EQ(place_on_node(world, mesh).rank, 4);
  EXPECT_EQ(ranks_on_gpu(*make_self_comm(), {}), 0);
}

TEST(ThreadsPerRank, SharesTheCoresOfANode) {
  EXPECT_EQ(threads_per_rank(5, 1), 5);  // asked for
  EXPECT_EQ(threads_per_rank(5, 1000), 5);
  const int alone = threads_per_rank(0, 1);
  EXPECT_GE(alone, 1);
  EXPECT_GE(threads_per_rank(0, 0), 1);
  EXPECT_EQ(threads_per_rank(0, 1 << 20), threads_per_rank(0, 1 << 21));  // never below one
  EXPECT_GE(threads_per_rank(0, 1 << 20), 1);
  EXPECT_LE(threads_per_rank(0, 2), alone);
}

}  // namespace
}  // namespace mw::test
