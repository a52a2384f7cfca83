#include "probe/meter.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace mw {
namespace {

constexpr double kRowSeconds = 2e-3;  // a row of calls shorter than that is mostly the clock
// Enough to heat a GPU to the clock that it keeps.
constexpr int64_t kMostCalls = 2000, kLeastRows = 3, kMostRows = 1000;

}  // namespace

double Meter::time_row(const std::function<void()>& call, int64_t calls) {
  world_.barrier();
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < calls; ++i) call();
  stream_.wait();
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  world_.all_reduce_max(std::span(&seconds, 1));
  return seconds / static_cast<double>(calls);
}

double Meter::seconds_of(const std::function<void()>& call) {
  time_row(call, 1);  // prepares kernels and pages
  const double once = std::max(time_row(call, 1), 1e-7);
  const int64_t calls = std::clamp(static_cast<int64_t>(kRowSeconds / once), int64_t{1}, kMostCalls);
  const double row = once * static_cast<double>(calls);
  const int64_t rows = std::clamp(static_cast<int64_t>(seconds_ / row), kLeastRows, kMostRows);
  std::vector<double> times;
  for (int64_t i = 0; i < rows; ++i) times.push_back(time_row(call, calls));
  const auto middle = times.begin() + std::ssize(times) / 2;
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace mw
