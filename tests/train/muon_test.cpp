// Muon against torch.optim.Muon: 20 steps of a Qwen3 MoE model (tests/golden/muon: torch 2.9.1 and transformers 5.24,
// without torch's cast of the iteration to bf16), in several layouts.
#include "ops/muon.h"

#include <cmath>

#include "engine/step.h"
#include "formats/weights/hf_names.h"
#include "formats/weights/safetensors.h"
#include "support/op_case.h"
#include "support/thread_comm.h"
#include "train/convert/hf_weights.h"
#include "train/helpers.h"

namespace mw::test {
namespace {

const std::string kFolder = std::string(MOEWRIGHT_SOURCE_DIR) + "/tests/golden/muon";
constexpr int64_t kSequences = 2, kSeqLen = 32;

class GoldenFile {
 public:
  GoldenFile() : file_(kFolder + "/golden.safetensors") {}
  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  std::vector<float> floats(const std::string& name) const {
    std::vector<float> values(static_cast<size_t>(entry(name).element_count()));
    read_as_f32(file_, entry(name), 0, values);
    return values;
  }
  std::vector<int64_t> integers(const std::string& name) const {
    std::vector<int64_t> values(static_cast<size_t>(entry(name).element_count()));
    read_as_i64(file_, entry(name), 0, values);
    return values;
  }

