// Sums over replicas that go on beside backward: what is summed when, on ranks that hold different experts.
#include "engine/grad_sync.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "support/delayed_comm.h"
#include "support/small_run.h"
#include "support/thread_comm.h"

namespace mw::test {
namespace {

constexpr float kFirst = 1.5f;  // of every gradient

// One message, without addresses: those of a rank are its own.
struct Message {
  size_t window;  // which call started it; the last is finish()
  bool expert;
  int64_t end, size;  // elements from the first gradient of its kind
  bool operator==(const Message&) const = default;
};

struct Shape {
  int world = 8, ep = 4;
  bool tied = false, idle_rank = false, zero = false, bf16 = false;
};

// Four ranks for six experts: two of them hold one more.
Plan plan_of(const Shape& shape, int rank) {
  RunSpec run = small_run();
  run.native.vocab = 50021;  // a head of several shares, beside experts that matter
  run.native.expert_width = 4001;
  run.native.tie_embeddings = shape.tied;
  run.mesh.ep = shape.ep;
  run.mesh.zero = shape.zero ? 1 : 0;
  if (shape.bf16) run.train.dtype = run.expert_gradients = DType::bf16;
  run.train.micro_batches = 1;
  const ModelSpec model = build_native_model(run.native);
  Placements placements = make_block_placements(model, shape.ep);
  if (shape.idle_rank)
    for (ExpertPlacement& placement : placements.layers)
      for (size_t e = 0; e < placement.homes.size(); ++e)
        placement.homes[e] = {{static_cast<int>(e % 3), static_cast<int>(e / 3)}};
  return make_plan(model, run, shape.world, rank, Platform{}, std::make_shared<Placements>(std::move(placements)));
}

void fill_gradients(ParamStore& params) {
  for (Parameter& p : params.all())
    if (p.row.trained)
      with_float_type(p.grad.dtype,
                      [&]<class T>(T) { std::fill_n(p.grad.as<T>(), p.grad.numel(), from_float<T>(kFirst)); });
}

// The first gradient of a kind, from which places are counted; of bf16, the first piece.
const float* first_gradient(ParamStore& params, bool expert) {
  for (Parameter& p : params.all())
    if (p.row.trained && p.row.expert == expert)
      return (p.grad.dtype == DType::f32 ? p.grad : params.sum_pieces()).as<float>();
  return nullptr;
}

// Every element that a rank owns is the sum over the replicas.
void expect_sums(const Shape& shape, const Plan& plan, ParamStore& params) {
  int64_t owned = 0;
  for (const Parameter& p : params.all()) {
    if (!p.row.trained) continue;
    const float expected = kFirst * static_cast<float>(p.row.expert ? plan.mesh.edp : plan.mesh.dp);
    EXPECT_TRUE(shape.zero || p.owned.count == p.grad.numel()) << p.row.name;
    owned += p.owned.count;
    int64_t wrong = 0;
    for (int64_t i = 0; i < p.owned.count; ++i) wrong += value_at(p.owned_grad(), i) == expected ? 0 : 1;
    EXPECT_EQ(wrong, 0) << p.row.name << " of rank " << plan.rank;
  }
  EXPECT_GT(owned, 0);
}

// The groups of a rank, whose sums over replicas are delayed.
MeshComms delayed_comms(Comm& world, const Plan& plan, std::vector<StartedSum>& started) {
  MeshComms comms = make_mesh_comms(world, plan.mesh);
  comms.dp = std::make_unique<DelayedComm>(std::move(comms.dp), started);
  comms.edp = std::make_unique<DelayedComm>(std::move(comms.edp), started);
  return comms;
}

// What one rank sends. Collective.
std::vector<Message> messages_of_rank(const Shape& shape, Comm& world, Stream& stream) {
  const Plan plan = plan_of(shape, world.rank());
  ParamStore params(plan);
  std::vector<StartedSum> started;
  MeshComms comms = delayed_comms(world, plan, started);
  comms.gpu_library = "test";
  fill_gradients(params);
  const float* first[2] = {first_gradient(params, false), first_gradient(params, true)};

  std::vector<Message> messages;
  size_t window = 0;
  const auto note = [&] {
    for (size_t i = messages.size(); i < started.size(); ++i) {
      const bool expert = started[i].group == comms.edp.get();
      const std::span<float> values = started[i].values;
      messages.push_back(
          {window, expert, values.data() + values.size() - first[expert], static_cast<int64_t>(values.size())});
    }
    ++window;
  };
  GradientSums sums(plan, params, comms, stream);
  for (int64_t layer = plan.model.layer_count(); layer-- > 0;) {
    sums.feed_forward_done(layer);
    note();
  }
  sums.finish();
  note();
  expect_sums(shape, plan, params);
  return messages;
}

// Of every rank.
std::vector<std::vector<Message>> messages_of(const Shape& shape) {
  std::vector<std::vector<Message>> ranks(static_cast<size_t>(shape.world));
  run_ranks(shape.world, [&](Comm& world, Stream& stream) {
    ranks[static_cast<size_t>(world.rank())] = messages_of_rank(shape, world, stream);
  });
  return ranks;
}

std::vector<Message> only(const std::vector<Message>& messages, bool expert) {
  std::vector<Message> kept;
  std::copy_if(messages.begin(), messages.end(), std::back_inserter(kept),
               [&](const Message& m) { return m.expert == expert; });
  return kept;
}

void expect_one_order(const Shape& shape) {
  const std::vector<std::vector<Message>> ranks = messages_of(shape);
  for (int rank = 0; rank < shape.world; ++rank) {
    const std::vector<Message>& own = ranks[static_cast<size_t>(rank)];
    EXPECT_EQ(only(own, false), only(ranks[0], false)) << "rank " << rank;
    for (const int replica : group_of(plan_of(shape, rank).mesh, MeshAxis::edp, rank))
      EXPECT_EQ(only(own, true), only(ranks[static_cast<size_t>(replica)], true)) << rank << " and " << replica;
    // Dense sums come first in each window, so that the order of both kinds is one too.
    EXPECT_TRUE(std::is_sorted(own.begin(), own.end(),
                               [](const Message& a, const Message& b) {
                                 return std::pair(a.window, a.expert) < std::pair(b.window, b.expert);
                               }))
        << "rank " << rank;
  }
}

TEST(GradientSums, ComeInOneOrderWhateverExpertsARankHolds) {
  expect_one_order({});
  expect_one_order({.tied = true});
  expect_one_order({.idle_rank = true});
  expect_one_order({.world = 4, .ep = 4});  // nobody shares experts
  expect_one_order({.world = 4, .ep = 1});
  expect_one_order({.zero = true});
  expect_one_order({.idle_rank = true, .zero = true});
  expect_one_order({.world = 4, .ep = 4, .zero = true});
}

// They go through fp32 pieces, of which two are in use at a time; DelayedComm sees to it that none is touched too
// early.
TEST(GradientSums, OfBf16GoInPieces) {
  expect_one_order({.bf16 = true});
  expect_one_order({.world = 4, .ep = 4, .bf16 = true});
  expect_one_order({.world = 4, .ep = 1, .zero = true, .bf16 = true});
  expect_one_order({.zero = true, .bf16 = true});
  const std::vector<std::vector<Message>> halves = messages_of({.bf16 = true});
  const std::vector<Message> pieces = only(halves[0], true);
  std::set<int64_t> ends;
  for (const Message& piece : pieces) ends.insert(piece.end - piece.size);
  EXPECT_EQ(ends.size(), 2u);
  EXPECT_GT(pieces.size(), 4u);
  EXPECT_EQ(only(halves[0], false), only(messages_of({})[0], false));
}

// Cutting a block over its owners changes what a sum gives, not when it goes.
TEST(GradientSums, GoInTheSameMessagesWithZero) { EXPECT_EQ(messages_of({.zero = true}), messages_of({})); }

TEST(GradientSums, LeaveOutRanksWithoutExperts) {
  const Shape shape{.idle_rank = true};
  const std::vector<std::vector<Message>> ranks = messages_of(shape);
  std::set<size_t> idle;
  for (int rank = 0; rank < shape.world; ++rank)
    if (plan_of(shape, rank).coords.ep == 3) idle.insert(only(ranks[static_cast<size_t>(rank)], true).size());
  EXPECT_EQ(idle, std::set<size_t>{0});
}

TEST(GradientSums, TakeEqualSharesInEachWindow) {
  const Plan plan = plan_of({}, 0);
  int64_t early = 0;  // all but the embedding and the attention of the first layer
  for (const ParamRow& row : plan.params)
    if (row.trained && row.name != "embed" && row.name.rfind("layers.0.attn", 0) != 0)
      early += row.expert ? row.numel() / 3 : row.numel();  // rank 0 holds two of six experts
  std::vector<int64_t> sizes(4);
  bool cuts_the_head = false;
  int64_t head_begin = 0;
  for (const ParamRow& row : plan.params)
    if (row.trained && !row.expert && row.name != "head") head_begin += (row.numel() + 15) / 16 * 16;
  const std::vector<std::vector<Message>> ranks = messages_of({});
  for (const Message& m : ranks[0]) {
    sizes[m.window] += m.size;
    cuts_the_head |= !m.expert && m.window > 0 && m.end > head_begin;
  }
  constexpr int64_t kMegabyte = 1 << 18;  // elements to which shares are rounded
  for (size_t window = 0; window < 3; ++window)
    EXPECT_NEAR(static_cast<double>(sizes[window]), static_cast<double>(early) / 3.0, kMegabyte) << window;
  EXPECT_TRUE(cuts_the_head);
}

TEST(GradientSums, OfTheHostAreOneMessagePerGroup) {
  run_ranks(8, [](Comm& world, Stream& stream) {
    const Plan plan = plan_of({}, world.rank());
    ParamStore params(plan);
    std::vector<StartedSum> started;
    MeshComms comms = delayed_comms(world, plan, started);
    GradientSums sums(plan, params, comms, stream);
    for (int64_t layer = plan.model.layer_count(); layer-- > 0;) sums.feed_forward_done(layer);
    EXPECT_TRUE(started.empty());
    sums.finish();
    ASSERT_EQ(started.size(), 2u);
    const TensorView embed = params.find("embed").grad, head = params.find("head").grad;
    EXPECT_EQ(started[0].values.data(), embed.as<float>());
    EXPECT_EQ(started[0].values.data() + started[0].values.size(), head.as<float>() + head.numel());
  });
}

}  // namespace
}  // namespace mw::test
