// What `moewright plan` prints: the margin of memory, units, and stages that are alike.
#include "planner/report.h"

#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "planner/helpers.h"

namespace mw::test {
namespace {

Request request_of(const std::string& config, const std::string& profile, int ranks, int64_t global_batch) {
  Request request;
  request.model = config_model(config);
  request.run.train.seq_len = 4096;
  request.run.train.global_batch = global_batch;
  request.profile = shipped_profile(profile);
  request.ranks = ranks;
  return request;
}

// Whether the text holds a part, whatever its line breaks.
bool holds(const std::string& text, const std::string& part) {
  const std::string joined = std::regex_replace(text, std::regex("\n +"), " ");
  return joined.find(part) != std::string::npos || text.find(part) != std::string::npos;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(Report, NamesKindsOfRanksAndTheSharesThatFollow) {
  Request request = request_of("qwen3-30b-a3b", "h200x8", 2, 64);
  request.run.mesh.shares = request.run.mesh.expert_shares = request.run.mesh.width_shares = "measured";
  Layout layout = parse_layout("ep=2 micro_batches=1", {});
  const auto report_of = [&](const Request& of) {
    Estimator estimator(of.model, of.run, of.profile, of.load, of.ranks);
    const Estimate estimate = estimator.simulated(layout);
    const nlohmann::ordered_json json = to_json(of, estimate);
    return std::pair(describe_one(of, {}, estimate), json.value("shares", ""));
  };
  EXPECT_EQ(report_of(request).second, "");
  request.profile.rank_kinds = {{1, 3.0}, {1, 1.0}};
  const auto [text, shares] = report_of(request);
  EXPECT_EQ(shares, "mesh.shares = 48,16; mesh.expert_shares = 96,32");
  EXPECT_TRUE(holds(text, "shares by the speeds of the ranks: " + shares)) << text;
  EXPECT_TRUE(holds(text, "unequal: 1 rank at 3 times the speed of the slowest, 1 rank of those")) << text;
  layout.transport = "gather_tokens";  // as a search chooses it
  EXPECT_EQ(report_of(request).second, "mesh.shares = 48,16; mesh.width_shares = 9,3");
}

std::string describe_layout(const Request& request, const SearchResult& result, const Layout& layout) {
  Estimator estimator(request.model, request.run, request.profile, request.load, request.ranks);
  return describe_one(request, result, estimator.simulated(layout));
}

TEST(MemoryMargin, LayoutsWithinItAreExplainedAndNotRecommended) {
  Request request = request_of("qwen3-30b-a3b", "h200x8", 8, 64);
  EXPECT_EQ(request.run.plan.memory_margin, 0.03);
  request.run.plan.memory_margin = 0;
  const Estimate fastest = search(request, 20).best.front();
  // A margin that is just larger than what the fastest layout leaves free.
  const double used = static_cast<double>(fastest.needed) / static_cast<double>(request.profile.memory_bytes);
  request.run.plan.memory_margin = 1 - used + 1e-6;
  const SearchResult result = search(request, 20);
  ASSERT_FALSE(result.best.empty());
  for (const Estimate& e : result.best)
    EXPECT_LT(static_cast<double>(e.needed), used * static_cast<double>(request.profile.memory_bytes));
  const std::string all = describe(request, result, 3), one = describe_layout(request, result, fastest.layout);
  for (const std::string& text : {all, one}) {
    EXPECT_TRUE(holds(text, "fits only without the margin of")) << text;
    EXPECT_TRUE(holds(text, "set plan.memory_margin=0 to allow it")) << text;
    EXPECT_TRUE(holds(text, describe(fastest.layout))) << text;
  }
  EXPECT_FALSE(holds(one, "does not fit")) << one;
  EXPECT_TRUE(holds(list_all(request, result), "small-margin\t" + describe(fastest.layout) + "\n"));
  const nlohmann::ordered_json json = to_json(request, fastest);
  EXPECT_TRUE(json["fits"].get<bool>());
  EXPECT_FALSE(json["fits_with_margin"].get<bool>());
}

TEST(MemoryMargin, IsNamedWhereNothingFitsForItAlone) {
  Request request = request_of("qwen3-30b-a3b", "h200x8", 8, 64);
  request.run.plan.memory_margin = 0.5;
  int64_t least = request.profile.memory_bytes;
  for (const Weighed& weighed : search(request, 1).weighed) least = std::min(least, weighed.needed);
  request.profile.memory_bytes = least + least / 2;
  const SearchResult result = search(request, 1);
  ASSERT_TRUE(result.best.empty());
  try {
    fail_without_room(request, result);
  } catch (const Error& error) {
    EXPECT_TRUE(holds(error.what(), "fits with the margin of 50 %")) << error.what();
    EXPECT_TRUE(holds(error.hint(), "plan.memory_margin=0")) << error.hint();
  }
}

TEST(MemoryTable, HasOneLineForStagesThatNeedTheSame) {
  const Request request = request_of("mixtral-8x22b", "frontier", 64, 64);
  Layout layout;
  layout.pp = 8;
  layout.ep = 8;
  layout.schedule = ScheduleKind::gpipe;
  layout.micro_batches = 8;
  const std::vector<std::string> lines = lines_of(describe_layout(request, search(request, 1), layout));
  const auto heading = std::find_if(lines.begin(), lines.end(),
                                    [](const std::string& line) { return line.starts_with("  stages    needed"); });
  ASSERT_NE(heading, lines.end());
  std::vector<std::string> stages;
  for (auto line = heading + 1; line != lines.end() && line->starts_with("  "); ++line)
    stages.push_back(line->substr(2, 6));
  EXPECT_EQ(stages, (std::vector<std::string>{"     0", "   1-6", "     7"}));
}

TEST(Units, SuitTheMachine) {
  Request small;
  small.model = odd_model();
  small.run = small_run();
  small.profile = shipped_profile("xeon_amx_2_cores");
  small.ranks = 2;
  const std::string cpu = describe(small, search(small, 5), 3);
  EXPECT_TRUE(holds(cpu, "step ms") && holds(cpu, "GFLOP/s    MFU") && holds(cpu, "MiB by stage")) << cpu;
  EXPECT_TRUE(holds(cpu, "memory by stage in MiB")) << cpu;
  EXPECT_FALSE(holds(cpu, "TFLOP/s    MFU")) << cpu;
  const Request large = request_of("qwen3-30b-a3b", "h200x8", 8, 64);
  const std::string gpu = describe(large, search(large, 5), 3);
  EXPECT_TRUE(holds(gpu, "TFLOP/s    MFU") && holds(gpu, "GiB by stage") && holds(gpu, "memory by stage in GiB"))
      << gpu;
}

}  // namespace
}  // namespace mw::test
