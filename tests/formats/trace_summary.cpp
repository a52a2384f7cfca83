#include "formats/report/trace_summary.h"

#include "formats/helpers.h"
#include "formats/report/trace_file.h"

namespace mw::test {
namespace {

TEST(TraceSummary, SumsWhatWasWritten) {
  const ScratchDir folder;
  write_chrome_trace(folder / "t.json",
                     {{"expert_up", Work::matmul, 1'000'000, 3'000'000, Lane::host, {}},
                      {"expert_up", Work::matmul, 4'000'000, 5'000'000, Lane::host, {"layer", 3}},
                      {"route", Work::router, 5'000'000, 9'500'000, Lane::host, {}}},
                     0);
  const TraceSummary summary = summarise_trace(read_raw(folder / "t.json"), "t");
  ASSERT_EQ(summary.totals.size(), 2u);
  const auto& [place, totals] = *summary.totals.begin();
  EXPECT_EQ(place.second, "expert_up");
  EXPECT_EQ(summary.lanes.at(place.first), "matmul");
  EXPECT_EQ(totals.events, 2);
  EXPECT_DOUBLE_EQ(totals.milliseconds, 3);
  EXPECT_DOUBLE_EQ(summary.begin_ms, 1);
  EXPECT_DOUBLE_EQ(summary.end_ms, 9.5);
}

TEST(TraceSummary, RefusesOtherFiles) {
  for (const char* text : {"", "{}", "[]", "{\"traceEvents\": 1}", "{\"traceEvents\": [{\"ph\": \"X\"}]}",
                           "{\"traceEvents\": [{\"ph\": \"X\", \"name\": \"a\", \"ts\": 1, \"dur\": -2}]}"})
    EXPECT_FALSE(error_of([&] { summarise_trace(text, "t"); }).empty()) << text;
}

}  // namespace
}  // namespace mw::test
