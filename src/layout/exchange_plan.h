// The two-hop (hierarchical) exchange of routed rows by the transports halo (from the paper Piper, section V) and
// bypass (from X-MoE, section 4.2, RBD). A plan is lists of messages: what each member of an EP group sends to whom,
// computed from counts alone. The source is the rank of a token. It sends rows to the ranks of its own node directly.
// Rows for another node go to one rank there, the gateway, which passes them on to the ranks of its node:
//   source --home--> rank of the same node
//   source --far--> gateway on another node --spread--> rank of that node
// An island is the set of members of the EP group that are on one node. Members are numbered as in the group.
// layout/islands.h says which member of an island is the gateway of which source.
//
// A choice is one (token, expert) pair. A unit is a hidden state that travels; it may serve several choices.
//   halo: one unit for each choice.
//   bypass: units are merged. A token is one unit for each rank of its own node that has experts of the token, and one
//   unit for each other node that has some. The gateway there copies the unit to each rank of its node that has some.
// Example: a token has two experts on rank 5 of another node and one on rank 6 there. halo sends three units to the
// gateway; bypass sends one, which the gateway passes on as two: one to rank 5, one to rank 6.
// Each source divides its own tokens into chunks; each chunk has a plan of its own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "layout/islands.h"

namespace mw {

// What one source sends in one chunk, as its own router says.
struct SourceCounts {
  // By member: units in the message from this source to the member. If the member is a gateway on another node, it
  // sends these units on in the spread leg, those for its own experts included.
  std::vector<int64_t> sent;
  // By member: units of this source that the member gets for its own experts, directly or from a gateway.
  std::vector<int64_t> units;
  std::vector<int64_t> rows;  // by expert, in (rank, slot) order: choices of this source's tokens (not units)
};

// What this member knows of one source and chunk.
struct KnownSource {
  int64_t sent = 0;  // units in the source's message to this member
  // Only if this member is the gateway of the source, else empty: how many units it passes on to each member of its
  // island, in the order of the island's members.
  std::vector<int64_t> units;
  int64_t own_units = 0;      // units that this member gets for its experts
  std::vector<int64_t> rows;  // by slot of this member: choices of its experts
};

// One message to or from the member `peer`: rows [first, first + rows) of a buffer. A row of the buffer is one unit.
struct RowMessage {
  int peer = 0;
  int64_t first = 0, rows = 0;
  bool operator==(const RowMessage&) const = default;
};

// The messages of one hop (home, far or spread), ascending by peer; no message has 0 rows. send_rows and receive_rows
// are the sizes of the send buffer and the receive buffer. Two legs may share a buffer, so these may be more than the
// rows of this leg's messages.
struct ExchangeLeg {
  std::vector<RowMessage> send, receive;
  int64_t send_rows = 0, receive_rows = 0;
};

// One member's part in the exchange of one chunk, on the way to the experts. There are four buffers: home and far send
// from the first, far receives into the second, spread sends from the third, home and spread receive into the fourth.
// On the way back (combine) each message goes in the opposite direction between the same buffers.
struct ExchangePlan {
  ExchangeLeg home;    // to members of the own island, itself included
  ExchangeLeg far;     // to gateways in other islands
  ExchangeLeg spread;  // from gateways to members of their island, itself included
  // By source: where its units are in the receive buffer of home and spread. First come the units of sources of the own
  // island (home), then those of other sources, ordered by the gateway that passed them on (spread).
  struct Arrived {
    int64_t first = 0, rows = 0;
  };
  std::vector<Arrived> by_source;
  std::vector<int64_t> slot_rows;  // choices of each of this member's experts
  int64_t units = 0;               // rows of the receive buffer of home and spread
};

// sources: by member of the group, itself included. Errors: comm, for counts that do not agree, naming the source.
ExchangePlan plan_exchange(const Islands& islands, int member, const SourceCounts& own,
                           std::span<const KnownSource> sources);

// How counts travel, before the rows, in two rounds. A message holds only the counts that its receiver needs. Far
// messages: each source tells each of its gateways what it sends to that island. Near messages: then each member tells
// each other member of its island what reaches that member, of its own counts and of those that it got as a gateway,
// and keeps a message of the same form for itself. Messages are int64 words.
class CountRoute {
 public:
  // rank_offsets: the first position of each member's experts, ascending; after the last member, the number of
  // experts.
  CountRoute(const Islands& islands, int member, std::vector<int64_t> rank_offsets, int64_t chunks);

  int64_t far_words_to(int peer) const { return far_words(member_, peer); }
  int64_t far_words_from(int peer) const { return far_words(peer, member_); }
  int64_t near_words_to(int peer) const { return near_words(member_, peer); }
  int64_t near_words_from(int peer) const { return near_words(peer, member_); }
  // The far message of this member to member `to`; empty if `to` is not its gateway. own: this member's counts, by
  // chunk.
  std::vector<int64_t> far_message(std::span<const SourceCounts> own, int to) const;
  // The near message of this member to member `to` of its island. far[m]: the far message that member m sent to this
  // member; empty if this member is not the gateway of m.
  std::vector<int64_t> near_message(std::span<const SourceCounts> own, const std::vector<std::vector<int64_t>>& far,
                                    int to) const;
  // Returns, by chunk and source, what this member knows. far: as for near_message. near[m]: the near message that
  // member m of this island sent to this member; not read for other members. near[this member] is the copy that the
  // member keeps: near_message(own, far, this member), of near_words_to(this member) words.
  std::vector<std::vector<KnownSource>> known(const std::vector<std::vector<int64_t>>& far,
                                              const std::vector<std::vector<int64_t>>& near) const;

 private:
  int64_t slots(int member) const;
  int64_t far_words(int from, int to) const;
  int64_t near_words(int from, int to) const;
  // Sources whose counts are in the near messages that `member` sends: itself and those it is the gateway of,
  // ascending.
  std::vector<int> told_by(int member) const;
  const std::vector<int>& island_of(int member) const;

  const Islands& islands_;
  int member_;
  std::vector<int64_t> rank_offsets_;
  int64_t chunks_;
};

}  // namespace mw
