#include "formats/report/trace_summary.h"

#include <algorithm>

#include "base/error.h"
#include "formats/io/json_events.h"

namespace mw {
namespace {

// Collects the fields of one event at a time: an object at depth 3, in the list "traceEvents" of the document.
class TraceReader final : public JsonEvents {
 public:
  explicit TraceReader(const std::string& where) : where_(where) {}

  void on_begin(bool) override {
    ++depth_;
    in_events_ = depth_ == 2 ? key_ == "traceEvents" : in_events_;
    found_ = found_ || (depth_ == 2 && in_events_);
    if (depth_ == 3) fields_ = {};
  }
  void on_end() override {
    if (depth_ == 3 && in_events_) finish_event();
    --depth_;
  }
  void on_key(std::string& key) override { key_ = key; }
  void on_string(std::string& text) override {
    if (depth_ == 3 && key_ == "name") fields_.name = text;
    if (depth_ == 3 && key_ == "ph") fields_.kind = text;
    if (depth_ == 4 && key_ == "name") fields_.lane_name = text;  // in "args"
  }
  void on_integer(int64_t value) override {
    if (depth_ == 3 && key_ == "tid") fields_.lane = value;
    on_number(static_cast<double>(value));
  }
  void on_number(double value) override {
    if (depth_ == 3 && key_ == "ts") fields_.begin = value / 1e3;
    if (depth_ == 3 && key_ == "dur") fields_.duration = value / 1e3;
  }

  const TraceSummary& summary() const { return summary_; }
  bool found() const { return found_; }

 private:
  struct Fields {
    std::string name, kind, lane_name;
    int64_t lane = 0;
    double begin = -1, duration = -1;  // milliseconds
  };

  void finish_event() {
    if (fields_.kind == "M" && fields_.name == "thread_name") summary_.lanes[fields_.lane] = fields_.lane_name;
    if (fields_.kind != "X") return;
    if (fields_.name.empty() || !(fields_.begin >= 0) || !(fields_.duration >= 0))
      fail(Exit::data, fmt::format("{}: event {} lacks a name, a time or a duration", where_, events_),
           "the file is damaged: write a new trace with log.trace");
    TraceTotals& totals = summary_.totals[{fields_.lane, fields_.name}];
    ++totals.events;
    totals.milliseconds += fields_.duration;
    summary_.begin_ms = events_ == 0 ? fields_.begin : std::min(summary_.begin_ms, fields_.begin);
    summary_.end_ms = std::max(summary_.end_ms, fields_.begin + fields_.duration);
    ++events_;
  }

  const std::string& where_;
  int depth_ = 0;
  bool in_events_ = false, found_ = false;
  int64_t events_ = 0;
  std::string key_;
  Fields fields_;
  TraceSummary summary_;
};

}  // namespace

TraceSummary summarise_trace(std::string_view text, const std::string& where) {
  TraceReader reader(where);
  parse_json_events(text, where, 16, reader);
  if (!reader.found())
    fail(Exit::data, fmt::format("{}: the field \"traceEvents\" is missing", where),
         "name a trace that a run writes with log.trace; of a checkpoint or a model, name the folder");
  return reader.summary();
}

}  // namespace mw
