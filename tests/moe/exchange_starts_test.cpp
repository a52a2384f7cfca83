// What travels beside rows - choices, gate weights, gate gradients - starts together with them.
#include <limits>

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

// A device packs the first rows while the host exchanges counts.
TEST(ExchangeStarts, ComeAfterCountsThatTravelWhileRowsArePacked) {
  for (const char* transport : {"flat", "halo", "bypass"})
    for (const int64_t chunks : {1, 3})
      run_ranks(kMembers, [&](Comm& world, Stream& stream) {
        stream.trace().keep_events(true);
        TestLayer layer(options_for(transport, chunks), world, stream);
        layer.run(tokens_of_member(world.rank()), ids_of_member(world.rank()));
        const auto begin_of = [&](const std::string& label) {
          int64_t first = std::numeric_limits<int64_t>::max();
          for (const TraceEvent& event : stream.trace().events())
            if (label == event.label) first = std::min(first, event.begin_ns);
          return first;
        };
        EXPECT_LT(begin_of("gather_rows"), begin_of("exchange_counts")) << transport;
        EXPECT_LT(begin_of("exchange_counts"), begin_of("exchange_wait")) << transport;
      });
}

// Rows leave and return twice; choices and gate weights, in 4 bytes each, leave once, gate gradients return once.
TEST(ExchangeStarts, CountAllBytes) {
  const int64_t row = TestLayer::kWidth * 4;
  struct Sent {
    const char* transport;
    int64_t there, back;  // bytes of a token
  };
  for (const Sent& sent : {Sent{"flat", kChoices * (2 * row + 4), kChoices * (2 * row + 4)},
                           Sent{"halo", kChoices * (2 * row + 8), kChoices * (2 * row + 4)},
                           Sent{"bypass", 2 * row + 8 * kChoices, 2 * row + 4 * kChoices}})
    for (const int64_t chunks : {1, 3})
      run_ranks(kMembers, [&](Comm& world, Stream& stream) {
        TestLayer layer(options_for(sent.transport, chunks), world, stream);
        const Trace::SentBytes before = stream.trace().sent_bytes();
        layer.run(tokens_of_member(world.rank()), ids_of_member(world.rank()));
        const int64_t own = tokens_of_member(world.rank()),
                      of_previous = tokens_of_member((world.rank() + kMembers - 1) % kMembers);
        EXPECT_EQ(stream.trace().sent_bytes().all - before.all, own * sent.there + of_previous * sent.back)
            << sent.transport;
      });
}

}  // namespace
}  // namespace mw::test
