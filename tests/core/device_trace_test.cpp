// Scopes of a device, on one whose clock the test turns.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <string>

#include "core/stream.h"

namespace mw::test {
namespace {

constexpr int64_t kMillisecond = 1'000'000;

struct Clock {
  int64_t now = 0;
};

// Passes every stamp at once, at the time of its clock.
class FakeQueue : public DeviceQueue {
 public:
  explicit FakeQueue(Clock& clock) : clock_(clock) {}
  void copy(void*, const void*, size_t) override {}
  void write(void*, const void*, size_t) override {}
  void read(void*, const void*, size_t) override {}
  Mark mark() override { return nullptr; }
  void wait_for(const Mark&) override { ++marks_awaited; }
  Stamp stamp() noexcept override {
    if (broken) return nullptr;
    stamps_.push_back(clock_.now);
    most = std::max(most, stamps_.size());
    return &stamps_.back();
  }
  int64_t nanoseconds(Stamp from, Stamp to) override {
    return *static_cast<int64_t*>(to) - *static_cast<int64_t*>(from);
  }
  void take_stamps_back() override { stamps_.clear(); }
  void watch(std::function<void()>) override {}
  void wait() override { ++waits; }
  void wait_until(const Mark&) override {}
  void* native() override { return nullptr; }

  bool broken = false;
  int waits = 0, marks_awaited = 0;
  size_t most = 0;  // stamps at a time

