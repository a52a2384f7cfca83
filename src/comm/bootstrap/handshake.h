// Handshake by which two processes prove to each other that they know the secret of a job. The guest (the side that
// connects) proves first: a stranger who connects learns nothing that depends on the secret.
//
//   guest: hello (purpose, ranks, world size, both ends of the connection, nonce)      host: challenge (nonce)
//   guest: proof = MAC(secret, "guest", hello, challenge)                              host: verdict
//   verdict = MAC(secret, "host", hello, challenge, proof), or why the guest is refused
//
// Two fresh nonces make a recorded proof useless; the words "guest" and "host" keep a proof from being reflected;
// purpose, ranks and addresses bind it to one connection. A side without a secret uses a key of zeros: that keeps out
// accidental connections, but no attacker.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "comm/bootstrap/join_messages.h"
#include "comm/bootstrap/mac.h"
#include "comm/bootstrap/socket.h"

namespace mw {

// What a host (the listening side) accepts.
struct HandshakeHost {
  Purpose purpose = Purpose::join;
  int rank = 0;
  JoinKey key{};
  bool has_secret = false;
};

enum class GuestState {
  silent,    // no complete hello yet
  speaking,  // sent hello, has not sent the proof yet
  admitted,
  refused,  // see refusal()
  foreign   // sent bytes that are not these messages
};

// The host's side of one handshake, as a state machine: it consumes bytes as they arrive and never blocks.
class HostHandshake {
 public:
  // Both ends of the connection, as the host sees them.
  HostHandshake(const HandshakeHost& host, const Endpoint& guest_end, const Endpoint& host_end);

  GuestState state() const { return state_; }
  // Bytes missing from the current message; 0 once the guest is admitted, refused or foreign.
  size_t missing() const;
  // Consumes at most missing() bytes from the guest. Returns the bytes to send to it.
  std::vector<std::byte> take(std::span<const std::byte> bytes);

  Refusal refusal() const { return refusal_; }
  // Valid once the guest is no longer silent, but trustworthy only when it is admitted.
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
  closed,   // the host closed the connection or did not answer in time: try again
  refused,  // see refusal
  foreign   // the host does not speak this protocol, or does not know the secret itself
};
struct EntryResult {
  Entry entry = Entry::closed;
  Refusal refusal = Refusal::none;
};

// The guest's side, on a fresh connection; blocks. Fills in the ends of the connection and the nonce of `hello`.
// Returns by `end`, or when `stop` becomes readable (-1: never).
EntryResult enter(const Descriptor& connection, Hello hello, const JoinKey& key, Deadline end, int stop);

}  // namespace mw
