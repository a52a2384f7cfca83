#include "core/trace.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>
#include <vector>

namespace mw::test {
namespace {

// Returns the seconds that it took, which may be more: machines of tests are shared.
double spend(std::chrono::milliseconds time) {
  const auto begin = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(time);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TEST(Trace, NotesTheInnermostScopeAsPhase) {
  Trace trace;
  Progress progress;
  trace.note_phases(&progress);
  EXPECT_STREQ(progress.read().phase, "");
  {
    const TraceScope outer(trace, Work::attention, "outer");
    {
      const TraceScope inner(trace, Work::matmul, "inner");
      EXPECT_STREQ(progress.read().phase, "inner");
    }
    EXPECT_STREQ(progress.read().phase, "outer");
    EXPECT_EQ(progress.read().moves, 3);
  }
  EXPECT_STREQ(progress.read().phase, "");
}

TEST(Progress, TellsWhichCollectiveIsAwaited) {
  Progress progress;
  const int64_t started = progress.begin_collective();
  {
    const CollectiveWait other(progress, "barrier");
    EXPECT_EQ(progress.read().awaited, started + 1);
    EXPECT_STREQ(progress.read().call, "barrier");
  }
  const int64_t before = progress.read().moves;
  {
    const CollectiveWait wait(progress, "all_to_all", started);
    EXPECT_EQ(progress.read().awaited, started);
    EXPECT_STREQ(progress.read().call, "all_to_all");
  }
  EXPECT_EQ(progress.read().awaited, 0);
  EXPECT_EQ(progress.read().collectives, 2);
  EXPECT_GT(progress.read().moves, before);
}

TEST(Trace, SlowComputeTakesLongerByItsSpeedAndNothingElseDoes) {
  using namespace std::chrono_literals;
  Trace trace;
  trace.slow_down(0.25);
  trace.reset();
  double exchange = 0, matmul = 0;
  {
    const TraceScope outer(trace, Work::exchange, "outer");
    exchange = spend(20ms);
    const TraceScope inner(trace, Work::matmul, "inner");
    matmul = spend(20ms);
  }
  EXPECT_GE(trace.seconds(Work::matmul), 4 * matmul);
  EXPECT_LT(trace.seconds(Work::exchange), 4 * exchange);
  trace.slow_down(1);
  trace.reset();
  {
    const TraceScope scope(trace, Work::matmul, "scope");
    matmul = spend(20ms);
  }
  EXPECT_LT(trace.seconds(Work::matmul), 4 * matmul);
}

TEST(Trace, ProductsOfAnUpdateCountAsOptimizer) {
  using namespace std::chrono_literals;
  Trace trace;
  trace.reset();
  {
    const TraceScope update(trace, Work::optimizer, "update");
    const TraceScope inner(trace, Work::matmul, "product");
    spend(20ms);
    const TraceScope sum(trace, Work::elementwise, "sum");
    spend(20ms);
    const TraceScope exchange(trace, Work::exchange, "exchange");
    spend(20ms);
  }
  EXPECT_GE(trace.seconds(Work::optimizer), 0.04);
  EXPECT_EQ(trace.seconds(Work::matmul), 0.0);
  EXPECT_EQ(trace.seconds(Work::elementwise), 0.0);
  EXPECT_GE(trace.seconds(Work::exchange), 0.02);
}

TEST(Trace, TimeOfInnerScopesIsTakenOutOfOuterOnes) {
  using namespace std::chrono_literals;
  Trace trace;
  const auto begin = std::chrono::steady_clock::now();
  trace.reset();
  {
    const TraceScope outer(trace, Work::attention, "outer");
    spend(20ms);
    {
      const TraceScope inner(trace, Work::matmul, "inner");
      spend(30ms);
    }
    spend(20ms);
    const TraceScope last(trace, Work::matmul, "last");
    spend(10ms);
  }
  const std::chrono::duration<double> whole = std::chrono::steady_clock::now() - begin;
  // Sleeping may take longer, never shorter; what it took is charged once.
  EXPECT_GE(trace.seconds(Work::attention), 0.040);
  EXPECT_GE(trace.seconds(Work::matmul), 0.040);
  EXPECT_EQ(trace.seconds(Work::router), 0);
  EXPECT_LE(trace.seconds(Work::attention) + trace.seconds(Work::matmul), whole.count());
  trace.reset();
  EXPECT_EQ(trace.seconds(Work::attention), 0);
}

TEST(Trace, AllTimeIsCharged) {
  using namespace std::chrono_literals;
  Trace trace;
  const auto begin = std::chrono::steady_clock::now();
  trace.reset();
  for (int i = 0; i < 3; ++i) {
    spend(3ms);  // outside every scope: "other"
    const TraceScope a(trace, Work::matmul, "a");
    spend(3ms);
    const TraceScope b(trace, Work::matmul, "b");  // of the same kind
  }
  { const TraceScope end(trace, Work::data, "end"); }
  const std::chrono::duration<double> whole = std::chrono::steady_clock::now() - begin;
  double sum = 0;
  for (int kind = 0; kind < kWorkKinds; ++kind) sum += trace.seconds(static_cast<Work>(kind));
  EXPECT_GE(trace.seconds(Work::other), 0.009);
  EXPECT_GE(trace.seconds(Work::matmul), 0.009);
  EXPECT_LE(sum, whole.count());
  EXPECT_GE(sum, 0.018);
}

TEST(Trace, KeepsEventsWhenAsked) {
  Trace trace;
  { const TraceScope scope(trace, Work::matmul, "not kept"); }
  EXPECT_TRUE(trace.events().empty());
  trace.keep_events(true);
  {
    const TraceScope outer(trace, Work::attention, "outer");
    const TraceScope inner(trace, Work::matmul, "inner");
  }
  ASSERT_EQ(trace.events().size(), 2u);
  const TraceEvent inner = trace.events()[0], outer = trace.events()[1];  // in the order they end
  EXPECT_STREQ(inner.label, "inner");
  EXPECT_EQ(inner.work, Work::matmul);
  EXPECT_STREQ(outer.label, "outer");
  EXPECT_LE(outer.begin_ns, inner.begin_ns);
  EXPECT_LE(inner.begin_ns, inner.end_ns);
  EXPECT_LE(inner.end_ns, outer.end_ns);
}

TEST(Trace, EventsAreBounded) {
  Trace trace;
  trace.keep_events(true);
  for (int i = 0; i < 1'000'100; ++i) const TraceScope scope(trace, Work::other, "x");
  EXPECT_EQ(trace.events().size(), 1'000'000u);
}

std::vector<std::string>& shown() {
  static std::vector<std::string> calls;
  return calls;
}

TEST(Trace, ScopesAreShownToAProfiler) {
  shown().clear();
  Trace trace, other;
  trace.show_ranges({[](const char* label) { shown().emplace_back(label); }, [] { shown().emplace_back("end"); }});
  {
    const TraceScope outer(trace, Work::attention, "outer");
    const TraceScope unseen(other, Work::matmul, "unseen");
    const TraceScope inner(trace, "inner");
  }
  EXPECT_EQ(shown(), (std::vector<std::string>{"outer", "inner", "end", "end"}));
}

TEST(Trace, KindsHaveNames) {
  std::set<std::string> names;
  for (int kind = 0; kind < kWorkKinds; ++kind) names.insert(name_of(static_cast<Work>(kind)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kWorkKinds));
  EXPECT_EQ(names.count("?"), 0u);
}

}  // namespace
}  // namespace mw::test
