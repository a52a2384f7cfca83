// Reports of steps: the console line, the metrics file and TensorBoard scalars.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/trace.h"
#include "engine/step.h"
#include "formats/io/json_lines.h"
#include "formats/report/event_file.h"
#include "layout/plan.h"
#include "train/loop/balancer.h"
#include "train/loop/forecast.h"
#include "train/loop/run_memory.h"

namespace mw {

// What a validation found.
struct ValidationReport {
  std::optional<double> loss;                    // nats; none without labels
  std::vector<std::optional<double>> by_source;  // the same of each source of a blend
  std::optional<double> accuracy;                // of train.val_questions
};

struct StepReport {
  int64_t step = 0;
  StepStats stats;
  double lr = 0, seconds = 0;
  std::optional<StepParts> parts;   // of `seconds`
  int64_t samples = 0, tokens = 0;  // of the step, on all ranks
  RunMemory memory;                 // of the largest rank
  int64_t arena_grows = 0;          // all ranks, since the start
  Trace::SentBytes sent;            // for routed experts in this step, all ranks
  BalanceReport balance;
  int64_t skipped_steps = 0;  // steps so far that changed no weights
  double eta_seconds = 0;
  std::optional<ValidationReport> validation;
  // Seconds of rank 0 by kind of work; empty where they are not timed: on a GPU only every hundredth step is, or all
  // with `--profile`.
  std::vector<double> work_seconds;
  bool lists_loads = true;  // log.jsonl gets the rows of every expert and rank in this step
};

// Facts about the run from which rates are derived.
struct ReportContext {
  double flops_per_token = 0;  // forward and backward
  int64_t steps = 0;
  int64_t global_batch = 0;  // of the forecast; steps of a batch-size ramp have fewer samples
  int world = 1;
  bool byte_tokens = false;   // tokens are bytes: the loss can be printed in bits per byte
  std::string layout, dtype;  // description by planner/layout.h; train.dtype
  Forecast forecast;
};

// The line of a step. The last figures are omitted where they do not fit into `columns`. 0 columns: the long line, as
// long as it gets, with the auxiliary loss and TF/s per rank too.
std::string format_step(const StepReport& report, const ReportContext& context, size_t columns);
// Writes one object per step; docs/formats.md lists the fields. mfu is null where no profile provides the peak rate.
// run: added as a field unless empty.
void write_step(JsonLinesWriter& file, const StepReport& report, const ReportContext& context,
                const nlohmann::ordered_json& run = {});
// The same as scalars for TensorBoard; of the load only the largest and smallest share per MoE layer.
std::vector<Scalar> step_scalars(const StepReport& report, const ReportContext& context);

// The files into which a run writes its steps, as the run file asks for.
class RunLog {
 public:
  RunLog() = default;
  // Warns if steps still wait that could not be written.
  ~RunLog();
  RunLog(RunLog&&) = default;
  RunLog& operator=(RunLog&&) = default;
  // Removes the steps after `last_step` that an earlier run left. If that is 0, renames an earlier run's log.jsonl
  // instead. branches: the run goes on from a checkpoint of another run, whose log.jsonl is copied before. Errors: data
  // naming the key and the path.
  RunLog(const LogSpec& log, int64_t last_step, bool branches = false);
  // What became of an earlier run's log.jsonl, as a log line; "" where there was none to change.
  const std::string& note() const { return note_; }
  // The next line will also describe the run (docs/formats.md, `run`).
  void describe_run(nlohmann::ordered_json run) { run_ = std::move(run); }
  // A file that cannot be written (a full disk) gets a warning on stderr, and its steps later, with the first one that
  // can be written; the run continues.
  void write(const StepReport& report, const ReportContext& context);
  // Goes on in a new log.jsonl where somebody removed the file, or its folder.
  void reopen_lost();
  void write_final_validation(int64_t step, const ValidationReport& validation);

 private:
  void open_lines(const std::string& path, int64_t last_step, bool branches);
  template <class Write>
  void attempt(bool& is_behind, const char* key, const Write& write);

  std::unique_ptr<JsonLinesWriter> lines_;
  std::unique_ptr<EventFileWriter> events_;
  bool lines_behind_ = false, events_behind_ = false;  // steps wait that could not be written
  nlohmann::ordered_json run_;
  std::string note_, path_;  // path_: of lines_
};

}  // namespace mw
