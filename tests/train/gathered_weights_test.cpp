// Whole steps over gathered weights on ranks that are threads: what they send, and that slots change no bit.
#include <numeric>

#include "planner/volumes.h"
#include "support/thread_comm.h"
#include "train/helpers.h"

namespace mw::test {
namespace {

struct GatheringLayout {
  const char* name;
  int ranks;
  int64_t pp, ep;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
};

// Of one rank: losses and gradient norms of two steps from equal weights with a validation between them, and bytes.
struct Measured {
  std::vector<double> numbers;
  std::array<int64_t, 3> sent{};  // in the first step, the validation and the second step
  LinkBytes predicted;
  int64_t forward_bytes = 0;  // that the rank sends when each piece is gathered once
  int64_t grows = 0;
};

Measured measure(Engine& engine, const TapProvider& taps) {
  engine.params.initialise(3, engine.stream);
  engine.params.repack(engine.stream);
  const Plan& plan = engine.plan;
  Measured out;
  const auto sent_by = [&](const auto& work) {
    const int64_t before = engine.stream.trace().sent_bytes().all;
    work();
    return engine.stream.trace().sent_bytes().all - before;
  };
  const std::vector<MicroBatch> batches = random_batches(plan);
  const auto step = [&] {
    const StepStats stats = accumulate_gradients(engine, stage(engine, batches), taps);
    out.numbers.insert(out.numbers.end(), {stats.total_loss, stats.grad_norm});
  };
  out.sent[0] = sent_by(step);
  out.sent[1] = sent_by([&] {
    const std::vector<float> losses = evaluate(engine, stage(engine, batches).front());
    out.numbers.push_back(std::accumulate(losses.begin(), losses.end(), 0.0));
  });
  out.sent[2] = sent_by(step);
  out.predicted = exchanged_bytes(plan.model, plan.run, plan.mesh, plan.nodes, plan.transports, plan.gathers,
                                  plan.weight_cache.gathers);
  for (const WeightUse& use : plan.weight_cache.forward) {
    const WeightGather& gather = plan.gathers[static_cast<size_t>(use.layer)];
    const auto ep = static_cast<size_t>(plan.coords.ep);
    out.forward_bytes +=
        gather.forms.forward_bytes() * (plan.mesh.ep - 1) * gather.counts[static_cast<size_t>(use.piece)][ep];
  }
  out.grows = engine.model->activations().arena_grows();
  return out;
}

RunSpec run_of(const GatheringLayout& layout, DType dtype) {
  RunSpec run = small_run();
  run.native.layers = 5;
  run.train.dtype = dtype;
  run.mesh.pp = layout.pp;
  run.mesh.ep = layout.ep;
  run.mesh.schedule = layout.schedule;
  run.train.threads = 1;
  run.train.device = DeviceChoice::cpu;
  run.moe.transport = "gather_weights";
  return run;
}

// Every byte of a step is in the plan, with any number of slots; a step and a validation begin with empty slots. Slots
// change nothing else.
TEST(GatheredWeights, SendWhatThePlanSaysAndGiveTheSameBits) {
  for (const GatheringLayout& layout :
       {GatheringLayout{"experts", 3, 1, 3}, GatheringLayout{"1f1b", 4, 2, 2},
        GatheringLayout{"interleaved", 4, 2, 2, ScheduleKind::interleaved},
        GatheringLayout{"zb_h1", 4, 2, 2, ScheduleKind::zb_h1}, GatheringLayout{"zb_v", 4, 2, 2, ScheduleKind::zb_v}})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      std::vector<double> numbers, bytes;
      for (const int64_t slots : {1, 2, 3, 0}) {
        RunSpec run = run_of(layout, dtype);
        if (layout.ranks == 3) run.train.global_batch = 12, run.train.micro_batches = 2;
        run.moe.row_chunks = slots == 1 ? 1 : 2;
        run.moe.weight_slots = slots;
        std::vector<Measured> of(static_cast<size_t>(layout.ranks));
        run_ranks(layout.ranks, [&](Comm& world, Stream&) {
          Engine engine(build_native_model(run.native), run, world, 1);
          of[static_cast<size_t>(world.rank())] = measure(engine, {});
        });
        double sent = 0;
        for (const Measured& rank : of) {
          sent += static_cast<double>(rank.sent[0]);
          EXPECT_EQ(rank.sent[1], rank.forward_bytes) << layout.name;
          EXPECT_EQ(rank.sent[2], rank.sent[0]) << layout.name;
          EXPECT_EQ(rank.grows, 0);
          EXPECT_EQ(rank.numbers[0], rank.numbers[3]) << layout.name;
        }
        EXPECT_EQ(sent, of.front().predicted.all()) << layout.name << ", " << slots << " slots";
        bytes.push_back(sent);
        if (slots == 1) continue;  // other pieces
        std::vector<double> all;
        for (const Measured& rank : of) all.insert(all.end(), rank.numbers.begin(), rank.numbers.end());
        if (numbers.empty()) numbers = all;
        EXPECT_EQ(all, numbers) << layout.name << ", " << slots << " slots";
      }
      EXPECT_GE(bytes[1], bytes[2]);
      EXPECT_GT(bytes[2], bytes[3]);
    }
}

// All tokens choose the same experts: whatever their ranks get, no memory grows.
TEST(GatheredWeights, NeedNoMemoryForAnyLoad) {
  for (const char* transport : {"gather_weights", "gather_tokens"})
    for (const int64_t slots : {2, 0}) {
      RunSpec run = run_of({"experts", 2, 1, 2}, DType::f32);
      run.moe.transport = transport;
      run.moe.weight_slots = slots;
      run.moe.row_headroom = 1;
      run_ranks(2, [&](Comm& world, Stream&) {
        Engine engine(build_native_model(run.native), run, world, 1);
        std::vector<int32_t> ids;
        for (int64_t t = 0; t < engine.plan.batch.tokens(); ++t)
          for (int32_t k = 0; k < run.native.top_k; ++k) ids.push_back(k);
        const std::vector<RoutingTap> taps(engine.model->moe_index().size(), RoutingTap{.replay_ids = ids.data()});
        EXPECT_EQ(measure(engine, [&](int64_t) { return taps; }).grows, 0) << transport;
      });
    }
}

}  // namespace
}  // namespace mw::test
