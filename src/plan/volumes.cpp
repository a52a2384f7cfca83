#include "plan/volumes.h"

#include "spec/recompute.h"

namespace mw {

double exchanged_bytes(const ModelSpec& model, const RunSpec& run, const Mesh& mesh, TransportKind transport) {
  if (transport == TransportKind::in_place) return 0;
  const double passes = is_recomputed(recompute_mode(run), "received") ? 5 : 4;
  const double row = passes * static_cast<double>(model.width * size_of(run.dtype())) + 2 * sizeof(float);
  // Tensor-sharded experts: every rank of TP routes all tokens.
  const double tokens = static_cast<double>(run.train.global_batch * run.train.seq_len) * (mesh.ted ? mesh.tp : 1);
  const double elsewhere = 1 - 1.0 / mesh.ep;
  double choices = 0;  // of a token, in all layers
  for (const LayerSpec& layer : model.layers)
    if (layer.moe.experts > 0) choices += static_cast<double>(layer.moe.top_k);
  return tokens * choices * elsewhere * row;
}

double distinct_groups(int64_t experts, int64_t top_k, int64_t groups) {
  // C(E - E/N, k) / C(E, k): no expert of one group is chosen.
  const double elsewhere = static_cast<double>(experts) - static_cast<double>(experts) / static_cast<double>(groups);
  double none = 1;
  for (int64_t i = 0; i < top_k; ++i) {
    const auto taken = static_cast<double>(i);
    none *= elsewhere > taken ? (elsewhere - taken) / (static_cast<double>(experts) - taken) : 0;
  }
  return static_cast<double>(groups) * (1 - none);
}

double redundancy(int64_t experts, int64_t top_k, int64_t groups) {
  return 1 - distinct_groups(experts, top_k, groups) / static_cast<double>(top_k);
}

RowsBetweenNodes rows_between_nodes(int64_t experts, int64_t top_k, int64_t groups) {
  const double elsewhere = 1 - 1 / static_cast<double>(groups);
  return {static_cast<double>(top_k) * elsewhere, distinct_groups(experts, top_k, groups) * elsewhere};
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

double migration_bytes(int64_t experts, int64_t width, int64_t expert_width, int64_t ranks,
                       int64_t bytes_per_parameter) {
  return static_cast<double>(3 * experts * width * expert_width * bytes_per_parameter) / static_cast<double>(ranks);
}

}  // namespace mw
