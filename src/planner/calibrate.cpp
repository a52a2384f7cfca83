#include "planner/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/median.h"
#include "base/text.h"
#include "planner/metrics_lines.h"

namespace mw {
namespace {

constexpr size_t kFewest = 5, kMostSteps = 1000;
constexpr double kMostFactor = 30;  // a rate that is so far off is another machine's
constexpr double kNoise = 0.01;     // of a step: parts below are left as they are
constexpr int kRounds = 8;

// A field of one line.
class LineFields {
 public:
  LineFields(const nlohmann::json& json, std::string where) : json_(json), where_(std::move(where)) {}

  double number(const char* name, double low, double high) const {
    const auto found = json_.find(name);
    if (found == json_.end() || !found->is_number()) refuse(name, "is missing or not a number");
    const auto value = found->get<double>();
    if (!(value >= low && value <= high)) refuse(name, fmt::format("is {}, expected {} to {}", value, low, high));
    return value;
  }
  std::string text(const char* name) const {
    const auto found = json_.find(name);
    if (found == json_.end() || !found->is_string()) refuse(name, "is missing or not a string");
    return printable(found->get<std::string>(), 200);
  }
  [[noreturn]] void refuse(const char* name, const std::string& why) const {
    fail(Exit::data, fmt::format("{}: \"{}\" {}", where_, name, why),
         "pass a metrics file (log.jsonl) that a run of this version wrote to --calibrate");
  }

 private:
  const nlohmann::json& json_;
  std::string where_;
};

MeasuredStep read_step(const nlohmann::json& json, const std::string& where) {
  constexpr double kMost = 1e18, kMostMs = 1e9;
  const LineFields fields(json, where);
  MeasuredStep step;
  step.seconds = fields.number("step_ms", 1e-3, kMostMs) * 1e-3;
  step.ranks = static_cast<int64_t>(fields.number("ranks", 1, 1 << 20));
  step.layout = fields.text("layout");
  step.dtype = fields.text("dtype");
  step.tokens = fields.number("tokens", 1, kMost);
  step.flops_per_token = fields.number("flops_per_token", 1, kMost);
  if (const auto parts = json.find("measured_ms"); parts != json.end()) {
    if (!parts->is_object()) fields.refuse("measured_ms", "is not an object");
    const LineFields inner(*parts, where + ": measured_ms");
    step.parts = {inner.number("compute", 0, kMostMs) * 1e-3, inner.number("waiting", 0, kMostMs) * 1e-3,
                  inner.number("optimizer", 0, kMostMs) * 1e-3};
  }
  return step;
}

double median_of(const std::vector<MeasuredStep>& steps, const std::function<double(const MeasuredStep&)>& value) {
  std::vector<double> values;
  for (const MeasuredStep& step : steps) values.push_back(value(step));
  return median(std::move(values));
}

// What a profile may be scaled by: rates grow with it, latencies shrink.
struct Factors {
  double compute = 1, update = 1, links = 1;
};

void scale(LinkCost& cost, double factor) {
  cost.bytes_per_s *= factor;
  for (RatePoint& point : cost.rates) point.per_second *= factor;
  cost.latency_s /= factor;
}

PlatformProfile scaled(PlatformProfile p, const Factors& by, int ranks) {
  for (RateTable* table : rate_tables(p))
    for (RatePoint& point : *table) point.per_second *= by.compute;
  p.elementwise_bytes_per_s *= by.compute;
  if (p.pack_bytes_per_s) *p.pack_bytes_per_s *= by.update;
  for (double* latency : {&p.operator_latency_s, &p.routing_latency_s, &p.micro_batch_latency_s})
    *latency /= by.compute;
  p.stream_bytes_per_s *= by.update;
  if (p.host_bytes_per_s) *p.host_bytes_per_s *= by.update;
  int64_t inside = 1;
  for (LinkLevel& level : p.levels) {  // those that these ranks use
    if (inside < ranks)
      for (LinkCost* cost : link_costs(level)) scale(*cost, by.links);
    inside = level.ranks;
  }
  return p;
}

// Finds the factors, one after the other.
class Fit {
 public:
  Fit(const Request& request, const Layout& layout) : request_(request), layout_(layout) {}

  StepTime time() const {
    const PlatformProfile profile = scaled(request_.profile, factors, request_.ranks);
    return Estimator(request_.model, request_.run, profile, request_.load, request_.ranks).simulated(layout_).time;
  }

