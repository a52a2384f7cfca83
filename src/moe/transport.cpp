#include "moe/transport.h"

#include "ops/index.h"

namespace mw {

void RowCounts::read(Stream& stream, TensorView rows_per_expert_E) {
  rows_.resize(static_cast<size_t>(rows_per_expert_E.numel()));
  stream.queue().read(rows_.data(), rows_per_expert_E.as<int64_t>(), rows_.size() * sizeof(int64_t));
  read_ = stream.queue().mark();
}

void RowCounts::read(Stream& stream, const RoutedTokens& routed) {
  if (routed.choices.empty()) return read(stream, routed.layout.rows_per_expert_E);
  rows_.assign(static_cast<size_t>(routed.layout.experts), 0);
  choices_ = routed.choices;
  read_ = routed.counted;
}

const std::vector<int64_t>& RowCounts::wait(Stream& stream) {
  stream.queue().wait_until(read_);
  for (const std::span<const double> counts : choices_)
    for (size_t e = 0; e < rows_.size(); ++e) rows_[e] += static_cast<int64_t>(counts[e]);
  choices_.clear();
  return rows_;
}

ExpertWeights ResidentExperts::slice(int64_t begin, int64_t count) const {
  const auto first = static_cast<size_t>(begin), n = static_cast<size_t>(count);
  return {std::span(up).subspan(first, n), std::span(down).subspan(first, n)};
}

TensorView ResidentExperts::gradient(ExpertMatrix matrix, int64_t begin, int64_t count) const {
  return (matrix == ExpertMatrix::up ? d_up : d_down).slice(begin, count);
}

Trace::SentBytes sent_bytes(const RowExchange& exchange, const Islands& islands, int member) {
  Trace::SentBytes sent;
  for (int peer = 0; peer < std::ssize(exchange.send_counts); ++peer) {
    const int64_t bytes = exchange.send_counts[static_cast<size_t>(peer)] * exchange.row_bytes;
    if (peer != member) sent.all += bytes;
    if (!islands.is_near(peer, member)) sent.far += bytes;
  }
  return sent;
}

std::unique_ptr<Pending> start_exchanges(Stream& stream, Comm& ep, const Islands& islands,
                                         std::span<const RowExchange> exchanges) {
  for (const RowExchange& x : exchanges) stream.trace().count_sent(sent_bytes(x, islands, ep.rank()));
  return ep.all_to_all(stream, exchanges);
}

const ExpertPlacement& without_replicas(const ExpertPlacement& placement) {
  if (placement.has_replicas())
    fail(Exit::unsupported, "this transport does not support replicas of experts",
         "place each expert on one rank, or set moe.transport = \"flat\"");
  return placement;
}

void sum_returned_rows(Stream& stream, Pass pass, TensorView rows_RD, TensorView d_weights_R, TensorView row_of_TK,
                       TensorView gate_weights_TK, const CombineTarget& target) {
  if (pass == Pass::forward) {
    const TraceScope part(stream.trace(), "combine_tokens");
    combine_rows(stream, rows_RD, row_of_TK, gate_weights_TK, target.base_TD, target.out_TD);
    return;
  }
  const TraceScope part(stream.trace(), "combine_gradient");
  combine_rows(stream, rows_RD, row_of_TK, {}, target.base_TD, target.out_TD);
  gather_values(stream, d_weights_R, row_of_TK, target.d_weights_TK);
}

}  // namespace mw
