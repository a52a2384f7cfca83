#include "comm/bootstrap/guests.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/host.h"

namespace mw {
namespace {

const JoinKey kKey = key_from_secret("a secret of this job alone");

// A host on a loopback port, and strangers and ranks that connect to it.
class GuestsTest : public ::testing::Test {
 protected:
  void open(const GuestLimits& limits) {
    guests_ = std::make_unique<Guests>(listen_at(htonl(INADDR_LOOPBACK), port_),
                                       HandshakeHost{Purpose::join, 0, kKey, true}, limits);
    testing::internal::CaptureStderr();
  }
  Descriptor connect() const { return connect_to(htonl(INADDR_LOOPBACK), port_, 5, -1); }
  static Hello make_hello(int rank) {
    Hello hello;
    hello.has_secret = true;
    hello.rank = rank;
    hello.size = 100;
    return hello;
  }
  // Serves until `done`, as the loop of a rank does. Returns the ranks that were admitted.
  template <class Done>
  std::vector<int> serve(double seconds, Done done) {
    std::vector<int> ranks;
    const double end = now_seconds() + seconds;
    while (now_seconds() < end && !done(ranks)) {
      wait_readable(guests_->get(), -1, std::min(0.1, guests_->pause()));
      for (AdmittedGuest& guest : guests_->admit()) {
        ranks.push_back(guest.hello.rank);
        admitted_.push_back(std::move(guest.connection));
      }
    }
    return ranks;
  }
  // Ends the host and returns the lines that it printed.
  std::string close() {
    guests_.reset();
    return testing::internal::GetCapturedStderr();
  }
  static int64_t lines_of(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

  uint16_t port_ = 0;
  std::unique_ptr<Guests> guests_;
  std::vector<Descriptor> admitted_;
};

TEST_F(GuestsTest, AdmitManyRanksAtOnceThoughFewFit) {
  open({4, 5, 0.1});
  std::vector<std::thread> ranks;
  std::atomic<int> entered = 0;
  for (int r = 1; r <= 20; ++r) {
    ranks.emplace_back([this, r, &entered] {
      for (int tries = 0; tries < 100; ++tries) {
        const Descriptor connection = connect();
        if (connection.valid() && enter(connection, make_hello(r), kKey, after(10), -1).entry == Entry::admitted) {
          ++entered;
          return;
        }
      }
    });
  }
  std::vector<int> came = serve(20, [&](const std::vector<int>& now) { return now.size() >= 20; });
  for (std::thread& rank : ranks) rank.join();
  std::sort(came.begin(), came.end());
  EXPECT_EQ(came.size(), 20u);
  EXPECT_EQ(std::unique(came.begin(), came.end()), came.end());
  EXPECT_EQ(entered, 20);
  close();
}

TEST_F(GuestsTest, SilentStrangersMakeRoomForARank) {
  open({16, 60, 0.02});
  std::vector<Descriptor> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(connect());
  std::thread rank([this] {
    const Descriptor connection = connect();
    EXPECT_EQ(enter(connection, make_hello(7), kKey, after(20), -1).entry, Entry::admitted);
  });
  const double start = now_seconds();
  const std::vector<int> came = serve(20, [](const std::vector<int>& now) { return !now.empty(); });
  EXPECT_LT(now_seconds() - start, 10);
  rank.join();
  EXPECT_EQ(came, std::vector<int>{7});
  const auto open_ones = std::count_if(silent.begin(), silent.end(), [](const auto& one) { return !is_closed(one); });
  EXPECT_LE(open_ones, 16);
  const std::string text = close();
  EXPECT_LT(lines_of(text), 5) << text;
  EXPECT_NE(text.find("from 127.0.0.1: "), std::string::npos) << text;
  EXPECT_NE(text.find("did not prove in time"), std::string::npos) << text;
}

TEST_F(GuestsTest, AStrangerThatSendsByteByByteIsNotWaitedFor) {
  open({16, 0.5, 0.1});
  const Descriptor slow = connect();
  const HelloBytes hello = encode(make_hello(3));
  const double start = now_seconds();
  size_t sent = 0;
  serve(10, [&](const auto&) {
    if (now_seconds() - start > 0.05 * static_cast<double>(sent) && sent < hello.size())
      write_all(slow, std::span(hello).subspan(sent++, 1), after(0.1));
    return is_closed(slow);
  });
  EXPECT_TRUE(is_closed(slow));
  EXPECT_LT(now_seconds() - start, 5);
  EXPECT_GT(sent, 1u);
  close();
}

TEST_F(GuestsTest, NoiseIsClosedAndSummedUp) {
  open({});
  std::vector<Descriptor> strangers;
  const std::vector<std::byte> noise(200, std::byte{'x'});
  for (int i = 0; i < 300; ++i) {
    strangers.push_back(connect());
    if (i % 2 == 0) write_all(strangers.back(), noise, after(1));
    else strangers.back().close();
  }
  serve(10, [&](const auto&) {
    return std::all_of(strangers.begin(), strangers.end(), [](const auto& s) { return !s.valid() || is_closed(s); });
  });
  for (const Descriptor& stranger : strangers) EXPECT_TRUE(!stranger.valid() || is_closed(stranger));
  const std::string text = close();
  EXPECT_LE(lines_of(text), 3) << text;
  EXPECT_NE(text.find("does not speak"), std::string::npos) << text;
}

TEST_F(GuestsTest, AWrongSecretIsNamedWithTheRankThatItClaims) {
  open({});
  std::thread stranger([this] {
    const Descriptor connection = connect();
    const EntryResult result = enter(connection, make_hello(9), key_from_secret("guessed"), after(10), -1);
    EXPECT_EQ(result.entry, Entry::refused);
    EXPECT_EQ(result.refusal, Refusal::wrong_secret);
  });
  EXPECT_TRUE(serve(0.5, [](const auto&) { return false; }).empty());
  stranger.join();
  const std::string text = close();
  EXPECT_NE(text.find("warning: rank 0 refused a connection from 127.0.0.1: it does not know the join secret"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("it says that it is rank 9"), std::string::npos) << text;
}

// The kind comes at once, whatever noise came before it.
TEST(StrangerLog, TellsTheFirstOfEachKindAndSumsUpTheRest) {
  StrangerLog log;
  std::vector<std::string> lines;
  const auto keep = [&](const std::optional<std::string>& line) {
    if (line) lines.push_back(*line);
  };
  for (int i = 0; i < 1000; ++i) {
    keep(log.note(fmt::format("10.0.0.{}", i % 20), "it is silent", "", 0.01 * i));
    keep(log.sum_up(0.01 * i));
  }
  keep(log.note("10.0.0.99", "it does not know the secret", " (rank 1)", 10));
  ASSERT_LE(lines.size(), 3u);
  EXPECT_EQ(lines.front(), "refused a connection from 10.0.0.0: it is silent");
  EXPECT_EQ(lines.back(), "refused a connection from 10.0.0.99: it does not know the secret (rank 1)");
  const auto rest = log.sum_up(11, true);
  ASSERT_TRUE(rest);
  EXPECT_NE(rest->find("more connections from 10.0.0.1, 10.0.0.2, "), std::string::npos) << *rest;
  EXPECT_NE(rest->find(" and others: "), std::string::npos) << *rest;
  EXPECT_NE(rest->find(" x it is silent"), std::string::npos) << *rest;
  EXPECT_FALSE(log.sum_up(1e6, true));
}

TEST(StrangerLog, SpeaksSeldomerTheLongerItGoesOn) {
  StrangerLog log;
  int lines = 0;
  for (int second = 0; second < 86400; ++second) {
    lines += log.note("10.0.0.1", "it is silent", "", second).has_value();
    lines += log.sum_up(second).has_value();
  }
  EXPECT_GT(lines, 10);
  EXPECT_LT(lines, 50);
}

}  // namespace
}  // namespace mw