  // Changes `factor` until `part` of the step's time, which falls as it grows, is `seconds`. False, and nothing is
  // changed, where no factor within the bounds does that.
  template <class Part>
  bool meet(double Factors::*factor, Part&& part, double seconds) {
    const double before = factors.*factor;
    const auto at = [&](double logarithm) {
      factors.*factor = std::exp(logarithm);
      return part(time());
    };
    double low = -std::log(kMostFactor), high = -low;
    if (at(low) < seconds || at(high) > seconds) {
      factors.*factor = before;
      return false;
    }
    for (int i = 0; i < 40; ++i) {
      const double middle = (low + high) / 2;
      (at(middle) > seconds ? low : high) = middle;
    }
    factors.*factor = std::exp((low + high) / 2);
    return true;
  }

  Factors factors;

 private:
  const Request& request_;
  const Layout& layout_;
};

double total_of(const StepTime& time) { return time.total(); }
double waiting_of(const StepTime& time) { return time.exchange + time.bubble; }

[[noreturn]] void refuse_ratio(const char* part, double measured, double predicted) {
  fail(
      Exit::config,
      fmt::format("{}: measured {:.3f} ms, predicted {:.3f} ms; calibration scales rates by a factor of at most {}, so "
                  "the profile seems to be of another machine",
                  part, measured * 1e3, predicted * 1e3, kMostFactor),
      "start from a profile that `moewright probe` wrote on this machine, and a run that had the machine to itself");
}

// Those steps that ran what the request plans. Errors: where none or too few did.
std::vector<MeasuredStep> steps_of(const Request& request, const std::vector<MeasuredStep>& steps,
                                   const std::string& source) {
  const TrainSpec& train = request.run.train;
  MeasuredStep wanted;
  wanted.ranks = request.ranks;
  wanted.layout = describe(layout_of(request.run));
  wanted.dtype = word_of(train.dtype);
  wanted.tokens = static_cast<double>(train.global_batch * train.seq_len);
  wanted.flops_per_token = 3 * forward_flops_per_token(request.model, train.seq_len);
  const auto description = [](const MeasuredStep& s) {
    return fmt::format("{} on {} in {}, {} tokens of {:.6g} FLOP a step", s.layout, counted(s.ranks, "rank"), s.dtype,
                       s.tokens, s.flops_per_token);
  };
  std::vector<MeasuredStep> same;
  for (const MeasuredStep& s : steps)
    if (s.ranks == wanted.ranks && s.layout == wanted.layout && s.dtype == wanted.dtype && s.tokens == wanted.tokens &&
        std::abs(s.flops_per_token - wanted.flops_per_token) <= 1e-9 * wanted.flops_per_token)
      same.push_back(s);
  if (same.empty())
    fail(Exit::config,
         fmt::format("{} is of another run: it has {}, but the run file plans {}", source, description(steps.back()),
                     description(wanted)),
         "pass the run file, overrides and --ranks of the measured run");
  if (same.size() < kFewest)
    fail(Exit::config,
         fmt::format("{} has {} measured steps of this run, expected at least {}", source, same.size(), kFewest),
         fmt::format("train for at least {} steps: the first {} are warm-up and do not count",
                     kPreparingSteps + kFewest, kPreparingSteps));
  return same;
}

std::string change_of(const char* what, double factor) {
  return factor == 1 ? fmt::format("{} as before", what) : fmt::format("{} x {:.4g}", what, factor);
}

// Six digits, so that a plan still meets the step.
void shorten(PlatformProfile& p) {
  const auto round = [](double& value) { value = std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr); };
  for (RateTable* table : rate_tables(p))
    for (RatePoint& point : *table) round(point.per_second);
  for (double* value : {&p.elementwise_bytes_per_s, &p.stream_bytes_per_s, &p.operator_latency_s, &p.routing_latency_s,
                        &p.micro_batch_latency_s})
    round(*value);
  for (std::optional<double>* value :
       {&p.host_bytes_per_s, &p.to_host_bytes_per_s, &p.from_host_bytes_per_s, &p.pack_bytes_per_s})
    if (*value) round(**value);
  for (LinkLevel& level : p.levels)
    for (LinkCost* cost : link_costs(level)) {
      round(cost->latency_s), round(cost->bytes_per_s);
      for (RatePoint& point : cost->rates) round(point.per_second);
    }
}

}  // namespace

