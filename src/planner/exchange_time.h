// Seconds that the rows of one MoE layer travel between the ranks of an EP group: each leg of the exchange over its
// links, from the closed forms of layout/exchange_volume.h. Planner, moe.transport = "auto" and bench/exchange read it.
#pragma once

#include <cstdint>

#include "layout/transport.h"
#include "layout/weight_gather.h"
#include "planner/transfers.h"

namespace mw {

// The four exchanges of a training step in one layer, in their order.
enum class ExchangePhase : uint8_t { dispatch, combine, gradient_dispatch, gradient_combine };

struct ExchangeShape {
  const MoeSpec& moe;
  const TransportTraits& traits;  // of a transport that exchanges rows
  RankGroup group;                // the EP group
  int64_t near = 1;               // its members that share a node; divides group.size, else rows take the direct way
  double tokens = 0;              // that a rank routes, on average
  double row_bytes = 0;           // of a token's row
  double load = 1;                // rows of the fullest rank over the mean
  double link_load = 1;           // the same of the ranks that share a link between nodes
  double pieces = 1;              // chunks: each is an exchange of its own
};

// Seconds on the links. Rows, gate weights and choices travel as messages of their own, which on GPUs start together.
double link_seconds(const ExchangeShape& shape, ExchangePhase phase, const Transfers& transfers);

// Bytes that a rank reads and writes to pack rows, pass them on, and sum them, the fullest rank of a node included:
// everything but what the experts read and write.
double copied_bytes(const ExchangeShape& shape, ExchangePhase phase);

// Seconds on the links of one piece of gathered weights (layout/weight_gather.h), in each pass, and of the sums of its
// gradients. overlaps: collectives go around a ring beside compute, as on GPUs; else all ranks exchange their parts.
struct GatherSeconds {
  double forward = 0, backward = 0, sums = 0;
};
GatherSeconds gather_seconds(const WeightGather& gather, RankGroup group, bool overlaps, const Transfers& transfers);

}  // namespace mw
