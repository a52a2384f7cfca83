// What moe.transport = "auto" means for a run on given ranks.
#include "planner/auto_transport.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/file.h"
#include "layout/platform_profile.h"

namespace mw::test {
namespace {

// A layer of Qwen3-30B, four times, with experts on all of 32 ranks.
RunSpec run_on_32_ranks() {
  RunSpec run;
  run.native.width = 2048;
  run.native.layers = 4;
  run.native.heads = 32;
  run.native.head_dim = 64;
  run.native.experts = 128;
  run.native.top_k = 8;
  run.native.expert_width = 768;
  run.train.seq_len = 4096;
  run.train.global_batch = 64;
  run.train.micro_batches = 2;
  run.mesh.ep = 32;
  run.plan.platform = MOEWRIGHT_SOURCE_DIR "/profiles/frontier.json";
  return run;
}

// The first `hot` of 128 experts get all rows of a layer.
std::vector<double> rows_of_few(int64_t hot) {
  std::vector<double> rows(128, 0);
  std::fill(rows.begin(), rows.begin() + hot, 128000.0 / static_cast<double>(hot));
  return rows;
}

TEST(AutoTransport, IsBypassWhereLinksBetweenNodesAreSlow) {
  const TransportChoice choice = choose_auto_transport(run_on_32_ranks(), 32, {8, {}});
  EXPECT_EQ(choice.name, "bypass") << choice.why_none;
  EXPECT_GT(choice.seconds, 0);
  EXPECT_LE(choice.seconds, 0.98 * choice.flat_seconds);
  EXPECT_TRUE(describe(choice, "frontier.json").starts_with("moe.transport = \"auto\": bypass, by frontier.json: "));
}

// A token that has one expert goes to one rank: nothing can be merged, and the way by the node costs copies.
TEST(AutoTransport, IsFlatWhereTokensHaveOneExpert) {
  RunSpec run = run_on_32_ranks();
  run.native.top_k = 1;
  const TransportChoice choice = choose_auto_transport(run, 32, {8, {}});
  EXPECT_NE(choice.name, "bypass");
  EXPECT_GT(choice.flat_seconds, 0);
}

// The factors of a probe of the run change predictions, and with them the choice.
TEST(AutoTransport, CountsTheTimesThatAProbeMeasured) {
  RunSpec run = run_on_32_ranks();
  const TransportChoice predicted = choose_auto_transport(run, 32, {8, {}});
  PlatformProfile profile = read_platform_profile(run.plan.platform);
  const auto choose_with = [&](std::vector<TransportTime> times) {
    profile.transport_times = std::move(times);
    run.plan.platform = ::testing::TempDir() + "timed_transports.json";
    write_text_file_atomically(run.plan.platform, to_json(profile));
    return choose_auto_transport(run, 32, {8, {}});
  };
  EXPECT_EQ(choose_with({{"bypass", 1}}).seconds, predicted.seconds);
  const TransportChoice slower = choose_with({{"bypass", 1.0625}});
  EXPECT_GT(slower.seconds, predicted.seconds);
  EXPECT_LT(slower.seconds, 1.0625 * predicted.seconds);  // attention takes no longer
  EXPECT_NE(choose_with({{"bypass", 8}, {"halo", 8}}).name, "bypass");
  EXPECT_EQ(choose_with({{"gather_tokens", 0.01}}).name, "gather_tokens");
}

TEST(AutoTransport, StaysWithTheCheckpoints) {
  const RunSpec slow_links = run_on_32_ranks();
  const TransportChoice kept = choose_auto_transport(slow_links, 32, {8, {}}, "flat");
  EXPECT_EQ(kept.name, "flat");
  EXPECT_EQ(kept.seconds, kept.flat_seconds);
  EXPECT_EQ(choose_auto_transport(slow_links, 32, {8, {}}, "padded").name, "bypass");  // not one that is weighed
}

// All tokens of a layer go to the experts of four ranks of a node: gathered weights are as fast as before.
TEST(AutoTransport, ChoosesAgainByMeasuredLoads) {
  const RunSpec run = run_on_32_ranks();
  const auto again = [&](const std::string& now, const std::vector<double>& rows) {
    return choose_transport_again(run, 32, {8, {}}, now, std::vector<std::vector<double>>(4, rows));
  };
  const std::vector<double> even = rows_of_few(128), skewed = rows_of_few(16);
  const TransportChoice same = again("bypass", even), other = again("bypass", skewed);
  EXPECT_EQ(same.name, "bypass");
  EXPECT_EQ(other.name, "gather_weights");
  EXPECT_LE(other.seconds, 0.9 * again("bypass", skewed).flat_seconds);
  EXPECT_EQ(again("flat", even).name, "bypass");
  EXPECT_EQ(again("gather_tokens", even).name, "gather_tokens");  // slices of experts stay where they are
}

TEST(AutoTransport, ChoosesForEachLayerByItsOwnLoads) {
  const RunSpec run = run_on_32_ranks();
  const std::vector<double> even = rows_of_few(128), skewed = rows_of_few(16);
  const MeasuredLoads loads = {even, skewed, skewed, even};
  const TransportChoice first = choose_auto_transport(run, 32, {8, {}}, "", loads);
  EXPECT_EQ(first.name, "bypass,gather_weights*2,bypass");
  const auto seconds = [&](const std::string& setting, const MeasuredLoads& of) {
    return choose_auto_transport(run, 32, {8, {}}, setting, of).seconds;  // which it keeps
  };
  EXPECT_DOUBLE_EQ(
      first.seconds,
      (seconds("bypass", MeasuredLoads(4, even)) + seconds("gather_weights", MeasuredLoads(4, skewed))) / 2);
  EXPECT_DOUBLE_EQ(first.flat_seconds, seconds("flat", loads));

  const TransportChoice again = choose_transport_again(run, 32, {8, {}}, first.name, {even, even, skewed, skewed});
  EXPECT_EQ(again.name, "bypass*2,gather_weights*2");
  EXPECT_EQ(choose_auto_transport(run, 32, {8, {}}, again.name).name, again.name);  // a checkpoint's
}

// Loads around the border between two transports, whichever a layer begins with.
TEST(AutoTransport, ALayerChangesOnceAtMostWhileLoadsMoveAroundABorder) {
  const RunSpec run = run_on_32_ranks();
  const auto again = [&](const std::string& now, double skew) {
    std::vector<double> rows = rows_of_few(128);
    const std::vector<double> few = rows_of_few(16);
    for (size_t e = 0; e < rows.size(); ++e) rows[e] = (1 - skew) * rows[e] + skew * few[e];
    return choose_transport_again(run, 32, {8, {}}, now, {rows, rows_of_few(128), rows_of_few(128), rows_of_few(128)})
        .name;
  };
  const std::string rows = "bypass", weights = "gather_weights,bypass*3";
  double to_weights = 0, to_rows = 1;  // where each gives way to the other
  while (to_weights < 1 && again(rows, to_weights) == rows) to_weights += 0.02;
  while (to_rows > 0 && again(weights, to_rows) == weights) to_rows -= 0.02;
  ASSERT_LT(to_weights, 1);
  ASSERT_GT(to_rows, 0);
  ASSERT_GT(to_weights, to_rows + 0.02);
  for (const double middle : {to_rows, to_weights, (to_rows + to_weights) / 2})
    for (const std::string& begin : {rows, weights}) {
      int changes = 0;
      std::string now = begin;
      for (int i = 0; i < 10; ++i) {
        const double noise = (i % 2 == 0 ? 0.3 : -0.3) * (to_weights - to_rows);
        const std::string next = again(now, std::clamp(middle + noise, 0.0, 1.0));
        changes += next != now;
        now = next;
      }
      EXPECT_LE(changes, 1) << begin << " around " << middle;
    }
}

TEST(AutoTransport, ChoosesByTheLoadsOfTheFirstBatch) {
  const RunSpec run = run_on_32_ranks();
  const auto name = [&](const std::vector<double>& rows) {
    return choose_auto_transport(run, 32, {8, {}}, "", MeasuredLoads(4, rows)).name;
  };
  EXPECT_EQ(name(rows_of_few(128)), "bypass");
  EXPECT_EQ(name(rows_of_few(16)), "gather_weights");
}

TEST(AutoTransport, SaysWhyItStaysFlat) {
  const auto note = [](const RunSpec& run, const NodeMap& nodes) {
    const TransportChoice choice = choose_auto_transport(run, 32, nodes);
    EXPECT_EQ(choice.seconds, 0);
    EXPECT_EQ(choice.name, "auto");
    return describe(choice, run.plan.platform);
  };
  RunSpec run = run_on_32_ranks();
  const std::string unequal = fmt::format(
      "moe.transport = \"auto\": flat, because {} predicts no time: plans need nodes with equally many, consecutive "
      "ranks",
      run.plan.platform);
  EXPECT_EQ(note(run, {12, {}}), unequal);  // nodes of 12, 12 and 8 ranks
  std::vector<int> alternating;
  for (int rank = 0; rank < 32; ++rank) alternating.push_back(rank % 2);
  EXPECT_EQ(note(run, {0, alternating}), unequal);
  run.plan.platform.clear();
  EXPECT_EQ(note(run, {8, {}}),
            "moe.transport = \"auto\": flat, because plan.platform names no profile; `moewright probe` under mpirun "
            "writes one");
}

TEST(AutoTransport, SaysNothingWhereThereIsNothingToChoose) {
  RunSpec run = run_on_32_ranks();
  run.moe.transport = "halo";
  const TransportChoice asked = choose_auto_transport(run, 32, {8, {}});
  EXPECT_EQ(asked.name, "halo");
  EXPECT_EQ(describe(asked, run.plan.platform), "");
  run.moe.transport = "auto";
  run.mesh.ep = 1;
  EXPECT_EQ(describe(choose_auto_transport(run, 32, {8, {}}), run.plan.platform), "");
}

// On one node rows that several experts of a rank need travel once.
TEST(AutoTransport, IsBypassOnOneNodeOfFewRanks) {
  RunSpec run = run_on_32_ranks();
  run.mesh.ep = 2;
  run.train.micro_batches = 8;  // of 16,384 tokens a rank: with more than 36,864, weights are fewer bytes than rows
  run.plan.platform = MOEWRIGHT_SOURCE_DIR "/profiles/h200x8.json";
  const TransportChoice choice = choose_auto_transport(run, 2, {});
  EXPECT_EQ(choice.name, "bypass") << choice.why_none;
}

// Without a profile: top-8 over two and four ranks sends 0.25 and 0.45 of flat's rows, over eight 0.66.
TEST(AutoTransport, IsBypassOnNvidiaGpusOfOneNodeWhereItSendsFewRows) {
  RunSpec run = run_on_32_ranks();
  run.plan.platform.clear();
  const auto choose = [&](int64_t ep, int ranks, const NodeMap& nodes = {}, const std::string& before = "",
                          bool on_nvidia = true) {
    run.mesh.ep = ep;
    return choose_auto_transport(run, ranks, nodes, before, {}, on_nvidia);
  };
  for (const int ranks : {2, 4}) {
    const TransportChoice choice = choose(ranks, ranks);
    EXPECT_EQ(choice.name, "bypass");
    EXPECT_TRUE(describe(choice, "").starts_with("moe.transport = \"auto\": bypass, which sends 0."))
        << describe(choice, "");
  }
  EXPECT_EQ(choose(4, 8).name, "bypass");  // two groups on the node
  EXPECT_EQ(choose(8, 8).name, "auto");
  EXPECT_EQ(choose(4, 4, {2, {}}).name, "auto");  // two nodes
  EXPECT_EQ(choose(4, 4, {}, "", false).name, "auto");
  EXPECT_EQ(choose(1, 4).name, "auto");
  EXPECT_EQ(choose(4, 4, {}, "flat").name, "flat");
  EXPECT_EQ(describe(choose(4, 4, {}, "auto"), ""), "moe.transport = \"auto\": flat, as in the checkpoint");
  EXPECT_EQ(choose(4, 4, {}, "flat*2,halo*2").name, "flat*2,halo*2");
  EXPECT_EQ(choose(4, 4, {}, "gather_weights").name, "bypass");  // which another key may refuse
  run.moe.balance = Balance::swap;  // with bypass, experts that move may change the last bits
  EXPECT_EQ(choose(4, 4).name, "auto");
  EXPECT_EQ(choose(4, 4, {}, "bypass").name, "bypass");
  run.moe.balance = Balance::none;
  run.native.top_k = 1;
  EXPECT_EQ(choose(2, 2).name, "auto");
  run.native.top_k = 8;
  run.moe.transport = "flat";
  EXPECT_EQ(choose(2, 2).name, "flat");
}

TEST(AutoTransport, TellsWhyNothingIsPredicted) {
  RunSpec run = run_on_32_ranks();
  run.plan.platform = "absent.json";
  const TransportChoice choice = choose_auto_transport(run, 32, {8, {}});
  EXPECT_EQ(choice.name, "auto");
  EXPECT_TRUE(describe(choice, "absent.json").starts_with("moe.transport = \"auto\": flat, because absent.json"))
      << choice.why_none;
}

}  // namespace
}  // namespace mw::test
