// The messages by which processes join a job and connect to each other: fixed-size, in the machines' byte order. Bytes
// from the network are not trusted: parsers are pure functions that return nothing unless every field has a value that
// a rank could send.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "comm/bootstrap/mac.h"
#include "comm/bootstrap/socket.h"

namespace mw {

// The purpose of a connection. A proof for one purpose is not valid for another.
enum class Purpose : uint32_t {
  join = 1,  // to rank 0, to become a rank
  link = 2,  // between two ranks, for their messages
  watch = 3  // to the watchdog of rank 0
};

// Why a host refuses a guest.
enum class Refusal : uint32_t {
  none = 0,
  wrong_secret = 1,
  secret_missing = 2,     // the guest has none
  secret_unexpected = 3,  // the host has none
  other_addresses = 4     // the two sides see the connection between different addresses
};

constexpr int kMostRanks = 1 << 20;
constexpr uint32_t kMostReasonBytes = 4096;

// 1. From the guest, who connects, to the host, who listens.
struct Hello {
  Purpose purpose = Purpose::join;
  bool has_secret = false;
  int rank = 0, to = 0, size = 2;  // its own rank, the host's rank, WORLD_SIZE
  Endpoint guest, host;            // both ends of the connection, as the guest sees them
  Nonce nonce{};
  uint64_t node = 0;  // equal for ranks of one node
  uint16_t port = 0;  // port on which the guest listens for other ranks; 0: none
  std::string name;   // of its node, for messages; cut to what fits; printable
};

// 2. From the host.
struct Challenge {
  Nonce nonce{};
};

// 3. From the guest.
struct Proof {
  Mac mac{};
};

// 4. From the host. `mac` proves that the host knows the secret too; in a refusal it means nothing.
struct Verdict {
  Refusal refusal = Refusal::none;
  Mac mac{};
};

// After a verdict for Purpose::join, once all ranks have connected: `ranks` rows follow, or `reason_bytes` bytes of
// text that say why the job cannot start. One of the two is 0.
struct Answer {
  Nonce token{};  // of this world
  uint32_t ranks = 0, reason_bytes = 0;
};
struct RankRow {
  uint64_t node = 0;
  Endpoint at;       // address on which the rank listens; host 0: MASTER_ADDR
  std::string name;  // as in Hello
};

template <size_t Size>
using Message = std::array<std::byte, Size>;
using HelloBytes = Message<152>;
using ChallengeBytes = Message<40>;
using ProofBytes = Message<40>;
using VerdictBytes = Message<48>;
using AnswerBytes = Message<48>;
using RowBytes = Message<80>;

HelloBytes encode(const Hello& hello);
ChallengeBytes encode(const Challenge& challenge);
ProofBytes encode(const Proof& proof);
VerdictBytes encode(const Verdict& verdict);
AnswerBytes encode(const Answer& answer);
RowBytes encode(const RankRow& row);

// Return none when the bytes are not a valid message, or the span does not have the message's size.
std::optional<Hello> parse_hello(std::span<const std::byte> bytes);
std::optional<Challenge> parse_challenge(std::span<const std::byte> bytes);
std::optional<Proof> parse_proof(std::span<const std::byte> bytes);
std::optional<Verdict> parse_verdict(std::span<const std::byte> bytes);
std::optional<Answer> parse_answer(std::span<const std::byte> bytes);
std::optional<RankRow> parse_row(std::span<const std::byte> bytes);

}  // namespace mw
