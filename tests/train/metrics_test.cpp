// What a step reports of memory: a CPU says nothing of libraries.
#include "train/metrics.h"

#include <nlohmann/json.hpp>

#include "train/helpers.h"

namespace mw::test {
namespace {

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
