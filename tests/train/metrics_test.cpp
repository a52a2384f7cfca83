// What a step reports, and what a full disk does to it.
#include "train/metrics.h"

#include <sys/resource.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "train/helpers.h"

namespace mw::test {
namespace {

// A file size limit stands for a full disk.
TEST(RunLog, AFullDiskEndsTheLogAndNotTheRun) {
  const ScratchDir dir;
  LogSpec spec;
  spec.jsonl = dir / "metrics.jsonl";
  RunLog log(spec, 0);
  StepReport r;
  r.seconds = 1;
  const ReportContext context;
  log.write(r, context);
  const std::string before = read_raw(spec.jsonl);
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit full{before.size(), limit.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &full);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) log.write(r, context);
  log.write_final_validation(1, 2);
  const std::string told = testing::internal::GetCapturedStderr();
  setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(read_raw(spec.jsonl), before);
  EXPECT_TRUE(contains(told, "metrics.jsonl") && contains(told, "goes on without its metrics")) << told;
  EXPECT_EQ(told.find("warning"), told.rfind("warning")) << told;
}

// The log, the metrics and what the report adds up show the same numbers.
TEST(StepReport, MemoryIsMeasuredBesideTensorsAndLibraries) {
  StepReport r;
  r.seconds = 1;
  r.memory = {380 << 20, 20 << 20, 120 << 20, 530 << 20};
  const ReportContext context;
  EXPECT_TRUE(contains(format_step(r, context), "mem 530.0 of 520.0 MiB"));

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

}  // namespace
}  // namespace mw::test
