#include "comm/bootstrap/join_messages.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"

namespace mw {
namespace {

using Magic = std::array<char, 8>;
constexpr Magic kHello{'M', 'W', 'H', 'E', 'L', 'L', 'O', '2'}, kChallenge{'M', 'W', 'C', 'H', 'A', 'L', 'L', '2'},
    kProof{'M', 'W', 'P', 'R', 'O', 'O', 'F', '2'}, kVerdict{'M', 'W', 'V', 'E', 'R', 'D', 'I', '2'},
    kAnswer{'M', 'W', 'A', 'N', 'S', 'W', 'E', '2'};

// As they travel. No padding: the sizes are those of the header.
struct HelloWire {
  Magic magic;
  uint64_t node;
  uint32_t purpose, has_secret;
  int32_t rank, to, size;
  uint32_t guest_host, host_host;
  uint16_t guest_port, host_port, port;
  char name[70];
  Nonce nonce;
};
struct ChallengeWire {
  Magic magic;
  Nonce nonce;
};
struct ProofWire {
  Magic magic;
  Mac mac;
};
struct VerdictWire {
  Magic magic;
  uint32_t refusal, zero;
  Mac mac;
};
struct AnswerWire {
  Magic magic;
  Nonce token;
  uint32_t ranks, reason_bytes;
};
struct RowWire {
  uint64_t node;
  uint32_t host;
  uint16_t port;
  char name[66];
};

template <class Bytes, class Wire>
Bytes to_bytes(const Wire& wire) {
  static_assert(sizeof(Wire) == sizeof(Bytes) && std::has_unique_object_representations_v<Wire>);
  Bytes bytes;
  std::memcpy(bytes.data(), &wire, sizeof wire);
  return bytes;
}

template <class Wire>
std::optional<Wire> from_bytes(std::span<const std::byte> bytes) {
  if (bytes.size() != sizeof(Wire)) return std::nullopt;
  Wire wire;
  std::memcpy(&wire, bytes.data(), sizeof wire);
  return wire;
}

template <class Wire>
std::optional<Wire> from_bytes(std::span<const std::byte> bytes, const Magic& magic) {
  std::optional<Wire> wire = from_bytes<Wire>(bytes);
  return wire && wire->magic == magic ? wire : std::nullopt;
}

template <size_t N>
void put_text(char (&field)[N], const std::string& text) {
  std::copy_n(text.begin(), std::min(text.size(), N - 1), field);
}

template <size_t N>
std::string get_text(const char (&field)[N]) {
  return printable(std::string_view(field, strnlen(field, N - 1)));
}

}  // namespace

HelloBytes encode(const Hello& hello) {
  HelloWire wire{kHello,
                 hello.node,
                 static_cast<uint32_t>(hello.purpose),
                 hello.has_secret,
                 hello.rank,
                 hello.to,
                 hello.size,
                 hello.guest.host,
                 hello.host.host,
                 hello.guest.port,
                 hello.host.port,
                 hello.port,
                 {},
                 hello.nonce};
  put_text(wire.name, hello.name);
  return to_bytes<HelloBytes>(wire);
}
ChallengeBytes encode(const Challenge& challenge) {
  return to_bytes<ChallengeBytes>(ChallengeWire{kChallenge, challenge.nonce});
}
ProofBytes encode(const Proof& proof) { return to_bytes<ProofBytes>(ProofWire{kProof, proof.mac}); }
VerdictBytes encode(const Verdict& verdict) {
  return to_bytes<VerdictBytes>(VerdictWire{kVerdict, static_cast<uint32_t>(verdict.refusal), 0, verdict.mac});
}
AnswerBytes encode(const Answer& answer) {
  return to_bytes<AnswerBytes>(AnswerWire{kAnswer, answer.token, answer.ranks, answer.reason_bytes});
}
RowBytes encode(const RankRow& row) {
  RowWire wire{row.node, row.at.host, row.at.port, {}};
  put_text(wire.name, row.name);
  return to_bytes<RowBytes>(wire);
}

std::optional<Hello> parse_hello(std::span<const std::byte> bytes) {
  const auto wire = from_bytes<HelloWire>(bytes, kHello);
  if (!wire || wire->purpose < 1 || wire->purpose > 3 || wire->has_secret > 1) return std::nullopt;
  if (wire->size < 2 || wire->size > kMostRanks) return std::nullopt;
  if (wire->rank < 1 || wire->rank >= wire->size || wire->to < 0 || wire->to >= wire->rank) return std::nullopt;
  Hello hello;
  hello.purpose = static_cast<Purpose>(wire->purpose);
  hello.has_secret = wire->has_secret == 1;
  hello.rank = wire->rank;
  hello.to = wire->to;
  hello.size = wire->size;
  hello.guest = {wire->guest_host, wire->guest_port};
  hello.host = {wire->host_host, wire->host_port};
  hello.nonce = wire->nonce;
  hello.node = wire->node;
  hello.port = wire->port;
  hello.name = get_text(wire->name);
  return hello;
}

std::optional<Challenge> parse_challenge(std::span<const std::byte> bytes) {
  const auto wire = from_bytes<ChallengeWire>(bytes, kChallenge);
  if (!wire) return std::nullopt;
  return Challenge{wire->nonce};
}

std::optional<Proof> parse_proof(std::span<const std::byte> bytes) {
  const auto wire = from_bytes<ProofWire>(bytes, kProof);
  if (!wire) return std::nullopt;
  return Proof{wire->mac};
}

std::optional<Verdict> parse_verdict(std::span<const std::byte> bytes) {
  const auto wire = from_bytes<VerdictWire>(bytes, kVerdict);
  if (!wire || wire->refusal > static_cast<uint32_t>(Refusal::other_addresses) || wire->zero != 0) return std::nullopt;
  return Verdict{static_cast<Refusal>(wire->refusal), wire->mac};
}

std::optional<Answer> parse_answer(std::span<const std::byte> bytes) {
  const auto wire = from_bytes<AnswerWire>(bytes, kAnswer);
  if (!wire || wire->ranks > kMostRanks || wire->reason_bytes > kMostReasonBytes) return std::nullopt;
  if ((wire->ranks == 0) == (wire->reason_bytes == 0)) return std::nullopt;
  return Answer{wire->token, wire->ranks, wire->reason_bytes};
}

std::optional<RankRow> parse_row(std::span<const std::byte> bytes) {
  const auto wire = from_bytes<RowWire>(bytes);
  if (!wire) return std::nullopt;
  return RankRow{wire->node, {wire->host, wire->port}, get_text(wire->name)};
}

}  // namespace mw