 private:
  const SafetensorsEntry& entry(const std::string& name) const {
    const SafetensorsEntry* found = file_.find(name);
    MW_CHECK(found != nullptr, "{} is missing", name);
    return *found;
  }
  SafetensorsFile file_;
};

RunSpec golden_run() {
  RunSpec run;
  run.hf_dir = kFolder;
  run.train.seq_len = kSeqLen;
  run.train.global_batch = kSequences;
  run.train.dtype = DType::f32;
  run.train.lr = 1e-3;
  run.train.schedule = LearningRateSchedule::constant;
  run.train.optimizer = Optimizer::muon;
  run.train.muon.router = true;
  run.moe.aux_scope = AuxScope::model;
  return run;
}

MicroBatch batch_of(const Plan& plan, std::span<const int64_t> ids) {
  MicroBatch batch;
  batch.sequences = plan.batch.sequences;
  batch.seq_len = kSeqLen;
  for (int64_t b = plan.batch.first; b < plan.batch.first + plan.batch.sequences; ++b)
    for (int64_t t = 0; t < kSeqLen; ++t) {
      const auto at = static_cast<size_t>(b * kSeqLen + t);
      batch.ids.push_back(static_cast<int32_t>(ids[at]));
      batch.labels.push_back(t + 1 < kSeqLen ? static_cast<int32_t>(ids[at + 1]) : -100);
    }
  return batch;
}

// Those of the golden file's tensors prefix + NAME that exist, in a process that holds the whole model.
void expect_weights(Engine& engine, const GoldenFile& golden, const std::string& prefix, double tolerance) {
  int compared = 0;
  for (const HfTensor& tensor : hf_tensors(engine.plan.model)) {
    if (!golden.has(prefix + tensor.name)) continue;
    ++compared;
    const std::vector<float> expected = golden.floats(prefix + tensor.name);
    const float* got = engine.params.find(tensor.param).master.as<float>() + tensor.begin;
    double worst = 0;
    for (size_t i = 0; i < expected.size(); ++i)
      worst = std::max(worst, std::abs(static_cast<double>(got[i]) - static_cast<double>(expected[i])));
    EXPECT_LT(worst, tolerance) << prefix << tensor.name;
  }
  EXPECT_GT(compared, 0) << prefix;
}

// The trajectory `name` of the golden file.
void expect_trajectory(const RunSpec& run, Comm& world, const std::string& name) {
  const GoldenFile golden;
  const std::vector<int64_t> ids = golden.integers("traj.input_ids");
  const std::vector<float> losses = golden.floats(name + ".loss"), norms = golden.floats(name + ".grad_norm");
  Engine engine(load_model_spec(run), run, world, 1);
  import_hf_weights(engine, run.hf_dir);
  double worst = 0;
  for (size_t step = 0; step < losses.size(); ++step) {
    const MicroBatch batch =
        batch_of(engine.plan, std::span(ids).subspan(step * kSequences * kSeqLen, kSequences * kSeqLen));
    const StepStats stats = accumulate_gradients(engine, stage(engine, std::span(&batch, 1)));
    worst = std::max(worst, std::abs(stats.total_loss - static_cast<double>(losses[step])));
    EXPECT_NEAR(stats.grad_norm, static_cast<double>(norms[step]), 1e-4 * static_cast<double>(norms[step]));
    apply_update(engine, stats, {run.train.lr, static_cast<int64_t>(step) + 1});
    if (step == 0 && world.size() == 1 && golden.has(name + ".step1.model.norm.weight"))
      expect_weights(engine, golden, name + ".step1.", 1e-6);
  }
  if (world.size() == 1 && golden.has(name + ".final.model.norm.weight"))
    expect_weights(engine, golden, name + ".final.", 1e-5);
  if (world.rank() == 0) std::printf("%s: losses differ by at most %.1e\n", name.c_str(), worst);
  EXPECT_LT(worst, 1e-4) << name;
}

TEST(MuonGolden, EveryRunInFp32) {
  const std::unique_ptr<Comm> self = make_self_comm();
  RunSpec run = golden_run();
  expect_trajectory(run, *self, "match_rms");
  run.train.muon.nesterov = false;
  expect_trajectory(run, *self, "no_nesterov");
  run = golden_run();
  run.train.muon.router = false;
  expect_trajectory(run, *self, "router_adamw");
  run = golden_run();
  run.train.muon.lr = 2e-2;
  run.train.muon.scale = MuonScale::original;
  expect_trajectory(run, *self, "original");
}

struct GoldenLayout {
  const char* name;
  int ranks;
  int64_t zero, pp, tp, ep;
  MoeTpMode tp_mode = MoeTpMode::ssmb;
  const char* transport = "auto";
};

class MuonLayouts : public testing::TestWithParam<GoldenLayout> {};

TEST_P(MuonLayouts, TakeTheSameSteps) {
  const GoldenLayout& layout = GetParam();
  RunSpec run = golden_run();
  run.mesh.zero = layout.zero;
  run.mesh.pp = layout.pp;
  run.mesh.tp = layout.tp;
  run.mesh.ep = layout.ep;
  run.moe.tp_mode = layout.tp_mode;
  run.moe.transport = layout.transport;
  run_ranks(layout.ranks, [&](Comm& world, Stream&) { expect_trajectory(run, world, "match_rms"); });
}

INSTANTIATE_TEST_SUITE_P(Of, MuonLayouts,
                         testing::Values(GoldenLayout{"replicas", 2, 0, 1, 1, 1}, GoldenLayout{"zero", 2, 1, 1, 1, 1},
                                         GoldenLayout{"tp", 2, 0, 1, 2, 1}, GoldenLayout{"tp_ep_zero", 4, 1, 1, 2, 4},
                                         GoldenLayout{"tp_zero", 4, 1, 1, 2, 1}, GoldenLayout{"pp_ep", 4, 0, 2, 1, 2},
                                         GoldenLayout{"ted_zero", 4, 1, 1, 2, 1, MoeTpMode::ted},
                                         GoldenLayout{"slices", 2, 1, 1, 1, 2, MoeTpMode::ssmb, "gather_tokens"}),
                         [](const auto& c) { return std::string(c.param.name); });

// The iteration alone.
TEST(MuonGolden, Orthogonalise) {
  const GoldenFile golden;
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{24, 64}, {64, 24}, {40, 40}}) {
    const std::string name = fmt::format("ns.{}x{}.", n, k);
    std::vector<float> x = golden.floats(name + "in"), next(x.size()), gram(x.size()), square(x.size()),
                       sums(kNormParts);
    const std::vector<float> expected = golden.floats(name + "fp32");
    const auto view = [](std::vector<float>& values) {
      return TensorView(values.data(), DType::f32, {std::ssize(values)});
    };
    TestStream test(1);
    const TensorView result = orthogonalise(test.stream, view(x).reshape({1, n, k}), DType::f32,
                                            {view(next), view(gram), view(square), view(sums)});
    for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(result.as<float>()[i], expected[i], 1e-5) << name << i;
  }
}

}  // namespace
}  // namespace mw::test
