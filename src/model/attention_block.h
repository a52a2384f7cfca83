// Grouped-query attention: projections, query/key norm, clamp, rotary embedding, attention, output projection.
#pragma once

#include "model/attention.h"
#include "model/key_value_cache.h"
#include "model/token_shards.h"
#include "ops/matmul.h"
#include "ops/norm_rope.h"

namespace mw {

struct AttentionWeights {
  Weight wq, wk, wv, wo;
  TensorView d_wq, d_wk, d_wv, d_wo;
  TensorView q_gain, k_gain, d_q_gain, d_k_gain;  // f32, with query/key norm only
  // f32, of the projections that have a bias. With tensor parallelism the output's is given to one rank alone, because
  // the outputs of all ranks are summed.
  TensorView bq, bk, bv, bo, d_bq, d_bk, d_bv, d_bo;
  TensorView sinks, d_sinks;  // f32 [H], of models that have them
};

// Saved for backward: projections with their bias, before norm, clamp and rotation, the output and its log-sum-exp.
struct AttentionSaved {
  TensorView q, k, v, o, lse, q_rstd, k_rstd;
};

// Flat scratch shared by all layers; but q, k and v, which the attention operator reads, are a layer's own with
// memory.recompute = "keep_norms". v is empty without clip_qkv: attention then reads the saved projection.
struct AttentionScratch {
  TensorView q, k, v, d_q, d_k, d_v, d_o;
  TensorView rope_cos, rope_sin;  // f32 [S_max, rotated elements / 2]
  TensorView first_keys = {};     // i32 [T], with a window only
  TensorView delta = {};          // f32 [H, T], with sinks only
};

// Query/key norms over the heads of all TP ranks. A norm averages over the columns of all ranks together. Where ranks
// share key/value heads, each copy of a head counts, both in sums and in widths, and each rank's gradient takes its
// share of the subtracted term.
struct HeadSums {
  const TokenShards* shards = nullptr;  // null: the norms need no communication
  int64_t q_width = 0, k_width = 0;     // columns of all ranks
  TensorView own_2T, of_ranks;          // f32 scratch; of_ranks [TP, 2, T]
};

class AttentionBlock : public Attention {
 public:
  AttentionBlock(const AttentionSpec& spec, double norm_eps, AttentionWeights weights, AttentionSaved saved,
                 AttentionScratch scratch, HeadSums head_sums, KeyValueCache cache = {}, bool defer_inputs = false,
                 bool keeps_prepared = false);

  void forward(Stream& stream, TensorView x_TD, const Sequences& sequences, TensorView out_TD) override;
  void backward(Stream& stream, const Sequences& sequences, TensorView d_out_TD, TensorView d_x_TD,
                Store store) override;
  // With defer_inputs, may be called at any time after backward, which then leaves the gradients of queries, keys and
  // values in the buffers where these were saved.
  void backward_inputs(Stream& stream, TensorView x_TD, Store store) override;

 private:
  struct Views {
    TensorView q, k, v;
  };
  // The first key that each token sees: of its document, or of its window; empty: of its sequence.
  TensorView first_keys(Stream& stream, int64_t tokens, const Sequences& sequences) const;
  // Queries, keys and values as the attention operator reads them.
  Views prepared(int64_t tokens) const;
  // Computes them from the saved projections; in backward (store_statistics false) only where they were not kept.
  Views prepare(Stream& stream, int64_t tokens, const Sequences& sequences, bool store_statistics);
  // In place: turns d, the gradients of what prepare returned, into those of the projections. Overwrites `in`, which is
  // what prepare returned.
  void prepare_backward(Stream& stream, int64_t tokens, const Sequences& sequences, const Views& in, const Views& d);
  void normalise_and_rotate(Stream& stream, const Views& saved, const Views& out, const Sequences& sequences,
                            bool store_statistics);
  Rotation rotation(const Sequences& sequences) const;
  // y may be x.
  void rotate(Stream& stream, TensorView x_THh, const Sequences& sequences, RopeDirection direction, TensorView y_THh);
  // Row sums for the norms of queries and keys: over this rank's columns, or over those of all ranks.
  struct Sums {
    RowSums q, k;
  };
  // Row sums of a * b, or of gain * a * b, over all ranks; empty where the norms need no communication.
  Sums sum_products(Stream& stream, const Views& a, const Views& b, bool with_gains);
  // Normalises the saved queries and keys into `out`; stores the statistics, or uses the stored ones.
  void normalise(Stream& stream, const Views& saved, const Views& out, bool store_statistics);
  // In place: turns gradients of the norms' outputs into gradients of their inputs.
  void normalise_backward(Stream& stream, const Views& saved, const Views& d);
  // Views [T, heads, h] as the rows that a norm averages over.
  TensorView norm_rows(TensorView x_THh) const;

  AttentionSpec spec_;
  float norm_eps_;
  AttentionWeights weights_;
  AttentionSaved saved_;
  AttentionScratch scratch_;
  HeadSums head_sums_;
  KeyValueCache cache_;
  bool defer_inputs_, keeps_prepared_;
  Views gradients_;  // [T, heads x h], from backward to backward_inputs
};

}  // namespace mw
