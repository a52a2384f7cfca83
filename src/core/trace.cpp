#include "core/trace.h"

#include <thread>

namespace mw {
namespace {
constexpr size_t kMaxEvents = 1'000'000;
constexpr double kLeastSleep = 200'000;  // nanoseconds; shorter sleeps take much longer than they should
}  // namespace

const char* name_of(Work work) {
  switch (work) {
    case Work::matmul: return "matmul";
    case Work::attention: return "attention";
    case Work::elementwise: return "elementwise";
    case Work::router: return "router";
    case Work::exchange: return "exchange";
    case Work::reduce: return "reduce";
    case Work::optimizer: return "optimizer";
    case Work::data: return "data";
    case Work::checkpoint: return "checkpoint";
    case Work::other: return "other";
  }
  return "?";
}

const char* name_of(Lane lane) {
  switch (lane) {
    case Lane::host: return "host";
    case Lane::compute: return "compute";
    case Lane::communication: return "communication";
  }
  return "?";
}

Trace::Trace() : origin_(std::chrono::steady_clock::now()) {}

int64_t Trace::now_ns() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - origin_).count();
}

// Time since the last boundary belongs to the innermost open scope.
void Trace::charge(int64_t now) {
  const Work work = open_.empty() ? Work::other : open_.back().label.work;
  const auto passed = static_cast<double>(now - last_ns_);
  seconds_[static_cast<int>(work)] += passed * 1e-9;
  if (computes(work)) sleep_ns_ += passed * sleep_per_work_;
  last_ns_ = now;
}

// Returns the time after the sleep, which is charged to the innermost open scope.
int64_t Trace::sleep_off(int64_t now) {
  const Work work = open_.back().label.work;
  if (sleep_ns_ < kLeastSleep || !computes(work)) return now;
  std::this_thread::sleep_for(std::chrono::nanoseconds(static_cast<int64_t>(sleep_ns_)));
  last_ns_ = now_ns();
  seconds_[static_cast<int>(work)] += static_cast<double>(last_ns_ - now) * 1e-9;
  sleep_ns_ -= static_cast<double>(last_ns_ - now);
  return last_ns_;
}

void Trace::keep(const TraceEvent& event) {
  if (keep_events_ && events_.size() < kMaxEvents) events_.push_back(event);
}

void Trace::time_device(DeviceQueue* queue) {
  device_.reset();
  if (queue == nullptr) return;
  const auto now = [origin = origin_] {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - origin).count();
  };
  device_ = std::make_unique<DeviceTrace>(*queue, now);
}

void Trace::settle() {
  if (device_ != nullptr) device_->settle([this](const TraceEvent& event) { keep(event); });
}

void Trace::reset() {
  settle();
  if (device_ != nullptr) device_->reset();
  for (double& s : seconds_) s = 0.0;
  last_ns_ = now_ns();
}

TraceScope::TraceScope(Trace& trace, Work work, const char* label, TraceArgument argument) : trace_(trace) {
  if (!trace_.open_.empty() && trace_.open_.back().label.work == Work::optimizer &&
      (work == Work::matmul || work == Work::elementwise))
    work = Work::optimizer;
  if (trace_.marker_.push != nullptr) trace_.marker_.push(label);
  if (trace_.progress_ != nullptr) trace_.progress_->enter(label);
  if (trace_.device_ != nullptr) {
    if (trace_.device_->is_full()) trace_.device_->make_room([&](const TraceEvent& event) { trace_.keep(event); });
    trace_.device_->begin(trace_.device_->queue(), {label, work, argument});
  }
  const int64_t now = trace_.now_ns();
  trace_.charge(now);
  trace_.open_.push_back({{label, work, argument}, now});
}

TraceScope::~TraceScope() {
  if (trace_.device_ != nullptr) trace_.device_->end(trace_.device_->queue());
  int64_t now = trace_.now_ns();
  trace_.charge(now);
  now = trace_.sleep_off(now);
  const auto [label, begin] = trace_.open_.back();
  trace_.open_.pop_back();
  trace_.keep({label.text, label.work, begin, now, Lane::host, label.argument});
  if (trace_.progress_ != nullptr) trace_.progress_->enter(trace_.open_.empty() ? "" : trace_.open_.back().label.text);
  if (trace_.marker_.pop != nullptr) trace_.marker_.pop();
}

QueueScope::QueueScope(Trace& trace, DeviceQueue& queue, Work work, const char* label, TraceArgument argument)
    : device_(trace.device_.get()), queue_(queue) {
  if (device_ != nullptr) device_->begin(queue_, {label, work, argument});
}

QueueScope::~QueueScope() {
  if (device_ != nullptr) device_->end(queue_);
}

}  // namespace mw
