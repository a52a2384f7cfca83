#include "train/loop/forecast.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/host.h"
#include "base/median.h"
#include "base/text.h"
#include "layout/transport.h"
#include "ops/matmul.h"
#include "planner/search.h"

namespace mw {
namespace {

double percent_above(double measured, double predicted) { return 100 * (measured / predicted - 1); }

void predict_time(Forecast& forecast, RunSpec run, int ranks) {
  run.plan.ranks = ranks;
  const Request request = make_request(run);
  const Layout layout = layout_of(run);
  check_layout(request, layout);
  Estimator estimator(request.model, request.run, request.profile, request.load, ranks);
  forecast.time = estimator.simulated(layout).time;
  forecast.peak_flops_per_s = estimator.peak_flops_per_s() / ranks;
}

// Those that compute, where moe.transport may say "auto".
std::string describe_transports(const Plan& plan) {
  std::vector<std::string> names = transport_names(plan.run.moe.transport, plan.model);
  for (size_t i = 0; i < names.size(); ++i)
    if (!names[i].empty()) names[i] = traits_of(plan.transports[i]).name;
  return transport_setting(names);
}

// Of all but the first, where there are others.
template <class T, class Value>
double median_of(std::span<const T> steps, Value&& value) {
  std::vector<double> values;
  for (const T& step : steps.subspan(steps.size() > 1 ? 1 : 0)) values.push_back(value(step));
  return median(std::move(values));
}

constexpr double kFarOff = 3;  // a profile of the same machine is never wrong by this factor

}  // namespace

Forecast make_forecast(const Plan& plan, int ranks) {
  Forecast forecast;
  forecast.exchanged = exchanged_bytes(plan.model, plan.run, plan.mesh, plan.nodes, plan.transports, plan.gathers,
                                       plan.weight_cache.gathers);
  forecast.transport = describe_transports(plan);
  forecast.platform = plan.run.plan.platform;
  if (forecast.platform.empty()) return forecast;
  try {
    predict_time(forecast, plan.run, ranks);
  } catch (const Error& error) {
    forecast.why_no_time = error.what();
  }
  return forecast;
}

std::string describe(const Forecast& forecast) {
  if (forecast.platform.empty()) return {};
  if (!forecast.time) return fmt::format("warning: plan.platform: no time is predicted: {}", forecast.why_no_time);
  const StepTime& t = *forecast.time;
  return fmt::format(
      "predicted by {}: {:.0f} ms a step (compute {:.0f}, waiting for exchanges {:.0f}, bubble {:.0f}, optimizer "
      "{:.0f})",
      forecast.platform, t.total() * 1e3, t.compute * 1e3, t.exchange * 1e3, t.bubble * 1e3, t.optimizer * 1e3);
}

std::vector<std::string> compare(const Forecast& forecast, std::span<const double> step_seconds,
                                 std::span<const StepParts> parts, Trace::SentBytes sent) {
  std::vector<std::string> lines;
  if (step_seconds.empty()) return lines;
  if (forecast.time) {
    const double measured = median_of(step_seconds, [](double seconds) { return seconds; });
    const StepTime& predicted = *forecast.time;
    lines.push_back(fmt::format("time of a step: {:.0f} ms in the median, {:.0f} ms predicted ({:+.1f} %)",
                                measured * 1e3, predicted.total() * 1e3, percent_above(measured, predicted.total())));
    if (measured > kFarOff * predicted.total() || kFarOff * measured < predicted.total())
      lines.push_back(fmt::format("  {} seems to describe another machine: `moewright probe -o FILE` measures this one",
                                  forecast.platform));
    const auto part = [&](double StepParts::*member) {
      return 1e3 * median_of(parts, [&](const StepParts& p) { return p.*member; });
    };
    if (!parts.empty())
      lines.push_back(fmt::format(
          "  computing {:.0f} ms ({:.0f} predicted), waiting {:.0f} ms ({:.0f}), updating {:.0f} ms ({:.0f})",
          part(&StepParts::compute), predicted.compute * 1e3, part(&StepParts::waiting),
          (predicted.exchange + predicted.bubble) * 1e3, part(&StepParts::optimizer), predicted.optimizer * 1e3));
  }
  const auto compare_bytes = [&](const char* what, int64_t bytes, double predicted) {
    if (predicted == 0) return;
    const double mean = static_cast<double>(bytes) / static_cast<double>(step_seconds.size());
    lines.push_back(fmt::format("{}: {} a step, {} predicted for even loads ({:+.1f} %)", what,
                                format_bytes(static_cast<int64_t>(mean)), format_bytes(static_cast<int64_t>(predicted)),
                                percent_above(mean, predicted)));
  };
  compare_bytes("sent for routed experts to other ranks", sent.all, forecast.exchanged.all());
  compare_bytes("sent for routed experts to other nodes", sent.far, forecast.exchanged.far);
  return lines;
}

double estimate_seconds(Engine& engine, double samples) {
  const TrainSpec& train = engine.plan.run.train;
  const int64_t rows = std::min<int64_t>(engine.plan.batch.tokens(), 1024), d = engine.plan.model.width;
  TensorStore memory({{"w", DType::f32, {d, d}, 0}, {"x", DType::f32, {rows, d}, 0}, {"y", DType::f32, {rows, d}, 0}});
  const Weight weight{d, d, memory.fixed("w"), {}, {}};
  double fastest = 1e30;
  for (int i = 0; i < 5; ++i) {
    const double begin = now_seconds();
    matmul(engine.stream, memory.fixed("x"), weight, memory.fixed("y"));
    fastest = std::min(fastest, now_seconds() - begin);
  }
  const double rate = 2.0 * static_cast<double>(rows * d * d) / fastest;
  const double tokens = samples * static_cast<double>(train.seq_len);
  // Products are about two thirds of a step on a CPU.
  return 1.5 * 3 * forward_flops_per_token(engine.plan.model, train.seq_len) * tokens / rate / engine.world.size();
}

}  // namespace mw
