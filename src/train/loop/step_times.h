// What a run measures of its steps: their time, the parts of it, and the bytes of routed rows that they send.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "core/trace.h"
#include "train/loop/forecast.h"

namespace mw {

class StepTimes {
 public:
  struct OfAllRanks {
    std::optional<StepParts> parts;  // of the slowest ranks; empty: the step was not timed in parts
    Trace::SentBytes sent;           // sum of all ranks
  };

  // Whether the next step is timed in parts: on a CPU every step, on a GPU one in a hundred, because the host's scopes
  // tell nothing of a GPU and stamps on the GPU slow the step.
  bool next_has_parts(bool on_gpu) const;

  // To be called in this order in every step that is run to its end.
  void begin(const Trace& trace, bool on_gpu);
  void end_gradients(const Trace& trace);  // all routed rows are sent
  void end(Trace& trace);                  // takes the time, then settles `trace`

  // The last step as all ranks measured it. Collective.
  OfAllRanks gather(Comm& world);

  int64_t steps() const { return steps_; }         // that ended
  double total() const { return total_; }          // seconds of all these
  double last() const { return seconds_.back(); }  // seconds of the last step

  // Forgets what compare_with() compares: measured with another transport, other shares or another batch size it says
  // nothing about a prediction.
  void forget();
  // Lines with predictions and what was measured since forget(), see compare(const Forecast&, ...).
  std::vector<std::string> compare_with(const Forecast& forecast) const;

 private:
  int64_t steps_ = 0;
  double total_ = 0;
  // Of the step under way, then of the last one, on this rank.
  bool has_parts_ = false;
  double began_ = 0;
  StepParts parts_;
  Trace::SentBytes sent_;
  // Since forget().
  std::vector<double> seconds_;
  std::vector<StepParts> all_parts_;
  Trace::SentBytes all_sent_;
};

}  // namespace mw
