// Learning-rate factors by names of parameters.
#include "config/param_groups.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"

namespace mw::test {
namespace {

std::map<std::string, double> scales(const std::vector<std::string>& items) {
  RunSpec run;
  run.native.layers = 3;
  run.native.dense_layers = 1;
  run.train.lr_scales = items;
  const std::vector<ParamRow> rows = run_params(build_native_model(run.native), run.train);
  check_param_groups(rows, run.train);
  std::map<std::string, double> found;
  for (const ParamRow& row : rows)
    if (row.lr_scale != 1) found[row.name] = row.lr_scale;
  return found;
}

TEST(LrScales, MatchNames) {
  using Scales = std::map<std::string, double>;
  EXPECT_EQ(scales({}), Scales{});
  EXPECT_EQ(scales({"embed 0.5"}), (Scales{{"embed", 0.5}}));
  EXPECT_EQ(scales({"*.router 0"}), (Scales{{"layers.1.moe.router", 0}, {"layers.2.moe.router", 0}}));
  EXPECT_EQ(scales({"layers.1.*q 2", "layers.*.wq 3"}),
            (Scales{{"layers.0.attn.wq", 3}, {"layers.1.attn.wq", 2}, {"layers.2.attn.wq", 3}}));
  EXPECT_EQ(scales({"*w*q 2"}).size(), 3u);  // a star that has to try again
  EXPECT_EQ(scales({"*o*u*e* 2"}), scales({"*.moe.router 2"}));
  EXPECT_EQ(scales({"* 0.5"}).count("final_norm"), 1u);
}

TEST(MuonGroups, AreTheMatricesOfLayers) {
  RunSpec run;
  run.native.layers = 2;
  run.native.dense_layers = 1;
  run.train.lr = 1e-3;
  run.train.lr_scales = {"*.wq 0.5"};
  run.train.muon.lr = 1e-2;
  const auto refused = [&] {
    try {
      check_param_groups(run_params(build_native_model(run.native), run.train), run.train);
    } catch (const Error& error) {
      return error.code() == Exit::config && !error.hint().empty();
    }
    return false;
  };
  EXPECT_TRUE(refused());  // without Muon
  run.train.optimizer = Optimizer::muon;
  EXPECT_FALSE(refused());
  for (const bool router : {false, true}) {
    run.train.muon.router = router;
    for (const ParamRow& row : run_params(build_native_model(run.native), run.train)) {
      const bool is_matrix = row.name.find(".w") != std::string::npos,
                 is_router = row.name.find(".router") != std::string::npos;
      EXPECT_EQ(row.muon, is_matrix || (is_router && router)) << row.name;
      const double factor = row.name.find(".wq") != std::string::npos ? 0.5 : 1;
      EXPECT_DOUBLE_EQ(row.lr_scale, row.muon ? 10 * factor : factor) << row.name;
    }
  }
  run.train.lr = 0;
  EXPECT_TRUE(refused());  // no multiple of 0
}

TEST(LrScales, RefuseWhatIsMalformedOrUnused) {
  const auto refused = [](const std::vector<std::string>& items) {
    try {
      scales(items);
    } catch (const Error& error) {
      return error.code() == Exit::config && !error.hint().empty();
    }
    return false;
  };
  for (const char* item : {"", "embed", "embed ", " 1", "embed x", "embed 1 2", "embed -1", "embed nan", "embed 1e7",
                           "embed inf", "embed\t1"})
    EXPECT_TRUE(refused({item})) << item;
  EXPECT_TRUE(refused({"nothing 1"}));
  EXPECT_TRUE(refused({"EMBED 1"}));
  EXPECT_TRUE(refused({"layers.1.attn 1"}));
  EXPECT_TRUE(refused({"* 1", "embed 0.5"}));  // never reached
}

}  // namespace
}  // namespace mw::test
