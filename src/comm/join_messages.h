// The messages by which processes join a job and connect to each other, as bytes of fixed size in the byte order of the
// job's machines. Bytes come from the network and are not trusted: the parsers are pure functions that return nothing
// unless every field has a value that a rank could send.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "comm/mac.h"
#include "comm/socket.h"

namespace mw {

// What a connection is for. A proof for one purpose is worth nothing for another.
enum class Purpose : uint32_t {
  join = 1,  // to rank 0, to become a rank
  link = 2,  // between two ranks, for their messages
  watch = 3  // to the watchdog of rank 0
};

// Why a host does not let a guest in.
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
  uint16_t port = 0;  // where the guest listens for other ranks; 0: nowhere
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

// After a verdict for Purpose::join, once all ranks have come: `ranks` rows follow, or `reason_bytes` bytes of text
// that says why there will be no job. One of both is 0.
struct Answer {
  Nonce token{};  // of this world
  uint32_t ranks = 0, reason_bytes = 0;
};
struct RankRow {
  uint64_t node = 0;
  Endpoint at;       // where the rank listens; host 0: at MASTER_ADDR
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

// None: not such a message. The size of the span must be that of the message, else none.
std::optional<Hello> parse_hello(std::span<const std::byte> bytes);
std::optional<Challenge> parse_challenge(std::span<const std::byte> bytes);
std::optional<Proof> parse_proof(std::span<const std::byte> bytes);
std::optional<Verdict> parse_verdict(std::span<const std::byte> bytes);
std::optional<Answer> parse_answer(std::span<const std::byte> bytes);
std::optional<RankRow> parse_row(std::span<const std::byte> bytes);

}  // namespace mw
