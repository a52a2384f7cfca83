// What a step reports, and what a full disk does to it.
#include "train/loop/metrics.h"

#include <fmt/ranges.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "train/helpers.h"
#include "train/loop/forecast.h"

namespace mw::test {
namespace {

// A file size limit stands for a full disk.
class FullDisk {
 public:
  explicit FullDisk(size_t largest_file) {
    getrlimit(RLIMIT_FSIZE, &limit_);
    const rlimit full{largest_file, limit_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &full);
    testing::internal::CaptureStderr();
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &limit_);
    std::signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

  // What stderr got; to be called once.
  std::string told() const { return testing::internal::GetCapturedStderr(); }

 private:
  rlimit limit_{};
  void (*handler_)(int) = std::signal(SIGXFSZ, SIG_IGN);
};

TEST(RunLog, AFullDiskDelaysTheLogAndLosesNothing) {
  const ScratchDir dir;
  LogSpec spec;
  spec.jsonl = dir / "metrics.jsonl";
  RunLog log(spec, 0);
  StepReport r;
  r.seconds = 1;
  const auto write = [&] {
    ++r.step;
    log.write(r, {});
  };
  write();
  const size_t line_size = read_raw(spec.jsonl).size();
  {
    const FullDisk full(line_size + line_size / 2);  // cuts a line
    for (int i = 0; i < 2; ++i) write();
    const std::string told = full.told();
    EXPECT_TRUE(contains(told, "metrics.jsonl") && contains(told, "the run goes on")) << told;
    EXPECT_EQ(told.find("warning"), told.rfind("warning")) << told;
  }
  EXPECT_EQ(read_raw(spec.jsonl).size(), line_size + line_size / 2);
  testing::internal::CaptureStderr();
  write();
  log.write_final_validation(r.step, {});
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(contains(told, "log.jsonl is written again")) << told;
  std::istringstream lines(read_raw(spec.jsonl));
  std::vector<int64_t> steps;
  for (std::string line; std::getline(lines, line);) steps.push_back(nlohmann::json::parse(line).at("step"));
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3, 4, 4}));
}

TEST(RunLog, AFileThatCannotBeWrittenLeavesTheOtherOne) {
  const ScratchDir dir;
  LogSpec spec;
  spec.jsonl = dir / "metrics.jsonl";
  spec.tensorboard = dir / "events";
  const std::string before = fmt::format("{{\"step\":1,\"long\":\"{}\"}}\n", std::string(1 << 16, 'x'));
  write_raw(spec.jsonl, before);
  RunLog log(spec, 1);
  const std::string events = std::filesystem::directory_iterator(spec.tensorboard)->path();
  const size_t begin = read_raw(events).size();
  StepReport r;
  r.step = 2;
  r.seconds = 1;
  {
    const FullDisk full(before.size());
    for (int i = 0; i < 2; ++i) log.write(r, {});
    const std::string told = full.told();
    EXPECT_TRUE(contains(told, "log.jsonl") && !contains(told, "log.tensorboard")) << told;
  }
  EXPECT_EQ(read_raw(spec.jsonl), before);
  const size_t end = read_raw(events).size();
  log.write(r, {});
  EXPECT_EQ((end - begin) / 2, read_raw(events).size() - end) << "each step wrote its events";
}

TEST(RunLog, SaysAtTheEndWhatCouldNotBeWritten) {
  const ScratchDir dir;
  LogSpec spec;
  spec.jsonl = dir / "metrics.jsonl";
  StepReport r;
  r.seconds = 1;
  for (const bool is_full : {false, true}) {
    const FullDisk disk(is_full ? 1000 : RLIM_INFINITY);  // also for what the test prints
    {
      RunLog log(spec, 1);
      for (r.step = 2; r.step < 10; ++r.step) log.write(r, {});
    }
    const std::string told = disk.told();
    EXPECT_EQ(contains(told, "log.jsonl lacks the last steps"), is_full) << told;
  }
}

// The log, the metrics and what the report adds up show the same numbers.
TEST(StepReport, MemoryIsMeasuredBesideTensorsAndLibraries) {
  StepReport r;
  r.seconds = 1;
  r.memory = {380 << 20, 20 << 20, 120 << 20, 530 << 20};
  const ReportContext context;
  EXPECT_TRUE(contains(format_step(r, context, 0), "mem 530.0 of 520.0 MiB"));

  const ScratchDir dir;
  const std::string path = dir / "metrics.jsonl";
  {
    JsonLinesWriter file(path);
    write_step(file, r, context);
  }
  const nlohmann::json line = nlohmann::json::parse(read_raw(path));
  EXPECT_EQ(line["mem_peak_bytes"], 530 << 20);
  EXPECT_EQ(line["mem_predicted_bytes"], 400 << 20);
  EXPECT_EQ(line["mem_library_bytes"], 120 << 20);
}

