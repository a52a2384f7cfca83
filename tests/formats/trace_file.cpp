// The Chrome trace as tools read it.
#include "formats/report/trace_file.h"

#include <nlohmann/json.hpp>
#include <set>

#include "formats/helpers.h"

namespace mw::test {
namespace {

nlohmann::json written(const std::vector<TraceEvent>& events) {
  const ScratchDir dir;
  write_chrome_trace(dir / "trace.json", events, 3);
  return nlohmann::json::parse(read_raw(dir / "trace.json"));
}

std::vector<std::string> lane_names(const nlohmann::json& root) {
  std::vector<std::string> names;
  for (const auto& e : root["traceEvents"]) {
    if (e["ph"] != "M") continue;
    EXPECT_EQ(e["name"], "thread_name");
    EXPECT_EQ(e["tid"], names.size());
    names.push_back(e["args"]["name"]);
  }
  return names;
}

TEST(ChromeTrace, OfAHostHasALanePerKindOfWork) {
  const nlohmann::json root = written(
      {{"esmm", Work::matmul, 1000, 3500, Lane::host, {}}, {"layer", Work::other, 0, 4000, Lane::host, {"layer", 2}}});
  EXPECT_EQ(lane_names(root).size(), static_cast<size_t>(kWorkKinds));
  EXPECT_EQ(lane_names(root)[0], "matmul");
  const auto& product = root["traceEvents"][kWorkKinds];
  EXPECT_EQ(product["name"], "esmm");
  EXPECT_EQ(product["ph"], "X");
  EXPECT_EQ(product["pid"], 3);
  EXPECT_EQ(product["tid"], static_cast<int>(Work::matmul));
  EXPECT_EQ(product["ts"], 1.0);
  EXPECT_EQ(product["dur"], 2.5);
  EXPECT_FALSE(product.contains("args"));
  EXPECT_EQ(root["traceEvents"][kWorkKinds + 1]["args"]["layer"], 2);
}

TEST(ChromeTrace, OfAGpuHasALanePerQueue) {
  const nlohmann::json root = written({{"esmm", Work::matmul, 0, 10, Lane::host, {}},
                                       {"esmm", Work::matmul, 5, 3000, Lane::compute, {}},
                                       {"all_to_all", Work::exchange, 7, 2000, Lane::communication, {"bytes", 64}}});
  EXPECT_EQ(lane_names(root), (std::vector<std::string>{"host", "compute", "communication"}));
  for (int i = 0; i < kLanes; ++i) EXPECT_EQ(root["traceEvents"][kLanes + i]["tid"], i);
  const auto& exchange = root["traceEvents"][kLanes + 2];
  EXPECT_EQ(exchange["cat"], "exchange");
  EXPECT_EQ(exchange["args"]["bytes"], 64);
}

}  // namespace
}  // namespace mw::test
