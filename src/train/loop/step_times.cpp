#include "train/loop/step_times.h"

#include <algorithm>
#include <array>

#include "base/host.h"

namespace mw {
namespace {

constexpr int64_t kPartsEvery = 100, kFirstParts = 3;  // steps that a GPU times in parts

// The time that this rank spent waiting and updating since `trace` was last reset (compute is not filled in).
StepParts waits_and_updates(const Trace& trace) {
  return {0, trace.seconds(Work::exchange) + trace.seconds(Work::reduce), trace.seconds(Work::optimizer)};
}

}  // namespace

bool StepTimes::next_has_parts(bool on_gpu) const { return !on_gpu || steps_ % kPartsEvery == kFirstParts; }

void StepTimes::begin(const Trace& trace, bool on_gpu) {
  has_parts_ = next_has_parts(on_gpu);
  began_ = now_seconds();
  parts_ = waits_and_updates(trace);
  sent_ = trace.sent_bytes();
}

void StepTimes::end_gradients(const Trace& trace) {
  const Trace::SentBytes sent = trace.sent_bytes();
  sent_ = {sent.all - sent_.all, sent.far - sent_.far};
}

void StepTimes::end(Trace& trace) {
  const double seconds = now_seconds() - began_;
  trace.settle();
  const StepParts after = waits_and_updates(trace);
  parts_ = {0, after.waiting - parts_.waiting, after.optimizer - parts_.optimizer};
  parts_.compute = seconds - parts_.waiting - parts_.optimizer;
  seconds_.push_back(seconds);
  total_ += seconds;
  ++steps_;
}

StepTimes::OfAllRanks StepTimes::gather(Comm& world) {
  OfAllRanks all;
  std::array<int64_t, 2> sent = {sent_.all, sent_.far};
  world.all_reduce_sum(std::span(sent));
  all.sent = {sent[0], sent[1]};
  all_sent_ = {all_sent_.all + all.sent.all, all_sent_.far + all.sent.far};
  if (!has_parts_) return all;
  std::array<double, 2> longest = {parts_.compute, parts_.optimizer};
  world.all_reduce_max(std::span(longest));
  all.parts = {longest[0], std::max(0.0, last() - longest[0] - longest[1]), longest[1]};
  all_parts_.push_back(*all.parts);
  return all;
}

void StepTimes::forget() {
  seconds_.clear();
  all_parts_.clear();
  all_sent_ = {};
}

std::vector<std::string> StepTimes::compare_with(const Forecast& forecast) const {
  return compare(forecast, seconds_, all_parts_, all_sent_);
}

}  // namespace mw