// Predictions are of steps of the whole batch.
TEST(StepReport, AStepOfARampHasNoPredictions) {
  StepReport r;
  r.seconds = 1;
  ReportContext context;
  context.global_batch = 16;
  context.forecast.time = StepTime{};
  context.forecast.exchanged = {8, 4};
  for (const int64_t samples : {4, 16}) {
    r.samples = samples;
    const ScratchDir dir;
    const std::string path = dir / "metrics.jsonl";
    {
      JsonLinesWriter file(path);
      write_step(file, r, context);
    }
    const nlohmann::json line = nlohmann::json::parse(read_raw(path));
    EXPECT_EQ(line["samples"], samples);
    EXPECT_TRUE(line.contains("exchanged_bytes") && line.contains("exchanged_far_bytes"));
    for (const char* name :
         {"predicted_step_ms", "predicted_ms", "exchanged_predicted_bytes", "exchanged_far_predicted_bytes"})
      EXPECT_EQ(line.contains(name), samples == 16) << name;
  }
}

// A move from which no gain is expected is reported like others.
TEST(StepReport, GainsOfMovesCanBeNegative) {
  StepReport r;
  r.seconds = 1;
  r.balance.moved_experts = 2;
  for (const std::optional<double> gain : {std::optional(-0.5), std::optional(0.0), std::optional<double>()}) {
    r.balance.expected_gain = gain;
    const ScratchDir dir;
    const std::string path = dir / "metrics.jsonl";
    {
      JsonLinesWriter file(path);
      write_step(file, r, {});
    }
    const nlohmann::json line = nlohmann::json::parse(read_raw(path));
    EXPECT_EQ(line.contains("move_gain_predicted_ms"), gain.has_value());
    EXPECT_EQ(line.value("move_gain_predicted_ms", 0.0), gain.value_or(0) * 1e3);
  }
  r.balance.expected_gain = -0.5;
  EXPECT_FALSE(contains(describe(r.balance, 1), "should save"));
}

TEST(StepReport, AValidationLossWithoutLabelsIsNull) {
  StepReport r;
  r.seconds = 1;
  r.validation = ValidationReport{5.5, {5.5, std::nullopt}, std::nullopt};
  const ReportContext context;
  const ScratchDir dir;
  const std::string path = dir / "metrics.jsonl";
  {
    JsonLinesWriter file(path);
    write_step(file, r, context);
  }
  const nlohmann::json line = nlohmann::json::parse(read_raw(path));
  EXPECT_EQ(line["val_loss"], 5.5);
  EXPECT_EQ(line["val_losses"].dump(), "[5.5,null]");
  const auto validations = [&] {
    std::vector<std::string> tags;
    for (const Scalar& scalar : step_scalars(r, context))
      if (scalar.tag.find("validation") != std::string::npos) tags.push_back(scalar.tag);
    return tags;
  };
  EXPECT_EQ(validations(), (std::vector<std::string>{"loss/validation", "loss/validation_0"}));
  r.validation = ValidationReport{};
  EXPECT_EQ(validations(), std::vector<std::string>{});
}

TEST(RunMemory, NumbersOfOneLineHaveOneUnit) {
  RunMemory memory{int64_t{880} << 20, 0, int64_t{60} << 20, int64_t{1152} << 20};
  EXPECT_EQ(measured_of_predicted(memory), "1152.0 of 940.0 MiB");
  EXPECT_EQ(describe_prediction(memory), "940.0 MiB (tensors 880.0, libraries 60.0)");
  EXPECT_NEAR(memory.percent_above(), 22.55, 0.01);
  memory.rows = int64_t{1} << 30;
  EXPECT_EQ(describe_prediction(memory), "1.92 GiB (tensors 0.86, rows that depend on the load 1.00, libraries 0.06)");
  EXPECT_EQ(RunMemory{}.percent_above(), 0);
}

TEST(RunMemory, ACpuTakesTheRowsThatCameAndAGpuAllThatAreCommitted) {
  ByteSummary bytes;
  bytes.routed_mean = 100;
  bytes.routed_committed = 150;
  EXPECT_EQ(rows_taken(bytes, 0, DeviceKind::cpu), 100);  // not known yet: a balanced load
  EXPECT_EQ(rows_taken(bytes, 120, DeviceKind::cpu), 120);
  EXPECT_EQ(rows_taken(bytes, 120, DeviceKind::cuda), 150);
  EXPECT_EQ(rows_taken(bytes, 170, DeviceKind::cuda), 170);
}

StepReport usual_step() {
  StepReport r;
  r.step = 100;
  r.stats.loss = 2.3456;
  r.stats.grad_norm = 0.5234;
  r.stats.load = {{3, 1}};
  r.lr = 3e-4;
  r.seconds = 0.845;
  r.tokens = 10400;
  r.memory = {int64_t{1} << 30, 0, 0, int64_t{1} << 30};
  r.eta_seconds = 725;
  return r;
}

