// Shares of a micro-batch: every sample is one rank's, each rank gets as near to its weight as whole samples allow.
#include "layout/shares.h"

#include <cmath>
#include <numeric>

#include "layout/attention_scratch.h"
#include "layout/helpers.h"

namespace mw::test {
namespace {

using Parts = std::vector<int64_t>;

TEST(Shares, DivideByLargestRemainder) {
  EXPECT_EQ(divide_by_shares(4, {3, 1}), (Parts{3, 1}));
  EXPECT_EQ(divide_by_shares(8, {5, 2, 1}), (Parts{5, 2, 1}));
  EXPECT_EQ(divide_by_shares(5, {3, 1}), (Parts{4, 1}));
  EXPECT_EQ(divide_by_shares(6, {1, 1, 1, 1}), (Parts{2, 2, 1, 1}));
  EXPECT_EQ(divide_by_shares(3, {1000, 1, 1}), (Parts{1, 1, 1}));
  EXPECT_EQ(divide_by_shares(7, {1}), (Parts{7}));
}

TEST(Shares, AreCompletePositiveAndNear) {
  for (const Parts& weights : {Parts{1, 1}, Parts{3, 1}, Parts{5, 2, 1}, Parts{1, 9, 1, 1}, Parts{7, 7, 1, 100, 3}}) {
    const auto sum = static_cast<double>(std::accumulate(weights.begin(), weights.end(), int64_t{0}));
    for (int64_t units = std::ssize(weights); units < 200; ++units) {
      const Parts parts = divide_by_shares(units, weights);
      EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), int64_t{0}), units);
      for (size_t i = 0; i < parts.size(); ++i) {
        EXPECT_GE(parts[i], 1);
        const double exact = static_cast<double>(units * weights[i]) / sum;
        if (units < static_cast<int64_t>(sum)) continue;
        EXPECT_LT(std::abs(static_cast<double>(parts[i]) - exact), 1) << units;
      }
    }
  }
}

TEST(Shares, PlaceTheSamplesOfARank) {
  RunSpec run;
  run.train.global_batch = 16;
  run.train.micro_batches = 2;
  run.train.seq_len = 5;
  run.mesh.shares = "5,2,1";
  const LocalBatch second = make_local_batch(run, 3, 1);
  EXPECT_EQ(second.sequences, 2);
  EXPECT_EQ(second.first, 5);
  EXPECT_EQ(second.most, 5);
  EXPECT_EQ(second.all, 8);
  EXPECT_EQ(second.tokens(), 10);
  EXPECT_EQ(second.most_tokens(), 25);
  EXPECT_EQ(most_samples(run, 1, 3), 10);
  run.mesh.shares = "1,2,2";
  EXPECT_EQ(different_samples(run, 2, 3), (Parts{2, 3}));
  EXPECT_TRUE(can_share_samples(run, 2, 3));
  EXPECT_FALSE(can_share_samples(run, 2, 2));
  EXPECT_FALSE(can_share_samples(run, 3, 3));
  EXPECT_FALSE(can_share_samples(run, 8, 3));
}

// cuDNN's scratch for four sequences is larger than for five, which it cannot divide into parts of equal size.
TEST(Shares, ScratchOfAttentionServesEveryRank) {
  RunSpec run;
  run.native.width = 4096;
  run.native.heads = 32;
  run.native.kv_heads = 8;
  run.native.head_dim = 128;
  run.train.seq_len = 2048;
  run.train.micro_batches = 1;
  const ModelSpec model = build_native_model(run.native);
  Platform platform;
  platform.attention = AttentionRule::by_library;
  const auto scratch = [&](int64_t samples, const char* shares, int ranks) {
    run.train.global_batch = samples;
    run.mesh.shares = shares;
    return attention_scratch_bytes(model, run, make_mesh(run.mesh, ranks), platform);
  };
  const int64_t of_five = scratch(5, "", 1), of_four = scratch(4, "", 1);
  EXPECT_GT(of_four, of_five);
  EXPECT_EQ(scratch(9, "5,4", 2), of_four);
}

TEST(Shares, RefuseWhatNobodyCanShare) {
  RunSpec run;
  run.train.global_batch = 8;
  run.train.micro_batches = 2;
  for (const char* bad : {"3", "3,1,1", "3,0", "3,-1", "3,,1", ",", "3,1,", "a,b", "3 ,1", "99999999999999999999,1"}) {
    run.mesh.shares = bad;
    const auto error = refusal_of([&] { make_local_batch(run, 2, 0); });
    ASSERT_TRUE(error) << bad;
    EXPECT_EQ(error->code(), Exit::config) << bad;
  }
  run.mesh.shares = "1,1,1,1,1";
  EXPECT_EQ(refusal_of([&] { make_local_batch(run, 5, 0); })->code(), Exit::config);  // four samples
}

}  // namespace
}  // namespace mw::test
