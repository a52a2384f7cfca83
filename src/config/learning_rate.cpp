#include "config/learning_rate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace mw {
namespace {

constexpr double kPi = 3.14159265358979323846;

struct Point {
  double step, factor;
};

std::vector<Point> parse_points(const std::vector<std::string>& items) {
  constexpr double kMostSteps = 1e12, kMostFactor = 1e6;
  const char* hint = "write, for example, train.lr_points = [\"0 0\", \"100 1\", \"900 1\", \"1000 0.1\"]";
  if (items.empty())
    fail(Exit::config, "train.schedule = \"piecewise\" needs train.lr_points, expected at least one point, got none",
         hint);
  std::vector<Point> points;
  for (const std::string& item : items) {
    char *middle = nullptr, *end = nullptr;
    const Point point{std::strtod(item.c_str(), &middle), std::strtod(middle, &end)};
    const bool parsed = middle != item.c_str() && end != middle && *middle == ' ' && *end == 0;
    if (!parsed || !(point.step >= 0 && point.step <= kMostSteps && point.step == std::floor(point.step)) ||
        !(point.factor >= 0 && point.factor <= kMostFactor))
      fail(Exit::config,
           fmt::format("train.lr_points: expected \"STEP FACTOR\", a whole number and a factor from 0 to {:g}, got "
                       "\"{}\"",
                       kMostFactor, printable(item)),
           hint);
    if (!points.empty() && point.step <= points.back().step)
      fail(Exit::config,
           fmt::format("train.lr_points: expected ascending steps, got {} after {}", point.step, points.back().step),
           hint);
    points.push_back(point);
  }
  return points;
}

double factor_at(const std::vector<Point>& points, double step) {
  const auto after = std::find_if(points.begin(), points.end(), [&](const Point& point) { return point.step >= step; });
  if (after == points.end()) return points.back().factor;
  if (after == points.begin()) return after->factor;
  const Point &a = after[-1], &b = *after;
  return a.factor + (b.factor - a.factor) * ((step - a.step) / (b.step - a.step));
}

int64_t decay_steps(const TrainSpec& train) {
  return train.decay_steps > 0 ? train.decay_steps : std::max<int64_t>(1, train.steps / 10);
}

// The share of `count` steps behind `begin` that are done.
double progress(int64_t step, int64_t begin, int64_t count) {
  if (count <= 0) return 0;
  return std::clamp(static_cast<double>(step - begin) / static_cast<double>(count), 0.0, 1.0);
}

void refuse_key_of_other(const TrainSpec& train, const char* key, LearningRateSchedule owner, bool is_set) {
  if (is_set && train.schedule != owner)
    fail(Exit::config,
         fmt::format("{} is set, but belongs to train.schedule = \"{}\", not \"{}\"", key, word_of(owner),
                     word_of(train.schedule)),
         fmt::format("remove {}, or set train.schedule = \"{}\"", key, word_of(owner)));
}

}  // namespace

double learning_rate(const TrainSpec& train, int64_t step) {
  if (step <= train.warmup) return train.lr * static_cast<double>(step) / static_cast<double>(train.warmup);
  const double low = train.lr * train.min_lr_ratio;
  const double p = progress(step, train.warmup, train.steps - train.warmup);
  switch (train.schedule) {
    case LearningRateSchedule::cosine: return low + (train.lr - low) * 0.5 * (1.0 + std::cos(kPi * p));
    case LearningRateSchedule::linear: return train.lr + (low - train.lr) * p;
    case LearningRateSchedule::constant: return train.lr;
    case LearningRateSchedule::inverse_sqrt: {
      const auto warmup = static_cast<double>(std::max<int64_t>(1, train.warmup));
      return std::max(low, train.lr * std::sqrt(warmup / static_cast<double>(step)));
    }
    case LearningRateSchedule::wsd: {
      const int64_t decay = decay_steps(train);
      return train.lr + (low - train.lr) * progress(step, train.steps - decay, decay);
    }
    case LearningRateSchedule::piecewise:
      return train.lr * factor_at(parse_points(train.lr_points), static_cast<double>(step));
  }
  MW_CHECK(false, "schedule {}", static_cast<int>(train.schedule));
}

void check_learning_rate(const TrainSpec& train) {
  refuse_key_of_other(train, "train.decay_steps", LearningRateSchedule::wsd, train.decay_steps > 0);
  refuse_key_of_other(train, "train.lr_points", LearningRateSchedule::piecewise, !train.lr_points.empty());
  if (train.schedule == LearningRateSchedule::wsd && train.decay_steps > train.steps - train.warmup)
    fail(Exit::config,
         fmt::format("train.decay_steps = {}, expected at most the {} steps that train.steps = {} leaves behind "
                     "train.warmup = {}",
                     train.decay_steps, std::max<int64_t>(0, train.steps - train.warmup), train.steps, train.warmup),
         "lower train.decay_steps or train.warmup, or raise train.steps");
  if (train.schedule != LearningRateSchedule::piecewise) return;
  parse_points(train.lr_points);
  if (train.warmup > 0)
    fail(Exit::config, fmt::format("train.warmup = {} with train.schedule = \"piecewise\", expected 0", train.warmup),
         fmt::format("set train.warmup = 0 and begin train.lr_points with \"0 0\", \"{} 1\"", train.warmup));
}

std::string describe_learning_rate(const TrainSpec& train) {
  const std::string begin = train.warmup > 0 ? fmt::format("{} steps of warm-up to {:g}", train.warmup, train.lr)
                                             : fmt::format("{:g} from the first step on", learning_rate(train, 1));
  if (train.warmup > train.steps)
    return fmt::format("{}; the run ends after {} of them, at {:g}", begin, train.steps,
                       learning_rate(train, train.steps));
  if (train.schedule == LearningRateSchedule::constant) return begin + ", then constant";
  std::string name(word_of(train.schedule));
  if (train.schedule == LearningRateSchedule::wsd)
    name = fmt::format("constant, in the last {} steps linear", decay_steps(train));
  return fmt::format("{}, then {} to {:g} at step {}", begin, name, learning_rate(train, train.steps), train.steps);
}

}  // namespace mw