std::vector<MeasuredStep> read_measured_steps(const std::string& path) {
  return parse_measured_steps(MappedFile(path).text(), path);
}

std::vector<MeasuredStep> parse_measured_steps(std::string_view text, const std::string& path) {
  std::vector<MeasuredStep> steps;
  for_each_step(text, path, kMostSteps,
                [&](const nlohmann::json& json, const std::string& where) { steps.push_back(read_step(json, where)); });
  return steps;
}

Calibration calibrate(const Request& request, const std::vector<MeasuredStep>& steps, const std::string& source) {
  const Layout layout = layout_of(request.run);
  check_layout(request, layout);
  const std::vector<MeasuredStep> same = steps_of(request, steps, source);
  const double step = median_of(same, [](const MeasuredStep& s) { return s.seconds; });
  Fit fit(request, layout);
  const StepTime before = fit.time();
  std::vector<MeasuredStep> parted;  // on a GPU some of them
  std::copy_if(same.begin(), same.end(), std::back_inserter(parted), [](const MeasuredStep& s) { return s.parts; });
  Calibration out;
  out.lines.push_back(fmt::format("{} steps of {}: {:.3f} ms in the median, {:.3f} ms predicted", same.size(),
                                  describe(layout), step * 1e3, before.total() * 1e3));
  if (!parted.empty()) {
    MeasuredParts parts;
    parts.compute = median_of(parted, [](const MeasuredStep& s) { return s.parts->compute; });
    parts.waiting = median_of(parted, [](const MeasuredStep& s) { return s.parts->waiting; });
    parts.optimizer = median_of(parted, [](const MeasuredStep& s) { return s.parts->optimizer; });
    out.lines.push_back(fmt::format(
        "measured: computing {:.3f} ms ({:.3f} predicted), waiting {:.3f} ms ({:.3f}), updating {:.3f} ms ({:.3f})",
        parts.compute * 1e3, before.compute * 1e3, parts.waiting * 1e3, waiting_of(before) * 1e3, parts.optimizer * 1e3,
        before.optimizer * 1e3));
    // Ranks also wait for others that were disturbed, and a predicted update may be latency: what no factor meets is
    // left to compute, which alone must be in proportion.
    const auto is_worth = [&](double measured, double predicted) {
      return std::max(measured, predicted) > kNoise * step;
    };
    const bool update = is_worth(parts.optimizer, before.optimizer),
               waiting = is_worth(parts.waiting, waiting_of(before)) && before.exchange > 0;
    if (parts.compute > kMostFactor * before.compute || before.compute > kMostFactor * parts.compute)
      refuse_ratio("compute", parts.compute, before.compute);
    // Each part depends a little on the others: products read memory at the rate of the update, updates use links, and
    // a pipeline waits for what others compute.
    for (int round = 0; round < kRounds; ++round) {
      if (update)
        fit.meet(
            &Factors::update, [](const StepTime& time) { return time.optimizer; }, parts.optimizer);
      fit.meet(
          &Factors::compute, [](const StepTime& time) { return time.compute; }, parts.compute);
      if (waiting && !fit.meet(&Factors::links, total_of, step)) fit.factors.links = 1;
    }
  } else {
    out.lines.push_back("the metrics have no times of the parts of a step: compute rates absorb the whole difference");
  }
  // What is left over. Where the run or the profile's own measurement was disturbed, the other parts may leave compute
  // no time at all: then all are off alike.
  if (!fit.meet(&Factors::compute, total_of, step)) {
    const double all = before.total() / step;
    if (all > kMostFactor || all < 1 / kMostFactor) refuse_ratio("the step", step, before.total());
    fit.factors = {all, all, all};
    fit.meet(&Factors::compute, total_of, step);
  }
  const Factors& by = fit.factors;
  const std::string changes =
      fmt::format("{}, {}, {}", change_of("rates of compute", by.compute),
                  change_of("memory rate of the update", by.update), change_of("links", by.links));
  out.lines.push_back(changes);
  out.profile = scaled(request.profile, by, request.ranks);
  shorten(out.profile);
  out.profile.sources.push_back(fmt::format("calibrated on {} steps of {} on {} ranks ({}): {}", same.size(),
                                            describe(layout), request.ranks, printable(source), changes));
  return out;
}

}  // namespace mw
