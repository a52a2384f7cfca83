#include "layout/routed_rows.h"

#include <algorithm>
#include <cmath>

#include "layout/exchange_volume.h"

namespace mw {
namespace {

// Of so many tokens of one rank, those that one expert keeps at most.
int64_t most_kept(const MoeSpec& moe, const RunSpec& run, int64_t tokens) {
  if (run.moe.capacity_factor <= 0 || tokens == 0) return tokens;
  const int64_t domain = run.moe.capacity_domain == CapacityDomain::sequence ? run.train.seq_len : tokens;
  return std::min(tokens, (tokens + domain - 1) / domain * expert_capacity(moe, domain, run.moe.capacity_factor));
}

int64_t times(int64_t rows, double factor) {
  return static_cast<int64_t>(std::ceil(static_cast<double>(rows) * factor));
}

RoutedRows exactly(int64_t rows) { return {false, rows, rows, rows}; }

// Rows that grow: `mean` of them on average, at most `max`.
RoutedRows growing(const RoutedShape& shape, double mean, int64_t max) {
  RoutedRows r{true, 0, 0, max};
  r.mean = std::min<int64_t>(max, std::llround(std::ceil(mean)));
  r.committed = std::min(max, times(r.mean, shape.run.moe.row_headroom));
  return r;
}

double chance_of_rank(const RoutedShape& shape) { return chance_of_any(shape.moe, shape.local_experts); }
// Of a rank of this node, with its mean of experts.
double chance_of_near_rank(const RoutedShape& shape) {
  return chance_of_any(shape.moe, (shape.near_experts + shape.near / 2) / shape.near);
}

double mean_tokens(const RoutedShape& shape) {
  return static_cast<double>(shape.group_tokens) / static_cast<double>(shape.ep);
}

}  // namespace

int64_t replica_slots(const MoeRunSpec& run, int64_t ep) { return ep > 1 ? run.replica_slots : 0; }

RoutedRows own_rows(const RoutedShape& shape) { return exactly(shape.own_tokens * shape.moe.top_k); }
RoutedRows rows_of_group(const RoutedShape& shape) { return exactly(shape.group_tokens * shape.moe.top_k); }

RoutedRows rows_of_source_chunk(const RoutedShape& shape) {
  const int64_t chunks = std::clamp<int64_t>(shape.run.moe.row_chunks, 1, shape.ep),
                ranks = (shape.ep + chunks - 1) / chunks;
  return exactly(std::min(shape.group_tokens, ranks * shape.most_tokens) * shape.moe.top_k);
}

RoutedRows own_tokens(const RoutedShape& shape) { return exactly(shape.own_tokens); }
RoutedRows group_tokens(const RoutedShape& shape) { return exactly(shape.group_tokens); }
RoutedRows part_rows(const RoutedShape& shape) { return exactly(shape.own_tokens * shape.ep); }

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
  const int64_t choices = shape.group_tokens * moe.top_k,
                experts = std::min(moe.experts, shape.local_experts + replica_slots(shape.run.moe, shape.ep));
  RoutedRows r{true, 0, 0, 0};
  r.max = std::min(shape.ep * shape.most_tokens * std::min(moe.top_k, experts),
                   experts * shape.ep * most_kept(moe, shape.run, shape.most_tokens));
  r.mean = std::min<int64_t>(
      r.max, std::llround(static_cast<double>(shape.local_experts * choices) / static_cast<double>(moe.experts)));
  r.committed = std::min(r.max, times(r.mean, shape.run.moe.row_headroom));
  return r;
}

RoutedRows merged_send_rows(const RoutedShape& shape) {
  double units = static_cast<double>(shape.near) * chance_of_near_rank(shape);
  for (const int64_t experts : shape.other_nodes) units += chance_of_any(shape.moe, experts);
  return growing(shape, static_cast<double>(shape.own_tokens) * units,
                 shape.own_tokens * std::min(shape.moe.top_k, shape.near + std::ssize(shape.other_nodes)));
}

RoutedRows unit_rows(const RoutedShape& shape, bool merges) {
  if (!merges) return rows_of_experts(shape);
  return growing(shape, static_cast<double>(shape.group_tokens) * chance_of_rank(shape),
                 std::min(shape.ep * shape.most_tokens, rows_of_experts(shape).max));
}

RoutedRows pilot_rows(const RoutedShape& shape, bool merges) {
  if (shape.other_nodes.empty()) return {};
  const MoeSpec& moe = shape.moe;
  const int64_t experts = shape.near_experts, copies = experts + shape.near * replica_slots(shape.run.moe, shape.ep),
                of_token = merges ? 1 : std::min(moe.top_k, copies);
  const double units = merges ? chance_of_any(moe, experts)
                              : static_cast<double>(moe.top_k * experts) / static_cast<double>(moe.experts);
  return growing(shape, mean_tokens(shape) * static_cast<double>(shape.sources) * units,
                 shape.sources * shape.most_tokens * of_token);
}

RoutedRows spread_rows(const RoutedShape& shape, bool merges) {
  const RoutedRows pilots = pilot_rows(shape, merges);
  if (!merges || !pilots.grows) return pilots;
  const double units = static_cast<double>(shape.sources * shape.near) * chance_of_near_rank(shape);
  return growing(shape, mean_tokens(shape) * units, pilots.max * std::min(shape.moe.top_k, shape.near));
}

RoutedRows padded_send_rows(const RoutedShape& shape) {
  return padded_rows_of_experts(
      {shape.moe, shape.run, shape.most_tokens, shape.most_tokens, shape.most_tokens, 1, shape.moe.experts});
}

}  // namespace mw
