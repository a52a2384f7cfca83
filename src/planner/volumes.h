// Closed forms of communication, as the papers have them or corrected (docs/resource_model.md): for predicted times and
// for what a plan reports about exchanges between nodes.
#pragma once

#include <cstdint>
#include <vector>

#include "config/model_spec.h"
#include "layout/byte_table.h"
#include "layout/exchange_volume.h"
#include "layout/mesh.h"
#include "layout/recompute.h"

namespace mw {

// Bytes within nodes and between them.
struct LinkBytes {
  double near = 0, far = 0;
  double all() const { return near + far; }
};

// Bytes that all ranks together send to other ranks in a step for the routed experts, when every expert gets as many
// rows: rows and gradients there and back - rows once more where they are recomputed - with gate weights and their
// gradients, and by way of the node the choices of each row. transports: by layer. The last line of a run has them
// beside what was sent. Where weights are gathered: pieces as often as the plan of the slots says, for all other ranks
// of their group, and in each micro-batch the fp32 gradients of other ranks' experts. gathers, counts: by layer, as
// Plan has them.
LinkBytes exchanged_bytes(const ModelSpec& model, const RunSpec& run, const Mesh& mesh, const NodeMap& nodes,
                          const std::vector<TransportKind>& transports, const std::vector<WeightGather>& gathers,
                          const std::vector<PieceGathers>& counts);

// Rows per token that leave the node.
struct RowsBetweenNodes {
  double flat = 0;    // one for each expert elsewhere
  double bypass = 0;  // one for each node elsewhere
};
RowsBetweenNodes rows_between_nodes(const MoeSpec& moe, int64_t nodes);

// Ranks of an expert-parallel group: `nodes` of `near` each.
struct GroupShape {
  int64_t nodes = 1, near = 1;
  int64_t ranks() const { return nodes * near; }
};

// Bytes that one rank sends in an MoE layer's passes, to others of its node and to other nodes.
struct ExchangeVolume {
  const char* transport;
  LinkBytes forward, backward;
};

// Of every way to bring `tokens` tokens of each rank and the experts together, uniform choices. Rows move there and
// back, and in the backward pass their gradients do; gate weights and ids do not count.
//   flat            a row for each expert elsewhere, straight there
//   halo            the same rows, between nodes only to the rank that has one's own place there, which passes them on
//                   (Piper, algorithm 1)
//   bypass          one row for each rank of the own node and for each other node, whose rank there passes it on, one
//                   row for each rank (X-MoE's RBD with gateways)
//   gather_tokens   all tokens straight to all ranks, and what each rank sums of them back (Hexa-MoE, model-centric)
//   gather_weights  all experts to all ranks around a ring, in both passes, and in the backward pass their gradients,
//                   in fp32, summed on the way back (Hexa-MoE, data-centric)
std::vector<ExchangeVolume> exchange_volumes(const LayerSpec& layer, int64_t width, double tokens, GroupShape group,
                                             int64_t element_bytes);

// How often the ranks of TP gather the tokens of their shards around a block, or sum what each has of all tokens into
// shards, for one micro-batch. Each time a rank sends (TP - 1) / TP of all tokens' rows of the residual stream. X-MoE's
// SSMB gathers all tokens behind an MoE block and again in backward; here the stream lies in shards, and such a block
// moves none. Dense layers and tensor-sharded experts (TED) move them.
struct TokenMoves {
  int forward = 0, backward = 0;
};
TokenMoves attention_moves(Recompute mode);
TokenMoves feed_forward_moves(FeedForwardKind kind, bool ted);

}  // namespace mw
