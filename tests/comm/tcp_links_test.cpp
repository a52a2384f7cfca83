#include "comm/bootstrap/tcp_links.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <string>
#include <thread>

namespace mw {
namespace {

// Two ranks in this process.
struct Pair {
  std::unique_ptr<TcpLinks> zero, one;
};

Pair make_pair_of_links() {
  int ends[2] = {};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  std::vector<Descriptor> of_zero(2), of_one(2);
  of_zero[1] = Descriptor(ends[0]);
  of_one[0] = Descriptor(ends[1]);
  return {std::make_unique<TcpLinks>(0, std::move(of_zero)), std::make_unique<TcpLinks>(1, std::move(of_one))};
}

// A rank among so many, and the other ends of its connections.
struct Many {
  std::unique_ptr<TcpLinks> zero;
  std::vector<Descriptor> others;
};

Many make_many_links(int others) {
  make_room_for(2 * others);
  Many many;
  std::vector<Descriptor> of_zero(1);
  for (int i = 0; i < others; ++i) {
    int ends[2] = {};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    of_zero.emplace_back(ends[0]);
    many.others.emplace_back(ends[1]);
  }
  many.zero = std::make_unique<TcpLinks>(0, std::move(of_zero));
  return many;
}

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string receive(TcpLinks& links, int from, uint64_t channel, size_t bytes) {
  std::string text(bytes, '\0');
  links.wait(*links.receive(from, channel, std::as_writable_bytes(std::span(text.data(), text.size()))));
  return text;
}

Exit code_of(const std::function<void()>& what, std::string* message = nullptr) {
  try {
    what();
  } catch (const Error& error) {
    if (message != nullptr) *message = error.what();
    return error.code();
  }
  return Exit::ok;
}

TEST(TcpLinks, MessagesOfAChannelMeetInTheirOrderWhateverComesFirst) {
  const Pair pair = make_pair_of_links();
  const std::string a = "first", b = "second", other = "of another channel", none;
  std::vector<std::shared_ptr<TcpTransfer>> sent;
  for (const auto& [channel, text] : {std::pair<uint64_t, const std::string*>{5, &a}, {7, &other}, {5, &none}, {5, &b}})
    sent.push_back(pair.zero->send(1, channel, bytes_of(*text)));
  EXPECT_EQ(receive(*pair.one, 0, 7, other.size()), other);
  EXPECT_EQ(receive(*pair.one, 0, 5, a.size()), a);
  EXPECT_EQ(receive(*pair.one, 0, 5, 0), "");
  EXPECT_EQ(receive(*pair.one, 0, 5, b.size()), b);
  for (const auto& transfer : sent) pair.zero->wait(*transfer);
}

TEST(TcpLinks, BothSidesMaySendMoreThanTheSystemHoldsBeforeTheyReceive) {
  const Pair pair = make_pair_of_links();
  const size_t size = size_t{32} << 20;
  const std::string to_one(size, 'x'), to_zero(size + 1, 'y');
  std::string got;
  std::thread other([&] {
    const auto sent = pair.one->send(0, 1, bytes_of(to_zero));
    pair.one->wait(*sent);
    got = receive(*pair.one, 0, 1, size);
  });
  const auto sent = pair.zero->send(1, 1, bytes_of(to_one));
  pair.zero->wait(*sent);
  EXPECT_EQ(receive(*pair.zero, 1, 1, size + 1), to_zero);
  other.join();
  EXPECT_EQ(got, to_one);
}

TEST(TcpLinks, AMessageThatIsHalfHereGoesOnIntoTheBufferOfWhoeverAsksForIt) {
  const Pair pair = make_pair_of_links();
  const size_t size = size_t{8} << 20;
  std::string large(size, 'a');
  large.back() = 'z';
  const std::string small = "small";
  const auto first = pair.zero->send(1, 1, bytes_of(small));
  const auto second = pair.zero->send(1, 1, bytes_of(large));  // what fits is on its way now
  EXPECT_EQ(receive(*pair.one, 0, 1, small.size()), small);    // and read in part here
  std::string got(size, '\0');
  const auto receiving = pair.one->receive(0, 1, std::as_writable_bytes(std::span(got.data(), got.size())));
  std::thread other([&] { pair.zero->wait(*second); });
  pair.one->wait(*receiving);
  other.join();
  EXPECT_TRUE(first->done);
  EXPECT_EQ(got, large);
}

TEST(TcpLinks, SizesThatDifferAreAnError) {
  for (const bool asked_first : {false, true}) {
    const Pair pair = make_pair_of_links();
    const std::string text = "12345";
    std::string got(3, '\0'), message;
    const auto buffer = std::as_writable_bytes(std::span(got.data(), got.size()));
    const auto ask = [&] { pair.one->wait(*pair.one->receive(0, 1, buffer)); };
    if (asked_first) {
      const auto receiving = pair.one->receive(0, 1, buffer);
      const auto sent = pair.zero->send(1, 1, bytes_of(text));
      EXPECT_EQ(code_of([&] { pair.one->wait(*receiving); }, &message), Exit::comm);
    } else {
      const auto sent = pair.zero->send(1, 1, bytes_of(text)), mark = pair.zero->send(1, 2, bytes_of(text));
      EXPECT_EQ(receive(*pair.one, 0, 2, text.size()), text);
      EXPECT_EQ(code_of(ask, &message), Exit::comm);
    }
    EXPECT_EQ(message, "rank 0 sent a message of 5 bytes, rank 1 expected 3");
  }
}

TEST(TcpLinks, ARankThatIsGoneMattersToWhoWaitsForIt) {
  Pair pair = make_pair_of_links();
  const std::string text = "last words";
  const auto sent = pair.zero->send(1, 1, bytes_of(text));
  pair.zero.reset();
  EXPECT_EQ(receive(*pair.one, 0, 1, text.size()), text);
  std::string message;
  EXPECT_EQ(code_of([&] { receive(*pair.one, 0, 1, 1); }, &message), Exit::comm);
  EXPECT_EQ(message, "rank 0 is lost: its connection is closed");
  const std::string large(size_t{8} << 20, 'x');
  EXPECT_EQ(code_of([&] { pair.one->wait(*pair.one->send(0, 1, bytes_of(large))); }), Exit::comm);
}

TEST(TcpLinks, WhoWaitsElsewhereLearnsOfARankThatIsGoneOrHasEndedTheJob) {
  std::string message;
  {
    Pair pair = make_pair_of_links();
    const std::string text = "a message on its way";
    const auto sent = pair.zero->send(1, 1, bytes_of(text));
    EXPECT_EQ(code_of([&] { pair.one->check(); }), Exit::ok);
    pair.zero.reset();
    // It may have done its part: what it sent is there, and nobody misses it yet.
    EXPECT_EQ(code_of([&] { pair.one->check(); }), Exit::ok);
    EXPECT_EQ(receive(*pair.one, 0, 1, text.size()), text);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    Exit code = Exit::ok;
    while (code == Exit::ok && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      code = code_of([&] { pair.one->check(); }, &message);
    }
    EXPECT_EQ(code, Exit::comm);
    EXPECT_EQ(message, "rank 0 is lost: its connection is closed");
  }
  Pair pair = make_pair_of_links();
  std::thread other([&] {
    pair.zero->announce_end(Exit::memory);
    pair.zero.reset();
  });
  Exit code = Exit::ok;
  while (code == Exit::ok) code = code_of([&] { pair.one->check(); }, &message);
  EXPECT_EQ(code, Exit::memory);
  EXPECT_EQ(message, "rank 0 has ended the job with exit code 6");
  pair.one.reset();
  other.join();
}

TEST(TcpLinks, TheExitCodeOfARankThatEndsTheJobReachesTheOthers) {
  Pair pair = make_pair_of_links();
  std::thread other([&] {
    pair.zero->announce_end(Exit::numeric);
    pair.zero.reset();
  });
  std::string message;
  EXPECT_EQ(code_of([&] { receive(*pair.one, 0, 1, 1); }, &message), Exit::numeric);
  EXPECT_EQ(message, "rank 0 has ended the job with exit code 7");
  pair.one.reset();
  other.join();
}

// Only links where something happens take time.
TEST(TcpLinks, WaitingCostsTheSameHoweverManyLinksThereAre) {
  const auto cost = [](int others) {
    const Many many = make_many_links(others);
    double best = 1e9;  // of some rounds: what else the machine does lengthens others
    for (int round = 0; round < 5; ++round) {
      const double begin = cpu_seconds();
      for (int i = 0; i < 200; ++i) many.zero->check();
      best = std::min(best, cpu_seconds() - begin);
    }
    return best;
  };
  const double few = cost(1), all = cost(1000);
  EXPECT_LT(all, 10 * few + 0.002) << few << " s with one link";
}

// More ranks than one look at the links returns.
TEST(TcpLinks, EveryOneOfManyRanksIsHeardAndEveryLostOneIsKnown) {
  constexpr int kOthers = 200;
  Many many = make_many_links(kOthers);
  const uint64_t header[3] = {1, 0, 4};  // channel, number, bytes
  std::vector<int32_t> got(kOthers, -1);
  std::vector<std::shared_ptr<TcpTransfer>> transfers;
  for (int32_t i = 0; i < kOthers; ++i) {
    const int fd = many.others[static_cast<size_t>(i)].get();
    ASSERT_EQ(write(fd, header, sizeof header), static_cast<ssize_t>(sizeof header));
    ASSERT_EQ(write(fd, &i, sizeof i), static_cast<ssize_t>(sizeof i));
    transfers.push_back(
        many.zero->receive(i + 1, 1, std::as_writable_bytes(std::span(&got[static_cast<size_t>(i)], 1))));
  }
  many.others.clear();
  for (const auto& transfer : transfers) many.zero->wait(*transfer);
  for (int32_t i = 0; i < kOthers; ++i) EXPECT_EQ(got[static_cast<size_t>(i)], i);
  for (int rank = 1; rank <= kOthers; ++rank)
    EXPECT_EQ(code_of([&] { receive(*many.zero, rank, 1, 1); }), Exit::comm) << rank;
}

}  // namespace
}  // namespace mw
