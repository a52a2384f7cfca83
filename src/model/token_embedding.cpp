#include "model/token_embedding.h"

#include "ops/embedding.h"

namespace mw {

TokenEmbedding::TokenEmbedding(const Plan& plan, ParamStore& params, TensorStore& store, const TokenShards& shards)
    : shards_(shards),
      table_(params.find("embed")),
      part_{vocab_part(plan.model, plan.mesh.tp, plan.coords.tp).begin, plan.model.vocab} {
  if (shards_.is_whole()) return;
  whole_in_ = store.fixed("work.whole_in");
  whole_d_out_ = store.fixed("work.whole_d_out");
  whole_out_ = store.fixed("work.whole_out");
}

void TokenEmbedding::forward(Stream& stream, const Batch& batch, TensorView x_TD) {
  const TraceScope scope(stream.trace(), "embedding");
  const int64_t tokens = batch.tokens();
  const TensorView found = shards_.is_whole() ? x_TD : take_front(whole_out_, {tokens, x_TD.cols()});
  embed(stream, table_.master, part_, token_view(batch.ids, tokens), found);
  shards_.sum(stream, found, whole_in_, x_TD);
}

void TokenEmbedding::backward(Stream& stream, const Batch& batch, TensorView d_x_TD) {
  const TraceScope scope(stream.trace(), "embedding_backward");
  const int64_t tokens = batch.tokens();
  embed_backward(stream, shards_.gather(stream, d_x_TD, tokens, whole_d_out_), part_, token_view(batch.ids, tokens),
                 table_.grad);
}

}  // namespace mw
