#include "model/loss_head.h"

#include <algorithm>

#include "ops/cross_entropy.h"
#include "ops/norm.h"

namespace mw {

LossHead::LossHead(const Plan& plan, ParamStore& params, TensorStore& store)
    : width_(plan.model.width),
      vocab_(plan.model.vocab),
      norm_eps_(static_cast<float>(plan.model.norm_eps)),
      gain_(params.find("final_norm")),
      head_(params.find(plan.model.tie_embeddings ? "embed" : "head")),
      rstd_(store.fixed("work.final_rstd")),
      normed_(store.fixed("work.normed")),
      d_normed_(store.fixed("work.d_branch")),
      logits_(store.fixed("work.logits")),
      d_logits_(plan.run.dtype() == DType::bf16 ? store.fixed("work.d_logits_bf16") : logits_),
      token_loss_(store.fixed("work.token_loss")) {}

void LossHead::normalise(Stream& stream, TensorView x_TD, TensorView normed_TD) {
  rms_norm(stream, x_TD, gain_.master, norm_eps_, normed_TD, take_front(rstd_, {x_TD.dim(0)}));
}

double LossHead::loss(Stream& stream, const int32_t* labels_T, TensorView x_TD, float seed, TensorView d_x_TD) {
  const TraceScope part(stream.trace(), "head_and_loss");
  const int64_t tokens = x_TD.dim(0);
  const TensorView normed = take_front(normed_, {tokens, width_}), d_normed = take_front(d_normed_, {tokens, width_}),
                   losses = take_front(token_loss_, {tokens}), labels = token_view(labels_T, tokens);
  normalise(stream, x_TD, normed);
  const int64_t chunk = logits_.dim(0);
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    const int64_t count = std::min(chunk, tokens - begin);
    const TensorView logits_chunk = take_front(logits_, {count, vocab_});
    matmul(stream, normed.slice(begin, count), head_.weights[0], logits_chunk);
    const TensorView d_chunk = seed > 0 ? take_front(d_logits_, {count, vocab_}) : TensorView();
    cross_entropy(stream, logits_chunk, labels.slice(begin, count), seed, losses.slice(begin, count), d_chunk);
    if (seed <= 0) continue;
    matmul_d_input(stream, d_chunk, head_.weights[0], d_normed.slice(begin, count));
    matmul_d_weight(stream, d_chunk, normed.slice(begin, count), head_.grad);
  }
  if (seed > 0)
    rms_norm_backward(stream, x_TD, gain_.master, take_front(rstd_, {tokens}), d_normed, {}, d_x_TD, gain_.grad);
  double sum = 0;
  for (const float loss : read_values<float>(stream, losses)) sum += static_cast<double>(loss);
  return sum;
}

std::vector<float> LossHead::logits(Stream& stream, TensorView x_TD) {
  const int64_t count = x_TD.dim(0), chunk = logits_.dim(0);
  const TensorView normed = take_front(normed_, {count, width_});
  normalise(stream, x_TD, normed);
  std::vector<float> out(static_cast<size_t>(count * vocab_));
  for (int64_t done = 0; done < count; done += chunk) {
    const int64_t now = std::min(chunk, count - done);
    const TensorView logits_chunk = take_front(logits_, {now, vocab_});
    matmul(stream, normed.slice(done, now), head_.weights[0], logits_chunk);
    stream.queue().copy(out.data() + done * vocab_, logits_chunk.data, static_cast<size_t>(logits_chunk.bytes()));
  }
  stream.wait();
  return out;
}

}  // namespace mw
