// What a step reports: the console line and the metrics file.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/trace.h"
#include "formats/event_file.h"
#include "formats/json_lines.h"
#include "spec/plan.h"
#include "train/forecast.h"
#include "train/run_memory.h"
#include "train/step.h"

namespace mw {

struct StepReport {
  int64_t step = 0;
  StepStats stats;
  double lr = 0, seconds = 0;
  std::optional<StepParts> parts;  // of `seconds`
  int64_t tokens = 0;              // of the step, all ranks
  RunMemory memory;                // of the largest rank
  int64_t arena_grows = 0;         // all ranks, since the start
  int64_t exchanged_bytes = 0;     // of routed rows, sent to other ranks in this step, all ranks
  double eta_seconds = 0;
  std::optional<double> val_loss;  // nats
  // Seconds of rank 0 by kind of work; empty where nobody times it: on a GPU all but one step in a hundred, or
  // `--profile`.
  std::vector<double> work_seconds;
};

// Derived rates need the model and the rank count.
struct ReportContext {
  double flops_per_token = 0;  // forward and backward
  int64_t steps = 0;
  int world = 1;
  bool byte_tokens = false;   // a loss in nats per label is ln 2 times bits per byte
  std::string layout, dtype;  // as plan/layout.h describes it; train.dtype
  Forecast forecast;
};

// What this rank did since `trace` was last reset, all but computing.
StepParts waits_and_updates(const Trace& trace);

// Seconds by kind of work since the last call, or empty: see StepReport.
class WorkClock {
 public:
  std::vector<double> take(const Trace& trace, bool on_device);

 private:
  std::vector<double> before_ = std::vector<double>(kWorkKinds);
  bool timed_device_ = false;
};

// Every figure.
std::string format_step(const StepReport& report, const ReportContext& context);
// What an operator watches. The last figures are left out where they do not fit into `columns`.
std::string format_short_step(const StepReport& report, const ReportContext& context, size_t columns);
// One object per step; docs/formats.md lists the fields. mfu is null where no profile tells the peak rate. run: unless
// empty, a field of the line.
void write_step(JsonLinesWriter& file, const StepReport& report, const ReportContext& context,
                const nlohmann::ordered_json& run = {});
// The same as scalars for TensorBoard, of loads the largest and smallest share per MoE layer.
std::vector<Scalar> step_scalars(const StepReport& report, const ReportContext& context);

// Where the steps of a run are written: the files that the run file asks for.
class RunLog {
 public:
  RunLog() = default;
  // Steps after `last_step` that an earlier run left are taken out. Errors: data naming the path.
  RunLog(const LogSpec& log, int64_t last_step);
  int64_t lines_removed() const { return removed_; }  // from log.jsonl
  // The next step's line says which run it is (docs/formats.md, `run`).
  void describe_run(nlohmann::ordered_json run) { run_ = std::move(run); }
  // A file that cannot be written (a full disk) ends with a warning on stderr; the run is worth more.
  void write(const StepReport& report, const ReportContext& context);
  void write_final_validation(int64_t step, double loss);

 private:
  void end(const Error& reason);

  std::unique_ptr<JsonLinesWriter> lines_;
  std::unique_ptr<EventFileWriter> events_;
  nlohmann::ordered_json run_;
  int64_t removed_ = 0;
};

}  // namespace mw
