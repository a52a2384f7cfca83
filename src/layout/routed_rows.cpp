#include "layout/routed_rows.h"

#include <algorithm>
#include <cmath>

namespace mw {
namespace {

// Of so many tokens of one rank, those that one expert keeps at most.
int64_t most_kept(const MoeSpec& moe, const RunSpec& run, int64_t tokens) {
  if (run.moe.capacity_factor <= 0 || tokens == 0) return tokens;
  const int64_t domain = run.moe.capacity_domain == "sequence" ? run.train.seq_len : tokens;
  return std::min(tokens, (tokens + domain - 1) / domain * expert_capacity(moe, domain, run.moe.capacity_factor));
}

int64_t times(int64_t rows, double factor) {
  return static_cast<int64_t>(std::ceil(static_cast<double>(rows) * factor));
}

}  // namespace

RoutedRows own_rows(const RoutedShape& shape) {
  const int64_t rows = shape.own_tokens * shape.moe.top_k;
  return {false, rows, rows, rows};
}

RoutedRows padded_rows_of_experts(const RoutedShape& shape) {
  const MoeSpec& moe = shape.moe;
  const MoeRunSpec& run = shape.run.moe;
  const int64_t experts = shape.local_experts * shape.ep, choices = shape.most_tokens * moe.top_k;
  RoutedRows r{true, 0, 0, experts * most_kept(moe, shape.run, shape.most_tokens)};
  r.mean = std::min(r.max, experts * std::max<int64_t>(1, (choices + moe.experts - 1) / moe.experts));
  r.committed = std::min(r.max, times(r.mean, run.capacity_factor > 0 ? run.capacity_factor : run.row_headroom));
  return r;
}

RoutedRows rows_of_experts(const RoutedShape& shape) {
  const MoeSpec& moe = shape.moe;
  const int64_t choices = shape.group_tokens * moe.top_k;
  RoutedRows r{true, 0, 0, 0};
  r.max = std::min(shape.ep * shape.most_tokens * std::min(moe.top_k, shape.local_experts),
                   shape.local_experts * shape.ep * most_kept(moe, shape.run, shape.most_tokens));
  r.mean = std::min<int64_t>(
      r.max, std::llround(static_cast<double>(shape.local_experts * choices) / static_cast<double>(moe.experts)));
  r.committed = std::min(r.max, times(r.mean, shape.run.moe.row_headroom));
  return r;
}

RoutedRows padded_send_rows(const RoutedShape& shape) {
  return padded_rows_of_experts(
      {shape.moe, shape.run, shape.most_tokens, shape.most_tokens, shape.most_tokens, 1, shape.moe.experts});
}

}  // namespace mw
