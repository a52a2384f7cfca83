#include "planner/volumes.h"

#include <algorithm>

namespace mw {

namespace {

// What the members of a group send in a step, of a layer whose weights they gather so often.
LinkBytes gathered_bytes(const WeightGather& gather, const PieceGathers& often, int64_t micro_batches,
                         const Islands& islands) {
  const ExpertForms& forms = gather.forms;
  LinkBytes bytes;
  for (size_t piece = 0; piece < gather.counts.size(); ++piece) {
    const int64_t of_expert = often.forward[piece] * forms.forward_bytes() +
                              often.backward[piece] * forms.backward_bytes() + micro_batches * forms.gradient_bytes();
    for (int owner = 0; owner < islands.size(); ++owner)
      for (int other = 0; other < islands.size(); ++other) {
        if (other == owner) continue;
        (islands.is_near(owner, other) ? bytes.near : bytes.far) +=
            static_cast<double>(gather.counts[piece][static_cast<size_t>(owner)] * of_expert);
      }
  }
  return bytes;
}

}  // namespace

LinkBytes exchanged_bytes(const ModelSpec& model, const RunSpec& run, const Mesh& mesh, const NodeMap& nodes,
                          const std::vector<TransportKind>& transports, const std::vector<WeightGather>& gathers,
                          const std::vector<PieceGathers>& counts) {
  const bool again = is_recomputed(run.recompute, "received");
  const int64_t row_bytes = model.width * size_of(run.train.dtype);
  // Tensor-sharded experts: every rank of TP routes all tokens.
  const double tokens = static_cast<double>(run.train.global_batch * run.train.seq_len) * (mesh.ted ? mesh.tp : 1);
  std::vector<Islands> groups;  // of the first stage
  for (int rank = 0; rank < mesh.dp * mesh.tp; ++rank)
    if (coords_of(mesh, rank).ep == 0) groups.push_back(make_islands(group_of(mesh, MeshAxis::ep, rank), nodes));
  const double of_group = tokens / static_cast<double>(groups.size());
  LinkBytes bytes;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const TransportTraits& traits = traits_of(transports[i]);
    for (const Islands& islands : groups) {
      if (!traits.gathers_weights) break;
      const LinkBytes of_layer = gathered_bytes(gathers[i], counts[i], run.train.micro_batches, islands);
      bytes.near += of_layer.near;
      bytes.far += of_layer.far;
    }
    if (!traits.exchanges() || model.layers[i].feed_forward != FeedForwardKind::moe) continue;
    const MoeSpec& moe = model.layers[i].moe;
    const double each = bytes_per_row(moe, traits, row_bytes, again) * of_group;
    for (const Islands& islands : groups) {
      const LinkRows rows = rows_per_token(moe, traits, islands);
      bytes.near += each * rows.near;
      bytes.far += each * rows.far;
    }
  }
  return bytes;
}

RowsBetweenNodes rows_between_nodes(const MoeSpec& moe, int64_t nodes) {
  const double elsewhere = 1 - 1 / static_cast<double>(nodes);
  return {static_cast<double>(moe.top_k) * elsewhere, distinct_nodes(moe, nodes) * elsewhere};
}

std::vector<ExchangeVolume> exchange_volumes(const LayerSpec& layer, int64_t width, double tokens, GroupShape group,
                                             int64_t element_bytes) {
  const MoeSpec& m = layer.moe;
  const auto nodes = static_cast<double>(group.nodes), near = static_cast<double>(group.near), ranks = nodes * near;
  const double there_and_back = 2 * tokens * static_cast<double>(width * element_bytes);
  const double weights = static_cast<double>(m.experts * m.width * width * element_bytes) *
                         static_cast<double>(halves_of(layer.activation) + 1);
  // Around a ring of n members each sends what all but one have; one link of `near` leaves the node.
  const double own_weights = weights / ranks;
  const auto of_rows = [&](TransportKind kind) {
    const LinkRows rows = rows_per_token(m, traits_of(kind), group.nodes, group.near);
    const LinkBytes bytes{there_and_back * rows.near, there_and_back * rows.far};
    return ExchangeVolume{traits_of(kind).name.data(), bytes, bytes};
  };
  const auto around = [&](double bytes) { return LinkBytes{bytes * (ranks - nodes), bytes * (nodes - 1)}; };
  const double own_sums = own_weights * static_cast<double>(size_of(DType::f32)) / static_cast<double>(element_bytes);
  return {of_rows(TransportKind::flat),
          of_rows(TransportKind::halo),
          of_rows(TransportKind::bypass),
          of_rows(TransportKind::gather_tokens),
          {"gather_weights", around(own_weights), around(own_weights + own_sums)}};
}

// Forward gathers the input and sums the output. Backward gathers the gradient, and the input again for the weights,
// and sums. Recomputed attention moves as forward does.
TokenMoves attention_moves(Recompute mode) { return {2, is_recomputed(mode, "x_mid") ? 5 : 3}; }

TokenMoves feed_forward_moves(FeedForwardKind kind, bool ted) {
  if (kind == FeedForwardKind::moe && !ted) return {};
  return {2, 3};
}

}  // namespace mw
