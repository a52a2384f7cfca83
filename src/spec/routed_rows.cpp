#include "spec/routed_rows.h"

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

RoutedRows routed_rows(const MoeSpec& moe, const RunSpec& run, TransportKind transport, int64_t own_tokens,
                       int64_t most_tokens, int ep, int64_t local_experts) {
  RoutedRows r;
  if (transport == TransportKind::in_place) {
    r.committed = r.mean = r.max = own_tokens * moe.top_k;
    return r;
  }
  r.grows = true;
  const int64_t choices = most_tokens * moe.top_k,
                of_full_experts = local_experts * ep * most_kept(moe, run, most_tokens);
  if (transport == TransportKind::padded) {
    r.max = of_full_experts;
    r.mean = std::min(r.max, local_experts * ep * std::max<int64_t>(1, (choices + moe.experts - 1) / moe.experts));
    r.committed =
        std::min(r.max, times(r.mean, run.moe.capacity_factor > 0 ? run.moe.capacity_factor : run.moe.row_headroom));
    return r;
  }
  r.max = std::min(ep * most_tokens * std::min(moe.top_k, local_experts), of_full_experts);
  r.mean = std::min<int64_t>(
      r.max, std::llround(static_cast<double>(ep * local_experts * choices) / static_cast<double>(moe.experts)));
  r.committed = std::min(r.max, times(r.mean, run.moe.row_headroom));
  return r;
}

RoutedRows padded_send_rows(const MoeSpec& moe, const RunSpec& run, int64_t tokens) {
  return routed_rows(moe, run, TransportKind::padded, tokens, tokens, 1, moe.experts);
}

}  // namespace mw
