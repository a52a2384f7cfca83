#include "comm/bootstrap/handshake.h"

#include <algorithm>
#include <string_view>

namespace mw {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// Both words have the same length, as mac_of() asks.
Mac prove_as_guest(const JoinKey& key, const HelloBytes& hello, const ChallengeBytes& challenge) {
  return mac_of(key, {bytes_of("guest"), hello, challenge});
}
Mac prove_as_host(const JoinKey& key, const HelloBytes& hello, const ChallengeBytes& challenge, const Mac& proof) {
  return mac_of(key, {bytes_of("host:"), hello, challenge, proof});
}

template <class Bytes>
std::vector<std::byte> as_vector(const Bytes& bytes) {
  return {bytes.begin(), bytes.end()};
}

}  // namespace

HostHandshake::HostHandshake(const HandshakeHost& host, const Endpoint& guest_end, const Endpoint& host_end)
    : host_(host), guest_end_(guest_end), host_end_(host_end) {}

size_t HostHandshake::missing() const {
  if (state_ == GuestState::silent) return sizeof(HelloBytes) - received_.size();
  if (state_ == GuestState::speaking) return sizeof(ProofBytes) - received_.size();
  return 0;
}

std::vector<std::byte> HostHandshake::take(std::span<const std::byte> bytes) {
  received_.insert(received_.end(), bytes.begin(), bytes.end());
  if (missing() > 0 || bytes.empty()) return {};
  std::vector<std::byte> answer = state_ == GuestState::silent ? take_hello() : take_proof();
  received_.clear();
  return answer;
}

std::vector<std::byte> HostHandshake::refuse(Refusal refusal) {
  state_ = GuestState::refused;
  refusal_ = refusal;
  return as_vector(encode(Verdict{refusal, {}}));
}

std::vector<std::byte> HostHandshake::take_hello() {
  const std::optional<Hello> hello = parse_hello(received_);
  if (!hello || hello->purpose != host_.purpose || hello->to != host_.rank) {
    state_ = GuestState::foreign;
    return {};
  }
  hello_ = *hello;
  std::copy(received_.begin(), received_.end(), hello_bytes_.begin());
  if (hello_.has_secret != host_.has_secret)
    return refuse(host_.has_secret ? Refusal::secret_missing : Refusal::secret_unexpected);
  if (hello_.guest != guest_end_ || hello_.host != host_end_) return refuse(Refusal::other_addresses);
  Challenge challenge;
  fill_random(challenge.nonce);
  challenge_bytes_ = encode(challenge);
  state_ = GuestState::speaking;
  return as_vector(challenge_bytes_);
}

std::vector<std::byte> HostHandshake::take_proof() {
  const std::optional<Proof> proof = parse_proof(received_);
  if (!proof) {
    state_ = GuestState::foreign;
    return {};
  }
  if (!equal(proof->mac, prove_as_guest(host_.key, hello_bytes_, challenge_bytes_)))
    return refuse(Refusal::wrong_secret);
  state_ = GuestState::admitted;
  return as_vector(
      encode(Verdict{Refusal::none, prove_as_host(host_.key, hello_bytes_, challenge_bytes_, proof->mac)}));
}

EntryResult enter(const Descriptor& connection, Hello hello, const JoinKey& key, Deadline end, int stop) {
  hello.guest = local_end(connection);
  hello.host = remote_end(connection);
  fill_random(hello.nonce);
  const HelloBytes said = encode(hello);
  if (!write_all(connection, said, end, stop)) return {Entry::closed, Refusal::none};

  // A refusal may come in place of the challenge: both begin with as many bytes as the shorter one has.
  ChallengeBytes challenge;
  if (!read_all(connection, challenge, end, stop)) return {Entry::closed, Refusal::none};
  VerdictBytes verdict_bytes;
  const auto rest_of_verdict = std::span(verdict_bytes).subspan(challenge.size());
  Mac proof{};
  if (parse_challenge(challenge)) {
    proof = prove_as_guest(key, said, challenge);
    if (!write_all(connection, encode(Proof{proof}), end, stop)) return {Entry::closed, Refusal::none};
    if (!read_all(connection, verdict_bytes, end, stop)) return {Entry::closed, Refusal::none};
  } else {
    std::copy(challenge.begin(), challenge.end(), verdict_bytes.begin());
    if (!read_all(connection, rest_of_verdict, end, stop)) return {Entry::foreign, Refusal::none};
  }
  const std::optional<Verdict> verdict = parse_verdict(verdict_bytes);
  if (!verdict) return {Entry::foreign, Refusal::none};
  if (verdict->refusal != Refusal::none) return {Entry::refused, verdict->refusal};
  const bool proved = parse_challenge(challenge) && equal(verdict->mac, prove_as_host(key, said, challenge, proof));
  return {proved ? Entry::admitted : Entry::foreign, Refusal::none};
}

}  // namespace mw