 private:
  Clock& clock_;
  std::deque<int64_t> stamps_;
};

struct Device {
  Clock clock;
  FakeQueue compute{clock}, link{clock};
  Trace trace;
  Device() {
    trace.time_device(&compute);
    trace.keep_events(true);
  }
  void pass(int64_t milliseconds) { clock.now += milliseconds * kMillisecond; }
  int64_t milliseconds(Work work) const { return std::llround(trace.seconds(work) * 1e3); }
  std::vector<TraceEvent> lane(Lane lane) const {
    std::vector<TraceEvent> found;
    for (const TraceEvent& e : trace.events())
      if (e.lane == lane) found.push_back(e);
    return found;
  }
};

TEST(DeviceTrace, SumsAreExclusiveAndIdleTimeIsOther) {
  Device d;
  d.pass(3);  // idle
  {
    const TraceScope outer(d.trace, Work::attention, "outer");
    d.pass(10);
    {
      const TraceScope inner(d.trace, Work::matmul, "inner");
      d.pass(30);
    }
    d.pass(5);
  }
  d.pass(2);  // idle
  {
    const TraceScope part(d.trace, "part");
    d.pass(7);  // idle inside a part
    const TraceScope next(d.trace, Work::matmul, "next");
    d.pass(11);
  }
  d.pass(4);                                   // idle up to the end of the step
  EXPECT_EQ(d.milliseconds(Work::matmul), 0);  // nothing is known before the device was waited for
  d.trace.settle();
  EXPECT_EQ(d.milliseconds(Work::attention), 15);
  EXPECT_EQ(d.milliseconds(Work::matmul), 41);
  EXPECT_EQ(d.milliseconds(Work::other), 3 + 2 + 7 + 4);
  d.trace.settle();  // nothing came since
  EXPECT_EQ(d.milliseconds(Work::other), 16);
  d.pass(1);
  d.trace.reset();
  for (int kind = 0; kind < kWorkKinds; ++kind) EXPECT_EQ(d.trace.seconds(static_cast<Work>(kind)), 0);
}

TEST(DeviceTrace, ScopesOfTheHostLieOnALaneOfEach) {
  Device d;
  {
    const TraceScope step(d.trace, "step", {"step", 7});
    d.pass(1);
    {
      const QueueScope exchange(d.trace, d.link, Work::exchange, "all_to_all", {"bytes", 512});
      d.pass(4);
    }
    const TraceScope product(d.trace, Work::matmul, "product");
    d.pass(2);
  }
  d.trace.settle();
  const auto host = d.lane(Lane::host), compute = d.lane(Lane::compute), communication = d.lane(Lane::communication);
  ASSERT_EQ(host.size(), 2u);
  ASSERT_EQ(compute.size(), 2u);
  ASSERT_EQ(communication.size(), 1u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_STREQ(host[i].label, compute[i].label);
    EXPECT_EQ(host[i].argument.value, compute[i].argument.value);
  }
  const TraceEvent product = compute[0], step = compute[1], exchange = communication[0];
  EXPECT_STREQ(step.argument.name, "step");
  EXPECT_STREQ(exchange.argument.name, "bytes");
  EXPECT_EQ(exchange.argument.value, 512);
  // One clock for all of them.
  EXPECT_EQ(exchange.begin_ns - step.begin_ns, 1 * kMillisecond);
  EXPECT_EQ(exchange.end_ns - exchange.begin_ns, 4 * kMillisecond);
  EXPECT_EQ(product.begin_ns, exchange.end_ns);
  EXPECT_EQ(product.end_ns, step.end_ns);
  EXPECT_EQ(d.milliseconds(Work::exchange), 0);  // the computing queue was not in it
}

TEST(DeviceTrace, EventsOfALaneNestAcrossSteps) {
  Device d;
  for (int step = 0; step < 5; ++step) {
    {
      const TraceScope whole(d.trace, "step");
      for (int i = 0; i < 3; ++i) {
        const TraceScope product(d.trace, Work::matmul, "product");
        d.pass(50);  // the host's clock stays behind
      }
    }
    d.trace.settle();
  }
  const auto events = d.lane(Lane::compute);
  ASSERT_EQ(events.size(), 20u);
  for (const TraceEvent& a : events)
    for (const TraceEvent& b : events) {
      const bool apart = a.end_ns <= b.begin_ns || b.end_ns <= a.begin_ns;
      const bool inside =
          (a.begin_ns <= b.begin_ns && b.end_ns <= a.end_ns) || (b.begin_ns <= a.begin_ns && a.end_ns <= b.end_ns);
      EXPECT_TRUE(apart || inside) << a.begin_ns << ' ' << a.end_ns << ' ' << b.begin_ns << ' ' << b.end_ns;
    }
}

TEST(DeviceTrace, ScopesMayBeOpenWhileItSettles) {
  Device d;
  {
    const TraceScope outer(d.trace, Work::router, "outer");
    d.pass(2);
    d.trace.settle();
    EXPECT_EQ(d.milliseconds(Work::router), 2);
    EXPECT_TRUE(d.lane(Lane::compute).empty());
    d.pass(3);
  }
  d.trace.settle();
  EXPECT_EQ(d.milliseconds(Work::router), 5);
  ASSERT_EQ(d.lane(Lane::compute).size(), 1u);
  EXPECT_GE(d.lane(Lane::compute)[0].end_ns - d.lane(Lane::compute)[0].begin_ns, 5 * kMillisecond);
}

TEST(DeviceTrace, AScopeThatWasOpenBeforeIsLeftOut) {
  Clock clock;
  FakeQueue queue(clock);
  Trace trace;
  trace.keep_events(true);
  {
    const TraceScope outer(trace, Work::data, "outer");
    trace.time_device(&queue);
    const TraceScope inner(trace, Work::matmul, "inner");
    clock.now += kMillisecond;
  }
  trace.settle();
  EXPECT_DOUBLE_EQ(trace.seconds(Work::matmul), 1e-3);
  EXPECT_EQ(trace.seconds(Work::data), 0);
  EXPECT_EQ(std::count_if(trace.events().begin(), trace.events().end(),
                          [](const TraceEvent& e) { return e.lane == Lane::compute; }),
            1);
}

TEST(DeviceTrace, StampsAreTakenAgainAndBounded) {
  Device d;
  d.trace.keep_events(false);
  for (int step = 0; step < 3; ++step) {
    for (int i = 0; i < 100; ++i) const TraceScope scope(d.trace, Work::matmul, "x");
    d.trace.settle();
  }
  EXPECT_LE(d.compute.most, 202u);
  const int waits = d.compute.waits;
  for (int i = 0; i < 250'000; ++i) {
    const TraceScope scope(d.trace, Work::matmul, "x");
    d.clock.now += 1000;
  }
  EXPECT_GT(d.compute.waits, waits);
  EXPECT_LE(d.compute.most, 200'100u);
  d.trace.settle();
  EXPECT_EQ(d.milliseconds(Work::matmul), 250);
}

// The other rank may receive a message only after work of this rank that is yet to come.
TEST(DeviceTrace, InTheMiddleOfAStepNothingWaitsForMessages) {
  Device d;
  const auto send = [&](const char* label) { const QueueScope scope(d.trace, d.link, Work::exchange, label); };
  send("first");
  for (int i = 0; i < 250'000; ++i) const TraceScope scope(d.trace, Work::matmul, "x");
  EXPECT_GT(d.compute.waits, 1);
  EXPECT_EQ(d.compute.marks_awaited, 0);
  send("second");
  d.trace.settle();
  EXPECT_EQ(d.compute.marks_awaited, 1);
  const std::vector<TraceEvent> sent = d.lane(Lane::communication);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_STREQ(sent[0].label, "second");
}

TEST(DeviceTrace, AMissingStampTakesNoTime) {
  Device d;
  {
    const TraceScope outer(d.trace, Work::router, "outer");
    d.pass(1);
    d.compute.broken = true;
    const TraceScope inner(d.trace, Work::matmul, "inner");
    d.pass(2);
  }
  d.compute.broken = false;
  d.pass(3);
  d.trace.settle();
  EXPECT_EQ(d.milliseconds(Work::other), 6);  // all that is known is when it was over
  EXPECT_EQ(d.lane(Lane::compute).size(), 2u);
}

TEST(DeviceTrace, WithoutATimedDeviceNothingIsStamped) {
  Clock clock;
  FakeQueue queue(clock), link(clock);
  Stream stream(mw::Device{DeviceKind::cuda, 0}, 1, std::make_unique<FakeQueue>(clock));
  Trace& trace = stream.trace();
  trace.keep_events(true);
  {
    const TraceScope scope(trace, Work::matmul, "product");
    const QueueScope exchange(trace, link, Work::exchange, "all_to_all");
  }
  trace.settle();
  EXPECT_EQ(static_cast<FakeQueue&>(stream.queue()).most, 0u);
  EXPECT_EQ(link.most, 0u);
  EXPECT_EQ(trace.events().size(), 1u);
  trace.time_device(&queue);
  EXPECT_TRUE(trace.times_device());
  trace.time_device(nullptr);
  { const TraceScope scope(trace, Work::matmul, "product"); }
  EXPECT_EQ(queue.most, 1u);  // to tie the clocks
  EXPECT_FALSE(trace.times_device());
}

}  // namespace
}  // namespace mw::test
