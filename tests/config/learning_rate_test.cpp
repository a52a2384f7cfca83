// Schedules of the learning rate against their closed forms, and what is refused.
#include "config/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace mw::test {
namespace {

TEST(LearningRate, WarmsUpAndFallsAlongACosine) {
  TrainSpec train;
  train.steps = 110;
  train.warmup = 10;
  train.lr = 2e-3;
  train.min_lr_ratio = 0.1;
  EXPECT_DOUBLE_EQ(learning_rate(train, 1), 2e-4);
  EXPECT_DOUBLE_EQ(learning_rate(train, 5), 1e-3);
  EXPECT_DOUBLE_EQ(learning_rate(train, 10), 2e-3);
  EXPECT_NEAR(learning_rate(train, 60), (2e-3 + 2e-4) / 2, 1e-12);  // half way
  EXPECT_NEAR(learning_rate(train, 35), 2e-4 + 1.8e-3 * 0.5 * (1 + std::sqrt(0.5)), 1e-12);
  EXPECT_NEAR(learning_rate(train, 110), 2e-4, 1e-12);
  EXPECT_NEAR(learning_rate(train, 100000), 2e-4, 1e-12);  // beyond the end it stays
  for (int64_t step = 11; step <= 110; ++step)
    EXPECT_LT(learning_rate(train, step), learning_rate(train, step - 1)) << step;
}

TEST(LearningRate, ConstantAndDegenerateSchedules) {
  TrainSpec train;
  train.lr = 1e-3;
  train.warmup = 4;
  train.schedule = LearningRateSchedule::constant;
  train.steps = 100;
  EXPECT_DOUBLE_EQ(learning_rate(train, 2), 5e-4);
  for (const int64_t step : {4, 5, 50, 100, 1000}) EXPECT_DOUBLE_EQ(learning_rate(train, step), 1e-3);
  train.schedule = LearningRateSchedule::cosine;
  train.steps = 3;  // ends within the warm-up
  EXPECT_DOUBLE_EQ(learning_rate(train, 3), 7.5e-4);
  train.warmup = 0;
  train.steps = 1;
  EXPECT_NEAR(learning_rate(train, 1), 1e-4, 1e-12);  // the default ratio
}

TrainSpec spec(LearningRateSchedule schedule) {
  TrainSpec train;
  train.lr = 1e-3;
  train.min_lr_ratio = 0.1;
  train.steps = 100;
  train.schedule = schedule;
  return train;
}

TEST(LearningRate, FallsLinearly) {
  TrainSpec train = spec(LearningRateSchedule::linear);
  train.warmup = 20;
  check_learning_rate(train);
  EXPECT_DOUBLE_EQ(learning_rate(train, 10), 5e-4);
  EXPECT_DOUBLE_EQ(learning_rate(train, 20), 1e-3);
  EXPECT_NEAR(learning_rate(train, 40), 1e-3 - 9e-4 / 4, 1e-15);
  EXPECT_NEAR(learning_rate(train, 100), 1e-4, 1e-15);
  EXPECT_NEAR(learning_rate(train, 1000), 1e-4, 1e-15);
}

TEST(LearningRate, FallsAsTheInverseSquareRoot) {
  TrainSpec train = spec(LearningRateSchedule::inverse_sqrt);
  train.warmup = 4;
  EXPECT_DOUBLE_EQ(learning_rate(train, 2), 5e-4);
  EXPECT_DOUBLE_EQ(learning_rate(train, 16), 5e-4);
  EXPECT_DOUBLE_EQ(learning_rate(train, 64), 2.5e-4);
  EXPECT_DOUBLE_EQ(learning_rate(train, 10'000), 1e-4);  // the least
  train.warmup = 0;
  EXPECT_DOUBLE_EQ(learning_rate(train, 1), 1e-3);
  EXPECT_DOUBLE_EQ(learning_rate(train, 4), 5e-4);
}

TEST(LearningRate, StaysUntilItsLastSteps) {
  TrainSpec train = spec(LearningRateSchedule::wsd);
  train.warmup = 10;
  for (const int64_t step : {10, 50, 90}) EXPECT_DOUBLE_EQ(learning_rate(train, step), 1e-3) << step;
  EXPECT_NEAR(learning_rate(train, 95), 5.5e-4, 1e-15);
  EXPECT_NEAR(learning_rate(train, 100), 1e-4, 1e-15);
  train.decay_steps = 40;
  train.min_lr_ratio = 0;
  EXPECT_DOUBLE_EQ(learning_rate(train, 60), 1e-3);
  EXPECT_NEAR(learning_rate(train, 70), 7.5e-4, 1e-15);
  EXPECT_NEAR(learning_rate(train, 100), 0, 1e-15);
}

TEST(LearningRate, JoinsPoints) {
  TrainSpec train = spec(LearningRateSchedule::piecewise);
  train.lr_points = {"2 0.5", "6 1", "7 0.25"};
  check_learning_rate(train);
  const double factors[] = {0.5, 0.5, 0.625, 0.75, 0.875, 1, 0.25, 0.25};
  for (int64_t step = 1; step <= 8; ++step)
    EXPECT_DOUBLE_EQ(learning_rate(train, step), 1e-3 * factors[step - 1]) << step;
  train.lr_points = {"0 2"};
  EXPECT_DOUBLE_EQ(learning_rate(train, 50), 2e-3);
}

// The error's text, or "" where nothing is refused.
std::string refusal(const TrainSpec& train) {
  try {
    check_learning_rate(train);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::config);
    EXPECT_NE(error.hint(), "");
    return error.what();
  }
  return "";
}

TEST(LearningRate, RefusesWhatDoesNotFit) {
  TrainSpec train = spec(LearningRateSchedule::piecewise);
  for (const char* item : {"", "1", "1 ", " 1", "1,2", "1 2 3", "a 1", "1 b", "-1 1", "1.5 1", "1 -1", "1 nan", "nan 1",
                           "inf 1", "1 inf", "1e13 1", "1 1e7", "1 2x", "1\t2"}) {
    train.lr_points = {item};
    EXPECT_NE(refusal(train), "") << item;
  }
  train.lr_points = {"5 1", "5 1"};
  EXPECT_EQ(refusal(train), "train.lr_points: expected ascending steps, got 5 after 5");
  train.lr_points.clear();
  EXPECT_NE(refusal(train), "");
  train.lr_points = {"0 0", "5 1"};
  EXPECT_EQ(refusal(train), "");
  train.warmup = 3;
  EXPECT_NE(refusal(train), "");

  train = spec(LearningRateSchedule::wsd);
  train.warmup = 50;
  train.decay_steps = 50;
  EXPECT_EQ(refusal(train), "");
  train.decay_steps = 51;
  EXPECT_NE(refusal(train), "");
  train.schedule = LearningRateSchedule::cosine;
  EXPECT_EQ(refusal(train), "train.decay_steps is set, but belongs to train.schedule = \"wsd\", not \"cosine\"");
  train.decay_steps = 0;
  train.lr_points = {"1 1"};
  EXPECT_NE(refusal(train), "");
}

TEST(LearningRate, IsDescribed) {
  TrainSpec train = spec(LearningRateSchedule::cosine);
  train.warmup = 10;
  EXPECT_EQ(describe_learning_rate(train), "10 steps of warm-up to 0.001, then cosine to 0.0001 at step 100");
  train.schedule = LearningRateSchedule::wsd;
  EXPECT_EQ(describe_learning_rate(train),
            "10 steps of warm-up to 0.001, then constant, in the last 10 steps linear to 0.0001 at step 100");
  train.schedule = LearningRateSchedule::constant;
  train.warmup = 0;
  EXPECT_EQ(describe_learning_rate(train), "0.001 from the first step on, then constant");
  train.warmup = 200;
  EXPECT_EQ(describe_learning_rate(train), "200 steps of warm-up to 0.001; the run ends after 100 of them, at 0.0005");
}

}  // namespace
}  // namespace mw::test
