#include "core/device_trace.h"

#include <algorithm>
#include <utility>

namespace mw {
namespace {
constexpr size_t kMaxMoments = 200'000;  // of one queue
}

DeviceTrace::DeviceTrace(DeviceQueue& queue, std::function<int64_t()> now_ns)
    : queue_(queue), now_ns_(std::move(now_ns)) {
  tracks_.push_back({&queue, Lane::compute, {}, {}});
  anchor();
}

// Ties the device's clock to the host's: nothing is under way when the host looks.
void DeviceTrace::anchor() {
  for (Track& track : tracks_)
    if (track.queue == &queue_ || !track.moments.empty()) track.queue->take_stamps_back();
  anchor_ = queue_.stamp();
  queue_.wait();
  // A look at the clock that came late may have put earlier events late: never before them.
  anchor_ns_ = latest_ns_ = std::max(now_ns_(), latest_ns_);
}

void DeviceTrace::mark(DeviceQueue& queue, bool begins, const TraceLabel& label) {
  auto track = std::find_if(tracks_.begin(), tracks_.end(), [&](const Track& t) { return t.queue == &queue; });
  if (track == tracks_.end()) track = tracks_.insert(track, {&queue, Lane::communication, {}, {}});
  track->moments.push_back({queue.stamp(), begins, label});
}

void DeviceTrace::begin(DeviceQueue& queue, const TraceLabel& label) { mark(queue, true, label); }
void DeviceTrace::end(DeviceQueue& queue) noexcept { mark(queue, false, {}); }

bool DeviceTrace::is_full() const {
  return std::any_of(tracks_.begin(), tracks_.end(), [](const Track& t) { return t.moments.size() >= kMaxMoments; });
}

// Times are added up from moment to moment: the device tells a short span more exactly than a long one.
void DeviceTrace::replay(Track& track, const std::function<void(const TraceEvent&)>& keep) {
  DeviceQueue::Stamp last = anchor_;
  int64_t now = anchor_ns_;
  for (const Moment& moment : track.moments) {
    int64_t passed = 0;
    if (last != nullptr && moment.stamp != nullptr)
      passed = std::max<int64_t>(0, track.queue->nanoseconds(last, moment.stamp));
    if (moment.stamp != nullptr) last = moment.stamp;
    now += passed;
    if (track.lane == Lane::compute) {
      const Work work = track.open.empty() ? Work::other : track.open.back().label.work;
      seconds_[static_cast<int>(work)] += static_cast<double>(passed) * 1e-9;
    }
    if (moment.begins) {
      track.open.push_back({moment.label, now});
    } else if (!track.open.empty()) {  // its begin may lie before this trace
      const Open scope = track.open.back();
      track.open.pop_back();
      keep({scope.label.text, scope.label.work, scope.begin_ns, now, track.lane, scope.label.argument});
    }
  }
  latest_ns_ = std::max(latest_ns_, now);
}

void DeviceTrace::settle(const std::function<void(const TraceEvent&)>& keep) {
  // One wait for all: somebody may be watching that of the computing queue, in case the others never end.
  for (Track& track : tracks_)
    if (track.queue != &queue_ && !track.moments.empty()) queue_.wait_for(track.queue->mark());
  finish(keep);
}

void DeviceTrace::make_room(const std::function<void(const TraceEvent&)>& keep) {
  for (Track& track : tracks_) {
    if (track.queue == &queue_ || track.moments.empty()) continue;
    track.queue->take_stamps_back();
    track.moments.clear();
    track.open.clear();
  }
  finish(keep);
}

void DeviceTrace::finish(const std::function<void(const TraceEvent&)>& keep) {
  // The device idles from the last scope to here.
  const Moment here{queue_.stamp(), true, {}};
  tracks_.front().moments.push_back(here);
  queue_.wait();
  for (Track& track : tracks_) replay(track, keep);
  tracks_.front().open.pop_back();
  anchor();
  for (Track& track : tracks_) track.moments.clear();
}

void DeviceTrace::reset() {
  for (double& s : seconds_) s = 0.0;
}

}  // namespace mw
