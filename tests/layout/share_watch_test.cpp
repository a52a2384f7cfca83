// Samples are shared anew where a rank has become slower, and stay where its times only scatter.
#include "layout/share_watch.h"

#include <gtest/gtest.h>

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
  std::mt19937_64 random{1};
  ShareWatch watch{shares, Parts(shares.size(), 1000), 0};
  int changes = 0;

  // Ten steps and a look.
  void go_on(int64_t step) {
    std::normal_distribution<double> scatter(0, noise);
    std::vector<double> seconds;
    double slowest = 0;
    for (size_t i = 0; i < speeds.size(); ++i) {
      seconds.push_back(std::exp(scatter(random)) / speeds[i]);
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
  for (const size_t ranks : {2, 4, 8})
    for (uint64_t seed = 1; seed <= 50; ++seed) {
      SyntheticRun run{.shares = Parts(ranks, 16), .speeds = std::vector<double>(ranks, 1), .noise = 0.03};
      run.random.seed(seed);
      for (int64_t step = 10; step <= 1000; step += 10) run.go_on(step);
      EXPECT_LE(run.changes, 1) << ranks << " ranks, seed " << seed;
    }
}

TEST(ShareWatch, WaitsForThreeLooksAndAHundredSteps) {
  const std::vector<double> uneven = {1, 3}, even = {1, 1};
  ShareWatch watch({8, 8}, {16, 16}, 1000);
  for (int64_t step = 1010; step < 1100; step += 10) EXPECT_FALSE(watch.look(uneven, 24, step)) << step;
  EXPECT_EQ(watch.look(uneven, 24, 1100), (Parts{12, 4}));
  watch.begin({12, 4}, 1100);
  for (int64_t step = 1110; step <= 1300; step += 10) EXPECT_FALSE(watch.look(uneven, 12, step)) << step;
  for (int64_t step = 1310; step <= 1320; step += 10) EXPECT_FALSE(watch.look(even, 12, step)) << step;
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
