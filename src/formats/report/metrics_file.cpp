#include "formats/report/metrics_file.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "formats/io/json_events.h"

namespace mw {
namespace {

// Numbers of one line, and how its run was set up.
class LineReader final : public JsonEvents {
 public:
  explicit LineReader(bool with_load) : with_load_(with_load) {}

  void on_begin(bool is_object) override {
    open_.push_back(is_object);
    if (std::vector<std::vector<double>>* table = open_table(); table != nullptr && depth() == 3) table->emplace_back();
  }
  void on_end() override { open_.pop_back(); }
  void on_key(std::string& key) override {
    if (depth() == 1) key_ = key;
    else inner_key_ = key;
  }
  void on_string(std::string& text) override {
    if (depth() == 1 && (key_ == "layout" || key_ == "dtype")) setup_[key_] = text;
    if (depth() == 2 && open_.back() && key_ == "run") run.emplace_back(inner_key_, text);
  }
  void on_integer(int64_t value) override { on_number(static_cast<double>(value)); }
  void on_number(double value) override {
    if (depth() == 1) numbers[key_] = value;
    else if (depth() == 2 && open_.back() && key_ != "run") numbers[key_ + "." + inner_key_] = value;
    else if (std::vector<std::vector<double>>* table = open_table();
             table != nullptr && depth() == 3 && !table->empty())
      table->back().push_back(value);
  }

  // Empty: a line that does not tell.
  std::map<std::string, std::string> setup() const {
    std::map<std::string, std::string> all = setup_;
    if (const auto ranks = numbers.find("ranks"); ranks != numbers.end())
      all[ranks->first] = fmt::format("{}", ranks->second);
    return all;
  }

  std::map<std::string, double> numbers;
  LoadSample sample;  // without its step
  std::vector<std::pair<std::string, std::string>> run;

 private:
  size_t depth() const { return open_.size(); }
  // The one of the sample whose rows are being read; null: neither.
  std::vector<std::vector<double>>* open_table() {
    if (!with_load_) return nullptr;
    return key_ == "expert_load" ? &sample.load : key_ == "rank_rows" ? &sample.ranks : nullptr;
  }

  bool with_load_;
  std::vector<bool> open_;  // brackets: whether each is an object's
  std::string key_, inner_key_;
  std::map<std::string, std::string> setup_;
};

// A run that was gone on with from an earlier step computes this one and those after it anew.
void forget_from(double step, MetricsHistory& history) {
  for (auto& [name, curve] : history.curves)
    while (!curve.steps.empty() && curve.steps.back() >= step) {
      curve.steps.pop_back();
      curve.values.pop_back();
    }
  while (!history.loads.empty() && history.loads.back().step >= step) history.loads.pop_back();
  while (!history.runs.empty() && history.runs.back().step >= step) history.runs.pop_back();
  history.setup_from = std::min(history.setup_from, step);
}

}  // namespace

const Curve& MetricsHistory::curve(const std::string& name) const {
  static const Curve kNone;
  const auto found = curves.find(name);
  return found == curves.end() ? kNone : found->second;
}

MetricsHistory read_metrics(const std::string& path, int load_samples) {
  const MappedFile file(path);
  const std::string_view text = file.text();
  const int64_t lines = std::count(text.begin(), text.end(), '\n');
  const int64_t stride = std::max<int64_t>(1, (lines + load_samples - 1) / load_samples);
  MetricsHistory history;
  std::map<std::string, std::string> setup;  // of the line before
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    LineReader reader(number % stride == 0);
    bool broken = false;
    try {
      parse_json_events(line, path, 64, reader);
    } catch (const Error&) {
      broken = true;  // the last line of a run that was killed, for one
    }
    const auto step = reader.numbers.find("step");
    if (broken || step == reader.numbers.end() || !std::isfinite(step->second)) {
      ++history.broken_lines;
      continue;
    }
    if (const Curve& steps = history.curve("step"); !steps.steps.empty() && steps.steps.back() > step->second)
      forget_from(step->second, history);
    if (std::map<std::string, std::string> now = reader.setup(); !now.empty() && now != setup) {
      if (!setup.empty()) history.setup_from = step->second;
      setup = std::move(now);
    }
    for (const auto& [name, value] : reader.numbers) {
      if (!std::isfinite(value)) continue;
      Curve& curve = history.curves[name];
      if (curve.steps.empty() || curve.steps.back() != step->second) {
        curve.steps.push_back(step->second);
        curve.values.emplace_back();
      }
      curve.values.back() = value;
    }
    if (!reader.run.empty()) history.runs.push_back({step->second, std::move(reader.run)});
    if (reader.sample.load.empty()) continue;
    if (history.loads.empty() || history.loads.back().step != step->second) history.loads.emplace_back();
    history.loads.back() = std::move(reader.sample);
    history.loads.back().step = step->second;
  }
  if (history.curves.empty())
    fail(Exit::data, fmt::format("{} contains no training step", path),
         "name the metrics file that a run writes to log.jsonl");
  return history;
}

}  // namespace mw
