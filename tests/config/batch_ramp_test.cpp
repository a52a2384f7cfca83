// The batch-size ramp against its closed forms, and what is refused.
#include "config/batch_ramp.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace mw::test {
namespace {

TrainSpec ramp(std::vector<std::string> points) {
  TrainSpec train;
  train.global_batch = 24;
  train.micro_batches = 6;  // of 4 samples
  train.batch_ramp = std::move(points);
  return train;
}

TEST(BatchRamp, StepsHoldTheirPoints) {
  const TrainSpec train = ramp({"3 4", "5 16"});
  const int64_t samples[] = {4, 4, 4, 16, 16, 24, 24, 24}, micro_batches[] = {1, 1, 1, 4, 4, 6, 6, 6};
  double before = 0;
  for (int64_t step = 1; step <= 8; ++step) {
    EXPECT_EQ(samples_of_step(train, step), samples[step - 1]) << step;
    EXPECT_EQ(micro_batches_of_step(train, step), micro_batches[step - 1]) << step;
    EXPECT_EQ(samples_of_steps(train, 0, step - 1), before);
    for (int64_t after = 0; after <= step; ++after)
      EXPECT_EQ(samples_of_steps(train, 0, after) + samples_of_steps(train, after, step),
                before + static_cast<double>(samples[step - 1]));
    before += static_cast<double>(samples[step - 1]);
  }
  EXPECT_EQ(describe_batch(train), "4 samples until step 3, 16 until step 5, then 24");
}

TEST(BatchRamp, NoneIsTheGlobalBatch) {
  const TrainSpec train = ramp({});
  check_batch_ramp(train);
  for (const int64_t step : {1, 2, 1000000}) EXPECT_EQ(samples_of_step(train, step), 24);
  EXPECT_EQ(samples_of_steps(train, 10, 110), 2400);
  EXPECT_EQ(describe_batch(train), "24 samples");
}

TEST(BatchRamp, MayBeLongerThanTheRun) {
  TrainSpec train = ramp({"1000 8"});
  train.steps = 10;
  check_batch_ramp(train);
  EXPECT_EQ(samples_of_steps(train, 0, train.steps), 80);
}

TEST(BatchRamp, TellsWhichMicroBatchesDivideIt) {
  const TrainSpec train = ramp({"3 4", "5 16"});
  check_batch_ramp(train);
  for (const int64_t count : {6, 12, 24}) EXPECT_TRUE(divides_batch_ramp(train, count)) << count;
  for (const int64_t count : {1, 2, 3, 4, 8}) EXPECT_FALSE(divides_batch_ramp(train, count)) << count;
}

void refuse(const std::vector<std::string>& points, const std::string& why, const std::string& cure = "") {
  try {
    check_batch_ramp(ramp(points));
    ADD_FAILURE() << "accepted, expected: " << why;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::config);
    EXPECT_EQ(std::string(error.what()).rfind("train.batch_ramp: ", 0), 0u) << error.what();
    EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    EXPECT_NE(error.hint().find(cure), std::string::npos) << error.hint();
  }
}

TEST(BatchRamp, RefusesWhatIsNone) {
  for (const char* point : {"", "3", "3 ", " 3 4", "3 4 ", "3  4", "3,4", "3 4.5", "x 4", "-3 4", "3 -4", "0 4", "3 0",
                            "3 99999999999999999999", "99999999999999 4"})
    refuse({point}, "expected \"STEP SAMPLES\"", "[\"100 64\", \"200 128\"]");
  refuse({"3 4", "3 8"}, "expected ascending steps, got 3 after 3");
  refuse({"3 8", "5 4"}, "less than train.global_batch = 24, got 4 after 8");
  refuse({"3 8", "5 8"}, "got 8 after 8");
  refuse({"3 24"}, "less than train.global_batch = 24, got 24");
  refuse({"3 28"}, "got 28");
  refuse({"3 6"}, "6 samples are no multiple of a micro-batch", "set 4 samples");
  refuse({"3 2"}, "train.global_batch / train.micro_batches = 4 samples",
         "set 4 samples, or raise train.micro_batches");
  refuse({"3 4", "5 6"}, "6 samples are no multiple of a micro-batch", "set 8 samples");
  TrainSpec whole = ramp({"3 4"});
  whole.micro_batches = 1;
  try {
    check_batch_ramp(whole);
    ADD_FAILURE() << "a ramp with one micro-batch";
  } catch (const Error& error) {
    EXPECT_EQ(error.hint(), "raise train.micro_batches");
  }
}

}  // namespace
}  // namespace mw::test
