// Tensor parallelism inside a pipeline stage: what of tokens, heads and weights one of TP ranks has.
//
// Between blocks the residual stream is cut by tokens (sequence-parallel norms), so that MoE blocks run on the token
// shard as it is: nothing is dropped before the gate or gathered after combine (X-MoE's SSMB). Attention and dense
// feed-forwards gather the tokens, compute a share of heads or width, and leave the sum of all shares as shards.
// Embedding and head are cut by rows of the vocabulary: a rank looks up the tokens of all shards that lie in its part,
// and computes its part of the logits of all. Norms, router and shared experts work on the shard with whole weights.
//
// With tensor-sharded experts (TED, moe.tp_mode = "ted", for comparison) MoE blocks do as dense feed-forwards: they
// gather the tokens, every rank routes all of them and computes its share of every expert's width. What the router
// learns from gate weights is then a share of the sum too.
//
// A placement of slices (layout/placement.h) cuts the width of experts over EP instead.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "config/model_spec.h"
#include "config/param_table.h"
#include "config/run_spec.h"
#include "layout/mesh.h"
#include "layout/placement.h"

namespace mw {

// A run of neighbours.
struct Block {
  int64_t begin = 0, count = 0;
  bool operator==(const Block&) const = default;
};

// The index-th of `parts` blocks of n; the first n mod parts hold one more, and none is legal. No block of a smaller n
// is larger.
Block block_of(int64_t n, int64_t parts, int64_t index);

// Query heads of one rank, and the key/value heads that they read: key/value heads are dealt out, with the query heads
// of each. Where there are fewer key/value heads than ranks, neighbours share one and deal out its query heads: each
// computes it, and holds the weights of all. The first rank has the most.
struct HeadShard {
  Block heads, kv_heads;
  bool shares_kv = false;
};
HeadShard head_shard(const AttentionSpec& attention, int tp, int tp_rank);

// Whether norms of queries and keys are over heads of several ranks.
bool norms_span_ranks(const AttentionSpec& attention, int tp);

// Attention as one rank computes it, of its heads.
AttentionSpec local_attention(const AttentionSpec& attention, const Mesh& mesh, const MeshCoords& coords);
// Attention of the ranks of TP that have the most heads, and of those that have the fewest, which may need more
// scratch.
std::array<AttentionSpec, 2> local_attention_at_ends(const AttentionSpec& attention, const Mesh& mesh);
// The layer as one rank computes it: its heads, its width of a dense feed-forward and, if they are cut, of experts.
// placement: of the layer's experts.
LayerSpec local_layer(const LayerSpec& layer, const ExpertPlacement& placement, const Mesh& mesh,
                      const MeshCoords& coords);

// The ids whose rows of embedding and head one rank holds: the first has the most; beyond a small vocabulary, none.
Block vocab_part(const ModelSpec& model, int tp, int tp_rank);

// The tokens that MoE blocks of one rank route, of a micro-batch of `tokens` of its data-parallel rank.
Block routed_tokens(const Mesh& mesh, const MeshCoords& coords, int64_t tokens);

// What one rank holds of a parameter.
struct LocalParam {
  std::vector<SlicePiece> pieces;      // of the global tensor, that make up the local one
  std::vector<int64_t> shape;          // of the local one
  int64_t matrices = 0, n = 0, k = 0;  // as products see it: that many of [n, k]
  Replicas replicas = Replicas::dp;
  int64_t numel() const;
};
// Elements of one entry of an expert tensor on the rank that has most of it. placements, here and below: by layer.
int64_t widest_entry(const ParamRow& row, const ModelSpec& model, const std::vector<ExpertPlacement>& placements,
                     const Mesh& mesh);
LocalParam local_param(const ParamRow& row, const ModelSpec& model, const std::vector<ExpertPlacement>& placements,
                       const Mesh& mesh, const MeshCoords& coords);

// Every data-parallel rank needs a multiple of so many samples: mesh.tp where shards of tokens must not cut sequences,
// else 1.
int64_t sample_unit(const ModelSpec& model, const RunSpec& run, const Mesh& mesh);

// Errors: config, when there are too few heads, or key/value heads that ranks cannot share evenly, or a capacity counts
// over sequences that shards would cut.
void check_tensor_parallel(const ModelSpec& model, const RunSpec& run, const Mesh& mesh, int64_t sequences);

}  // namespace mw
