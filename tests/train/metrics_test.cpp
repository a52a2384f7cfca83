// What a step reports of memory: a CPU says nothing of libraries.
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

TEST(StepReport, LibrariesOfAGpuAreToldApart) {
  StepReport r;
  r.seconds = 1;
  r.memory_peak = 530 << 20;
  r.memory_predicted = 400 << 20;
  const ReportContext context;
  EXPECT_TRUE(contains(format_step(r, context), "mem 530.0 MiB of 400.0 MiB"));
  r.memory_libraries = 120 << 20;
  EXPECT_TRUE(contains(format_step(r, context), "mem 530.0 MiB of 520.0 MiB"));

  const ScratchDir dir;
  for (const bool gpu : {true, false}) {
    const std::string path = dir / (gpu ? "gpu.jsonl" : "cpu.jsonl");
    if (!gpu) r.memory_libraries.reset();
    {
      JsonLinesWriter file(path);
      write_step(file, r, context);
    }
    const nlohmann::json line = nlohmann::json::parse(read_raw(path));
    EXPECT_EQ(line["mem_predicted_bytes"], 400 << 20);
    EXPECT_EQ(line.contains("mem_library_bytes"), gpu);
    if (gpu) {
      EXPECT_EQ(line["mem_library_bytes"], 120 << 20);
    }
  }
}

}  // namespace
}  // namespace mw::test
