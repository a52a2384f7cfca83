// The two-hop (hierarchical) exchange of routed rows by halo and bypass, as lists of messages: what each member of an
// EP group sends to whom, computed from counts alone. The rank of a token (the source) sends its rows straight to the
// ranks of its own node, and to one gateway on each other node, which passes them on to the ranks there (X-MoE
// section 4.2, RBD; Piper section V, HALO):
//   source --home--> rank of the same node
//   source --far--> gateway on another node --spread--> rank of that node
// An island is the members of the group on one node (layout/islands.h).
//
// A unit is a row that travels. Not merged (halo): one unit for each choice, that is each (token, expert) pair. Merged
// (bypass): a token is one unit for each rank of its own node that has one of its experts, and one for each other node
// that has some; the gateway there passes it on to each rank of its node that has some, as one unit each. Each source
// divides its own tokens into chunks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "layout/islands.h"

namespace mw {

// What one source sends in one chunk, as its own router says.
struct SourceCounts {
  std::vector<int64_t> sent;   // by member: units in this source's message to it, for its experts or to pass on
  std::vector<int64_t> units;  // by member: units that it gets for its experts, from this source or from a gateway
  std::vector<int64_t> rows;   // by expert, in (rank, slot) order: choices, not units
};

// What a member knows of one source and chunk.
struct KnownSource {
  int64_t sent = 0;  // units in the source's message to this member
  // Units that each member of this member's island gets from the source, by place in the island. Only for sources that
  // this member is the gateway of, else empty.
  std::vector<int64_t> units;
  int64_t own_units = 0;      // units that this member gets for its experts
  std::vector<int64_t> rows;  // by slot of this member: choices of its experts
};

// Rows [first, first + rows) of a buffer, each a unit, to or from a member of the group.
struct RowMessage {
  int peer = 0;
  int64_t first = 0, rows = 0;
  bool operator==(const RowMessage&) const = default;
};

// Messages of one hop, ascending by peer; none has 0 rows. send_rows and receive_rows: rows of the send buffer and of
// the receive buffer, which another leg may share; not the sums of these messages.
struct ExchangeLeg {
  std::vector<RowMessage> send, receive;
  int64_t send_rows = 0, receive_rows = 0;
};

// One member's part in the exchange of one chunk, on the way to the experts. home and far share a send buffer, home and
// spread a receive buffer. On the way back each message changes its direction.
struct ExchangePlan {
  ExchangeLeg home;    // to members of the own island, itself included
  ExchangeLeg far;     // to gateways in other islands
  ExchangeLeg spread;  // from gateways to members of their island, itself included
  // By source: where its units lie in the receive buffer of home and spread. Home's come first, then each gateway's.
  struct Arrived {
    int64_t first = 0, rows = 0;
  };
  std::vector<Arrived> by_source;
  std::vector<int64_t> slot_rows;  // choices of each of this member's experts
  int64_t units = 0;               // rows of that receive buffer
};

// sources: by member of the group, itself included. Errors: comm, for counts that do not agree, naming the source.
ExchangePlan plan_exchange(const Islands& islands, int member, const SourceCounts& own,
                           std::span<const KnownSource> sources);

// How counts travel, before the rows. far: each source sends its counts to its gateways. near: then each member sends
// its own counts, and those that it got as a gateway, to all members of its island. Messages are int64 words.
class CountRoute {
 public:
  // rank_offsets: first position of each member's experts, and the number of experts.
  CountRoute(const Islands& islands, int member, std::vector<int64_t> rank_offsets, int64_t chunks);

  int64_t far_words_to(int peer) const { return far_words(member_, peer); }
  int64_t far_words_from(int peer) const { return far_words(peer, member_); }
  int64_t near_words_to(int peer) const { return near_words(member_, peer); }
  int64_t near_words_from(int peer) const { return near_words(peer, member_); }
  // own: by chunk.
  std::vector<int64_t> far_message(std::span<const SourceCounts> own, int to) const;
  // far: by member of the group: the far message that came from it; empty if this member is not its gateway.
  std::vector<int64_t> near_message(std::span<const SourceCounts> own, const std::vector<std::vector<int64_t>>& far,
                                    int to) const;
  // Returns, by chunk and source, what this member knows. near: by member of the group: the near message that came from
  // it, for members of this island; near[this member]: its own near_message(own, far, this member).
  std::vector<std::vector<KnownSource>> known(const std::vector<std::vector<int64_t>>& far,
                                              const std::vector<std::vector<int64_t>>& near) const;

 private:
  int64_t slots(int member) const;
  int64_t far_words(int from, int to) const;
  int64_t near_words(int from, int to) const;
  std::vector<int> told_by(int member) const;  // sources whose counts are in its near messages, ascending
  const std::vector<int>& island_of(int member) const;

  const Islands& islands_;
  int member_;
  std::vector<int64_t> rank_offsets_;
  int64_t chunks_;
};

}  // namespace mw
