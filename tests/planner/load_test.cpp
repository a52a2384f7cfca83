#include "planner/load.h"

#include <cstdio>
#include <fstream>

#include "planner/helpers.h"

namespace mw::test {
namespace {

TEST(Load, FollowsItsDistribution) {
  LoadModel even({1e6}, {}), plain({8}, {}), wild({1}, {});
  EXPECT_NEAR(even.of(128, 8).p99, 1, 0.01);
  EXPECT_DOUBLE_EQ(wild.of(128, 1).p99, 1);
  for (const int64_t ep : {2, 8, 128}) {
    EXPECT_GT(plain.of(128, ep).mean, 1);
    EXPECT_GT(plain.of(128, ep).p99, plain.of(128, ep).mean);
    EXPECT_GT(wild.of(128, ep).mean, plain.of(128, ep).mean);
  }
  EXPECT_NEAR(wild.of(128, 128).mean, 5.4, 0.3);  // of 128 exponential shares the largest: the harmonic number
}

TEST(Load, OfAMeasuredOneIsExact) {
  LoadModel load({8, {{1, 2, 3, 6}}}, {});
  EXPECT_DOUBLE_EQ(load.of(4, 2).mean, 1.5);
  EXPECT_DOUBLE_EQ(load.of(4, 2).p99, 1.5);
  EXPECT_DOUBLE_EQ(load.of(4, 4).mean, 2);
  EXPECT_DOUBLE_EQ(LoadModel({8, {{1, 1, 1, 1, 1}}}, {}).of(5, 4).mean, 1.6);  // blocks of 2, 1, 1 and 1
  for (const double tiny : {0.0, 5e-324, 1e-300, 1e300}) EXPECT_THROW(LoadModel({8, {{tiny, 0}}}, {}), Error) << tiny;
  EXPECT_DOUBLE_EQ(LoadModel({8, {{0.75, 0.25}}}, {}).of(2, 2).mean, 1.5);
  EXPECT_THROW(LoadModel({8, {{1, 1}, {1, -1}}}, {}), Error);
}

TEST(Load, OfSeveralHasTheirMeanAndTheirWorst) {
  std::vector<std::vector<double>> measured(99, {1, 1});
  measured.push_back({1, 3});
  LoadModel load({8, measured}, {});
  EXPECT_DOUBLE_EQ(load.of(2, 2).mean, 1.005);
  EXPECT_DOUBLE_EQ(load.of(2, 2).p99, 1.5);
}

// A capacity of 1.2 takes 3.6 of the six rows; a padded exchange gives each of the four experts as many as the fullest.
TEST(Load, FollowsCapacityAndPadding) {
  MoeRunSpec moe;
  EXPECT_DOUBLE_EQ(LoadModel({8, {{1, 2, 3, 6}}}, moe).of(4, 2, true).mean, 2);
  moe.capacity_factor = 1.2;
  EXPECT_DOUBLE_EQ(LoadModel({8, {{1, 2, 3, 6}}}, moe).of(4, 2, true).mean, 1.2);
  EXPECT_DOUBLE_EQ(LoadModel({8, {{1, 2, 3, 6}}}, moe).of(4, 2).mean, 1.1);
  EXPECT_LE(LoadModel({1}, moe).of(64, 64).p99, 1.2);
  // The fullest expert counts where nothing travels far, too, and a rank with more experts has more padding.
  EXPECT_DOUBLE_EQ(LoadModel({8, {{1, 2, 3, 6}}}, {}).of(4, 1, true).mean, 2);
  EXPECT_DOUBLE_EQ(LoadModel({8, {{1, 1, 1, 1, 1}}}, {}).of(5, 4, true).mean, 1.6);
}

TEST(Load, IsReadFromListsAndRuns) {
  NativeModel native;
  native.layers = 3;
  native.dense_layers = 1;
  native.experts = 4;
  const ModelSpec model = build_native_model(native);
  const std::string path = testing::TempDir() + "read_loads";
  const auto write = [&](const std::string& text) {
    std::ofstream(path) << text;
    return path;
  };
  using Loads = std::vector<std::vector<double>>;
  EXPECT_EQ(read_loads(write(" [4, 3, 2, 1]"), model), (Loads{{4, 3, 2, 1}}));
  const std::string prepares = "{\"step\": 1}\n{\"step\": 2}\n{\"step\": 3}\n";
  EXPECT_EQ(read_loads(write(prepares + "{\"step\": 4, \"expert_load\": [[1, 2, 3, 4], [4, 3, 2, 1]]}\n"
                                        "{\"step\": 5}\n{\"step\": 5, \"final_val_loss\": 1}\n{\"step\": 5, \"expe"),
                       model),
            (Loads{{1, 2, 3, 4}, {4, 3, 2, 1}}));
  for (const char* text :
       {"", "{\"a\": 1}", "{\"step\": 4}\n", "{\"step\": 4, \"expert_load\": [[1, 2, 3, 4]]}\n",
        "{\"step\": 4, \"expert_load\": [[1, 2, 3], [1, 2, 3]]}\n", "{\"step\": 4, \"expert_load\": 7}\n"})
    EXPECT_THROW(read_loads(write(prepares + text), model), Error) << text;
  EXPECT_THROW(read_loads(write("[4, 3, 2]"), model), Error);
  EXPECT_THROW(read_loads(write("[4, 3, 2, \"1\"]"), model), Error);
  std::remove(path.c_str());
}

}  // namespace
}  // namespace mw::test
