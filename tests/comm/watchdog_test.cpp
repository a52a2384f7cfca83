#include "comm/watchdog/watchdog.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <cstring>
#include <future>
#include <limits>
#include <thread>

#include "comm/watchdog/watchdog_sides.h"
#include "core/rng.h"

namespace mw::test {
namespace {

const JoinKey kWorldKey = key_from_secret("the key of a world");

Beat beat_at(int rank, int64_t step, int64_t collectives, int64_t awaited, double idle) {
  return {BeatKind::beat,
          rank,
          step,
          collectives,
          awaited,
          idle,
          "forward",
          awaited > 0 ? "all_reduce" : "",
          fmt::format("node{}", rank)};
}

TEST(WatchdogMessage, ComesBackAsItWasSent) {
  Beat beat = beat_at(3, 17, 412, 410, 2.5);
  beat.kind = BeatKind::leave;
  beat.quiet_rank = 2;
  beat.quiet_seconds = 1.25;
  const auto back = decode(encode(beat), 4);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->quiet_rank, 2);
  EXPECT_EQ(back->quiet_seconds, 1.25);
  EXPECT_EQ(back->kind, BeatKind::leave);
  EXPECT_EQ(back->rank, 3);
  EXPECT_EQ(back->step, 17);
  EXPECT_EQ(back->collectives, 412);
  EXPECT_EQ(back->awaited, 410);
  EXPECT_EQ(back->idle_seconds, 2.5);
  EXPECT_EQ(back->phase, "forward");
  EXPECT_EQ(back->call, "all_reduce");
  EXPECT_EQ(back->host, "node3");
}

TEST(WatchdogMessage, LongTextsAreCut) {
  Beat beat = beat_at(0, 1, 1, 1, 0);
  beat.phase = beat.call = beat.host = std::string(500, 'x');
  const auto back = decode(encode(beat), 1);
  ASSERT_TRUE(back);
  for (const std::string& text : {back->phase, back->call, back->host}) {
    EXPECT_GE(text.size(), 16u);
    EXPECT_LT(text.size(), 100u);
  }
}

TEST(WatchdogMessage, BadNumbersAreRefused) {
  const Beat good = beat_at(3, 17, 412, 412, 2.5);
  EXPECT_FALSE(decode(encode(good), 3)) << "a rank beyond the world";
  const auto refused = [](auto change) {
    Beat beat = beat_at(1, 17, 412, 412, 2.5);
    change(beat);
    return !decode(encode(beat), 4);
  };
  EXPECT_TRUE(refused([](Beat& b) { b.rank = -1; }));
  EXPECT_TRUE(refused([](Beat& b) { b.step = -1; }));
  EXPECT_TRUE(refused([](Beat& b) { b.collectives = -1; }));
  EXPECT_TRUE(refused([](Beat& b) { b.awaited = -1; }));
  EXPECT_TRUE(refused([](Beat& b) { b.idle_seconds = -1; }));
  EXPECT_TRUE(refused([](Beat& b) { b.idle_seconds = std::numeric_limits<double>::quiet_NaN(); }));
  EXPECT_TRUE(refused([](Beat& b) { b.quiet_rank = 4; }));
  EXPECT_TRUE(refused([](Beat& b) { b.quiet_rank = -2; }));
  EXPECT_TRUE(refused([](Beat& b) { b.quiet_seconds = -1; }));
  EXPECT_TRUE(refused([](Beat& b) { b.quiet_seconds = std::numeric_limits<double>::infinity(); }));
  EXPECT_TRUE(refused([](Beat& b) { b.kind = static_cast<BeatKind>(4); }));
  EXPECT_TRUE(refused([](Beat& b) { b.kind = static_cast<BeatKind>(0); }));
}

TEST(WatchdogMessage, HostileBytesNeverGetThrough) {
  const RngKey key = make_rng_key(1, "watchdog");
  const BeatBytes good = encode(beat_at(2, 5, 6, 0, 1));
  for (uint64_t i = 0; i < 20000; ++i) {
    BeatBytes bytes = good;
    const uint64_t from = bits_at(key, 2 * i) % kBeatBytes;
    for (size_t at = from; at < kBeatBytes && at < from + 16; ++at)
      bytes[at] = static_cast<std::byte>(bits_at(key, 1'000'000 + 16 * i + at));
    const auto beat = decode(bytes, 4);
    if (!beat) continue;
    EXPECT_TRUE(beat->rank >= 0 && beat->rank < 4 && beat->step >= 0 && beat->idle_seconds >= 0);
    for (const std::string& text : {beat->phase, beat->call, beat->host})
      for (const char c : text) EXPECT_TRUE(c >= 0x20 && c < 0x7f);
    EXPECT_TRUE(beat->quiet_rank >= -1 && beat->quiet_rank < 4 && beat->quiet_seconds >= 0);
  }
}

std::vector<WatchedRank> waiting_ranks(int count, double idle) {
  std::vector<WatchedRank> ranks;
  for (int r = 0; r < count; ++r) ranks.push_back({beat_at(r, 17, 412, 412, idle), 0.1, RankLink::up});
  return ranks;
}

using Numbers = std::vector<int>;

TEST(WatchdogJudge, SaysNothingWhileOneMoves) {
  std::vector<WatchedRank> ranks = waiting_ranks(4, 100);
  ranks[2].last.idle_seconds = 1;
  EXPECT_FALSE(judge_progress(ranks, 10));
  EXPECT_FALSE(judge_silence(ranks, 10));
}

TEST(WatchdogJudge, NamesWhoIsSilentAndWhereTheOthersWait) {
  std::vector<WatchedRank> ranks = waiting_ranks(8, 9.5);
  ranks[2] = {beat_at(2, 16, 400, 0, 0.1), 10.5, RankLink::up};
  const auto alarm = judge_progress(ranks, 10);
  ASSERT_TRUE(alarm);
  EXPECT_EQ(alarm->silent, Numbers{2});
  for (const char* part : {"rank 2 on node2", "silent for 10.5 s", "step 16", "number 400", "phase forward",
                           "ranks 0-1, 3-7: in collective 412 (all_reduce), step 17, phase forward"})
    EXPECT_NE(alarm->text.find(part), std::string::npos) << part << " in\n" << alarm->text;
}

TEST(WatchdogJudge, RanksThatStopTogetherAreNamedTogether) {
  std::vector<WatchedRank> ranks = waiting_ranks(4, 9.5);
  ranks[1].age = 10.1;
  ranks[2].age = 9.2;  // its last beat came later
  ranks[3].age = 2;
  const auto alarm = judge_progress(ranks, 10);
  ASSERT_TRUE(alarm);
  EXPECT_EQ(alarm->silent, (Numbers{1, 2}));
  EXPECT_NE(alarm->text.find("rank 2 on node2: silent for 9.2 s"), std::string::npos) << alarm->text;
}

TEST(WatchdogJudge, RankZeroMissesTheOneThatIsSilentForLongest) {
  std::vector<WatchedRank> ranks = waiting_ranks(4, 1);
  EXPECT_EQ(find_quiet(ranks, 3), nullptr);
  ranks[1].age = 4;
  ranks[2].age = 5;
  EXPECT_EQ(find_quiet(ranks, 3), &ranks[2]);
  ranks[2].link = RankLink::left;
  EXPECT_EQ(find_quiet(ranks, 3), &ranks[1]);
}

TEST(WatchdogJudge, RankZerosLastWordIsPassedOn) {
  WatchedRank zero = {beat_at(0, 17, 412, 412, 1), 9, RankLink::up};
  const Beat own = beat_at(3, 17, 412, 412, 9);
  zero.last.quiet_rank = 2;
  zero.last.quiet_seconds = 4.5;
  EXPECT_FALSE(judge_rank_zero(zero, own, 10));
  zero.age = 10.5;
  const auto alarm = judge_rank_zero(zero, own, 10);
  ASSERT_TRUE(alarm);
  EXPECT_EQ(alarm->silent, (Numbers{0, 2}));
  for (const char* part : {"nothing is heard from rank 0 ", "rank 3: in collective 412", "more of them may be silent",
                           "rank 2: rank 0's last word was that it had been silent for 4.5 s"})
    EXPECT_NE(alarm->text.find(part), std::string::npos) << part << " in\n" << alarm->text;
  zero.last.quiet_rank = -1;
  EXPECT_EQ(judge_rank_zero(zero, own, 10)->silent, Numbers{0});
}

TEST(WatchdogJudge, AStandstillWithAQuietRankIsThatRanks) {
  std::vector<WatchedRank> ranks = waiting_ranks(4, 10.5);
  ranks[1].age = 9.9;
  const auto alarm = judge_progress(ranks, 10);
  ASSERT_TRUE(alarm);
  EXPECT_EQ(alarm->silent, Numbers{1});
}

TEST(WatchdogJudge, NamesTheStragglerAmongThoseWhoTalk) {
  std::vector<WatchedRank> ranks = waiting_ranks(5, 11);
  ranks[3].last = beat_at(3, 17, 411, 0, 12);
  auto alarm = judge_progress(ranks, 10);
  ASSERT_TRUE(alarm);
  EXPECT_TRUE(alarm->silent.empty());
  EXPECT_EQ(alarm->behind, Numbers{3});
  // Numbers of groups that do not call the same collectives cannot be compared: who waits is not to blame.
  ranks[3].last.collectives = 500;
  EXPECT_EQ(judge_progress(ranks, 10)->behind, Numbers{3});
  // All wait: the one in an earlier collective keeps the others waiting.
  ranks[3].last = beat_at(3, 17, 409, 409, 12);
  EXPECT_EQ(judge_progress(ranks, 10)->behind, Numbers{3});
  EXPECT_TRUE(judge_progress(waiting_ranks(4, 11), 10)->behind.empty());
}

TEST(WatchdogJudge, TellsRanksInDifferentCollectivesFromRanksInOne) {
  std::vector<WatchedRank> ranks = waiting_ranks(4, 11);
  const auto text = [&] { return judge_progress(ranks, 10)->text; };
  EXPECT_NE(text().find("all are at the same point"), std::string::npos) << text();
  ranks[3].last.call = "all_gather";
  EXPECT_EQ(text().find("same point"), std::string::npos) << text();
  for (const char* part : {"none is behind the others, but they are at different points",
                           "ranks 0-2: in collective 412 (all_reduce)", "rank 3: in collective 412 (all_gather)"})
    EXPECT_NE(text().find(part), std::string::npos) << part << " in\n" << text();
}

TEST(WatchdogJudge, PassesOverThoseWhoLeft) {
  std::vector<WatchedRank> ranks = waiting_ranks(3, 1);
  ranks[1].link = RankLink::left;
  ranks[1].age = 1000;
  EXPECT_FALSE(judge_progress(ranks, 10));
  for (WatchedRank& rank : ranks) rank.last.idle_seconds = 11;
  const auto alarm = judge_progress(ranks, 10);
  ASSERT_TRUE(alarm);
  EXPECT_TRUE(alarm->silent.empty());
  EXPECT_NE(alarm->text.find("rank 1: had left"), std::string::npos) << alarm->text;
  for (WatchedRank& rank : ranks) rank.link = RankLink::left;
  EXPECT_FALSE(judge_progress(ranks, 10));
}

TEST(WatchdogJudge, ALostConnectionCountsSooner) {
  std::vector<WatchedRank> ranks = waiting_ranks(3, 1);
  ranks[0].age = kLostSeconds + 1;
  EXPECT_FALSE(judge_progress(ranks, 600));
  ranks[0].link = RankLink::lost;
  const auto alarm = judge_silence(ranks, 600);
  ASSERT_TRUE(alarm);
  EXPECT_EQ(alarm->silent, Numbers{0});
  EXPECT_NE(alarm->text.find("connection lost"), std::string::npos) << alarm->text;
}

TEST(WatchdogJudge, TextStaysShortForThousandsOfRanks) {
  std::vector<WatchedRank> ranks = waiting_ranks(5000, 11);
  for (size_t r = 0; r < ranks.size(); r += 2) {
    ranks[r].age = 20;
    ranks[r].last.collectives = static_cast<int64_t>(r);
  }
  for (size_t r = 1; r < ranks.size(); r += 2) ranks[r].last.awaited = static_cast<int64_t>(r);
  const auto alarm = judge_progress(ranks, 10);
  ASSERT_TRUE(alarm);
  EXPECT_EQ(alarm->silent.size(), 2500u);
  EXPECT_LT(alarm->text.size(), 6000u);
}

TEST(WatchdogJudge, ALostRankIsNamedWithItsPlace) {
  Beat last = beat_at(3, 17, 412, 412, 0);
  last.host = "node7";
  const std::string text = describe_lost_rank(last, 4.2);
  EXPECT_NE(text.find("rank 3 on node7 closed (4.2 s before, it was in collective 412"), std::string::npos) << text;
  EXPECT_NE(text.find("step 17"), std::string::npos) << text;
}

TEST(WatchdogJudge, RanksAreToldAsRanges) {
  EXPECT_EQ(describe_ranks(Numbers{4}), "rank 4");
  EXPECT_EQ(describe_ranks(Numbers{0, 1, 2, 5, 7, 8}), "ranks 0-2, 5, 7-8");
  Numbers even;
  for (int r = 0; r < 200; r += 2) even.push_back(r);
  EXPECT_NE(describe_ranks(even).find(", 44, 46 and 76 more"), std::string::npos) << describe_ranks(even);
}

// Rank 0 and others over the loopback interface, each on a thread of its own.
class WatchdogSides : public ::testing::Test {
 protected:
  static constexpr double kLimit = 1.2;
  template <class Side>
  struct Runner {
    explicit Runner(std::unique_ptr<Side> with) : side(std::move(with)), thread([this] { side->run(stop.get()); }) {}
    ~Runner() { end(); }
    void end() {
      if (!thread.joinable()) return;
      eventfd_write(stop.get(), 1);
      thread.join();
    }
    Descriptor stop{eventfd(0, EFD_CLOEXEC)};
    std::unique_ptr<Side> side;
    std::thread thread;
  };
  WatchSettings settings(int rank, const Progress& progress) {
    return {rank,
            2,
            kLimit,
            &progress,
            [this, rank](const Error* reason) {
              if (rank == 0) reason_.set_value(reason == nullptr ? "" : reason->what());
            },
            kWorldKey};
  }
  void SetUp() override {
    Descriptor listener = listen_for_ranks(htonl(INADDR_LOOPBACK), 2, address_);
    auto zero = std::make_unique<RankZero>(settings(0, progress_[0]), std::move(listener));
    zero_ = std::make_unique<Runner<RankZero>>(std::move(zero));
    auto one = std::make_unique<OtherRank>(settings(1, progress_[1]), address_);
    ASSERT_TRUE(one->join());
    one_ = std::make_unique<Runner<OtherRank>>(std::move(one));
    zero_->side->arm();
  }
  // Both ranks move for so long.
  void work(double seconds) {
    for (int i = 0; i < static_cast<int>(seconds * 20); ++i) {
      for (Progress& progress : progress_) progress.begin_collective();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
  bool alarmed(double seconds) {
    return told_.wait_for(std::chrono::duration<double>(seconds)) == std::future_status::ready;
  }

  Progress progress_[2];
  WatchAddress address_;
  std::promise<std::string> reason_;
  std::future<std::string> told_ = reason_.get_future();
  std::unique_ptr<Runner<RankZero>> zero_;
  std::unique_ptr<Runner<OtherRank>> one_;
};

TEST_F(WatchdogSides, AreQuietWhileBothMoveAndWhenOneLeaves) {
  work(1.5 * kLimit);
  one_->end();
  for (int i = 0; i < 30; ++i) {
    progress_[0].begin_step(i);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_FALSE(alarmed(0));
}

TEST_F(WatchdogSides, ReportAStandstill) {
  progress_[1].begin_step(7);
  ASSERT_TRUE(alarmed(4 * kLimit));
  EXPECT_NE(told_.get().find("no rank has moved"), std::string::npos);
}

TEST_F(WatchdogSides, ABrokenConnectionIsMadeAgain) {
  work(0.3);
  {
    OtherRank second(settings(1, progress_[1]), address_);  // takes the place of the first, and breaks off
    ASSERT_TRUE(second.join());
  }
  work(2 * kLimit);
  EXPECT_FALSE(alarmed(0));
}

TEST_F(WatchdogSides, ARankThatIsGoneIsMissed) {
  one_->end();
  {
    OtherRank second(settings(1, progress_[1]), address_);
    ASSERT_TRUE(second.join());
  }
  work(2 * kLimit);
  ASSERT_TRUE(alarmed(kLimit));
  EXPECT_NE(told_.get().find("rank 1 on "), std::string::npos);
}

TEST_F(WatchdogSides, AddressesThatDoNotAnswerArePassedOver) {
  WatchAddress address = address_;
  address.hosts = {htonl(INADDR_LOOPBACK + 1), htonl(INADDR_LOOPBACK)};
  address.count = 2;
  OtherRank other(settings(1, progress_[1]), address);
  EXPECT_TRUE(other.join());
}

TEST(WatchdogSocket, OtherNodesAreToldAddressesThatReachThisOne) {
  WatchAddress address;
  Descriptor listener;
  try {
    listener = listen_for_ranks(htonl(INADDR_ANY), 2, address);
  } catch (const Error&) {
    GTEST_SKIP() << "this machine has no address but loopback";
  }
  for (uint32_t i = 0; i < address.count; ++i) {
    EXPECT_NE(address.hosts[i], htonl(INADDR_LOOPBACK));
    EXPECT_TRUE(connect_to(address.hosts[i], address.port, 2, -1).valid()) << describe(address);
  }
}

TEST_F(WatchdogSides, StrangersAreShownTheDoor) {
  std::vector<BeatSocket> noisy, silent;
  BeatBytes garbage;
  garbage.fill(std::byte{0xff});
  Beat forged = beat_at(1, 1, 1, 0, 0);
  forged.kind = BeatKind::leave;
  for (const BeatBytes& message : {garbage, encode(forged)}) {
    noisy.emplace_back(connect_to(htonl(INADDR_LOOPBACK), address_.port, 1, -1));
    ASSERT_TRUE(noisy.back().valid());
    EXPECT_TRUE(noisy.back().send(message));
  }
  for (int i = 0; i < 300; ++i) silent.emplace_back(connect_to(htonl(INADDR_LOOPBACK), address_.port, 1, -1));
  for (BeatSocket& stranger : noisy) {
    wait_readable(stranger.get(), -1, 2);
    std::vector<BeatBytes> answers;
    EXPECT_FALSE(stranger.receive(answers)) << "still open";
    EXPECT_TRUE(answers.empty());
  }
  Hello hello;
  hello.purpose = Purpose::watch;
  hello.has_secret = true;
  hello.rank = 1;
  const Descriptor guessing = connect_to(htonl(INADDR_LOOPBACK), address_.port, 1, -1);
  EXPECT_EQ(enter(guessing, hello, key_from_secret("guessed"), after(5), -1).entry, Entry::refused);
  EXPECT_TRUE(OtherRank(settings(1, progress_[1]), address_).join()) << "a rank among 300 silent strangers";
  work(1.5 * kLimit);
  EXPECT_FALSE(alarmed(0));
}

}  // namespace
}  // namespace mw::test
