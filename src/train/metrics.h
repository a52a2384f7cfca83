// What a step reports: the console line and the metrics file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "formats/json_lines.h"
#include "spec/plan.h"
#include "train/step.h"

namespace mw {

struct StepReport {
  int64_t step = 0;
  StepStats stats;
  double lr = 0, seconds = 0;
  int64_t tokens = 0;       // of the step, all ranks
  int64_t memory_peak = 0;  // largest rank: growth of the resident set since the message and matrix libraries started,
                            // or of the device memory in use
  int64_t memory_predicted = 0;             // largest rank, the table of bytes
  std::optional<int64_t> memory_libraries;  // largest rank, of a GPU: what libraries took before there were tensors
  int64_t arena_grows = 0;                  // all ranks, since the start
  double eta_seconds = 0;
  std::optional<double> val_loss;  // nats
};

// Derived rates need the model and the rank count.
struct ReportContext {
  double flops_per_token = 0;  // forward and backward
  int64_t steps = 0;
  int world = 1;
};

std::string format_step(const StepReport& report, const ReportContext& context);
// One object per step; docs/formats.md lists the fields. mfu is null: the peak rate of a CPU is not known, and not
// guessed.
void write_step(JsonLinesWriter& file, const StepReport& report, const ReportContext& context);

}  // namespace mw
