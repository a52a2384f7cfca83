// X-MoE Medium on eight GPUs: what the table of bytes says before a run, against the sum of its parameters' bytes.
#include <algorithm>

#include "layout/gradient_blocks.h"
#include "layout/helpers.h"
#include "layout/platform_profile.h"

namespace mw::test {
namespace {

constexpr int64_t kRanks = 8, kWidth = 5120, kLayers = 28, kExperts = 128, kExpertWidth = 1536, kVocab = 50304;
constexpr double kGiB = 0x1p30;

// Dense parameters of each rank in the order in which ZeRO cuts them, one eighth for each rank.
struct Dense {
  int64_t size;
  bool is_matrix;  // read by products alone: packed in bf16, and its master weights are cut too
};

std::vector<Dense> dense_parameters() {
  std::vector<Dense> list = {{kVocab * kWidth, false}};  // embedding
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    list.push_back({kWidth, false});                                      // norm
    for (int i = 0; i < 4; ++i) list.push_back({kWidth * kWidth, true});  // wq, wk, wv, wo
    list.push_back({kWidth, false});
    list.push_back({kExperts * kWidth, false});  // router
  }
  list.push_back({kWidth, false});
  list.push_back({kVocab * kWidth, true});  // head
  return list;
}

constexpr int64_t kExpertParameters = kLayers * kExperts * 2 * kWidth * kExpertWidth;  // two matrices an expert

// Bytes per parameter. Expert, on one rank of the eight: bf16 weight 2, the rest of its master weight (2, or 4 where
// that is whole), bf16 gradient 2, moments 8. Dense: fp32 gradient 4, an eighth of the moments 8, and of a matrix the
// weight 2 and an eighth of the master weight, of others the whole fp32 master weight.
int64_t state_bytes(int64_t rank, int64_t master) {
  int64_t all = 0, begin = 0, bytes = kExpertParameters / kRanks * (2 + master + 2 + 8);
  for (const Dense& p : dense_parameters()) all += p.size;
  EXPECT_EQ(all % (kRanks * 16), 0);  // cuts are whole units of 64 bytes
  const int64_t first = all / kRanks * rank, last = first + all / kRanks;
  for (const Dense& p : dense_parameters()) {
    const int64_t own = std::max<int64_t>(0, std::min(last, begin + p.size) - std::max(first, begin));
    bytes += 4 * p.size + 8 * own;
    bytes += p.is_matrix ? 2 * p.size + master * own : 4 * p.size;
    begin += p.size;
  }
  return bytes;
}

std::vector<Plan> plans(bool split_masters) {
  NativeModel native;
  native.preset = "x-moe-medium";
  const ModelSpec model = build_native_model(native);
  RunSpec run;
  run.train.seq_len = 2048;
  run.train.global_batch = 64;
  run.train.micro_batches = 8;
  run.train.dtype = DType::bf16;
  run.mesh.ep = kRanks;
  run.mesh.zero = 1;
  run.expert_gradients = DType::bf16;
  run.recompute = Recompute::moe;
  const std::string profile = std::string(MOEWRIGHT_SOURCE_DIR) + "/profiles/h200x8.json";
  Platform platform = platform_of(read_platform_profile(profile), run);
  EXPECT_TRUE(platform.native_bf16 && platform.one_packed_form && platform.split_masters);
  platform.split_masters = split_masters;
  std::vector<Plan> list;
  for (int rank = 0; rank < kRanks; ++rank) list.push_back(make_plan(model, run, kRanks, rank, platform));
  return list;
}

TEST(XMoeMedium, StatesAreTheBytesOfItsParameters) {
  int64_t parameters = kExpertParameters;
  for (const Dense& p : dense_parameters()) parameters += p.size;
  // The paper counts experts and attention alone.
  EXPECT_NEAR(static_cast<double>(kExpertParameters + kLayers * 4 * kWidth * kWidth) / kGiB, 55.2, 0.05);
  for (const bool split : {true, false}) {
    const std::vector<Plan> all = plans(split);
    EXPECT_EQ(parameter_count(all[0].model), parameters);
    for (const Plan& plan : all) {
      std::vector<ByteRow> rows = plan.parameter_rows;
      EXPECT_EQ(std::erase_if(rows, [](const ByteRow& row) { return row.name == kSquareSums; }), 1);
      EXPECT_EQ(summarise(rows).total(), state_bytes(plan.rank, split ? 2 : 4)) << plan.rank;
    }
  }
}

// 120 to 139 GiB of each GPU, known before the run; the GPU has 139.8.
TEST(XMoeMedium, FitsEightGpus) {
  for (const bool split : {true, false})
    for (const Plan& plan : plans(split)) {
      const double states = static_cast<double>(summarise(plan.parameter_rows).total()) / kGiB,
                   in_all = static_cast<double>(summarise(all_rows(plan)).total()) / kGiB;
      // Only the first rank differs, by the embedding's master weights, which are never cut.
      EXPECT_NEAR(states, split ? 115.8 : 129.7, plan.rank == 0 ? 1 : 0.1) << plan.rank;
      EXPECT_NEAR(in_all - states, 5.05, 0.01) << plan.rank;
      EXPECT_GE(in_all, 120) << plan.rank;
      EXPECT_LE(in_all, 139) << plan.rank;
    }
}

}  // namespace
}  // namespace mw::test
