// Sequence-sharded tokens: each rank of a tensor-parallel group has a block of a micro-batch's tokens
// (layout/shards.h).
#pragma once

#include <cstdint>

#include "comm/comm.h"
#include "core/tensor_store.h"
#include "layout/plan.h"

namespace mw {

class TokenShards {
 public:
  // The group must outlive this object. A group of one needs no memory: its shard is the whole.
  TokenShards(const Plan& plan, Comm& tp, TensorStore& store, Stream& stream);

  bool is_whole() const { return tp_.size() == 1; }
  Block own(int64_t tokens) const { return block_of(tokens, tp_.size(), tp_.rank()); }

  // All-gather: [T, D] of all shards, in `into`; for a group of one, the shard itself. Collective over TP.
  TensorView gather(Stream& stream, TensorView shard_TD, int64_t tokens, TensorView into_TD) const;
  // Reduce-scatter: out [own tokens, D] (overwritten) = the sum over ranks of their parts [T, D], in fp32 in rank
  // order. `arrivals`: scratch as large as the largest part, distinct from both. In a group of one, the part must
  // already be in `out`. Collective over TP.
  void sum(Stream& stream, TensorView part_TD, TensorView arrivals_TD, TensorView out_TD) const;
  // All-gather of equal sizes: all [TP, size of own] (overwritten) = the `own` of each rank. Collective over TP.
  void share(Stream& stream, TensorView own, TensorView all) const;
  // All-reduce: own (f32) becomes the sum over ranks, in rank order, with the same bits on all. all [TP, size of own]:
  // scratch. Collective over TP.
  void add_up(Stream& stream, TensorView own, TensorView all) const;

 private:
  RowExchange exchange(TensorView shape_TD) const;

  Comm& tp_;
  int64_t most_ = 0;  // tokens of the largest shard: the spacing of the ranks' arrivals
  TensorView order_;  // i32 [most_, TP]: rows of a token's arrivals, by rank
};

}  // namespace mw
