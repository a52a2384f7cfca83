// What travels beside rows - choices, gate weights, gate gradients - starts together with them, and what needs no rows
// does not wait for them.
#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "moe/layer_helpers.h"
#include "support/thread_comm.h"

namespace mw::test {
namespace {

constexpr int kMembers = 3;
constexpr int64_t kChoices = 3;

LayerOptions options_for(const char* transport, int64_t chunks) {
  LayerOptions o;
  o.transport = transport;
  o.row_chunks = chunks;
  o.experts = kMembers * kChoices;
  o.top_k = kChoices;
  return o;
}

// One rank has no tokens.
int64_t tokens_of_member(int rank) { return rank == 1 ? 0 : 5 + rank; }

// All choices of a rank's tokens are the experts of the next rank.
std::vector<int32_t> ids_of_member(int rank) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < tokens_of_member(rank) * kChoices; ++i)
    ids.push_back(static_cast<int32_t>((rank + 1) % kMembers * kChoices + i % kChoices));
  return ids;
}

TEST(ExchangeStarts, AreOneForEachLegAndChunk) {
  for (const char* transport : {"flat", "halo", "bypass", "gather_tokens"})
    for (const int64_t chunks : {1, 3})
      for (const int ranks_per_node : {3, 2})
        run_ranks(kMembers, [&](Comm& world, Stream& stream) {
          LayerOptions o = options_for(transport, chunks);
          o.nodes.ranks_per_node = ranks_per_node;
          TestLayer layer(o, world, stream);
          layer.run(tokens_of_member(world.rank()), ids_of_member(world.rank()));
          const std::string name = transport;
          const int64_t legs = ranks_per_node == 2 && (name == "halo" || name == "bypass") ? 3 : 1;
          EXPECT_EQ(layer.comm().starts, 4 * legs * chunks) << name;
        });
}

// The events of one rank in one run of a layer.
class Events {
 public:
  explicit Events(const std::vector<TraceEvent>& all) : all_(all) {}
  // Of the first event of this label that does not begin before `after`, in ns.
  int64_t begin_of(const std::string& label, int64_t after = 0) const {
    constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
    int64_t first = kNever;
    for (const TraceEvent& event : all_)
      if (label == event.label && event.begin_ns >= after) first = std::min(first, event.begin_ns);
    EXPECT_LT(first, kNever) << label;
    return first;
  }
  bool encloses(const std::string& outer, const std::string& inner) const {
    for (const TraceEvent& a : all_)
      for (const TraceEvent& b : all_)
        if (outer == a.label && inner == b.label && a.begin_ns <= b.begin_ns && b.end_ns <= a.end_ns) return true;
    return false;
  }

 private:
  const std::vector<TraceEvent>& all_;
};

void check_events(const LayerOptions& o, const std::function<void(int, const Events&)>& check) {
  run_ranks(kMembers, [&](Comm& world, Stream& stream) {
    stream.trace().keep_events(true);
    TestLayer layer(o, world, stream);
    layer.run(tokens_of_member(world.rank()), ids_of_member(world.rank()));
    check(world.rank(), Events(stream.trace().events()));
  });
}

// A device packs the first rows while the host exchanges counts.
TEST(ExchangeStarts, FirstRowsArePackedBeforeCountsAreExchanged) {
  for (const char* transport : {"flat", "halo", "bypass"})
    for (const int64_t chunks : {1, 3})
      check_events(options_for(transport, chunks), [&](int rank, const Events& events) {
        if (tokens_of_member(rank) == 0) return;  // nothing to pack
        EXPECT_LT(events.begin_of("gather_rows"), events.begin_of("exchange_counts")) << transport;
        EXPECT_FALSE(events.encloses("dispatch", "exchange_counts")) << transport;
      });
}

