#include "model/loss_head.h"

#include <algorithm>

#include "ops/cross_entropy.h"
#include "ops/norm.h"

namespace mw {

LossHead::LossHead(const Plan& plan, ParamStore& params, TensorStore& store, Comm& tp, const TokenShards& shards)
    : width_(plan.model.width),
      vocab_(plan.model.vocab),
      norm_eps_(static_cast<float>(plan.model.norm_eps)),
      tp_(tp),
      shards_(shards),
      gain_(params.find("final_norm")),
      head_(params.find(plan.model.tie_embeddings ? "embed" : "head")),
      rstd_(store.fixed("work.final_rstd")),
      normed_(store.fixed("work.normed")),
      d_normed_(store.fixed("work.d_branch")),
      logits_(store.fixed("work.logits")),
      d_logits_(plan.run.train.dtype == plan.run.logits ? logits_ : store.fixed("work.d_logits_bf16")),
      token_loss_(store.fixed("work.token_loss")) {
  for (int member = 0; member < tp_.size(); ++member) parts_.push_back(vocab_part(plan.model, tp_.size(), member));
  part_ = {parts_[static_cast<size_t>(tp_.rank())].begin, vocab_};
  if (shards_.is_whole()) return;
  own_statistics_ = store.fixed("work.own_statistics");
  statistics_ = store.fixed("work.statistics");
  whole_in_ = store.fixed("work.whole_in");
  whole_out_ = store.fixed("work.whole_out");
}

TensorView LossHead::normalise(Stream& stream, int64_t tokens, TensorView x_TD) {
  const TensorView normed = take_front(normed_, {x_TD.dim(0), width_});
  rms_norm(stream, x_TD, gain_.master, norm_eps_, normed, take_front(rstd_, {x_TD.dim(0)}));
  return shards_.gather(stream, normed, tokens, whole_in_);
}

void LossHead::differentiate(Stream& stream, TensorView logits_Cv, TensorView labels_C, float scale, TensorView loss_C,
                             TensorView d_logits_Cv) {
  if (shards_.is_whole()) {
    cross_entropy(stream, logits_Cv, labels_C, scale, loss_C, d_logits_Cv);
    return;
  }
  const int64_t rows = logits_Cv.dim(0);
  const TensorView own = take_front(own_statistics_, {rows, kSoftmaxStatistics}),
                   all = take_front(statistics_, {tp_.size(), rows, kSoftmaxStatistics});
  softmax_statistics(stream, logits_Cv, part_, labels_C, own);
  shards_.share(stream, own, all);
  cross_entropy_of_part(stream, logits_Cv, part_, labels_C, all, scale, loss_C, d_logits_Cv);
}

void LossHead::loss(Stream& stream, const Batch& batch, TensorView x_TD, float seed, TensorView d_x_TD,
                    std::vector<float>& losses, Store store) {
  const TraceScope part(stream.trace(), "head_and_loss");
  const int64_t tokens = batch.tokens(), columns = logits_.dim(1);
  const Block own = shards_.own(tokens);
  const TensorView normed = normalise(stream, tokens, x_TD), d_normed = take_front(d_normed_, {own.count, width_}),
                   d_whole = shards_.is_whole() ? d_normed : take_front(whole_out_, {tokens, width_}),
                   loss_T = take_front(token_loss_, {tokens}), labels = token_view(batch.labels, tokens);
  const int64_t chunk = logits_.dim(0), group = d_logits_.dim(0);
  for (int64_t begin = 0; begin < tokens; begin += group) {
    const int64_t count = std::min(group, tokens - begin);
    const TensorView d_logits = take_front(d_logits_, {count, columns});
    for (int64_t done = 0; done < count; done += chunk) {
      const int64_t first = begin + done, now = std::min(chunk, count - done);
      const TensorView logits_chunk = take_front(logits_, {now, columns});
      matmul(stream, normed.slice(first, now), head_.weights[0], logits_chunk);
      differentiate(stream, logits_chunk, labels.slice(first, now), seed, loss_T.slice(first, now),
                    seed > 0 ? d_logits.slice(done, now) : TensorView());
    }
    if (seed <= 0) continue;
    matmul_d_input(stream, d_logits, head_.weights[0], d_whole.slice(begin, count));
    // The embedding adds to the gradient of tied weights.
    const bool is_first = begin == 0 && head_.row.role == ParamRole::matrix;
    matmul_d_weight(stream, d_logits, normed.slice(begin, count), head_.grad, is_first ? store : Store::accumulate);
  }
  if (seed > 0) {
    shards_.sum(stream, d_whole, whole_in_, d_normed);
    rms_norm_backward(stream, x_TD, gain_.master, take_front(rstd_, {own.count}), d_normed, {}, d_x_TD, gain_.grad);
  }
  losses.resize(static_cast<size_t>(own.count));
  stream.queue().read(losses.data(), loss_T.slice(own.begin, own.count).data, losses.size() * sizeof(float));
}

std::vector<float> LossHead::logits(Stream& stream, int64_t tokens, TensorView x_TD, int64_t begin, int64_t count) {
  const TensorView normed = normalise(stream, tokens, x_TD).slice(begin, count);
  const int64_t columns = logits_.dim(1), chunk = logits_.dim(0);
  std::vector<float> own, out(static_cast<size_t>(count * vocab_));
  for (int64_t done = 0; done < count; done += chunk) {
    const int64_t now = std::min(chunk, count - done);
    const TensorView logits_chunk = take_front(logits_, {now, columns});
    matmul(stream, normed.slice(done, now), head_.weights[0], logits_chunk);
    with_float_type(logits_chunk.dtype, [&](auto type) {
      for (const auto logit : read_values<decltype(type)>(stream, logits_chunk)) own.push_back(to_float(logit));
    });
  }
  for (int member = 0; member < tp_.size(); ++member) {
    const Block part = parts_[static_cast<size_t>(member)];
    std::vector<float> columns_of =
        member == tp_.rank() ? own : std::vector<float>(static_cast<size_t>(count * part.count));
    tp_.broadcast(std::as_writable_bytes(std::span(columns_of)), member);
    for (int64_t row = 0; row < count; ++row)
      std::copy_n(columns_of.begin() + row * part.count, part.count, out.begin() + row * vocab_ + part.begin);
  }
  return out;
}

}  // namespace mw
