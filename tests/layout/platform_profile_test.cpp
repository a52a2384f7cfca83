#include "layout/platform_profile.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "layout/helpers.h"

namespace mw::test {
namespace {

std::string shipped(const std::string& name) {
  return read_raw(std::string(MOEWRIGHT_SOURCE_DIR) + "/profiles/" + name + ".json");
}

TEST(PlatformProfile, ShippedOnesAreReadAndWrittenBackUnchanged) {
  for (const char* name : {"h200x8", "frontier", "xeon_amx_2_cores"}) {
    const PlatformProfile profile = parse_platform_profile(shipped(name), name);
    EXPECT_FALSE(profile.sources.empty()) << name;
    EXPECT_EQ(parse_platform_profile(to_json(profile), "written"), profile) << name;
  }
}

TEST(PlatformProfile, RatesAreInterpolatedAndHeldAtTheEnds) {
  const RateTable table = {{100, 10}, {10000, 30}};
  EXPECT_DOUBLE_EQ(rate_at(table, 1), 10);
  EXPECT_DOUBLE_EQ(rate_at(table, 100), 10);
  EXPECT_NEAR(rate_at(table, 1000), 20, 1e-9);
  EXPECT_DOUBLE_EQ(rate_at(table, 1e9), 30);
}

TEST(PlatformProfile, RatesInFp32AreTheirOwnOrAShareOfThoseInBf16) {
  PlatformProfile profile = parse_platform_profile(shipped("h200x8"), "P");
  ASSERT_FALSE(profile.fp32);
  profile.fp32_share = 0.25;
  EXPECT_EQ(rates_of(profile, DType::bf16), profile.bf16);
  const OperatorRates share = rates_of(profile, DType::f32);
  ASSERT_EQ(share.dense_products.size(), profile.bf16.dense_products.size());
  EXPECT_DOUBLE_EQ(share.dense_products[1].per_second, profile.bf16.dense_products[1].per_second / 4);
  EXPECT_DOUBLE_EQ(share.attention_backward[0].size, profile.bf16.attention_backward[0].size);
  EXPECT_EQ(share.row_tile, profile.bf16.row_tile);

  profile.fp32 = profile.bf16;
  profile.fp32->row_tile = 3;
  profile.fp32->dense_products = {{1, 5}};
  EXPECT_EQ(rates_of(profile, DType::f32), *profile.fp32);
  EXPECT_EQ(rate_tables(profile).size(), 10U);
  EXPECT_EQ(parse_platform_profile(to_json(profile), "written"), profile);
}

TEST(PlatformProfile, SharesByHeadWidthAreOptionalAndNoRates) {
  PlatformProfile profile = parse_platform_profile(shipped("h200x8"), "P");
  profile.bf16.attention_forward_widths.reset();
  profile.bf16.attention_backward_widths.reset();
  EXPECT_FALSE(contains(to_json(profile), "_widths"));
  profile.bf16.attention_forward_widths = {{64, 0.7}, {128, 1}};
  profile.bf16.attention_backward_widths = {{64, 0.6}, {128, 1}, {160, 0.9}};
  EXPECT_EQ(parse_platform_profile(to_json(profile), "written"), profile);
  EXPECT_EQ(rate_tables(profile).size(), 5U);
  profile.fp32_share = 0.25;
  EXPECT_EQ(rates_of(profile, DType::f32).attention_forward_widths, profile.bf16.attention_forward_widths);
  profile.fp32 = profile.bf16;
  profile.fp32->attention_forward_widths = {{8, 0.1}};
  profile.fp32->attention_backward_widths.reset();
  EXPECT_EQ(parse_platform_profile(to_json(profile), "written"), profile);
}

TEST(PlatformProfile, RatesOfLinksBySizeAreOptional) {
  PlatformProfile profile = parse_platform_profile(shipped("h200x8"), "P");
  LinkCost& cost = profile.levels[0].all_to_all;
  ASSERT_TRUE(cost.rates.empty());
  EXPECT_DOUBLE_EQ(cost.seconds(1e9), cost.latency_s + 1e9 / cost.bytes_per_s);
  cost = {1e-4, 2e9, {{1e6, 4e9}, {1e8, 2e9}}};
  const PlatformProfile again = parse_platform_profile(to_json(profile), "written");
  EXPECT_EQ(again, profile);
  EXPECT_DOUBLE_EQ(again.levels[0].all_to_all.seconds(1e7), 1e-4 + 1e7 / 3e9);
}

TEST(PlatformProfile, GroupsOfALevelAreOptional) {
  PlatformProfile profile = parse_platform_profile(shipped("h200x8"), "P");
  ASSERT_FALSE(profile.levels[0].groups);
  EXPECT_EQ(link_costs(profile.levels[0]).size(), 3u);
  profile.levels[0].groups = {{2, 4, {1e-5, 1e9}, {2e-5, 2e9, {{1e3, 1e9}, {1e6, 2e9}}}},
                              {4, 1, {1e-5, 3e9}, {2e-5, 4e9}}};
  EXPECT_EQ(parse_platform_profile(to_json(profile), "written"), profile);
  EXPECT_EQ(link_costs(profile.levels[0]).size(), 7u);
  profile.levels[0].owner = {1e-6, 5e9};
  (*profile.levels[0].groups)[1].owner = {1e-6, 6e9, {{1e3, 6e9}}};
  EXPECT_EQ(parse_platform_profile(to_json(profile), "written"), profile);
  EXPECT_EQ(link_costs(profile.levels[0]).size(), 9u);
}

TEST(PlatformProfile, RatesByTheNumberOfExpertsAreOptional) {
  PlatformProfile profile = parse_platform_profile(shipped("h200x8"), "P");
  ASSERT_FALSE(profile.bf16.expert_counts);
  const size_t tables = rate_tables(profile).size();
  OperatorRates& rates = profile.bf16;
  EXPECT_EQ(expert_rate(rates, 3, 1e9), rate_at(rates.expert_products, 1e9));
  EXPECT_EQ(expert_weight_rate(rates, 3, 1e9), rate_at(rates.expert_weight_products, 1e9));
  rates.expert_counts = {{2, {{1e6, 10}, {1e8, 30}}, {{1e6, 5}}}, {32, {{1e6, 50}}, {{1e6, 25}}}};
  EXPECT_EQ(parse_platform_profile(to_json(profile), "written"), profile);
  EXPECT_EQ(rate_tables(profile).size(), tables + 4);
  EXPECT_DOUBLE_EQ(expert_rate(rates, 1, 1e7), 20);  // between two sizes, as the fewest
  EXPECT_DOUBLE_EQ(expert_rate(rates, 8, 1e6), 30);  // between two counts, by the logarithm
  EXPECT_DOUBLE_EQ(expert_rate(rates, 128, 1e7), 50);
  EXPECT_DOUBLE_EQ(expert_weight_rate(rates, 8, 1e9), 15);
}

TEST(PlatformProfile, TimesOfTransportsAreOptional) {
  PlatformProfile profile = parse_platform_profile(shipped("h200x8"), "P");
  EXPECT_EQ(time_over_predicted(profile, "bypass"), 1);
  profile.transport_times = {{"flat", 0.75}, {"bypass", 1.25}};
  EXPECT_EQ(parse_platform_profile(to_json(profile), "written"), profile);
  EXPECT_EQ(time_over_predicted(profile, "bypass"), 1.25);
  EXPECT_EQ(time_over_predicted(profile, "halo"), 1);
}

TEST(PlatformProfile, KindsOfRanksAreOptional) {
  PlatformProfile profile = parse_platform_profile(shipped("h200x8"), "P");
  EXPECT_EQ(speed_of(profile, 5), 1);
  EXPECT_EQ(describe_rank_kinds(profile), "all ranks are alike");
  profile.rank_kinds = {{2, 3.0}, {1, 1.0}, {1, 3.0}};
  EXPECT_EQ(parse_platform_profile(to_json(profile), "written"), profile);
  EXPECT_EQ(speed_of(profile, 1), 3);
  EXPECT_EQ(speed_of(profile, 2), 1);
  EXPECT_EQ(speed_of(profile, 3), 3);
  EXPECT_EQ(speed_of(profile, 4), 1);  // beyond them
  EXPECT_EQ(describe_rank_kinds(profile),
            "2 ranks at 3 times the speed of the slowest, 1 rank of those, 1 rank at 3 times the speed of the slowest");
  const auto refuse = [&](const std::vector<RankKind>& wrong, const char* why) {
    profile.rank_kinds = wrong;
    EXPECT_TRUE(refusal_of([&] { parse_platform_profile(to_json(profile), "P"); }, {Exit::config}, why)) << why;
  };
  refuse({{2, 0.5}}, "speed of rank_kinds = 0.5");
  refuse({{0, 1}}, "ranks of rank_kinds = 0");
  refuse({}, "rank_kinds is empty");
  refuse({{2, 3.0}, {1, 2.0}}, "expected a kind of speed 1, got 2");
}

// The slowest of a kind counts for it.
TEST(PlatformProfile, RanksWithinATenthAreOfOneKind) {
  using Kinds = std::vector<RankKind>;
  EXPECT_EQ(rank_kinds_of(std::vector<double>{1, 1.05, 1.09, 1.02}), (Kinds{{4, 1.0}}));
  EXPECT_EQ(rank_kinds_of(std::vector<double>{2, 1, 2.1, 0.98}), (Kinds{{1, 1.0}, {1, 2.1}, {1, 1.0}, {1, 2.1}}));
  EXPECT_EQ(rank_kinds_of(std::vector<double>{1, 1.2, 1.3, 1.4}), (Kinds{{1, 1.4}, {2, 1.4 / 1.3}, {1, 1.0}}));
}

TEST(PlatformProfile, RefusesWhatCannotBe) {
  const auto refuse = [](auto change, const char* why) {
    nlohmann::json json = nlohmann::json::parse(shipped("h200x8"));
    change(json);
    const auto error = refusal_of([&] { parse_platform_profile(json.dump(), "P"); });
    ASSERT_TRUE(error) << why;
    EXPECT_EQ(error->code(), Exit::config);
    EXPECT_TRUE(contains(error->what(), why)) << error->what();
  };
  using J = nlohmann::json;
  refuse([](J& j) { j["format"] = "gguf"; }, "expected \"format\": \"moewright-platform\", got \"gguf\"");
  refuse([](J& j) { j["version"] = 2; }, "of a platform profile, got 2");
  refuse([](J& j) { j["dense_products"] = {{5e-324, 1e9}, {1e9, 2e9}}; }, "dense_products: size = ");
  refuse([](J& j) { j["dense_products"] = {{1e9, 1e9}, {std::nextafter(1e9, 2e9), 2e9}}; }, "dense_products: size = ");
  refuse([](J& j) { j["threads"] = 0; }, "threads = 0");
  refuse([](J& j) { j.erase("levels"); }, "lacks the field \"levels\"");
  refuse([](J& j) { j["row_tiles"] = 1; }, "did you mean \"row_tile\"?");
  refuse([](J& j) { j["levels"][0]["rank"] = 1; }, "did you mean \"ranks\"?");
  const auto group = [](int ranks, int stride) {
    return J::array({{{"ranks", ranks}, {"stride", stride}, {"all_to_all", {1e-5, 1e9}}, {"ring", {1e-5, 1e9}}}});
  };
  refuse([&](J& j) { j["levels"][0]["groups"] = group(4, 4); }, "group of level NVLink: ranks = 4, expected 1 to 2");
  refuse([&](J& j) { j["levels"][0]["groups"] = group(2, 0); }, "group of level NVLink: stride = 0");
  refuse([&](J& j) { j["levels"][1]["groups"] = group(2, 1); }, "group of level InfiniBand: ranks = 2, expected 9");
  refuse([](J& j) { j["levels"][0]["groups"] = J::array({{{"ranks", 2}}}); }, "lacks the field \"stride\"");
  refuse([](J& j) { j["memory_bytes"] = "80 GB"; }, "\"memory_bytes\" must be an integer below 2^60, got");
  refuse([](J& j) { j["memory_bytes"] = 1e300; }, "\"memory_bytes\" must be an integer below 2^60, got 1e+300");
  refuse([](J& j) { j["memory_bytes"] = -1; }, "memory_bytes = -1");
  refuse([](J& j) { j["peak_flops_per_s"] = 0; }, "peak_flops_per_s = 0");
  refuse([](J& j) { j["dense_products"] = J::array(); }, "dense_products is empty");
  refuse([](J& j) { j["dense_products"] = J::array({J::array({2, 1e12}), J::array({1, 1e12})}); }, "size");
  refuse([](J& j) { j["dense_products"][0] = 3; }, "must be a pair");
  refuse([](J& j) { j["levels"][0]["owner"] = {1e-5, 0}; }, "owner of level NVLink: rate = 0");
  refuse([](J& j) { j["from_host_bytes_per_s"] = 0; }, "from_host_bytes_per_s = 0");
  const auto count = [](int experts, double rate) {
    const J table = J::array({J::array({1e6, rate})});
    return J{{"experts", experts}, {"products", table}, {"weight_products", table}};
  };
  refuse([](J& j) { j["expert_counts"] = J::array(); }, "expert_counts is empty");
  refuse([&](J& j) { j["expert_counts"] = J::array({count(2, 1e9), count(2, 1e9)}); }, "experts = 2, expected 3");
  refuse([&](J& j) { j["expert_counts"] = J::array({count(2, 0)}); }, "expert_counts of 2: products: rate = 0");
  refuse([](J& j) { j["attention_backward_documents"] = 0; }, "attention_backward_documents = 0");
  refuse([](J& j) { j["attention_any_order"] = 0; }, "attention_any_order = 0");
  const auto time = [](const char* transport, double value) {
    return J::array({{{"transport", transport}, {"over_predicted", value}}});
  };
  refuse([&](J& j) { j["transport_times"] = time("flat", 0); }, "over_predicted of flat = 0");
  refuse([&](J& j) { j["transport_times"] = time("bypas", 1); }, "unknown transport \"bypas\"");
  refuse(
      [&](J& j) {
        j["transport_times"] = time("flat", 1);
        j["transport_times"].push_back(time("flat", 2)[0]);
      },
      "transport_times: expected one entry of flat, got two");
  refuse([](J& j) { j["attention_forward_widths"] = J::array(); }, "attention_forward_widths is empty");
  refuse([](J& j) { j["attention_forward_widths"] = J::array({J::array({64, 0})}); }, "rate = 0");
  refuse([](J& j) { j["attention_forward_widths"] = J::array({J::array({64, 1e7})}); }, "rate = 10000000");
  refuse([](J& j) { j["attention_backward_widths"] = J::array({J::array({64, -1})}); }, "rate = -1");
  refuse([](J& j) { j["attention_backward_widths"] = J::array({J::array({0, 1})}); }, "size = 0");
  refuse([](J& j) { j["attention_backward_widths"] = J::array({J::array({64, 1}), J::array({64, 1})}); }, "size");
  refuse([](J& j) { j["attention_backward_widths"] = 0.5; }, "must be a list");
  refuse([](J& j) { j["attention_width"] = J::array(); }, "has an unknown field");
  refuse([](J& j) { j["host_bytes_per_s"] = 0; }, "host_bytes_per_s = 0");
  refuse([](J& j) { j["pack_bytes_per_s"] = "fast"; }, "\"pack_bytes_per_s\" must be a number");
  refuse([](J& j) { j["fp32"] = 3; }, "\"fp32\" must be an object, got number");
  refuse([](J& j) { j["fp32"] = {{"row_tile", 1}}; }, "\"fp32\" lacks the field \"dense_products\"");
  refuse([](J& j) { j["levels"][1]["ranks"] = 8; }, "ranks of level InfiniBand");
  refuse([](J& j) { j["levels"][0]["ring"] = J::array({-1, 1e9}); }, "latency");
  refuse([](J& j) { j["levels"][0]["ring"] = J::array({0, J::array()}); }, "must have at least one [size, rate]");
  refuse(
      [](J& j) {
        j["levels"][0]["ring"] = J::array({0, J::array({J::array({8, 1e9}), J::array({8, 1e9})})});
      },
      "ring of level NVLink: size");
  refuse(
      [](J& j) {
        j["levels"][0]["ring"] = J::array({0, J::array({J::array({8, 0}), J::array({16, 1e9})})});
      },
      "rate = 0");
  refuse([](J& j) { j["levels"][0]["ring"] = J::array({0, "fast"}); }, "must be a number");
  refuse([](J& j) { j["levels"] = J::object(); }, "must be a list");
  refuse([](J& j) { j["name"] = "\n"; }, "printable");
  refuse([](J& j) { j = J::array(); }, "must be an object, got array");
}

TEST(PlatformProfile, CutAndDamagedFilesAreErrors) {
  const std::string text = shipped("frontier");
  for (size_t size = 0; size < text.size() - 2; size += 7)
    EXPECT_TRUE(refusal_of([&] { parse_platform_profile(text.substr(0, size), "P"); }, {Exit::config}, "cut"));
  for (size_t at = 0; at < text.size(); at += 11) {
    std::string damaged = text;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x15);
    refusal_of([&] { parse_platform_profile(damaged, "P"); }, {Exit::config}, "damaged");
  }
  EXPECT_TRUE(refusal_of([] { read_platform_profile("/absent/p.json"); }, {Exit::data}, "absent"));
}

}  // namespace
}  // namespace mw::test
