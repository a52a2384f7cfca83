#include "probe/meter.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/host.h"
#include "base/median.h"

namespace mw {
namespace {

constexpr double kRowSeconds = 2e-3;  // a row of calls shorter than that is mostly the clock
// Enough to heat a GPU to the clock that it keeps.
constexpr int64_t kMostCalls = 2000, kLeastRows = 3, kMostRows = 1000;

// Of about so many samples.
double median_of(double samples, const std::function<double()>& sample) {
  std::vector<double> values;
  for (int64_t left = std::clamp(static_cast<int64_t>(samples), kLeastRows, kMostRows); left > 0; --left)
    values.push_back(sample());
  return median(std::move(values));
}

}  // namespace

double Meter::time_row(const std::function<void()>& call, int64_t calls) {
  world_.barrier();
  const double begin = now_seconds();
  for (int64_t i = 0; i < calls; ++i) call();
  stream_.wait();
  double seconds = now_seconds() - begin;
  world_.all_reduce_max(std::span(&seconds, 1));
  return seconds / static_cast<double>(calls);
}

Meter::Row Meter::prepare(const std::function<void()>& call) {
  time_row(call, 1);  // prepares kernels and pages
  const double once = std::max(time_row(call, 1), 1e-7);
  const int64_t calls = std::clamp(static_cast<int64_t>(kRowSeconds / once), int64_t{1}, kMostCalls);
  return {call, calls, once * static_cast<double>(calls)};
}

double Meter::seconds_of(const std::function<void()>& call) {
  const Row row = prepare(call);
  if (row.seconds >= kLeastRows * seconds_) return row.per_call();
  return median_of(seconds_ / row.seconds, [&] { return time_row(row.call, row.calls); });
}

std::vector<double> Meter::seconds_by_rank(const std::function<void()>& call) {
  const Row row = prepare(call);
  const double wanted = 3 * std::max(seconds_, row.seconds);
  int64_t calls = 0;
  double seconds = 0;
  world_.barrier();
  for (const double begin = now_seconds(); seconds < wanted; calls += row.calls) {
    for (int64_t i = 0; i < row.calls; ++i) call();
    stream_.wait();
    seconds = now_seconds() - begin;
  }
  std::vector<double> by_rank(static_cast<size_t>(world_.size()));
  by_rank[static_cast<size_t>(world_.rank())] = seconds / static_cast<double>(calls);
  world_.all_reduce_sum(std::span(by_rank));
  return by_rank;
}

double Meter::ratio_of(const std::function<void()>& call, const std::function<void()>& other) {
  const Row row = prepare(call), beside = prepare(other);
  if (row.seconds + beside.seconds >= 2 * kLeastRows * seconds_) return row.per_call() / beside.per_call();
  return median_of(2 * seconds_ / (row.seconds + beside.seconds), [&] {
    const double seconds = time_row(row.call, row.calls);
    return seconds / time_row(beside.call, beside.calls);
  });
}

}  // namespace mw
