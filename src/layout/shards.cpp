#include "layout/shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "base/text.h"

namespace mw {
namespace {

const LayerSpec& layer_of(const ParamRow& row, const ModelSpec& model) {
  return model.layers[static_cast<size_t>(row.layer)];
}

// Whether a parameter is cut over TP; else every rank of the stage, or of EDP, holds all of it.
bool is_cut_over_tp(const ParamRow& row, const ModelSpec& model, const Mesh& mesh) {
  if (mesh.tp == 1 || row.cut == TensorCut::none) return false;
  if (row.cut == TensorCut::expert_width || row.cut == TensorCut::shared_width) return mesh.ted;
  return row.cut != TensorCut::kv_rows || layer_of(row, model).attention.kv_heads >= mesh.tp;
}

// Entries that one head has of a parameter cut by heads.
int64_t head_entries(TensorCut cut, const AttentionSpec& a) {
  if (cut == TensorCut::query_columns) return a.value_dim();
  if (cut == TensorCut::query_heads) return 1;
  return cut == TensorCut::kv_rows && a.is_latent() ? a.latent.nope_dim + a.latent.value_dim : a.head_dim;
}

// The part that a rank holds of a dense parameter, or of each expert.
SlicePiece tp_piece(const ParamRow& row, const ModelSpec& model, const Mesh& mesh, int tp_rank) {
  if (!is_cut_over_tp(row, model, mesh)) return {0, 0, 0, row.shape[0]};
  const int tp = mesh.tp;
  if (row.cut == TensorCut::vocab_rows) {
    const Block part = vocab_part(model, tp, tp_rank);
    return {0, part.begin, 0, part.count};
  }
  const LayerSpec& layer = layer_of(row, model);
  const HeadShard shard = head_shard(layer.attention, tp, tp_rank);
  const int64_t each = head_entries(row.cut, layer.attention);
  const auto heads = [&](int axis, Block block) { return SlicePiece{axis, block.begin * each, 0, block.count * each}; };
  const auto widths = [&](int axis, int64_t width) {
    const Block block = block_of(width, tp, tp_rank);
    return SlicePiece{axis, block.begin, 0, block.count};
  };
  switch (row.cut) {
    case TensorCut::query_rows:
    case TensorCut::query_heads: return heads(0, shard.heads);
    case TensorCut::kv_rows: return heads(0, shard.kv_heads);
    case TensorCut::query_columns: return heads(1, shard.heads);
    case TensorCut::width: return widths(1, layer.dense_width);
    case TensorCut::shared_width: return widths(1, layer.moe.shared_width);
    case TensorCut::expert_width: return widths(2, layer.moe.width);
    case TensorCut::none:
    case TensorCut::vocab_rows: break;
  }
  MW_CHECK(false, "{} is not cut", row.name);
}

// The part that a rank holds of each expert.
SlicePiece expert_piece(const ParamRow& row, const ModelSpec& model, const ExpertPlacement& placement, const Mesh& mesh,
                        const MeshCoords& coords) {
  if (!placement.is_sliced() || row.cut != TensorCut::expert_width) return tp_piece(row, model, mesh, coords.tp);
  const auto own = placement.widths.begin() + coords.ep;
  return {2, std::accumulate(placement.widths.begin(), own, int64_t{0}), 0, *own};
}

}  // namespace

Block block_of(int64_t n, int64_t parts, int64_t index) {
  const int64_t each = n / parts, more = n % parts;
  return {index * each + std::min(index, more), each + (index < more ? 1 : 0)};
}

HeadShard head_shard(const AttentionSpec& a, int tp, int tp_rank) {
  const int64_t group = a.heads / a.kv_heads;  // query heads that read one key/value head
  HeadShard shard;
  shard.shares_kv = a.kv_heads < tp;
  if (shard.shares_kv) {
    const int64_t sharers = tp / a.kv_heads, kv_head = tp_rank / sharers;
    shard.kv_heads = {kv_head, 1};
    shard.heads = block_of(group, sharers, tp_rank % sharers);
    shard.heads.begin += kv_head * group;
  } else {
    shard.kv_heads = block_of(a.kv_heads, tp, tp_rank);
    shard.heads = {shard.kv_heads.begin * group, shard.kv_heads.count * group};
  }
  return shard;
}

bool norms_span_ranks(const AttentionSpec& attention, int tp) {
  return tp > 1 && attention.qk_norm == QkNorm::full_width;
}

AttentionSpec local_attention(const AttentionSpec& attention, const Mesh& mesh, const MeshCoords& coords) {
  AttentionSpec local = attention;
  const HeadShard shard = head_shard(attention, mesh.tp, coords.tp);
  local.heads = shard.heads.count;
  local.kv_heads = shard.kv_heads.count;
  return local;
}

std::array<AttentionSpec, 2> local_attention_at_ends(const AttentionSpec& attention, const Mesh& mesh) {
  MeshCoords last;
  last.tp = mesh.tp - 1;
  return {local_attention(attention, mesh, {}), local_attention(attention, mesh, last)};
}

LayerSpec local_layer(const LayerSpec& layer, const ExpertPlacement& placement, const Mesh& mesh,
                      const MeshCoords& coords) {
  LayerSpec local = layer;
  local.attention = local_attention(layer.attention, mesh, coords);
  local.dense_width = block_of(layer.dense_width, mesh.tp, coords.tp).count;
  if (placement.is_sliced()) local.moe.width = placement.widths[static_cast<size_t>(coords.ep)];
  if (!mesh.ted) return local;
  local.moe.width = block_of(layer.moe.width, mesh.tp, coords.tp).count;
  local.moe.shared_width = block_of(layer.moe.shared_width, mesh.tp, coords.tp).count;
  return local;
}

// Large parts begin at multiples of 64: packed weights are then plain copies, and rows of logits suit matrix products.
Block vocab_part(const ModelSpec& model, int tp, int tp_rank) {
  const int64_t unit = model.vocab >= 1024 * int64_t{tp} ? 64 : 1;
  const Block units = block_of((model.vocab + unit - 1) / unit, tp, tp_rank);
  const int64_t begin = units.begin * unit;
  return {begin, std::min(units.count * unit, model.vocab - begin)};
}

Block routed_tokens(const Mesh& mesh, const MeshCoords& coords, int64_t tokens) {
  return mesh.ted ? Block{0, tokens} : block_of(tokens, mesh.tp, coords.tp);
}

int64_t widest_entry(const ParamRow& row, const ModelSpec& model, const std::vector<ExpertPlacement>& placements,
                     const Mesh& mesh) {
  const int64_t entry = row.numel() / row.shape.front();
  const ExpertPlacement& placement = placements[static_cast<size_t>(row.layer)];
  MeshCoords widest;  // the first of TP has the most
  widest.ep = placement.widest();
  const SlicePiece piece = expert_piece(row, model, placement, mesh, widest);
  return piece.axis == 0 ? entry : entry / row.shape[static_cast<size_t>(piece.axis)] * piece.count;
}

int64_t LocalParam::numel() const {
  int64_t elements = 1;
  for (const int64_t extent : shape) elements *= extent;
  return elements;
}

LocalParam local_param(const ParamRow& row, const ModelSpec& model, const std::vector<ExpertPlacement>& placements,
                       const Mesh& mesh, const MeshCoords& coords) {
  LocalParam local;
  local.shape = row.shape;
  local.matrices = 1;
  if (row.expert) {
    const ExpertPlacement& placement = placements[static_cast<size_t>(row.layer)];
    local.pieces = expert_pieces(placement, coords.ep);
    local.shape[0] = 0;
    const SlicePiece cut = expert_piece(row, model, placement, mesh, coords);
    for (SlicePiece& piece : local.pieces) {
      local.shape[0] += piece.count;
      if (cut.axis == 0) continue;
      piece.cut_axis = cut.axis;
      piece.cut_begin = cut.global_begin;
      piece.cut_count = cut.count;
    }
    if (cut.axis != 0) local.shape[static_cast<size_t>(cut.axis)] = cut.count;
    local.matrices = local.shape[0];
    local.replicas = Replicas::edp;
  } else {
    local.pieces = {tp_piece(row, model, mesh, coords.tp)};
    local.shape[static_cast<size_t>(local.pieces[0].axis)] = local.pieces[0].count;
    if (mesh.tp > 1 && !is_cut_over_tp(row, model, mesh)) local.replicas = Replicas::stage;
    // A rank that shares key/value heads reads one of them.
    if (row.role == ParamRole::matrix && row.cut == TensorCut::kv_rows && local.replicas == Replicas::stage)
      local.matrices = layer_of(row, model).attention.kv_heads;
  }
  local.k = local.shape.back();
  // Of experts also where this rank is home of none: it may have replicas.
  local.n = row.expert ? std::accumulate(local.shape.begin() + 1, local.shape.end() - 1, int64_t{1}, std::multiplies())
                       : local.numel() / local.k / local.matrices;
  return local;
}

// What counts over whole sequences; null: nothing.
static const char* what_needs_sequences(const ModelSpec& model, const RunSpec& run) {
  if (run.moe.capacity_factor > 0 && run.moe.capacity_domain == CapacityDomain::sequence)
    return "moe.capacity_domain = \"sequence\"";
  if (aux_scope(run, model) == AuxScope::sequence && aux_loss_coef(run, model) > 0)
    return "the auxiliary loss per sequence (moe.aux_scope)";
  return nullptr;
}

int64_t sample_unit(const ModelSpec& model, const RunSpec& run, const Mesh& mesh) {
  // With "ted" every rank routes whole sequences.
  return mesh.ted || what_needs_sequences(model, run) == nullptr ? 1 : mesh.tp;
}

void check_tensor_parallel(const ModelSpec& model, const RunSpec& run, const Mesh& mesh, int64_t sequences) {
  const int tp = mesh.tp;
  if (tp == 1) return;
  for (const LayerSpec& layer : model.layers) {
    const AttentionSpec& a = layer.attention;
    if (a.heads < tp)
      fail(Exit::config, fmt::format("mesh.tp = {} is more than the {} attention heads", tp, a.heads),
           fmt::format("set mesh.tp to at most {}", a.heads));
    if (a.kv_heads < tp && tp % a.kv_heads != 0)
      fail(Exit::config, fmt::format("mesh.tp = {} ranks cannot share {} key/value heads evenly", tp, a.kv_heads),
           fmt::format("set mesh.tp to at most {}, or to a multiple of it", a.kv_heads));
    if (layer.feed_forward == FeedForwardKind::dense && layer.dense_width < tp)
      fail(Exit::config,
           fmt::format("mesh.tp = {} cannot shard a dense feed-forward of width {}", tp, layer.dense_width),
           fmt::format("set mesh.tp to at most {}", layer.dense_width));
    if (mesh.ted && layer.feed_forward == FeedForwardKind::moe &&
        (layer.moe.width < tp || (layer.moe.shared_width > 0 && layer.moe.shared_width < tp)))
      fail(
          Exit::config,
          fmt::format(
              "mesh.tp = {} cannot shard experts of width {}{}", tp, layer.moe.width,
              layer.moe.shared_width > 0 ? fmt::format(" and shared experts of width {}", layer.moe.shared_width) : ""),
          fmt::format(
              "set mesh.tp to at most {}, or moe.tp_mode = \"ssmb\"",
              layer.moe.shared_width > 0 ? std::min(layer.moe.width, layer.moe.shared_width) : layer.moe.width));
  }
  if (sequences % sample_unit(model, run, mesh) == 0) return;
  fail(Exit::config,
       fmt::format("{} needs whole sequences on a rank, but mesh.tp = {} does not divide the {} of a "
                   "micro-batch",
                   what_needs_sequences(model, run), tp, counted(sequences, "sequence")),
       run.mesh.shares.empty()
           ? fmt::format("set train.global_batch to a multiple of train.micro_batches x dp x mesh.tp = {}",
                         run.train.micro_batches * mesh.dp * tp)
           : fmt::format("choose mesh.shares and train.global_batch so that every rank gets a multiple of {} samples",
                         tp));
}

}  // namespace mw
