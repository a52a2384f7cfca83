#include "comm/bootstrap/join_messages.h"

#include <gtest/gtest.h>

#include "core/rng.h"

namespace mw {
namespace {

Hello make_link_hello() {
  Hello hello;
  hello.purpose = Purpose::link;
  hello.has_secret = true;
  hello.rank = 5;
  hello.to = 2;
  hello.size = 8;
  hello.guest = {0x0100007f, 1};
  hello.host = {0x0200007f, 2};
  hello.nonce.fill(std::byte{9});
  hello.node = 42;
  hello.port = 3;
  hello.name = "node5";
  return hello;
}

TEST(JoinMessages, ComeBackAsTheyWereSent) {
  const auto hello = parse_hello(encode(make_link_hello()));
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->purpose, Purpose::link);
  EXPECT_TRUE(hello->has_secret);
  EXPECT_EQ(std::tie(hello->rank, hello->to, hello->size), std::make_tuple(5, 2, 8));
  EXPECT_EQ(hello->guest, (Endpoint{0x0100007f, 1}));
  EXPECT_EQ(hello->host, (Endpoint{0x0200007f, 2}));
  EXPECT_EQ(hello->nonce, make_link_hello().nonce);
  EXPECT_EQ(hello->node, 42u);
  EXPECT_EQ(hello->port, 3);
  EXPECT_EQ(hello->name, "node5");
  const auto answer = parse_answer(encode(Answer{hello->nonce, 8, 0}));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->ranks, 8u);
  EXPECT_EQ(answer->token, hello->nonce);
  const auto row = parse_row(encode(RankRow{7, {1, 2}, "n"}));
  ASSERT_TRUE(row);
  EXPECT_EQ(row->at, (Endpoint{1, 2}));
  EXPECT_EQ(row->name, "n");
  EXPECT_EQ(parse_verdict(encode(Verdict{Refusal::secret_missing, {}}))->refusal, Refusal::secret_missing);
}

TEST(JoinMessages, NamesAreCutAndPrintable) {
  Hello hello = make_link_hello();
  hello.name = std::string(500, 'x');
  EXPECT_EQ(parse_hello(encode(hello))->name, std::string(69, 'x'));
  hello.name = "a\x1b[2Jb";
  const std::string name = parse_hello(encode(hello))->name;
  for (const char c : name) EXPECT_TRUE(c >= 0x20 && c < 0x7f);
}

TEST(JoinMessages, NumbersThatNoRankSendsAreRefused) {
  const auto refused = [](auto change) {
    Hello hello = make_link_hello();
    change(hello);
    return !parse_hello(encode(hello));
  };
  EXPECT_FALSE(refused([](Hello&) {}));
  EXPECT_TRUE(refused([](Hello& h) { h.rank = h.size; }));
  EXPECT_TRUE(refused([](Hello& h) { h.rank = 0; }));
  EXPECT_TRUE(refused([](Hello& h) { h.rank = -1; }));
  EXPECT_TRUE(refused([](Hello& h) { h.to = -1; }));
  EXPECT_TRUE(refused([](Hello& h) { h.to = h.rank; }));
  EXPECT_TRUE(refused([](Hello& h) { h.size = kMostRanks + 1; }));
  EXPECT_TRUE(refused([](Hello& h) { h.purpose = static_cast<Purpose>(0); }));
  EXPECT_TRUE(refused([](Hello& h) { h.purpose = static_cast<Purpose>(4); }));
  EXPECT_FALSE(parse_answer(encode(Answer{{}, 0, 0})));
  EXPECT_FALSE(parse_answer(encode(Answer{{}, 2, 2})));
  EXPECT_FALSE(parse_answer(encode(Answer{{}, 0, kMostReasonBytes + 1})));
  EXPECT_FALSE(parse_answer(encode(Answer{{}, kMostRanks + 1, 0})));
  EXPECT_FALSE(parse_verdict(encode(Verdict{static_cast<Refusal>(5), {}})));
}

TEST(JoinMessages, OtherSizesAndOtherMessagesAreRefused) {
  const HelloBytes hello = encode(make_link_hello());
  const ChallengeBytes challenge = encode(Challenge{});
  EXPECT_FALSE(parse_hello(std::span(hello).first(hello.size() - 1)));
  EXPECT_FALSE(parse_hello({}));
  EXPECT_FALSE(parse_row(hello));
  EXPECT_FALSE(parse_proof(challenge));
  EXPECT_TRUE(parse_challenge(challenge));
}

TEST(JoinMessages, HostileBytesNeverGiveBadNumbers) {
  const RngKey key = make_rng_key(1, "join");
  const HelloBytes good = encode(make_link_hello());
  int taken = 0;
  for (uint64_t i = 0; i < 20000; ++i) {
    HelloBytes bytes = good;
    const uint64_t from = 8 + bits_at(key, 2 * i) % (bytes.size() - 8);
    for (size_t at = from; at < bytes.size() && at < from + 2; ++at)
      bytes[at] = static_cast<std::byte>(bits_at(key, 1'000'000 + 16 * i + at));
    const auto hello = parse_hello(bytes);
    if (!hello) continue;
    ++taken;
    EXPECT_TRUE(hello->rank > 0 && hello->rank < hello->size && hello->to >= 0 && hello->to < hello->rank);
    for (const char c : hello->name) EXPECT_TRUE(c >= 0x20 && c < 0x7f);
  }
  EXPECT_GT(taken, 1000);
}

}  // namespace
}  // namespace mw
