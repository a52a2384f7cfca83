#include "config/batch_ramp.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace mw {
namespace {

struct RampPoint {
  int64_t last_step, samples;
};

// Whether `text` is two positive integers with a space between them.
bool parse_ramp_point(const std::string& text, RampPoint& point) {
  constexpr int64_t kMost = int64_t{1} << 40;
  const char* end = text.data() + text.size();
  const auto step = std::from_chars(text.data(), end, point.last_step);
  if (step.ec != std::errc() || step.ptr == end || *step.ptr != ' ') return false;
  const auto samples = std::from_chars(step.ptr + 1, end, point.samples);
  return samples.ec == std::errc() && samples.ptr == end && std::min(point.last_step, point.samples) > 0 &&
         std::max(point.last_step, point.samples) <= kMost;
}

[[noreturn]] void refuse_ramp(const std::string& problem, const std::string& hint) {
  fail(Exit::config, "train.batch_ramp: " + problem, hint);
}

// The points of the ramp, with train.global_batch behind them.
std::vector<RampPoint> ramp_points(const TrainSpec& train) {
  std::vector<RampPoint> points;
  RampPoint before{0, 0};
  for (const std::string& text : train.batch_ramp) {
    RampPoint point{};
    if (!parse_ramp_point(text, point))
      refuse_ramp(
          fmt::format("expected \"STEP SAMPLES\", two positive integers, got \"{}\"", printable(text)),
          "write, for example, train.batch_ramp = [\"100 64\", \"200 128\"]: 64 samples until step 100, 128 until "
          "step 200, then train.global_batch");
    if (point.last_step <= before.last_step)
      refuse_ramp(fmt::format("expected ascending steps, got {} after {}", point.last_step, before.last_step),
                  "list the points in the order of their steps");
    if (point.samples <= before.samples || point.samples >= train.global_batch)
      refuse_ramp(
          fmt::format("expected numbers of samples that ascend and are less than train.global_batch = {}, got {}{}",
                      train.global_batch, point.samples,
                      before.samples > 0 ? fmt::format(" after {}", before.samples) : ""),
          "list smaller batches than the one that follows them");
    points.push_back(before = point);
  }
  points.push_back({INT64_MAX, train.global_batch});
  return points;
}

}  // namespace

void check_batch_ramp(const TrainSpec& train) {
  const int64_t micro_batch = train.global_batch / train.micro_batches;
  int64_t before = 0;
  for (const RampPoint& point : ramp_points(train)) {
    if (point.last_step < INT64_MAX && point.samples % micro_batch != 0) {
      int64_t near = point.samples / micro_batch * micro_batch;
      if (near <= before) near += micro_batch;
      refuse_ramp(fmt::format("{} samples are no multiple of a micro-batch, which has train.global_batch / "
                              "train.micro_batches = {} samples",
                              point.samples, micro_batch),
                  near < train.global_batch ? fmt::format("set {} samples, or raise train.micro_batches", near)
                                            : "raise train.micro_batches");
    }
    before = point.samples;
  }
}

bool divides_batch_ramp(const TrainSpec& train, int64_t micro_batches) {
  const std::vector<RampPoint> points = ramp_points(train);
  return std::all_of(points.begin(), points.end(),
                     [&](const RampPoint& point) { return point.samples % (train.global_batch / micro_batches) == 0; });
}

int64_t samples_of_step(const TrainSpec& train, int64_t step) {
  const std::vector<RampPoint> points = ramp_points(train);
  return std::find_if(points.begin(), points.end(), [&](const RampPoint& point) { return step <= point.last_step; })
      ->samples;
}

int64_t micro_batches_of_step(const TrainSpec& train, int64_t step) {
  return samples_of_step(train, step) / (train.global_batch / train.micro_batches);
}

double samples_of_steps(const TrainSpec& train, int64_t after, int64_t last) {
  double samples = 0;
  for (const RampPoint& point : ramp_points(train)) {
    const int64_t end = std::min(last, point.last_step);
    if (end <= after) continue;
    samples += static_cast<double>(end - after) * static_cast<double>(point.samples);
    after = end;
  }
  return samples;
}

std::string describe_batch(const TrainSpec& train) {
  std::string text;
  for (const RampPoint& point : ramp_points(train)) {
    const char* what = text.empty() ? " samples" : "";
    if (point.last_step < INT64_MAX) text += fmt::format("{}{} until step {}, ", point.samples, what, point.last_step);
    else text += fmt::format("{}{}{}", text.empty() ? "" : "then ", point.samples, what);
  }
  return text;
}

}  // namespace mw
