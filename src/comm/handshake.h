// How two processes prove to each other that they know the secret of a job, before either takes the other for a rank.
// The guest proves first: a stranger who connects learns nothing that depends on the secret.
//
//   guest: hello (purpose, ranks, world size, both ends of the connection, nonce)      host: challenge (nonce)
//   guest: proof = MAC(secret, "guest", hello, challenge)                              host: verdict
//   verdict = MAC(secret, "host", hello, challenge, proof), or why the guest is refused
//
// Two fresh nonces make a recorded proof worthless; the words keep a proof from being sent back; purpose, ranks and
// addresses tie it to one connection. A side without a secret uses a key of zeros: that keeps strays out, nobody else.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "comm/join_messages.h"
#include "comm/mac.h"
#include "comm/socket.h"

namespace mw {

// What a host lets guests in for.
struct HandshakeHost {
  Purpose purpose = Purpose::join;
  int rank = 0;
  JoinKey key{};
  bool has_secret = false;
};

enum class GuestState {
  silent,    // no complete hello yet
  speaking,  // has said hello, and owes the proof
  admitted,
  refused,  // see refusal()
  foreign   // sent something else than these messages
};

// The host's side of one handshake: it takes bytes as they come and never waits.
class HostHandshake {
 public:
  // Both ends of the connection, as the host sees them.
  HostHandshake(const HandshakeHost& host, const Endpoint& guest_end, const Endpoint& host_end);

  GuestState state() const { return state_; }
  // Bytes that the current message still lacks; 0 once the guest is admitted, refused or foreign.
  size_t missing() const;
  // At most missing() bytes from the guest. Returns what to send to it.
  std::vector<std::byte> take(std::span<const std::byte> bytes);

  Refusal refusal() const { return refusal_; }
  // Of a guest that is no longer silent. Proved only when the guest is admitted.
  const Hello& hello() const { return hello_; }

 private:
  std::vector<std::byte> take_hello();
  std::vector<std::byte> take_proof();
  std::vector<std::byte> refuse(Refusal refusal);

  HandshakeHost host_;
  Endpoint guest_end_, host_end_;
  GuestState state_ = GuestState::silent;
  Refusal refusal_ = Refusal::none;
  std::vector<std::byte> received_;
  Hello hello_;
  HelloBytes hello_bytes_{};
  ChallengeBytes challenge_bytes_{};
};

enum class Entry {
  admitted,
  closed,   // the host closed the connection or did not answer in time: worth another attempt
  refused,  // see refusal
  foreign   // the host does not speak this protocol, or does not know the secret itself
};
struct EntryResult {
  Entry entry = Entry::closed;
  Refusal refusal = Refusal::none;
};

// The guest's side, on a fresh connection. Fills in the ends of the connection and the nonce of `hello`. Returns at
// `end` at the latest, or when `stop` becomes readable (-1: never).
EntryResult enter(const Descriptor& connection, Hello hello, const JoinKey& key, Deadline end, int stop);

}  // namespace mw
