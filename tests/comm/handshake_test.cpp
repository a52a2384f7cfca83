#include "comm/bootstrap/handshake.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <future>
#include <string_view>

namespace mw {
namespace {

const JoinKey kJobKey = key_from_secret("a secret of this job alone");
const JoinKey kOtherKey = key_from_secret("a secret of another job");
const Endpoint kGuest{htonl(0x0a000007), 4711}, kHost{htonl(0x0a000001), 29500};

Hello make_hello() {
  Hello hello;
  hello.has_secret = true;
  hello.rank = 3;
  hello.size = 4;
  hello.guest = kGuest;
  hello.host = kHost;
  fill_random(hello.nonce);
  hello.node = 77;
  hello.port = 1234;
  hello.name = "node7";
  return hello;
}

HostHandshake make_host(const JoinKey& key = kJobKey, const Endpoint& guest = kGuest) {
  return HostHandshake({Purpose::join, 0, key, true}, guest, kHost);
}

// What a guest with `key` answers to a challenge, written down once more so that the format cannot change by accident.
ProofBytes make_proof(const JoinKey& key, const HelloBytes& hello, std::span<const std::byte> challenge,
                      std::string_view word = "guest") {
  return encode(Proof{mac_of(key, {std::as_bytes(std::span(word)), hello, challenge})});
}

// The state in which a host is after a guest's whole part.
GuestState play(HostHandshake& host, const Hello& hello, const JoinKey& key, std::string_view word = "guest") {
  const HelloBytes said = encode(hello);
  const auto challenge = host.take(said);
  if (host.state() == GuestState::speaking) host.take(make_proof(key, said, challenge, word));
  return host.state();
}

TEST(HostHandshake, AdmitsWhoKnowsTheSecretAndNobodyElse) {
  HostHandshake good = make_host(), bad = make_host();
  EXPECT_EQ(play(good, make_hello(), kJobKey), GuestState::admitted);
  EXPECT_EQ(good.hello().rank, 3);
  EXPECT_EQ(good.hello().name, "node7");
  EXPECT_EQ(good.missing(), 0u);
  EXPECT_EQ(play(bad, make_hello(), kOtherKey), GuestState::refused);
  EXPECT_EQ(bad.refusal(), Refusal::wrong_secret);
}

TEST(HostHandshake, TakesBytesOneByOneAndIsSilentUntilAllHaveCome) {
  HostHandshake host = make_host();
  const HelloBytes hello = encode(make_hello());
  std::vector<std::byte> challenge;
  for (const std::byte& byte : hello) {
    EXPECT_EQ(host.state(), GuestState::silent);
    EXPECT_TRUE(challenge.empty());
    challenge = host.take(std::span(&byte, 1));
  }
  EXPECT_EQ(challenge.size(), sizeof(ChallengeBytes));
  std::vector<std::byte> verdict;
  for (const std::byte& byte : make_proof(kJobKey, hello, challenge)) {
    EXPECT_EQ(host.state(), GuestState::speaking);
    verdict = host.take(std::span(&byte, 1));
  }
  EXPECT_EQ(host.state(), GuestState::admitted);
  EXPECT_EQ(parse_verdict(verdict)->refusal, Refusal::none);
}

TEST(HostHandshake, RefusesARecordedHandshake) {
  HostHandshake first = make_host(), second = make_host();
  const HelloBytes hello = encode(make_hello());
  const ProofBytes proof = make_proof(kJobKey, hello, first.take(hello));
  first.take(proof);
  ASSERT_EQ(first.state(), GuestState::admitted);
  second.take(hello);
  second.take(proof);
  EXPECT_EQ(second.state(), GuestState::refused);
  EXPECT_EQ(second.refusal(), Refusal::wrong_secret);
}

TEST(HostHandshake, RefusesAProofOfTheOtherRole) {
  HostHandshake host = make_host();
  EXPECT_EQ(play(host, make_hello(), kJobKey, "host:"), GuestState::refused);
  EXPECT_EQ(host.refusal(), Refusal::wrong_secret);
}

// A proof covers every field that a stranger on the way could change.
TEST(HostHandshake, RefusesAHelloThatWasChangedOnTheWay) {
  const auto changed = [](auto change) {
    HostHandshake host = make_host();
    Hello hello = make_hello();
    const HelloBytes said = encode(hello);
    change(hello);
    const auto challenge = host.take(encode(hello));
    if (host.state() == GuestState::speaking) host.take(make_proof(kJobKey, said, challenge));
    return host.state();
  };
  EXPECT_EQ(changed([](Hello&) {}), GuestState::admitted);
  EXPECT_EQ(changed([](Hello& h) { h.rank = 2; }), GuestState::refused);
  EXPECT_EQ(changed([](Hello& h) { h.size = 5; }), GuestState::refused);
  EXPECT_EQ(changed([](Hello& h) { h.port = 4; }), GuestState::refused);
  EXPECT_EQ(changed([](Hello& h) { h.node = 4; }), GuestState::refused);
  EXPECT_EQ(changed([](Hello& h) { h.name = "node8"; }), GuestState::refused);
  EXPECT_EQ(changed([](Hello& h) { h.nonce[0] ^= std::byte{1}; }), GuestState::refused);
}

TEST(HostHandshake, SaysWhyItRefuses) {
  Hello without = make_hello();
  without.has_secret = false;
  HostHandshake host = make_host(), open({Purpose::join, 0, {}, false}, kGuest, kHost),
                relayed = make_host(kJobKey, {kGuest.host, 9});
  play(host, without, {});
  EXPECT_EQ(host.refusal(), Refusal::secret_missing);
  play(open, make_hello(), kJobKey);
  EXPECT_EQ(open.refusal(), Refusal::secret_unexpected);
  play(relayed, make_hello(), kJobKey);
  EXPECT_EQ(relayed.refusal(), Refusal::other_addresses);
}

TEST(HostHandshake, TellsForeignBytesAndOtherPurposes) {
  HostHandshake noise = make_host(), other_purpose = make_host(), other_rank = make_host(), no_proof = make_host();
  noise.take(HelloBytes{});
  EXPECT_EQ(noise.state(), GuestState::foreign);
  Hello hello = make_hello();
  hello.purpose = Purpose::link;
  EXPECT_EQ(play(other_purpose, hello, kJobKey), GuestState::foreign);
  hello = make_hello();
  hello.to = 1;
  EXPECT_EQ(play(other_rank, hello, kJobKey), GuestState::foreign);
  no_proof.take(encode(make_hello()));
  no_proof.take(ProofBytes{});
  EXPECT_EQ(no_proof.state(), GuestState::foreign);
}

// Both ends of a connection over the loopback interface; the guest's side runs on a thread of its own.
class Enter : public ::testing::Test {
 protected:
  void SetUp() override {
    uint16_t port = 0;
    const Descriptor listener = listen_at(htonl(INADDR_LOOPBACK), port);
    guest_ = connect_to(htonl(INADDR_LOOPBACK), port, 5, -1);
    wait_readable(listener.get(), -1, 5);
    host_ = accept_from(listener);
    ASSERT_TRUE(guest_.valid() && host_.valid());
    result_ = std::async(std::launch::async, [this] { return enter(guest_, make_hello(), kJobKey, after(10), -1); });
  }
  // The host's side with this key.
  void serve(const JoinKey& key) {
    HostHandshake host({Purpose::join, 0, key, true}, remote_end(host_), local_end(host_));
    std::vector<std::byte> bytes;
    while (host.missing() > 0) {
      bytes.resize(host.missing());
      ASSERT_TRUE(read_all(host_, bytes, after(10)));
      ASSERT_TRUE(write_all(host_, host.take(bytes), after(10)));
    }
  }
  Descriptor guest_, host_;
  std::future<EntryResult> result_;
};

TEST_F(Enter, IsAdmittedByAHostWithTheSameSecret) {
  serve(kJobKey);
  EXPECT_EQ(result_.get().entry, Entry::admitted);
}

TEST_F(Enter, LearnsThatTheHostHasAnotherSecret) {
  serve(kOtherKey);
  const EntryResult result = result_.get();
  EXPECT_EQ(result.entry, Entry::refused);
  EXPECT_EQ(result.refusal, Refusal::wrong_secret);
}

TEST_F(Enter, DoesNotBelieveAHostThatCannotProveItself) {
  HelloBytes hello;
  ProofBytes proof;
  ASSERT_TRUE(read_all(host_, hello, after(10)));
  ASSERT_TRUE(write_all(host_, encode(Challenge{}), after(10)));
  ASSERT_TRUE(read_all(host_, proof, after(10)));
  // The guest's own proof, sent back, is no proof of the host.
  ASSERT_TRUE(write_all(host_, encode(Verdict{Refusal::none, parse_proof(proof)->mac}), after(10)));
  EXPECT_EQ(result_.get().entry, Entry::foreign);
}

TEST_F(Enter, DoesNotBelieveAVerdictWithoutAChallenge) {
  ASSERT_TRUE(write_all(host_, encode(Verdict{Refusal::none, {}}), after(10)));
  EXPECT_EQ(result_.get().entry, Entry::foreign);
}

TEST_F(Enter, MayTryAgainWhenTheConnectionIsClosed) {
  host_.close();
  EXPECT_EQ(result_.get().entry, Entry::closed);
}

}  // namespace
}  // namespace mw
