// gather_weights beside layers that hold all experts: each rank computes its own tokens, so that outputs and gradients
// of its tokens have the same bits, and those of an expert are the sum over ranks.
#include "formats/helpers.h"
#include "moe/layer_helpers.h"
#include "moe/transports/transport_gather_weights.h"
#include "support/thread_comm.h"

namespace mw::test {
namespace {

using Outcome = TestLayer::Outcome;

ExpertPlacement scattered(int64_t experts, int ranks, int used) {
  ExpertPlacement placement;
  placement.ep = ranks;
  std::vector<int> slots(static_cast<size_t>(ranks));
  for (int64_t e = 0; e < experts; ++e) {
    const auto rank = static_cast<int>(e * e % used);
    placement.homes.push_back({ExpertHome{rank, slots[static_cast<size_t>(rank)]++}});
  }
  return placement;
}

// Tokens of each rank; the second has none.
int64_t tokens_of(int rank) { return rank == 1 ? 0 : 12 + 4 * rank; }

// One expert's part of a gradient of all of these experts.
std::span<const float> expert_part(const std::vector<float>& all, size_t index, size_t experts) {
  const size_t size = all.size() / experts;
  return std::span(all).subspan(index * size, size);
}

void compare(const LayerOptions& options, int ranks, const std::string& what) {
  std::vector<Outcome> alone(static_cast<size_t>(ranks)), got(static_cast<size_t>(ranks));
  std::vector<std::vector<int>> held(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](Comm& world, Stream& stream) {
    const auto rank = static_cast<size_t>(world.rank());
    const LayerInput input =
        TestLayer::random_input(100, options.dtype).slice(10 * world.rank(), tokens_of(world.rank()));
    LayerOptions o = options;
    o.transport = "in_place";
    o.prefetch = false;
    alone[rank] = TestLayer(o).run(input);
    o = options;
    TestLayer layer(o, world, stream);
    layer.run(input);  // a second pass finds what the first one left
    got[rank] = layer.run(input);
    held[rank] =
        (o.placement.homes.empty() ? make_block_placement(o.experts, ranks) : o.placement).experts_of(world.rank());
  });
  const auto experts = static_cast<size_t>(options.experts);
  for (size_t r = 0; r < got.size(); ++r) {
    EXPECT_EQ(got[r].rows, alone[r].rows) << what;
    EXPECT_EQ(got[r].out, alone[r].out) << what;
    EXPECT_EQ(got[r].d_x, alone[r].d_x) << what;
    EXPECT_EQ(got[r].gradients.at("router"), alone[r].gradients.at("router")) << what;
    EXPECT_EQ(got[r].statistics.counts, alone[r].statistics.counts) << what;
    EXPECT_EQ(got[r].statistics.dropped, alone[r].statistics.dropped) << what;
    for (const char* name : {"up", "down"})
      for (size_t slot = 0; slot < held[r].size(); ++slot) {
        const auto own = expert_part(got[r].gradients.at(name), slot, held[r].size());
        std::vector<float> sum(own.size());
        for (const Outcome& of : alone) {
          const auto part = expert_part(of.gradients.at(name), static_cast<size_t>(held[r][slot]), experts);
          for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
        }
        EXPECT_TRUE(std::equal(own.begin(), own.end(), sum.begin()))
            << what << ": gradient of " << name << " of expert " << held[r][slot];
      }
  }
}

LayerOptions gathering(int64_t chunks) {
  LayerOptions o;
  o.transport = "gather_weights";
  o.row_chunks = chunks;
  o.seq_len = 4;
  return o;
}

TEST(GatherWeights, GivesTheBitsOfResidentExperts) {
  for (const int ranks : {1, 2, 3, 4})
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const int64_t chunks : {1, 2, 3, 50}) {
        LayerOptions o = gathering(chunks);
        o.dtype = dtype;
        o.prefetch = chunks != 2;
        compare(o, ranks, fmt::format("{} ranks, {}, {} chunks", ranks, name_of(dtype), chunks));
      }
}

TEST(GatherWeights, GivesTheBitsOfResidentExpertsWithAnyNumberOfSlots) {
  for (const int64_t slots : {1, 2, 3, 4, 0})
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const int64_t chunks : {1, 3})
        for (const bool hidden : {false, true}) {
          LayerOptions o = gathering(chunks);
          o.dtype = dtype;
          o.weight_slots = slots;
          o.moe.recompute.hidden = hidden;
          o.prefetch = !hidden;
          compare(o, 3, fmt::format("{} slots, {}, {} chunks, recompute {}", slots, name_of(dtype), chunks, hidden));
        }
}