// By way of the node: the order of units, and in a backward pass the gate weights by row.
TEST(ExchangeStarts, WhatNeedsNoRowsIsDoneBeforeTheyAreWaitedFor) {
  for (const char* transport : {"halo", "bypass"})
    for (const int64_t ranks_per_node : {3, 2}) {
      LayerOptions o = options_for(transport, 1);
      o.nodes.ranks_per_node = ranks_per_node;
      check_events(o, [&](int, const Events& events) {
        EXPECT_LT(events.begin_of("fill_index"), events.begin_of("exchange_wait")) << transport;
        const int64_t backward = events.begin_of("gradient_dispatch");
        EXPECT_LT(events.begin_of("scatter_values", backward), events.begin_of("exchange_wait", backward)) << transport;
      });
    }
}

// Of each token, one choice is an expert of its own rank.
TEST(ExchangeStarts, RowsForTheOwnExpertsStayByWayOfTheNode) {
  const int64_t row = TestLayer::kWidth * 4;
  for (const char* transport : {"flat", "halo", "bypass"})
    for (const int64_t ranks_per_node : {3, 2, 1})
      run_ranks(kMembers, [&](Comm& world, Stream& stream) {
        LayerOptions o = options_for(transport, 1);
        o.nodes.ranks_per_node = ranks_per_node;
        TestLayer layer(o, world, stream);
        std::vector<int32_t> ids = ids_of_member(world.rank());
        for (size_t i = 0; i < ids.size(); i += kChoices) ids[i] = static_cast<int32_t>(world.rank() * kChoices);
        layer.run(tokens_of_member(world.rank()), ids);
        const bool copies = std::string(transport) == "flat";
        EXPECT_EQ(layer.comm().own_rows(row), copies ? 4 * tokens_of_member(world.rank()) : 0) << transport;
      });
}

using Hop = std::pair<int, int>;  // from a rank to another

// The way of a source's rows to the experts. On two nodes rank 1 is the gateway of rank 2.
std::vector<Hop> hops_of(int source, const std::string& transport, int64_t ranks_per_node) {
  const int next = (source + 1) % kMembers, previous = (source + kMembers - 1) % kMembers;
  if (transport == "gather_tokens") return {{source, next}, {source, previous}};
  if (transport != "flat" && ranks_per_node == 2 && source == 2) return {{2, 1}, {1, 0}};
  return {{source, next}};
}

// Rows leave and return twice; choices and gate weights, in 4 bytes each, leave once, gate gradients return once.
TEST(ExchangeStarts, CountAllBytes) {
  const int64_t row = TestLayer::kWidth * 4;
  struct Sent {
    const char* transport;
    int64_t there, back;  // bytes of a token, over each hop
  };
  for (const Sent& sent : {Sent{"flat", kChoices * (2 * row + 4), kChoices * (2 * row + 4)},
                           Sent{"halo", kChoices * (2 * row + 8), kChoices * (2 * row + 4)},
                           Sent{"bypass", 2 * row + 8 * kChoices, 2 * row + 4 * kChoices},
                           Sent{"gather_tokens", 2 * row + 8 * kChoices, 2 * row + 4 * kChoices}})
    for (const int64_t chunks : {1, 3})
      for (const int64_t ranks_per_node : {3, 2})
        run_ranks(kMembers, [&](Comm& world, Stream& stream) {
          LayerOptions o = options_for(sent.transport, chunks);
          o.nodes.ranks_per_node = ranks_per_node;
          TestLayer layer(o, world, stream);
          const Trace::SentBytes before = stream.trace().sent_bytes();
          layer.run(tokens_of_member(world.rank()), ids_of_member(world.rank()));
          Trace::SentBytes expected;
          for (int source = 0; source < kMembers; ++source)
            for (const auto& [from, to] : hops_of(source, sent.transport, ranks_per_node)) {
              const int64_t bytes = from == world.rank() ? sent.there : to == world.rank() ? sent.back : 0;
              expected.all += tokens_of_member(source) * bytes;
              if (from / ranks_per_node != to / ranks_per_node) expected.far += tokens_of_member(source) * bytes;
            }
          const Trace::SentBytes after = stream.trace().sent_bytes();
          EXPECT_EQ(after.all - before.all, expected.all) << sent.transport << ' ' << ranks_per_node;
          EXPECT_EQ(after.far - before.far, expected.far) << sent.transport << ' ' << ranks_per_node;
        });
}

}  // namespace
}  // namespace mw::test