TEST(StepReport, TheShortLineSaysWhatAnOperatorWatches) {
  ReportContext context;
  context.steps = 1000;
  StepReport r = usual_step();
  EXPECT_EQ(format_step(r, context, 120),
            "step 100/1000 | loss 2.3456 gnorm 0.523 lr 3.0e-04 | 845 ms 12.3k tok/s | bal 1.50 mem 1.00 of 1.00 GiB | "
            "eta 12m05s");
  context.byte_tokens = true;
  r.stats.dropped_rows = 7;
  r.arena_grows = 2;
  EXPECT_EQ(
      format_step(r, context, 200),
      "step 100/1000 | loss 2.3456 bpb 3.384 gnorm 0.523 lr 3.0e-04 | 845 ms 12.3k tok/s | bal 1.50 drop 7 grows 2 "
      "mem 1.00 of 1.00 GiB | eta 12m05s");
}

TEST(StepReport, TheLongLineHasAllOfTheShortOne) {
  ReportContext context;
  context.steps = 1000;
  context.flops_per_token = 1e9;
  context.byte_tokens = true;
  StepReport r = usual_step();
  r.stats.aux_loss = 1.02;
  r.arena_grows = 2;
  EXPECT_EQ(format_step(r, context, 0),
            "step 100/1000 | loss 2.3456 bpb 3.384 aux 1.020 gnorm 0.523 lr 3.0e-04 | 845 ms 12.3k tok/s "
            "12.308 TF/s per rank | bal 1.50 grows 2 mem 1.00 of 1.00 GiB | eta 12m05s");
}

TEST(StepReport, TheShortLineFitsWhateverItsFigures) {
  ReportContext context;
  context.steps = 123456789;
  context.byte_tokens = true;
  StepReport r = usual_step();
  r.step = 123456788;
  r.stats.loss = 12345.6789;
  r.stats.grad_norm = 1.5e10;
  r.stats.dropped_rows = 123456789012;
  r.arena_grows = 123456;
  r.seconds = 1234567;
  r.eta_seconds = 1e9;
  const std::string line = format_step(r, context, 120);
  EXPECT_LE(line.size(), 120u) << line;
  EXPECT_TRUE(contains(line, "loss 12345.6789 bpb")) << line;
}

TEST(StepReport, BitsPerByteAndTheRunStandInTheMetrics) {
  const ScratchDir dir;
  LogSpec spec;
  spec.jsonl = dir / "metrics.jsonl";
  RunLog log(spec, 0);
  log.describe_run({{"model", "small"}});
  ReportContext context;
  for (const bool bytes : {true, false}) {
    context.byte_tokens = bytes;
    log.write(usual_step(), context);
  }
  std::istringstream text(read_raw(spec.jsonl));
  std::string first, second;
  std::getline(text, first);
  std::getline(text, second);
  EXPECT_NEAR(nlohmann::json::parse(first).at("bits_per_byte").get<double>(), 2.3456 / std::log(2), 1e-9);
  EXPECT_EQ(nlohmann::json::parse(first).at("run").at("model"), "small");
  EXPECT_FALSE(contains(second, "bits_per_byte") || contains(second, "\"run\"")) << second;
}

TEST(RunLog, ANewRunKeepsTheMetricsOfAnEarlierOne) {
  const ScratchDir dir;
  LogSpec spec;
  spec.jsonl = dir / "metrics.jsonl";
  RunLog(spec, 0).write(usual_step(), {});
  const std::string earlier = read_raw(spec.jsonl);
  RunLog(spec, usual_step().step).write(usual_step(), {});
  EXPECT_EQ(read_raw(spec.jsonl), earlier + earlier) << "a resumed run goes on in the same file";
  RunLog next(spec, 0);
  EXPECT_TRUE(contains(next.note(), spec.jsonl + ".1")) << next.note();
  EXPECT_EQ(read_raw(spec.jsonl + ".1"), earlier + earlier);
  next.write(usual_step(), {});
  EXPECT_EQ(read_raw(spec.jsonl), earlier);
}

TEST(StepReport, TheMetricsSayHowRowsTravel) {
  const ScratchDir dir;
  LogSpec spec;
  spec.jsonl = dir / "metrics.jsonl";
  RunLog log(spec, 0);
  ReportContext context;
  context.forecast.transport = "flat,bypass*2";
  for (const int64_t bytes : {5, 0}) {
    context.forecast.exchanged.near = bytes;
    log.write(usual_step(), context);
  }
  std::istringstream text(read_raw(spec.jsonl));
  std::string travel, stay;
  std::getline(text, travel);
  std::getline(text, stay);
  EXPECT_EQ(nlohmann::json::parse(travel).at("transport"), "flat,bypass*2");
  EXPECT_FALSE(contains(stay, "transport")) << stay;
}

TEST(Forecast, SaysWhereAProfileIsOfAnotherMachine) {
  Forecast forecast;
  forecast.platform = "there.json";
  forecast.time = StepTime{};
  forecast.time->compute = 0.5;
  const auto told = [&](double seconds) {
    return fmt::format("{}", fmt::join(compare(forecast, std::vector<double>{seconds, seconds}, {}, {}), "\n"));
  };
  for (const double seconds : {0.2, 0.6, 1.4}) EXPECT_EQ(told(seconds).find("another machine"), std::string::npos);
  for (const double seconds : {0.1, 1.6})
    EXPECT_NE(told(seconds).find("there.json seems to describe another machine"), std::string::npos) << told(seconds);
}

}  // namespace
}  // namespace mw::test
