#include "planner/exchange_time.h"

#include <algorithm>
#include <cmath>

#include "layout/exchange_volume.h"

namespace mw {
namespace {

bool goes_out(ExchangePhase phase) {
  return phase == ExchangePhase::dispatch || phase == ExchangePhase::gradient_dispatch;
}

bool goes_by_node(const ExchangeShape& shape) { return shape.traits.by_node && shape.group.size % shape.near == 0; }

// Bytes of a row beside the row itself, and the messages that they travel in.
struct Extras {
  double messages = 0, bytes = 0;
};

Extras extras_of(const ExchangeShape& shape, ExchangePhase phase) {
  const bool of_all_choices = shape.traits.merges || shape.traits.slices_experts;
  const double gates = sizeof(float) * (of_all_choices ? static_cast<double>(shape.moe.top_k) : 1);
  switch (phase) {
    case ExchangePhase::dispatch:  // gate weights, choices
      return {goes_by_node(shape) || shape.traits.slices_experts ? 2.0 : 1.0, gates};
    case ExchangePhase::gradient_combine: return {1, gates};  // gradients of gate weights
    default: return {};
  }
}

// Rows of a token that its rank sends, that gateways pass on, that gateways get, and that experts' ranks get.
struct RowsPerToken {
  double sent = 0, spread = 0, pilots = 0, units = 0;
};

RowsPerToken rows_by_node(const ExchangeShape& shape) {
  const int64_t nodes = shape.group.size / shape.near;
  const auto n = static_cast<double>(nodes), k = static_cast<double>(shape.moe.top_k);
  if (!shape.traits.merges) return {k, k * (n - 1) / n, k * (n - 1) / n, k};
  const double units = distinct_groups(shape.moe.experts, shape.moe.top_k, shape.group.size),
               pilots = distinct_nodes(shape.moe, nodes) * (n - 1) / n;
  return {units / n + pilots, units * (n - 1) / n, pilots, units};
}

// The units of the fullest rank, relative to the mean. Merged, it gets one for each token that has some of its experts:
// with a share s of all choices, 1 - (1 - s)^K of the tokens, as if they were drawn with repetition.
double load_of_units(const ExchangeShape& shape) {
  if (!shape.traits.merges) return shape.load;
  const double share = 1 / static_cast<double>(shape.group.size);
  const auto tokens = [&](double s) {
    return 1 - std::pow(1 - std::min(1.0, s), static_cast<double>(shape.moe.top_k));
  };
  return tokens(shape.load * share) / tokens(share);
}

}  // namespace

double link_seconds(const ExchangeShape& shape, ExchangePhase phase, const Transfers& transfers) {
  const Extras extras = extras_of(shape, phase);
  // An all-to-all of so many rows of a token from each member, those for itself included.
  const auto exchange = [&](RankGroup group, double rows, double beyond) {
    const double count = rows * shape.tokens / shape.pieces;
    if (transfers.start_together())
      return shape.pieces *
             transfers.all_to_all(group, count * (shape.row_bytes + extras.messages * extras.bytes), beyond);
    return shape.pieces * (transfers.all_to_all(group, count * shape.row_bytes, beyond) +
                           extras.messages * transfers.all_to_all(group, count * extras.bytes, beyond));
  };
  if (shape.traits.slices_experts) return exchange(shape.group, static_cast<double>(shape.group.size), 1);
  if (!goes_by_node(shape))
    return exchange(shape.group, shape.load * static_cast<double>(shape.moe.top_k), shape.link_load / shape.load);
  // First between nodes, then within them. What a gateway takes does not follow the load; what an expert's rank gets
  // does, and where it is alone on its node it is the gateway.
  const int64_t nodes = shape.group.size / shape.near;
  const LinkRows rows = rows_per_token(shape.moe, shape.traits, nodes, shape.near);
  const auto leg = [&](int64_t members, int64_t stride, double rows_to_others) {
    if (members == 1) return 0.0;
    return exchange({members, stride}, rows_to_others * static_cast<double>(members) / static_cast<double>(members - 1),
                    1);
  };
  const double load = load_of_units(shape);
  return leg(nodes, shape.group.stride * shape.near, (shape.near == 1 ? load : 1) * rows.far) +
         leg(shape.near, shape.group.stride, load * rows.near);
}

double copied_bytes(const ExchangeShape& shape, ExchangePhase phase) {
  const double bytes = shape.tokens * shape.row_bytes, k = static_cast<double>(shape.moe.top_k);
  if (shape.traits.slices_experts) {  // the rows of all tokens are summed by token, then the parts of all ranks
    const auto ranks = static_cast<double>(shape.group.size);
    return goes_out(phase) ? 0 : (ranks * (k + 2) + 2) * bytes;
  }
  if (!goes_by_node(shape)) return (goes_out(phase) ? 2 * k : k + 2) * bytes;
  const RowsPerToken rows = rows_by_node(shape);
  if (goes_out(phase)) return 2 * (rows.sent + rows.spread) * bytes;
  return (shape.load * k + load_of_units(shape) * rows.units + rows.spread + rows.pilots + rows.sent + 2) * bytes;
}

GatherSeconds gather_seconds(const WeightGather& gather, RankGroup group, bool overlaps, const Transfers& transfers) {
  const auto experts = static_cast<double>(gather.experts.size()), pieces = static_cast<double>(gather.pieces());
  const auto move = [&](int64_t bytes_of_expert) {
    const double bytes = experts * static_cast<double>(bytes_of_expert) / pieces;
    return overlaps ? transfers.ring(group, bytes, 1) : transfers.all_to_all(group, bytes);
  };
  const ExpertForms& forms = gather.forms;
  return {move(forms.forward_bytes()), move(forms.backward_bytes()), move(forms.gradient_bytes())};
}

}  // namespace mw
