// The exchange of routed rows by way of the node, as a plan: what each member of an EP group sends to whom, computed
// from counts alone. A source sends a token's row straight to the ranks of its own node, and once to a gateway in each
// other node, which passes it on to the ranks there (X-MoE section 4.2, RBD; Piper section V, HALO).
//
// A unit is a row that travels. Merged, a token is one unit for each rank of its own island, and one for each other
// island, that its experts lie on; else each choice is a unit. Chunks are of tokens at their sources.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "layout/islands.h"

namespace mw {

// What one source sends in one chunk, as its own router says.
struct SourceCounts {
  std::vector<int64_t> sent;   // by member: units that this source sends to it, as a gateway or for its experts
  std::vector<int64_t> units;  // by member: units that reach it, straight or by its gateway
  std::vector<int64_t> rows;   // by position of an expert in (rank, slot) order: choices
};

// What a member knows of one source and chunk.
struct KnownSource {
  int64_t sent = 0;            // units that come to this member from the source itself
  std::vector<int64_t> units;  // by place in the island: units that reach each of its members; empty where the source
                               // is another member's to pass on
  int64_t own_units = 0;       // units that reach this member
  std::vector<int64_t> rows;   // by slot of this member: rows of its experts
};

// Rows [first, first + rows) of a buffer, to or from a member of the group.
struct RowMessage {
  int peer = 0;
  int64_t first = 0, rows = 0;
  bool operator==(const RowMessage&) const = default;
};

// Messages of one kind, ascending by peer; none has 0 rows. send_rows and receive_rows: of both buffers.
struct ExchangeLeg {
  std::vector<RowMessage> send, receive;
  int64_t send_rows = 0, receive_rows = 0;
};

// One member's part in the exchange of one chunk. On the way to the experts, home and far send from the source's units;
// far is received by gateways, which make spread's units of it; home and spread are received for the experts. On the
// way back each message changes its direction.
struct ExchangePlan {
  ExchangeLeg home;    // to members of the own island, itself included
  ExchangeLeg far;     // to gateways in other islands
  ExchangeLeg spread;  // from gateways to members of their island, itself included
  // By source: where its units lie among those that reached this member. Home's come first, then each gateway's.
  struct Arrived {
    int64_t first = 0, rows = 0;
  };
  std::vector<Arrived> by_source;
  std::vector<int64_t> slot_rows;  // rows of each of this member's experts
  int64_t units = 0;               // that reached this member
};

// sources: by member of the group, itself included. Errors: comm, for counts that do not agree, naming the source.
ExchangePlan plan_exchange(const Islands& islands, int member, const SourceCounts& own,
                           std::span<const KnownSource> sources);

// The way of the counts, which is that of the rows: each source tells its gateways (far), and every member those of its
// island what it knows of itself and of the sources that it serves (near). Messages are int64 words.
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
  // far: what came from each source that this member serves, by member of the group.
  std::vector<int64_t> near_message(std::span<const SourceCounts> own, const std::vector<std::vector<int64_t>>& far,
                                    int to) const;
  // By chunk and source. near: what came from each member of the island, by member of the group; of this member itself
  // its own near_message.
  std::vector<std::vector<KnownSource>> known(const std::vector<std::vector<int64_t>>& far,
                                              const std::vector<std::vector<int64_t>>& near) const;

 private:
  int64_t slots(int member) const;
  int64_t far_words(int from, int to) const;
  int64_t near_words(int from, int to) const;
  std::vector<int> told_by(int member) const;  // sources of its near messages, ascending
  const std::vector<int>& island_of(int member) const;

  const Islands& islands_;
  int member_;
  std::vector<int64_t> rank_offsets_;
  int64_t chunks_;
};

}  // namespace mw
