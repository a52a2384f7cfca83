#include "formats/report/report.h"

#include <limits>

#include "formats/helpers.h"
#include "formats/report/chart.h"
#include "formats/report/png.h"

namespace mw::test {
namespace {

int64_t count_of(const std::string& text, std::string_view part) {
  int64_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(MetricsFile, ReadsNumbersObjectsAndLoadsAndPassesOverTheRest) {
  const ScratchDir folder;
  std::string text;
  for (int i = 1; i <= 100; ++i)
    text += fmt::format(
        "{{\"step\": {}, \"loss\": {}, \"mfu\": null, \"work_ms\": {{\"data\": 2}}, \"expert_load\": [[1, 3], [2.5, "
        "0]], "
        "\"name\": \"x\"}}\n",
        i, 0.5 * i);
  write_raw(folder / "m.jsonl", text + "{\"loss\": 1}\nbroken\n{\"step\": 100, \"final_val_loss\": 9}\n{\"step\": 10");
  const MetricsHistory history = read_metrics(folder / "m.jsonl", 10);
  EXPECT_EQ(history.curve("loss").values.size(), 100u);
  EXPECT_EQ(history.curve("loss").values.back(), 50);
  EXPECT_EQ(history.curve("work_ms.data").values, std::vector<double>(100, 2));
  EXPECT_EQ(history.curve("final_val_loss").steps, std::vector<double>{100});
  EXPECT_TRUE(history.curve("mfu").values.empty());
  EXPECT_EQ(history.broken_lines, 3);
  ASSERT_LE(history.loads.size(), 10u);
  ASSERT_GE(history.loads.size(), 8u);
  EXPECT_EQ(history.loads[0].load, (std::vector<std::vector<double>>{{1, 3}, {2.5, 0}}));
  write_raw(folder / "empty.jsonl", "");
  EXPECT_TRUE(contains(error_of([&] { read_metrics(folder / "empty.jsonl", 10); }), "contains no training step"));
}

void write_lines(const std::string& path, int first, int last, const std::string& fields) {
  std::string text;
  for (int step = first; step <= last; ++step) text += fmt::format("{{\"step\": {}, {}}}\n", step, fields);
  write_raw(path, (std::filesystem::exists(path) ? read_raw(path) : "") + text);
}

// As in metrics of two runs, one after the other in a file.
TEST(MetricsFile, LeavesOutStepsThatWereComputedAnew) {
  const ScratchDir folder;
  const std::string path = folder / "m.jsonl";
  write_lines(path, 1, 9, "\"loss\": 1, \"tokens\": 10, \"expert_load\": [[1]]");
  write_lines(path, 10, 10, "\"loss\": 1, \"tokens\": 10, \"val_loss\": 7");
  write_lines(path, 6, 8, "\"loss\": 2, \"tokens\": 10, \"expert_load\": [[2]]");
  for (const char* loss : {"5", "4"}) write_lines(path, 8, 8, fmt::format("\"final_val_loss\": {}", loss));
  const MetricsHistory history = read_metrics(path, 100);
  EXPECT_EQ(history.curve("loss").steps, (std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(history.curve("loss").values, (std::vector<double>{1, 1, 1, 1, 1, 2, 2, 2}));
  EXPECT_EQ(history.curve("step").values, history.curve("loss").steps);
  EXPECT_TRUE(history.curve("val_loss").values.empty());
  EXPECT_EQ(history.curve("final_val_loss").values, std::vector<double>{4});
  ASSERT_EQ(history.loads.size(), 8u);
  EXPECT_EQ(history.loads[4].load[0][0], 1);
  EXPECT_EQ(history.loads[5].load[0][0], 2);
  EXPECT_LT(history.setup_from, 0);
}

TEST(MetricsFile, ReadsWhichRunItWas) {
  const ScratchDir folder;
  const std::string path = folder / "m.jsonl";
  write_lines(path, 1, 2, "\"loss\": 1");
  EXPECT_TRUE(read_metrics(path, 1).runs.empty());
  for (const char* start : {"3", "7", "5"})
    write_lines(path, std::stoi(start), 8,
                fmt::format("\"loss\": 1, \"run\": {{\"model\": \"<m>\", \"started\": \"day {}\", \"size\": 3, "
                            "\"run_file\": \"[train]\\nlr = 1\"}}",
                            start)
                    .c_str());
  const MetricsHistory history = read_metrics(path, 1);
  // Every line of this file has a description; the last run repeated steps 5 to 8.
  ASSERT_EQ(history.runs.size(), 6u);
  EXPECT_EQ(history.runs[1].fields[1].second, "day 3");
  EXPECT_EQ(history.runs.back().step, 8);
  EXPECT_EQ(history.runs.back().fields, (std::vector<std::pair<std::string, std::string>>{
                                            {"model", "<m>"}, {"started", "day 5"}, {"run_file", "[train]\nlr = 1"}}));
  EXPECT_TRUE(history.curve("run.size").values.empty());
  const std::string html = draw_report(history, "t");
  for (const char* part : {"&lt;m&gt;", "<td>day 5</td>", "step 3: day 3", "<pre>[train]\nlr = 1</pre>"})
    EXPECT_TRUE(contains(html, part)) << part;
}

TEST(Report, TellsBitsPerByteOfByteData) {
  MetricsHistory history;
  history.curves["step"] = history.curves["loss"] = history.curves["val_loss"] = {{1, 2}, {1, 2}};
  EXPECT_FALSE(contains(draw_report(history, "t"), "bits per byte"));
  EXPECT_TRUE(contains(draw_report(history, "t"), "nats per token"));
  history.curves["bits_per_byte"] = {{1, 2}, {1.5, 3.25}};
  const std::string html = draw_report(history, "t");
  EXPECT_TRUE(contains(html, "<b>3.250</b><span>bits per byte of the last step"));
  EXPECT_TRUE(contains(html, "<b>2.885</b><span>bits per byte, last validation"));
  EXPECT_TRUE(contains(html, "nats per byte"));
}

// The last quarter of eight steps.
TEST(Report, TakesTheMeanOfTheTwoInTheMiddle) {
  MetricsHistory history;
  history.curves["step"] = history.curves["loss"] = {{1, 2, 3, 4, 5, 6, 7, 8}, {1, 2, 3, 4, 5, 6, 7, 8}};
  history.curves["step_ms"] = {{1, 2, 3, 4, 5, 6, 7, 8}, {9, 9, 9, 9, 9, 9, 40, 60}};
  EXPECT_TRUE(contains(draw_report(history, "t"), "<b>50 ms</b><span>per step"));
}

TEST(MetricsFile, TellsWhereTheSetupChanged) {
  const ScratchDir folder;
  for (const char* change : {"\"ranks\": 1, \"layout\": \"ep=2\", \"dtype\": \"bf16\"",
                             "\"ranks\": 2, \"layout\": \"ep=1\", \"dtype\": \"bf16\"",
                             "\"ranks\": 2, \"layout\": \"ep=2\", \"dtype\": \"fp32\""}) {
    const std::string path = folder / "m.jsonl";
    write_raw(path, "");
    write_lines(path, 1, 6, "\"ranks\": 2, \"layout\": \"ep=2\", \"dtype\": \"bf16\"");
    EXPECT_LT(read_metrics(path, 1).setup_from, 0);
    write_lines(path, 6, 6, "\"final_val_loss\": 1");
    write_lines(path, 5, 9, change);
    EXPECT_EQ(read_metrics(path, 1).setup_from, 5) << change;
    write_lines(path, 3, 4, change);
    EXPECT_EQ(read_metrics(path, 1).setup_from, 3) << change;
  }
}

TEST(Png, IsTheFileThatOthersWrite) {
  const std::string png = encode_png(2, 1, std::vector<uint8_t>{0, 1}, std::vector<Color>{{1, 2, 3}, {255, 0, 9}});
  EXPECT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n");
  EXPECT_TRUE(png.ends_with(std::string("\0\0\0\0IEND\xae\x42\x60\x82", 12)));
  EXPECT_EQ(encode_base64(""), "");
  EXPECT_EQ(encode_base64("f"), "Zg==");
  EXPECT_EQ(encode_base64("fo"), "Zm8=");
  EXPECT_EQ(encode_base64("foo\xff"), "Zm9v/w==");
}

TEST(Chart, ThinsOutLongCurvesAndEscapesNames) {
  ChartSeries series{"a<b & \"c\"", {}, {}, 0, false, false};
  for (int i = 0; i < 100000; ++i) {
    series.x.push_back(i);
    series.y.push_back(i % 10);
  }
  ChartFrame frame;
  frame.title = "<x>";
  frame.x_high = 99999;
  const std::string svg = draw_lines(frame, {series});
  EXPECT_TRUE(contains(svg, "a&lt;b &amp; &quot;c&quot;"));
  EXPECT_FALSE(contains(svg, "<x>"));
  EXPECT_LT(svg.size(), 20000u);
}

TEST(Chart, TakesAnyFiniteNumbers) {
  const double huge = std::numeric_limits<double>::max(), tiny = std::numeric_limits<double>::denorm_min();
  for (const std::vector<double>& values : {std::vector<double>{}, {0, 0}, {1}, {-huge, huge}, {tiny, tiny}, {0, tiny}})
    for (const bool logarithmic : {false, true}) {
      ChartSeries series{"", std::vector<double>(values.size(), 3), values, 0, false, false};
      ChartFrame frame;
      frame.logarithmic = logarithmic;
      EXPECT_LT(draw_lines(frame, {series}).size(), 20000u);
      EXPECT_LT(draw_stack(frame, {series}).size(), 20000u);
    }
}

TEST(Report, ShowsWhatTheMetricsHoldAndNothingElse) {
  MetricsHistory history;
  history.curves["step"] = {{1, 2}, {1, 2}};
  EXPECT_FALSE(contains(draw_report(history, "t"), "<svg"));
  history.curves["loss"] = {{1, 2}, {3, 2.5}};
  history.curves["work_ms.data"] = history.curves["work_ms.matmul"] = {{1, 2}, {1, 1}};
  history.loads = {{1, {{1, 3}, {0, 0}}}, {2, {{1, 1, 1}}}};
  const std::string html = draw_report(history, "run <1>");
  EXPECT_TRUE(contains(html, "<title>run &lt;1&gt;</title>"));
  EXPECT_EQ(count_of(html, "<svg"), 2 + 1 + 2 + 2);  // curves, layers, experts of two layers, two scales
  EXPECT_EQ(count_of(html, "<svg"), count_of(html, "</svg>"));
}

TEST(Report, ComparesRuns) {
  const ScratchDir folder;
  const auto history = [&](const std::string& name, int steps, double rate) {
    for (int step = 1; step <= steps; ++step) {
      const std::string run =
          fmt::format(", \"run\": {{\"run_file\": \"[model]\\nwidth = 8\\n[train]\\nlr = {}\\nsteps = 9\\n\"}}", rate);
      write_lines(folder / name, step, step,
                  fmt::format("\"loss\": {}, \"tokens\": 5000, \"tokens_per_s\": 100{}", 4 - rate * step,
                              step == 1 ? run : ""));
    }
    return NamedHistory{"<" + name + ">", read_metrics(folder / name, 1)};
  };
  const std::vector<NamedHistory> runs = {history("a", 2, 0.25), history("b", 4, 0.5)};
  const std::string html = draw_comparison(runs);
  EXPECT_TRUE(contains(html, "<h1>2 runs</h1>"));
  EXPECT_TRUE(contains(html, "&lt;a&gt;</td><td>1 to 2</td><td>10.0k</td><td>3.5000</td><td>-</td>"));
  EXPECT_TRUE(contains(html, "&lt;b&gt;</td><td>1 to 4</td><td>20.0k</td><td>2.0000</td>"));
  EXPECT_TRUE(contains(html, "<td>train.lr</td><td>0.25</td><td>0.5</td>"));
  EXPECT_FALSE(contains(html, "model.width"));
  EXPECT_FALSE(contains(html, "train.steps"));
  EXPECT_TRUE(contains(html, "Loss over thousands of tokens"));
  EXPECT_EQ(count_of(html, "<svg"), 3);  // loss twice, speed
}

// Rates and predictions of a run that was gone on with in another layout are not those of the first.
TEST(Report, TellsHowTheRunStandsInItsLastLayout) {
  const ScratchDir folder;
  const std::string path = folder / "m.jsonl";
  write_lines(path, 1, 17,
              "\"layout\": \"ep=2\", \"step_ms\": 100, \"predicted_step_ms\": 90, \"mem_peak_bytes\": 300, "
              "\"mem_predicted_bytes\": 200, \"mem_library_bytes\": 50, \"exchanged_bytes\": 9, "
              "\"exchanged_predicted_bytes\": 8, \"work_ms\": {\"matmul\": 80}");
  write_lines(path, 17, 17, "\"final_val_loss\": 9.5");
  EXPECT_TRUE(contains(draw_report(read_metrics(path, 1), "t"), "sent for routed experts"));
  EXPECT_TRUE(contains(draw_report(read_metrics(path, 1), "t"), "<b>9.5000</b>"));
  write_lines(path, 18, 20,
              "\"layout\": \"ep=1\", \"step_ms\": 10, \"predicted_step_ms\": 9, \"mem_peak_bytes\": 120, "
              "\"mem_predicted_bytes\": 100, \"val_loss\": 3.5");
  const std::string html = draw_report(read_metrics(path, 1), "t");
  EXPECT_TRUE(contains(html, "<b>10 ms</b>"));
  EXPECT_TRUE(contains(html, "<td>9.0 ms</td><td>10.0 ms</td>"));
  EXPECT_TRUE(contains(html, "<td>100 B</td><td>120 B</td>"));
  EXPECT_TRUE(contains(html, "from 18 on"));
  EXPECT_TRUE(contains(html, "<b>3.5000</b>"));
  EXPECT_FALSE(contains(html, "sent for routed experts"));
  EXPECT_FALSE(contains(html, "(rank 0)"));
  EXPECT_TRUE(contains(html, "1 to 20"));
}

// After step 10 two experts change places: ranks become alike, and steps faster by 20 ms, of which 25 were predicted.
TEST(Report, ShowsTheLoadOfRanksBeforeAndAfterMoves) {
  const ScratchDir folder;
  const std::string path = folder / "m.jsonl";
  const auto fields = [](const char* time, const char* rows) {
    return fmt::format("\"step_ms\": {}, \"expert_load\": [[6, 2, 2, 2], [3, 3, 3, 3]], \"rank_rows\": {}", time, rows);
  };
  write_lines(path, 1, 9, fields("100", "[[9, 3], []]"));
  EXPECT_FALSE(contains(draw_report(read_metrics(path, 40), "t"), "Moves of experts"));
  write_lines(path, 10, 10,
              fields("150", "[[9, 3], []]") +
                  ", \"moved_experts\": 2, \"moved_expert_bytes\": 2048, "
                  "\"move_experts_ms\": 29.8, \"move_gain_predicted_ms\": 25");
  write_lines(path, 11, 40, fields("80", "[[6, 6], []]"));
  const MetricsHistory history = read_metrics(path, 40);
  ASSERT_EQ(history.loads.size(), 40u);
  EXPECT_EQ(history.loads[0].ranks, (std::vector<std::vector<double>>{{9, 3}, {}}));
  const std::string html = draw_report(history, "t");
  for (const char* part : {"2 experts moved, after 1 of the steps: 2.0 KiB in 29.8 ms, 0.86 % of the time",
                           "should save 25.00 ms of a step", "steps around them: 20.00 ms",
                           "Load of the ranks up to step 10", "Load of the ranks from step 31 on"})
    EXPECT_TRUE(contains(html, part)) << part;
}

// More layers and wider steps than any run has: cut off, not written beyond what was made for them.
TEST(Report, BearsAbsurdMetrics) {
  const ScratchDir folder;
  std::string text = "{\"step\":-1.7e308,\"expert_load\":[";
  for (int i = 0; i < 70000; ++i) text += i == 0 ? "[1,2]" : ",[1,2]";
  text += "]}\n";
  for (int i = 0; i < 600; ++i) text += fmt::format("{{\"step\":{},\"loss\":{}}}\n", (i - 300) * 5.6e305, i);
  write_raw(folder / "m.jsonl", text);
  EXPECT_TRUE(contains(draw_report(read_metrics(folder / "m.jsonl", 10), "t"), "<svg"));
}

}  // namespace
}  // namespace mw::test
