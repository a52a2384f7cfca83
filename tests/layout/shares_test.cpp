// Shares of a micro-batch: every sample is one rank's, each rank gets as near to its weight as whole samples allow.
#include "layout/shares.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <span>

#include "layout/attention_scratch.h"
#include "layout/divided.h"
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

// The shortest longest time of any division; infinite where there is none.
double best_time(int64_t units, std::span<const double> seconds, std::span<const int64_t> most) {
  double best = std::numeric_limits<double>::infinity();
  if (seconds.empty()) return units == 0 ? 0 : best;
  for (int64_t own = 1; own <= std::min(units, most[0]); ++own)
    best = std::min(best, std::max(static_cast<double>(own) * seconds[0],
                                   best_time(units - own, seconds.subspan(1), most.subspan(1))));
  return best;
}

TEST(Shares, BySpeedAreTheBestOfAllDivisions) {
  EXPECT_EQ(divide_by_speed(20, std::vector{1.0, 3.0}, Parts{20, 20}), (Parts{15, 5}));
  EXPECT_EQ(divide_by_speed(20, std::vector{1.0, 3.0}, Parts{12, 20}), (Parts{12, 8}));
  EXPECT_EQ(divide_by_speed(2, std::vector{1.0, 1e9}, Parts{2, 2}), (Parts{1, 1}));
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 2000; ++trial) {
    const size_t ranks = 1 + random() % 4;
    std::vector<double> seconds;
    Parts most;
    int64_t room = 0;
    for (size_t i = 0; i < ranks; ++i) {
      seconds.push_back(static_cast<double>(1 + random() % 9));  // with ties
      most.push_back(1 + static_cast<int64_t>(random() % 12));
      room += most.back();
    }
    const auto least = static_cast<int64_t>(ranks);
    const int64_t units = least + static_cast<int64_t>(random() % static_cast<uint64_t>(room - least + 1));
    const Parts parts = divide_by_speed(units, seconds, most);
    for (size_t i = 0; i < ranks; ++i) {
      EXPECT_GE(parts[i], 1);
      EXPECT_LE(parts[i], most[i]);
    }
    EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), int64_t{0}), units);
    EXPECT_EQ(time_of_slowest(parts, seconds), best_time(units, seconds, most)) << trial;
  }
}

TEST(Shares, ThatAreNotMeasuredYetAreEqual) {
  RunSpec run;
  run.train.global_batch = 5;
  run.train.micro_batches = 1;
  run.mesh.shares = run.mesh.width_shares = kMeasuredShares;
  EXPECT_EQ(samples_by_rank(run, 1, 2), (Parts{3, 2}));
  EXPECT_TRUE(can_share_samples(run, 1, 5));
  EXPECT_FALSE(can_share_samples(run, 1, 6));
  EXPECT_EQ(expert_widths(run, 256, 2), (Parts{128, 128}));
  EXPECT_TRUE(can_share_width(run, 256, 3));
}

TEST(Shares, DivideExpertsOfRanks) {
  RunSpec run;
  EXPECT_EQ(experts_by_rank(run, 8, 3), (Parts{3, 3, 2}));
  EXPECT_EQ(expert_speeds(run, 3), (Parts{1, 1, 1}));
  run.mesh.expert_shares = kMeasuredShares;
  EXPECT_EQ(experts_by_rank(run, 8, 3), (Parts{3, 3, 2}));
  run.mesh.expert_shares = "5,2,1";
  EXPECT_EQ(experts_by_rank(run, 8, 3), (Parts{5, 2, 1}));
  EXPECT_EQ(expert_speeds(run, 3), (Parts{5, 2, 1}));
  EXPECT_TRUE(can_share_experts(run, 3, 3));
  EXPECT_FALSE(can_share_experts(run, 2, 3));
  EXPECT_FALSE(can_share_experts(run, 8, 2));
  EXPECT_TRUE(refusal_of([&] { experts_by_rank(run, 8, 2); }, {Exit::config}, "has 3 shares, but mesh.ep = 2"));
  EXPECT_TRUE(refusal_of([&] { experts_by_rank(run, 2, 3); }, {Exit::config}, "more than the 2 experts"));
  run.mesh.expert_shares = "4000,2000,1";
  EXPECT_EQ(expert_speeds(run, 3), (Parts{1000, 500, 1}));
}

TEST(Divided, NoPartIsLargerThanItsMemory) {
  RunSpec run = small_run();
  run.train.global_batch = 20;
  run.train.micro_batches = 2;
  run.mesh.ep = 2;
  run.mesh.shares = run.mesh.width_shares = kMeasuredShares;
  run.moe.transport = "gather_tokens";
  run.native.expert_width = 640;
  const ModelSpec model = build_native_model(run.native);
  for (const int rank : {0, 1}) {
    const Plan plan = make_plan(model, run, 2, rank, {});
    for (const Divided& divided : {divided_samples(plan), divided_width(plan)}) {
      EXPECT_EQ(divided.equal(), (Parts{5, 5})) << divided.name;
      const auto bytes = [&](Parts shares) {
        if (rank == 1) std::swap(shares[0], shares[1]);
        RunSpec other = run;
        other.mesh.*divided.key = list_of_shares(shares);
        return summarise(all_rows(make_plan(model, other, 2, rank, {}))).total();
      };
      EXPECT_EQ(units_that_fit(divided, run, plan, bytes({7, 3})), 7) << divided.name;
      EXPECT_EQ(units_that_fit(divided, run, plan, bytes({7, 3}) - 1), 6) << divided.name;
      EXPECT_EQ(units_that_fit(divided, run, plan, bytes({9, 1})), 9) << divided.name;
      EXPECT_EQ(units_that_fit(divided, run, plan, 0), 5) << divided.name;
    }
  }
  run.moe.transport = "gather_weights";
  run.mesh.width_shares = "";
  run.moe.aux_loss_coef = 0.1;
  run.moe.aux_scope = AuxScope::sequence;  // counts over sequences that TP must not cut
  run.mesh.tp = 2;
  run.mesh.ep = 4;
  run.train.global_batch = 24;
  EXPECT_EQ(divided_samples(make_plan(model, run, 4, 0, {})).units, 6);
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
  platform.scratch = ScratchRule::by_library;
  const auto scratch = [&](int64_t samples, const char* shares, int ranks) {
    run.train.global_batch = samples;
    run.mesh.shares = shares;
    return attention_scratch_bytes(model, run, make_mesh(run.mesh, ranks), platform);
  };
  const int64_t of_five = scratch(5, "", 1), of_four = scratch(4, "", 1);
  EXPECT_GT(of_four, of_five);
  EXPECT_EQ(scratch(9, "5,4", 2), of_four);
}

TEST(Shares, OfManyRanksAreToldInALine) {
  EXPECT_EQ(describe_parts(Parts{13, 7}), "13,7");
  EXPECT_EQ(describe_parts(std::vector{0.12345, 2.0}), "0.123,2");
  Parts many(1000, 7);
  many[3] = 5;
  many[998] = 9;
  EXPECT_EQ(describe_parts(many), "least 5 (rank 3), median 7, most 9 (rank 998)");
  std::vector<double> seconds(17, 0.5);
  seconds[16] = 0.25;
  EXPECT_EQ(describe_parts(seconds), "least 0.25 (rank 16), median 0.5, most 0.5 (rank 15)");
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
