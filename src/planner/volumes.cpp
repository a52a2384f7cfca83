#include "planner/volumes.h"

#include <algorithm>

namespace mw {

double exchanged_bytes(const ModelSpec& model, const RunSpec& run, const Mesh& mesh,
                       const std::vector<TransportKind>& transports) {
  const double passes = is_recomputed(recompute_mode(run), "received") ? 5 : 4;
  const double row = passes * static_cast<double>(model.width * size_of(run.dtype())) + 2 * sizeof(float);
  // Tensor-sharded experts: every rank of TP routes all tokens.
  const double tokens = static_cast<double>(run.train.global_batch * run.train.seq_len) * (mesh.ted ? mesh.tp : 1);
  const double elsewhere = 1 - 1.0 / mesh.ep;
  double choices = 0;  // of a token, in all layers
  for (size_t i = 0; i < model.layers.size(); ++i)
    if (traits_of(transports[i]).exchanges()) choices += static_cast<double>(model.layers[i].moe.top_k);
  return tokens * choices * elsewhere * row;
}

namespace {

// C(others, chosen) / C(all, chosen): all that is chosen is among the others.
double chance_of_others(double all, double others, int64_t chosen) {
  double chance = 1;
  for (int64_t i = 0; i < chosen; ++i) {
    const auto taken = static_cast<double>(i);
    chance *= others > taken ? (others - taken) / (all - taken) : 0;
  }
  return chance;
}

// C(of, chosen).
double combinations(int64_t of, int64_t chosen) {
  double count = 1;
  for (int64_t i = 0; i < chosen; ++i) count *= static_cast<double>(of - i) / static_cast<double>(i + 1);
  return count;
}

}  // namespace

double distinct_groups(int64_t experts, int64_t top_k, int64_t groups) {
  const auto all = static_cast<double>(experts), n = static_cast<double>(groups);
  return n * (1 - chance_of_others(all, all - all / n, top_k));
}

double distinct_nodes(const MoeSpec& moe, int64_t nodes) {
  if (moe.groups <= 1) return distinct_groups(moe.experts, moe.top_k, nodes);
  // Sums over how many of the groups that lie on a node are kept; a node may also hold a part of one.
  const auto group = static_cast<double>(moe.experts) / static_cast<double>(moe.groups);
  const double kept = group * static_cast<double>(moe.kept_groups);
  const int64_t own = std::max<int64_t>(1, moe.groups / nodes);
  const double of_each = std::min(group, static_cast<double>(moe.experts) / static_cast<double>(nodes));
  double none = 0;
  for (int64_t i = 0; i <= std::min(own, moe.kept_groups); ++i)
    if (moe.kept_groups - i <= moe.groups - own)
      none += combinations(own, i) * combinations(moe.groups - own, moe.kept_groups - i) *
              chance_of_others(kept, kept - of_each * static_cast<double>(i), moe.top_k);
  return static_cast<double>(nodes) * (1 - none / combinations(moe.groups, moe.kept_groups));
}

double redundancy(int64_t experts, int64_t top_k, int64_t groups) {
  return 1 - distinct_groups(experts, top_k, groups) / static_cast<double>(top_k);
}

RowsBetweenNodes rows_between_nodes(const MoeSpec& moe, int64_t nodes) {
  const double elsewhere = 1 - 1 / static_cast<double>(nodes);
  return {static_cast<double>(moe.top_k) * elsewhere, distinct_nodes(moe, nodes) * elsewhere};
}

std::vector<ExchangeVolume> exchange_volumes(const LayerSpec& layer, int64_t width, double tokens, GroupShape group,
                                             int64_t element_bytes) {
  const MoeSpec& m = layer.moe;
  const auto nodes = static_cast<double>(group.nodes), near = static_cast<double>(group.near), ranks = nodes * near,
             k = static_cast<double>(m.top_k);
  const double there_and_back = 2 * tokens * static_cast<double>(width * element_bytes);
  const double elsewhere = (nodes - 1) / nodes, others = (near - 1) / near;
  const double copies = distinct_nodes(m, group.nodes);
  const double weights = static_cast<double>(m.experts * m.width * width * element_bytes) *
                         static_cast<double>(halves_of(layer.activation) + 1);
  // Around a ring of n members each sends what all but one have; one link of `near` leaves the node.
  const double own_weights = weights / ranks;
  return {{"flat", there_and_back * k * others / nodes, there_and_back * k * elsewhere},
          {"halo", there_and_back * k * others, there_and_back * k * elsewhere, true},
          {"bypass", there_and_back * (k - copies * elsewhere) * others, there_and_back * copies * elsewhere, true},
          {"gather_tokens", there_and_back * (ranks - nodes), there_and_back * (nodes - 1)},
          {"gather_weights", own_weights * (ranks - nodes), own_weights * (nodes - 1)}};
}

double kept_row_bytes(int64_t rows, int64_t width, int64_t expert_width, bool gated, int64_t element_bytes) {
  const int64_t hidden = gated ? 3 : 2;
  return static_cast<double>(rows * (2 * width + hidden * expert_width) * element_bytes);
}

double ssmb_saving(double capacity, int64_t top_k, int64_t tokens, int64_t width, int64_t tp) {
  return 4 * capacity * static_cast<double>(top_k * tokens * width) * static_cast<double>(tp - 1) /
         static_cast<double>(tp);
}

double ssmb_cost(int64_t expert_width, int64_t width, int64_t tp) {
  return 8 * static_cast<double>(expert_width * width) * static_cast<double>(tp - 1) / static_cast<double>(tp);
}

// Forward gathers the input and sums the output. Backward gathers the gradient, and the input again for the weights,
// and sums. Recomputed attention moves as forward does.
TokenMoves attention_moves(Recompute mode) { return {2, is_recomputed(mode, "x_mid") ? 5 : 3}; }

TokenMoves feed_forward_moves(FeedForwardKind kind, bool ted) {
  if (kind == FeedForwardKind::moe && !ted) return {};
  return {2, 3};
}

double migration_bytes(int64_t experts, int64_t width, int64_t expert_width, int64_t ranks,
                       int64_t bytes_per_parameter) {
  return static_cast<double>(3 * experts * width * expert_width * bytes_per_parameter) / static_cast<double>(ranks);
}

}  // namespace mw
