// Engines whose experts have replicas, beside engines without.
#include "engine/replicas.h"

#include <array>
#include <cmath>

#include "engine/migration.h"
#include "support/row_bits.h"
#include "support/thread_comm.h"
#include "train/engines.h"

namespace mw::test {
namespace {

struct ReplicaCase {
  const char* name;
  int ranks;
  std::function<void(RunSpec&)> change;
};
// NOLINTNEXTLINE(readability-identifier-naming): GoogleTest calls it by this name
void PrintTo(const ReplicaCase& c, std::ostream* out) { *out << c.name; }

const ReplicaCase kReplicaCases[] = {
    {"fp32", 3, [](RunSpec& r) { r.mesh.ep = 3, r.train.global_batch = 24; }},
    {"bf16", 2, [](RunSpec& r) { r.mesh.ep = 2, r.train.dtype = DType::bf16; }},
    {"bf16_gradients", 2, [](RunSpec& r) { r.mesh.ep = 2, r.train.dtype = r.expert_gradients = DType::bf16; }},
    {"zero_capacity_chunks", 4,
     [](RunSpec& r) { r.mesh.ep = 2, r.mesh.zero = 1, r.moe.capacity_factor = 1, r.moe.row_chunks = 2; }},
    {"zero_bf16_recompute", 4,
     [](RunSpec& r) { r.mesh.ep = 2, r.mesh.zero = 1, r.train.dtype = DType::bf16, r.recompute = Recompute::full; }},
    {"pipeline_ted", 8,
     [](RunSpec& r) { r.mesh.pp = 2, r.mesh.tp = 2, r.mesh.ep = 2, r.moe.tp_mode = MoeTpMode::ted; }},
    {"halo", 4, [](RunSpec& r) { r.mesh.ep = 4, r.mesh.ranks_per_node = 2, r.moe.transport = "halo"; }},
};

class ReplicatedExperts : public testing::TestWithParam<ReplicaCase> {};

// Homes stay where they are, so that both engines have the same weights in the same places.
Placements with_replicas(const Placements& placements) {
  Placements out = placements;
  ++out.version;
  for (ExpertPlacement& placement : out.layers)
    for (int rank = 0; rank < placement.ep && placement.experts() > 0; ++rank) {
      auto slot = static_cast<int>(placement.experts_of(rank).size());
      for (std::vector<ExpertHome>& homes : placement.homes)  // the experts of the next rank
        if (homes.front().ep_rank == (rank + 1) % placement.ep && std::ssize(homes) < placement.ep)
          homes.push_back({rank, slot++});
    }
  return out;
}

double relative_difference(const TensorView& a, const TensorView& b) {
  double difference = 0, norm = 1e-30;
  for (int64_t i = 0; i < a.numel(); ++i) {
    const auto x = static_cast<double>(value_at(a, i)), y = static_cast<double>(value_at(b, i));
    difference += (x - y) * (x - y);
    norm += y * y;
  }
  return std::sqrt(difference / norm);
}

// Each row is computed with the same weights, wherever: losses and logits are equal to the bit, unless the bits of a
// row depend on how many there are. Gradients of experts are sums in another order.
TEST_P(ReplicatedExperts, ChangeNoBitOfTheForwardPass) {
  RandomLayout layout = layout_of(1, 0, nullptr);
  GetParam().change(layout.run);
  RandomLayout replicated = layout;
  replicated.run.moe.replica_slots = 3;
  run_ranks(GetParam().ranks, [&](Comm& world, Stream&) {
    const std::unique_ptr<Engine> plain = trained_engine(layout, world), engine = trained_engine(replicated, world);
    migrate_experts(*engine, std::make_shared<Placements>(with_replicas(*engine->plan.placements)));
    const std::vector<Batch> batches = stage(*plain, random_batches(plain->plan));
    const StepStats expected = accumulate_gradients(*plain, batches),
                    got = accumulate_gradients(*engine, stage(*engine, random_batches(engine->plan)));
    EXPECT_NEAR(got.total_loss, expected.total_loss, row_tolerance() * expected.total_loss);
    EXPECT_EQ(got.load, expected.load);
    EXPECT_NEAR(got.grad_norm / expected.grad_norm, 1, plain->plan.run.expert_gradients == DType::f32 ? 1e-6 : 1e-2);
    int64_t rows = 0;
    for (const ExpertRows& of_layer : got.rows) rows += of_layer.of_replicas;
    world.all_reduce_sum(std::span(&rows, 1));
    EXPECT_GT(rows, 0);
    if (plain->plan.stages.back().has_head) {
      const int64_t tokens = plain->model->own_tokens(batches.back()).count;
      const std::vector<float> a = plain->model->logits(0, tokens), b = engine->model->logits(0, tokens);
      ASSERT_EQ(a.size(), b.size());
      for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 10 * row_tolerance());
    }
    for (const Parameter& p : plain->params.all()) {
      if (!p.row.trained || p.owned.count == 0) continue;
      const double most = p.grad.dtype == DType::f32 ? 2e-6 : 1e-2,
                   error = relative_difference(engine->params.find(p.row.name).owned_grad(), p.owned_grad());
      if (p.row.expert) EXPECT_LE(error, most) << p.row.name;
      else EXPECT_LE(error, row_tolerance()) << p.row.name;
    }
    // After an update replicas have the weights of their homes.
    apply_update(*engine, got, {1e-3, 3});
    const double loss = accumulate_gradients(*engine, stage(*engine, random_batches(engine->plan))).total_loss;
    migrate_experts(*engine, plain->plan.placements);  // without replicas
    EXPECT_NEAR(loss, accumulate_gradients(*engine, stage(*engine, random_batches(engine->plan))).total_loss,
                row_tolerance() * loss);
  });
}

INSTANTIATE_TEST_SUITE_P(Of, ReplicatedExperts, testing::ValuesIn(kReplicaCases),
                         [](const auto& c) { return c.param.name; });

// Both ranks have all experts: rows are split as mesh.expert_shares says.
TEST(Replicas, ComputeInProportionToSpeed) {
  RandomLayout layout = layout_of(1, 0, nullptr);
  layout.run.mesh.ep = 2;
  layout.run.mesh.expert_shares = "2,1";
  layout.run.moe.replica_slots = 4;
  run_ranks(2, [&](Comm& world, Stream&) {
    const std::unique_ptr<Engine> engine = trained_engine(layout, world);
    migrate_experts(*engine, std::make_shared<Placements>(with_replicas(*engine->plan.placements)));
    const StepStats stats = accumulate_gradients(*engine, stage(*engine, random_batches(engine->plan)));
    for (const ExpertRows& of_layer : stats.rows) {
      std::array<int64_t, 2> rows = {};
      rows[static_cast<size_t>(world.rank())] = of_layer.all;
      world.all_reduce_sum(std::span(rows));
      EXPECT_GT(rows[1], 0);
      EXPECT_NEAR(static_cast<double>(rows[0]), static_cast<double>(2 * rows[1]), 3 * layout.run.train.micro_batches);
    }
  });
}

// A rank where no expert has its home has the replicas of a layer alone.
TEST(Replicas, ComputeBesideNoExperts) {
  for (const DType dtype : {DType::f32, DType::bf16})
    run_ranks(2, [&](Comm& world, Stream&) {
      RandomLayout layout = layout_of(2, 0, nullptr);
      layout.run.train.dtype = dtype;
      layout.run.moe.replica_slots = 3;
      Placements homes = make_block_placements(build_native_model(layout.run.native), 2);
      for (ExpertPlacement& placement : homes.layers)
        if (placement.experts() > 0) placement = make_block_placement({placement.experts(), 0});
      layout.placements = std::make_shared<Placements>(homes);
      const std::unique_ptr<Engine> plain = trained_engine(layout, world);
      for (ExpertPlacement& placement : homes.layers)
        for (int slot = 0; slot < 3 && placement.experts() > 0; ++slot)
          placement.homes[static_cast<size_t>(slot)].push_back({1, slot});
      layout.placements = std::make_shared<Placements>(homes);
      const std::unique_ptr<Engine> engine = trained_engine(layout, world);
      const double expected = take_step(*plain, 3);
      EXPECT_NEAR(take_step(*engine, 3), expected, (dtype == DType::f32 ? 1e-5 : 1e-2) * expected) << name_of(dtype);
    });
}

TEST(ShuffleExperts, FillsReplicaSlotsWithOtherExperts) {
  const ModelSpec model = build_native_model(small_run().native);  // of six experts
  const Placements next = shuffle_experts(make_block_placements(model, 3), 1, 2, 2),
                   again = shuffle_experts(next, 1, 3, 5);
  EXPECT_NO_THROW(validate(next, model, 3));
  EXPECT_NO_THROW(validate(again, model, 3));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(next.layers[1].replicas_of(rank).size(), 2U);
    EXPECT_EQ(again.layers[1].replicas_of(rank).size(), 4U);  // all that are elsewhere
  }
  EXPECT_NE(next.layers[1].replicas_of(0), next.layers[2].replicas_of(0));
}

}  // namespace
}  // namespace mw::test
