#include "comm/bootstrap/tcp_links.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <cstring>
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

}  // namespace
}  // namespace mw
