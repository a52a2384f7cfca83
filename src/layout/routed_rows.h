// How many rows the routed experts of a rank get, and how many a rank sends, as the byte table reserves them.
#pragma once

#include <cstdint>
#include <span>

#include "config/model_spec.h"
#include "config/run_spec.h"

namespace mw {

// Exact where rows do not grow, else what is committed at the start, the mean under even loads, and the most.
struct RoutedRows {
  bool grows = false;
  int64_t committed = 0, mean = 0, max = 0;
};

// A rank of an EP group of `ep` ranks that route `group_tokens` tokens together: it routes `own_tokens` of them, no
// rank routes more than `most_tokens`, and it holds `local_experts` experts.
struct RoutedShape {
  const MoeSpec& moe;
  const RunSpec& run;
  int64_t own_tokens = 0, most_tokens = 0, group_tokens = 0;
  int64_t ep = 1, local_experts = 0;
  // By way of the node: the group's ranks on this rank's node and their experts, the experts on each other node, and
  // the ranks of other nodes that this rank is the gateway of.
  int64_t near = 1, near_experts = 0;
  std::span<const int64_t> other_nodes = {};
  int64_t sources = 0;
};

// The replica slots of each rank of an EP group in a layer: alone, a rank has every expert.
int64_t replica_slots(const MoeRunSpec& run, int64_t ep);

// Rows of the rank's own tokens: one per (token, choice), exact.
RoutedRows own_rows(const RoutedShape& shape);
// Rows of the tokens of all ranks of the group: one per (token, choice), as exact as shape.group_tokens is.
RoutedRows rows_of_group(const RoutedShape& shape);
// The most of these in one chunk, where moe.row_chunks divides the ranks that they come from.
RoutedRows rows_of_source_chunk(const RoutedShape& shape);
// The rank's own tokens, those of the group, and parts of sums that the group's ranks have for the rank's own tokens.
RoutedRows own_tokens(const RoutedShape& shape);
RoutedRows group_tokens(const RoutedShape& shape);
RoutedRows part_rows(const RoutedShape& shape);
// Rows that the tokens of all ranks send to the rank's experts; rows that a capacity drops do not count. At most, those
// of its replicas come as well.
RoutedRows rows_of_experts(const RoutedShape& shape);
// The same where every expert gets as many rows from each rank as the fullest one.
RoutedRows padded_rows_of_experts(const RoutedShape& shape);
// Rows that a rank sends to all experts with such padding.
RoutedRows padded_send_rows(const RoutedShape& shape);

// By way of the node (layout/exchange_plan.h), merged or not; means for uniform choices without repetition and
// equal shares of the tokens, and on this node of its experts.
// Units that a source sends, merged: one for each rank of its node and each other node that a token's experts lie on.
RoutedRows merged_send_rows(const RoutedShape& shape);
// Units that reach the rank's experts.
RoutedRows unit_rows(const RoutedShape& shape, bool merges);
// Units that reach the rank as a gateway, and those that it makes of them for its node; none on a single node.
RoutedRows pilot_rows(const RoutedShape& shape, bool merges);
RoutedRows spread_rows(const RoutedShape& shape, bool merges);

}  // namespace mw