TEST(GatherWeights, GivesTheBitsOfResidentExpertsWhateverIsKept) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const MoeRecompute& recompute :
         {MoeRecompute{false, false, true}, MoeRecompute{false, true, true}, MoeRecompute{true, true, true}})
      for (const int64_t chunks : {1, 3}) {
        LayerOptions o = gathering(chunks);
        o.dtype = dtype;
        o.moe.recompute = recompute;
        o.prefetch = chunks == 3;
        compare(o, 3,
                fmt::format("{}, {} chunks, recompute {}{}", name_of(dtype), chunks, recompute.logits,
                            recompute.dispatched));
      }
}

TEST(GatherWeights, GivesTheBitsOfResidentExpertsWhereverTheyAre) {
  for (const int used : {2, 3})
    for (const bool defer_up : {false, true})
      for (const double capacity : {0.0, 1.0})
        for (const int64_t chunks : {1, 3}) {
          LayerOptions o = gathering(chunks);
          o.placement = scattered(o.experts, 3, used);
          o.moe.defer_up = defer_up;
          o.moe.capacity_factor = capacity;
          o.activation = defer_up ? Activation::gelu : Activation::swiglu;
          o.shared_width = capacity > 0 ? 0 : 20;
          compare(o, 3,
                  fmt::format("{} of 3 ranks with experts, {} chunks, deferred {}, capacity {}", used, chunks, defer_up,
                              capacity));
        }
}

// Whenever a piece is gathered, the weights of a rank's experts in it go to all others; of their gradients what others
// own goes to those.
TEST(GatherWeights, SendsWhatItsClosedFormSays) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool hidden : {false, true})
      for (const auto& [chunks, slots] : {std::pair<int64_t, int64_t>{1, 1}, {3, 2}, {3, 0}})
        run_ranks(3, [&, chunks = chunks, slots = slots](Comm& world, Stream& stream) {
          LayerOptions o = gathering(chunks);
          o.dtype = dtype;
          o.moe.recompute.hidden = hidden;
          o.weight_slots = slots;
          o.nodes.ranks_per_node = 2;
          TestLayer layer(o, world, stream);
          const Trace::SentBytes before = stream.trace().sent_bytes();
          layer.run(tokens_of(world.rank()));
          const Trace::SentBytes after = stream.trace().sent_bytes();
          const ExpertForms& forms = layer.gather().forms;
          const int64_t own = world.rank() == 0 ? 3 : 2, others = 7 - own,
                        matrices = (halves_of(o.activation) + 1) * TestLayer::kWidth * TestLayer::kExpertWidth;
          int64_t gathered = 0;
          for (const WeightUse& use : layer.weight_uses())
            if (use.gathers)
              gathered += 2 * layer.gather().counts[static_cast<size_t>(use.piece)][static_cast<size_t>(world.rank())] *
                          (use.backward ? forms.backward_bytes() : forms.forward_bytes());
          const bool hits = dtype == DType::f32 && (slots == 0 || chunks == 1);  // all that backward reads
          if (hits || (dtype == DType::bf16 && slots != 2)) {
            EXPECT_EQ(gathered, 2 * own * (forms.forward_bytes() + (hits ? 0 : forms.backward_bytes())));
          }
          const int64_t reduced = others * matrices * 4;
          EXPECT_EQ(layer.comm().gathered_bytes, gathered);
          EXPECT_EQ(layer.comm().reduced_bytes, reduced);
          EXPECT_EQ(after.all - before.all, gathered + reduced);
          // The third rank is alone on its node and has two experts.
          const int64_t far = world.rank() == 2 ? gathered + reduced : gathered / 2 + 2 * matrices * 4;
          EXPECT_EQ(after.far - before.far, far);
          EXPECT_EQ(forms.forward_bytes() == matrices * 4, dtype == DType::f32);
          EXPECT_EQ(forms.backward_bytes() > forms.forward_bytes(), dtype == DType::bf16 && hidden);
        });
}

TEST(GatherWeights, AddsToGradientsWhereAStepHasSeveralMicroBatches) {
  run_ranks(2, [&](Comm& world, Stream& stream) {
    LayerOptions o = gathering(2);
    const Outcome of_one = TestLayer(o, world, stream).run(12);
    o.micro_batches = 2;
    o.weight_slots = 0;
    const Outcome of_two = TestLayer(o, world, stream).run(12);
    for (const char* name : {"up", "down"})
      for (size_t i = 0; i < of_one.gradients.at(name).size(); ++i)
        ASSERT_EQ(of_two.gradients.at(name)[i], 2 * of_one.gradients.at(name)[i]);
  });
}

TEST(GatherWeights, RefusesReplicas) {
  ExpertPlacement placement = make_block_placement(2, 1);
  placement.homes[0].push_back({0, 2});
  const auto comm = make_self_comm();
  const WeightGather gather = make_weight_gather(placement, 1, {});
  error_of([&] { GatherWeightsTransport(*comm, placement, gather, {}, {}, {}, {}); }, Exit::unsupported);
}

}  // namespace
}  // namespace mw::test
