// Samples are shared anew where a rank has become slower, and stay where its times only scatter.
#include "layout/share_watch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace mw::test {
namespace {

using Parts = std::vector<int64_t>;

// A run whose ranks compute at `speeds`: time of a step is that of the slowest rank and a constant part.
struct SyntheticRun {
  Parts shares;
  std::vector<double> speeds;
  double noise = 0, constant = 0.2;
  bool heavy_tails = false;  // Student's t with two degrees of freedom: now and then a rank takes several times as long
  std::mt19937_64 random{1};
  ShareWatch watch{shares, Parts(shares.size(), 1000), 0};
  int changes = 0;

  // Ten steps and a look.
  void go_on(int64_t step) {
    std::normal_distribution<double> scatter;
    std::gamma_distribution<double> variance(1);
    std::vector<double> seconds;
    double slowest = 0;
    for (size_t i = 0; i < speeds.size(); ++i) {
      double excess = noise * scatter(random);
      if (heavy_tails) excess = std::min(3.0, std::abs(excess) / std::sqrt(variance(random)));
      seconds.push_back(std::exp(excess) / speeds[i]);
      slowest = std::max(slowest, seconds[i] * static_cast<double>(shares[i]));
    }
    const double mean = static_cast<double>(std::accumulate(shares.begin(), shares.end(), int64_t{0})) /
                        std::accumulate(speeds.begin(), speeds.end(), 0.0);
    if (const auto next = watch.look(seconds, slowest + constant * mean, step)) {
      ++changes;
      shares = *next;
      watch.begin(shares, step);
    }
  }
};

TEST(ShareWatch, FollowsARankThatHalvesItsSpeedWithin60Steps) {
  SyntheticRun run{.shares = {16, 16}, .speeds = {1, 1}, .noise = 0.02};
  for (int64_t step = 10; step <= 160; step += 10) {
    if (step > 100) run.speeds[1] = 0.5;
    run.go_on(step);
  }
  EXPECT_EQ(run.changes, 1);
  EXPECT_NEAR(static_cast<double>(run.shares[0]), 21.3, 1.1);
  // Within 5 % of the best time, which is that of 21 and 11 samples.
  EXPECT_LE(std::max(static_cast<double>(run.shares[0]), 2.0 * static_cast<double>(run.shares[1])), 22 * 1.05);
}

TEST(ShareWatch, ChangesAtMostOnceIn1000SteadySteps) {
  for (const double noise : {0.03, 0.1})
    for (const bool heavy_tails : {false, true})
      for (const size_t ranks : {2, 4, 8})
        for (uint64_t seed = 1; seed <= 50; ++seed) {
          SyntheticRun run{.shares = Parts(ranks, 16), .speeds = std::vector<double>(ranks, 1), .noise = noise};
          run.heavy_tails = heavy_tails;
          run.random.seed(seed);
          for (int64_t step = 10; step <= 1000; step += 10) run.go_on(step);
          EXPECT_LE(run.changes, 1) << ranks << " ranks, noise " << noise << ' ' << heavy_tails << ", seed " << seed;
        }
}

// How many times as long rank 0 computed as rank 1, in ten steps each, where seven processes shared two cores.
constexpr double kBusy[][100] = {
    {0.80, 1.50, 1.15, 0.57, 1.13, 0.77, 0.81, 0.55, 0.87, 0.46, 0.99, 0.75, 0.95, 1.07, 1.43, 0.91, 0.76,
     0.74, 1.11, 1.17, 1.87, 1.96, 1.09, 0.66, 0.76, 1.69, 1.65, 1.02, 0.72, 1.13, 0.82, 1.30, 2.72, 0.92,
     0.89, 0.90, 1.53, 1.11, 1.01, 1.19, 1.01, 1.40, 0.98, 1.01, 0.85, 0.73, 0.59, 0.85, 0.78, 0.68, 0.63,
     0.53, 0.92, 0.79, 0.61, 1.03, 0.85, 0.71, 0.90, 0.73, 0.77, 0.78, 0.93, 1.71, 0.86, 0.97, 0.99, 0.94,
     1.42, 1.72, 1.48, 1.63, 1.53, 1.62, 1.30, 2.32, 1.78, 1.54, 1.04, 1.42, 1.34, 1.67, 2.06, 1.94, 1.40,
     2.25, 1.31, 1.74, 1.69, 2.02, 1.68, 1.48, 1.20, 2.43, 0.66, 0.95, 0.96, 0.54, 0.67, 0.98},
    {1.07, 1.58, 2.17, 1.49, 1.27, 1.88, 1.27, 1.81, 1.35, 2.06, 1.28, 1.23, 1.53, 1.32, 1.38, 1.46, 1.27,
     1.26, 1.48, 1.16, 1.38, 1.92, 2.02, 1.40, 1.36, 0.95, 0.99, 1.22, 1.79, 1.56, 1.95, 1.82, 1.85, 1.26,
     1.41, 1.58, 1.53, 1.28, 1.53, 1.31, 1.85, 1.59, 2.15, 1.51, 1.53, 2.28, 2.09, 1.64, 1.15, 1.80, 1.78,
     1.26, 1.71, 0.95, 0.98, 0.91, 0.63, 1.03, 0.84, 0.98, 0.98, 0.92, 0.98, 0.88, 1.03, 0.79, 0.92, 1.01,
     1.11, 1.02, 1.39, 1.00, 1.13, 0.68, 0.76, 1.31, 0.95, 0.77, 0.60, 0.65, 0.64, 0.69, 0.97, 0.94, 0.95,
     0.94, 0.93, 1.36, 1.25, 0.69, 0.57, 0.69, 0.90, 1.11, 1.02, 1.13, 0.74, 0.95, 1.24, 1.08},
    {1.17, 1.35, 1.36, 1.15, 1.19, 0.89, 1.21, 1.25, 1.04, 1.17, 1.17, 1.17, 0.85, 1.02, 0.96, 0.78, 0.97,
     1.03, 0.90, 0.84, 0.68, 0.56, 0.57, 0.54, 0.56, 0.66, 0.71, 0.51, 0.72, 0.81, 0.88, 0.99, 0.90, 0.84,
     0.90, 0.84, 1.03, 1.04, 0.97, 1.05, 1.06, 0.75, 1.03, 1.03, 0.96, 1.17, 0.86, 0.99, 0.62, 0.62, 0.65,
     0.65, 0.57, 0.65, 0.62, 0.69, 0.85, 1.07, 1.22, 1.42, 1.31, 1.30, 1.30, 0.96, 1.05, 1.11, 1.10, 0.95,
     1.06, 1.31, 1.92, 1.55, 1.67, 1.54, 0.92, 1.09, 1.13, 0.91, 0.74, 1.20, 1.11, 1.48, 1.55, 0.91, 1.02,
     1.16, 1.05, 0.73, 0.94, 0.73, 0.85, 1.06, 0.98, 1.12, 0.92, 1.11, 0.75, 0.76, 0.87, 1.09}};

TEST(ShareWatch, ChangesAtMostOnceOnBusyCores) {
  for (const auto& ratios : kBusy) {
    SyntheticRun run{.shares = {8, 8}, .speeds = {1, 1}};
    for (int64_t look = 0; look < 100; ++look) {
      run.speeds[0] = 1 / ratios[look];
      run.go_on(10 * (look + 1));
    }
    EXPECT_LE(run.changes, 1);
  }
}

TEST(ShareWatch, WaitsForFiveLooksThatAgreeAndAHundredSteps) {
  const std::vector<double> uneven = {1, 3}, less = {1, 1.3}, even = {1, 1};
  ShareWatch watch({8, 8}, {16, 16}, 1000);
  for (int64_t step = 1010; step < 1100; step += 10) EXPECT_FALSE(watch.look(uneven, 24, step)) << step;
  EXPECT_EQ(watch.look(uneven, 24, 1100), (Parts{12, 4}));
  ShareWatch doubts({8, 8}, {16, 16}, 0);
  for (int64_t step = 100; step < 140; step += 10) EXPECT_FALSE(doubts.look(less, 10.4, step)) << step;
  EXPECT_FALSE(doubts.look(even, 8, 140));
  for (int64_t step = 150; step < 190; step += 10) EXPECT_FALSE(doubts.look(less, 10.4, step)) << step;
  EXPECT_EQ(doubts.look(less, 10.4, 190), (Parts{9, 7}));
}

TEST(ShareWatch, LetsOneLookOfSixDisagreeWhereTheOthersPromiseMuch) {
  const std::vector<double> uneven = {1, 3}, even = {1, 1};
  for (const int64_t other : {110, 120, 130, 140}) {
    ShareWatch watch({8, 8}, {16, 16}, 0);
    for (int64_t step = 10; step < 100; step += 10) EXPECT_FALSE(watch.look(even, 8, step)) << step;
    for (int64_t step = 100; step < 150; step += 10)
      EXPECT_FALSE(watch.look(step == other ? even : uneven, 24, step)) << step;
    EXPECT_EQ(watch.look(uneven, 24, 150), (Parts{12, 4})) << other;
  }
}

TEST(ShareWatch, WaitsForTwentyLooksOnceItHasChanged) {
  const std::vector<double> uneven = {1, 3}, even = {1, 1};
  ShareWatch watch({12, 4}, {16, 16}, 0);
  watch.begin({12, 4}, 1100);
  for (int64_t step = 1110; step <= 1300; step += 10) EXPECT_FALSE(watch.look(uneven, 12, step)) << step;
  for (int64_t step = 1310; step < 1500; step += 10) EXPECT_FALSE(watch.look(even, 12, step)) << step;
  EXPECT_EQ(watch.look(even, 12, 1500), (Parts{8, 8}));
}

// A rank that now and then takes ten times as long gets what its usual speed deserves.
TEST(ShareWatch, TakesMedians) {
  ShareWatch watch({8, 8}, {16, 16}, 0);
  std::optional<Parts> next;
  for (int64_t step = 60; step <= 100; step += 10)
    next = watch.look(std::vector<double>{1, step == 70 ? 30.0 : 3.0}, 24, step);
  EXPECT_EQ(next, (Parts{12, 4}));
}

TEST(ShareWatch, GivesNoRankMoreThanItsMemoryHolds) {
  ShareWatch watch({8, 8}, {9, 16}, 0);
  std::optional<Parts> next;
  for (int64_t step = 10; step <= 100; step += 10) next = watch.look(std::vector<double>{1, 3}, 24, step);
  EXPECT_EQ(next, (Parts{9, 7}));
}

// The rest of a step is so long that nothing is worth a change.
TEST(ShareWatch, CountsTheGainOfTheWholeStep) {
  ShareWatch watch({8, 8}, {16, 16}, 0);
  for (int64_t step = 10; step <= 300; step += 10)
    EXPECT_FALSE(watch.look(std::vector<double>{1, 1.5}, 200, step)) << step;
}

}  // namespace
}  // namespace mw::test
