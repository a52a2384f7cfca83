// Tokens of a micro-batch over the ranks of a tensor-parallel group: each has a block of them (spec/shards.h).
#pragma once

#include <cstdint>

#include "comm/comm.h"
#include "core/tensor_store.h"
#include "spec/plan.h"

namespace mw {

class TokenShards {
 public:
  // The group must outlive it. A group of one needs no memory: shards are the whole.
  TokenShards(const Plan& plan, Comm& tp, TensorStore& store, Stream& stream);

  bool is_whole() const { return tp_.size() == 1; }
  Block own(int64_t tokens) const { return block_of(tokens, tp_.size(), tp_.rank()); }

  // [T, D] of all ranks' shards, in `into` or, for a group of one, the shard itself. Collective over TP.
  TensorView gather(Stream& stream, TensorView shard_TD, int64_t tokens, TensorView into_TD) const;
  // out [own tokens, D] (overwritten) = the sum over ranks of their parts [T, D], in fp32 in the order of the ranks.
  // `arrivals`: scratch as large as the largest part that is neither. A group of one must have its part in `out`
  // already. Collective over TP.
  void sum(Stream& stream, TensorView part_TD, TensorView arrivals_TD, TensorView out_TD) const;
  // all [TP, size of own] (overwritten) = what each rank has as its own, of one shape. Collective over TP.
  void share(Stream& stream, TensorView own, TensorView all) const;
  // own, f32, becomes the sum over ranks of what each had there, in the order of the ranks: the same bits on all. all
  // [TP, size of own]: scratch. Collective over TP.
  void add_up(Stream& stream, TensorView own, TensorView all) const;

 private:
  RowExchange exchange(TensorView shape_TD) const;

  Comm& tp_;
  int64_t most_ = 0;  // tokens of the largest shard: where each rank's arrivals begin
  TensorView order_;  // i32 [most_, TP]: arrival rows of each token, by rank
};

}  // namespace mw
