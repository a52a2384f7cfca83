#include "planner/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "config/param_groups.h"
#include "layout/gradient_blocks.h"
#include "layout/plan.h"

namespace mw {
namespace {

constexpr int64_t kUnit = 64;  // the table rounds every row up to it
constexpr int kMostKinds = 16;

int64_t rounded(int64_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }

void add(ByteSummary& into, ByteKind kind, int64_t bytes) {
  into.by_kind[static_cast<int>(kind)] += bytes;
  into.fixed += bytes;
}

void add(MuonWork& into, const MuonWork& from, double times) {
  into.flops += times * from.flops;
  into.products += times * from.products;
}

// Each of five steps has three products: the Gram matrix of the shorter side, its square, and that times the matrix.
MuonWork muon_work_of(const ParamRow& row, const LocalParam& local) {
  const MuonShape shape = muon_shape(row);
  const auto side = static_cast<double>(std::min(shape.n, shape.k)),
             other = static_cast<double>(std::max(shape.n, shape.k));
  const double matrices = static_cast<double>(local.numel()) / static_cast<double>(shape.numel());
  return {matrices * 5 * 2 * side * side * (2 * other + side), matrices * 15};
}

// Rows that all layers of a rank share, however many there are.
bool is_shared(const ByteRow& row) {
  return !row.name.starts_with("act.") && !row.name.starts_with("stage.") && !row.name.starts_with("data.") &&
         !row.name.starts_with(kCacheRows) && row.name != kWeightSlots;
}

// What distinguishes the meshes of one estimator.
std::array<int, 5> key_of(const Mesh& mesh) { return {mesh.pp, mesh.dp, mesh.tp, mesh.ep, mesh.ep_first}; }

std::array<int, 4> shape_of(const Mesh& mesh, const MeshCoords& coords) {
  return {mesh.tp, coords.tp, mesh.ep, coords.ep};
}

}  // namespace

void add(ByteSummary& into, const ByteSummary& from, int64_t times) {
  for (int kind = 0; kind < kByteKinds; ++kind) into.by_kind[kind] += times * from.by_kind[kind];
  into.fixed += times * from.fixed;
  into.on_host += times * from.on_host;
  into.routed_mean += times * from.routed_mean;
  into.routed_committed += times * from.routed_committed;
  into.routed_max += times * from.routed_max;
}

LayerKinds::LayerKinds(const ModelSpec& whole, const std::string& transport) : model(whole) {
  const std::vector<std::string> names = transport_names(transport, whole);
  model.layers.clear();
  for (size_t i = 0; i < whole.layers.size(); ++i) {
    size_t kind = 0;
    while (kind < model.layers.size() && !(model.layers[kind] == whole.layers[i] && transports[kind] == names[i]))
      ++kind;
    of_layer.push_back(static_cast<int>(kind));
    if (kind < model.layers.size()) continue;
    model.layers.push_back(whole.layers[i]);
    transports.push_back(names[i]);
  }
  if (count() > kMostKinds)
    fail(Exit::unsupported, fmt::format("the planner does not support models with {} kinds of layers yet", count()),
         fmt::format("use a model with at most {} different kinds of layers", kMostKinds));
  before.assign(static_cast<size_t>(count()), {0});
  for (const int of : of_layer)
    for (int kind = 0; kind < count(); ++kind) {
      std::vector<int64_t>& of_kind = before[static_cast<size_t>(kind)];
      of_kind.push_back(of_kind.back() + (of == kind));
    }
}

MemoryModel::MemoryModel(const ModelSpec& model, const RunSpec& run, const Platform& platform)
    : kinds_(model, run.moe.transport),
      run_(run),
      platform_(platform),
      param_rows_(run_params(kinds_.model, run.train)) {}

const std::vector<ExpertPlacement>& MemoryModel::placements_of(int ep) {
  std::vector<ExpertPlacement>& placements = placements_[ep];
  if (placements.empty())
    placements = start_placements(kinds_.model, run_, choose_transports(kinds_.transports, ep), ep).layers;
  return placements;
}

// Of the members of a group whose nodes are these.
std::vector<MemoryModel::GatewayLoad> MemoryModel::loads_of_members(const Islands& islands) {
  std::vector<GatewayLoad> loads;
  for (int member = 0; member < islands.size(); ++member) {
    const NodesSeen seen = nodes_seen(islands, member);
    GatewayLoad& load = loads.emplace_back(GatewayLoad{std::ssize(seen.near), seen.sources, {}});
    for (const ExpertPlacement& placement : placements_of(islands.size())) {
      if (placement.experts() == 0) continue;  // a dense layer
      const std::vector<int64_t> parts = placement.parts();
      const auto count = [&](const std::vector<int>& members) {
        int64_t experts = 0;
        for (const int other : members) experts += parts[static_cast<size_t>(other)];
        load.experts.push_back(experts);
      };
      count(seen.near);
      for (const std::vector<int>& members : seen.others) count(members);
    }
  }
  return loads;
}

const std::vector<MemoryModel::GatewayLoad>& MemoryModel::gateway_loads_of(const Mesh& mesh) {
  const auto [entry, is_new] = gateway_loads_.try_emplace(key_of(mesh));
  std::vector<GatewayLoad>& loads = entry->second;
  if (!is_new) return loads;
  const std::vector<TransportKind> transports = choose_transports(kinds_.transports, mesh.ep);
  if (std::none_of(transports.begin(), transports.end(), [](TransportKind kind) { return traits_of(kind).by_node; }))
    return loads;
  const NodeMap nodes = node_map(run_.mesh, platform_);
  std::map<std::vector<int>, std::vector<GatewayLoad>> known;  // by the nodes of members, from that of the first on
  const auto for_each_group = [&](const auto& body) {
    for (int rank = 0; rank < mesh.world; ++rank) {
      if (coords_of(mesh, rank).ep != 0) continue;
      const std::vector<int> group = group_of(mesh, MeshAxis::ep, rank);
      std::vector<int> of_member;
      for (const int member : group) of_member.push_back(nodes.node_of(member) - nodes.node_of(group.front()));
      body(group, known[of_member]);
    }
  };
  for_each_group([&](const std::vector<int>& group, std::vector<GatewayLoad>& of_group) {
    if (of_group.empty()) of_group = loads_of_members(make_islands(group, nodes));
  });
  const GatewayLoad& first = known.begin()->second.front();
  if (std::all_of(known.begin(), known.end(), [&](const auto& entry_of_group) {
        const std::vector<GatewayLoad>& of_group = entry_of_group.second;
        return std::all_of(of_group.begin(), of_group.end(), [&](const GatewayLoad& load) { return load == first; });
      }))
    return loads;
  loads.resize(static_cast<size_t>(mesh.world));
  for_each_group([&](const std::vector<int>& group, const std::vector<GatewayLoad>& of_group) {
    for (size_t member = 0; member < group.size(); ++member)
      loads[static_cast<size_t>(group[member])] = of_group[member];
  });
  return loads;
}

RunSpec MemoryModel::run_of_one_micro_batch(const Layout& layout) const {
  RunSpec run = with_layout(run_, layout);
  run.train.global_batch /= run.train.micro_batches;
  run.train.micro_batches = 1;
  return run;
}

// The rows of a rank that has one layer of each of these kinds and one live micro-batch.
std::vector<ByteRow> MemoryModel::probe(const Layout& layout, const Mesh& mesh, const MeshCoords& coords,
                                        uint32_t kinds, bool head) {
  std::vector<StagePlan> stages;
  for (int kind = 0; kind < kinds_.count(); ++kind) {
    if ((kinds >> kind & 1) == 0) continue;
    StagePlan stage;
    stage.first_layer = kind;
    stage.end_layer = kind + 1;
    stages.push_back(stage);
  }
  stages.back().has_head = head;
  return activation_bytes(kinds_.model, run_of_one_micro_batch(layout), mesh, coords, stages, placements_of(mesh.ep),
                          choose_transports(kinds_.transports, mesh.ep), platform_);
}

LayerPieces MemoryModel::pieces_of_kind(int kind, const Layout& layout, const Mesh& mesh, const MeshCoords& coords) {
  const ExpertPlacement& placement = placements_of(mesh.ep)[static_cast<size_t>(kind)];
  const TransportKind transport = choose_transport(kinds_.transports[static_cast<size_t>(kind)], mesh.ep);
  return pieces_of(weight_gather_of(transport, local_layer(kinds_.spec(kind), placement, mesh, coords),
                                    kinds_.model.width, with_layout(run_, layout), placement, platform_));
}

MemoryModel::Activations& MemoryModel::activations_of(const Layout& layout, const Mesh& mesh,
                                                      const MeshCoords& coords) {
  Tokens tokens;
  tokens.recompute = layout.recompute;
  if (run_.mesh.shares.empty()) {  // of the group then, too; searches ask for many sizes
    tokens.own = most_samples(run_, layout.micro_batches, mesh.dp) * run_.train.seq_len;
  } else {
    const std::vector<int64_t> samples = samples_by_rank(run_, layout.micro_batches, mesh.dp);
    tokens.own = samples[static_cast<size_t>(coords.dp)] * run_.train.seq_len;
    tokens.of_group = tokens_of_ep_group(samples, run_.train.seq_len, mesh, coords);
    tokens.most = *std::max_element(samples.begin(), samples.end()) * run_.train.seq_len;
  }
  std::map<Tokens, Activations>*& of_shape = of_rank_[{key_of(mesh), rank_of(mesh, coords)}];
  if (of_shape == nullptr) {
    NodesSeen nodes;
    for (const TransportKind kind : choose_transports(kinds_.transports, mesh.ep))
      if (traits_of(kind).by_node) nodes = nodes_of_ep_group(mesh, coords, node_map(run_.mesh, platform_));
    of_shape = &activations_[{shape_of(mesh, coords), nodes}];
  }
  const auto [entry, is_new] = of_shape->try_emplace(tokens);
  Activations& parts = entry->second;
  if (!is_new) return parts;
  parts.tokens = tokens.own;
  parts.boundary_bytes =
      rounded(block_of(parts.tokens, mesh.tp, coords.tp).count * kinds_.model.width * size_of(run_.train.dtype));
  std::set<std::string> without_head;
  for (int kind = 0; kind < kinds_.count(); ++kind) {
    std::vector<ByteRow> saved, cached, shared;
    const std::string prefix = saved_prefix(kind, 0);
    for (ByteRow& row : probe(layout, mesh, coords, 1u << kind, false)) {
      if (kind == 0) without_head.insert(row.name);
      if (is_shared(row)) shared.push_back(std::move(row));
      else if (row.name.starts_with(prefix)) saved.push_back(std::move(row));
      else if (row.name.starts_with(kCacheRows)) cached.push_back(std::move(row));
    }
    parts.saved.push_back(summarise(saved));
    parts.cached.push_back(summarise(cached));
    parts.pieces.push_back(pieces_of_kind(kind, layout, mesh, coords));
    parts.shared[1u << kind] = summarise(shared);
  }
  std::vector<ByteRow> head = probe(layout, mesh, coords, 1, true);
  std::erase_if(head, [&](const ByteRow& row) { return !is_shared(row) || without_head.count(row.name) > 0; });
  parts.head = summarise(head);
  return parts;
}

const ByteSummary& MemoryModel::shared_of(Activations& parts, const Layout& layout, const Mesh& mesh,
                                          const MeshCoords& coords, uint32_t kinds) {
  const auto [entry, is_new] = parts.shared.try_emplace(kinds);
  if (is_new) {
    std::vector<ByteRow> rows = probe(layout, mesh, coords, kinds, false);
    std::erase_if(rows, [](const ByteRow& row) { return !is_shared(row); });
    entry->second = summarise(rows);
  }
  return entry->second;
}

// has_head: the rank that holds this embedding also computes logits with it.
MemoryModel::Params MemoryModel::params_of_row(const ParamRow& row, const Mesh& mesh, const MeshCoords& coords,
                                               bool has_head) {
  const std::vector<ExpertPlacement>& placements = placements_of(mesh.ep);
  RunSpec whole = run_;
  whole.mesh.zero = 0;
  const auto bytes_of = [&](const std::vector<ParamRow>& rows) {
    std::vector<ByteRow> table = parameter_bytes(rows, kinds_.model, whole, mesh, coords, placements, platform_);
    std::erase_if(table, [](const ByteRow& r) {  // of the rank, not of a row
      return r.name == kSumPieces || r.name == kSquareSums || r.name == kReplicaGradient || r.name.starts_with("muon.");
    });
    return summarise(table);
  };
  Params part;
  if (has_head) {  // the table sees a head by its norm
    const ParamRow& final_norm = param_rows_.back();
    part.whole = bytes_of({row, final_norm});
    add(part.whole, bytes_of({final_norm}), -1);
  } else {
    part.whole = bytes_of({row});
  }
  part.muon.widen(row);
  if (!row.trained) return part;
  const LocalParam local = local_param(row, kinds_.model, placements, mesh, coords);
  if (row.expert) part.expert_matrix = local.n * local.k;
  GradientBlock of_two;  // what a cut over any members does to master weights
  of_two.cuts = {0, 0, 0};
  BlockPart& block = part.blocks[static_cast<size_t>(local.replicas)];
  const bool cuts = cuts_master(row, of_two, run_.train.dtype);
  block.elements = padded_gradient(local.numel(), gradient_dtype(local.replicas, run_));
  block.gap = block.elements - padded_gradient(local.numel(), DType::f32);
  const int64_t cut_master = cuts ? size_of(master_dtype(row, local, run_, platform_)) : 0;
  block.cut_master_bytes = rounded(cut_master * (block.elements - block.gap));
  block.stretches = {{block.elements, block.gap, cut_master, row.muon ? 1 : 2}};
  if (cuts && !is_plain_copy(local, platform_)) block.gathered = local.n * local.k;
  if (row.muon) block.muon = muon_work_of(row, local);
  return part;
}

const MemoryModel::RankParams& MemoryModel::params_of(const Mesh& mesh, const MeshCoords& coords) {
  const auto [entry, is_new] = params_.try_emplace(shape_of(mesh, coords));
  RankParams& out = entry->second;
  if (!is_new) return out;
  out.layers.resize(static_cast<size_t>(kinds_.count()));
  for (const ParamRow& row : param_rows_) {
    const Params part = params_of_row(row, mesh, coords, false);
    if (row.layer < 0) {
      if (row.role == ParamRole::embedding) out.embedding = part;
      else (row.role == ParamRole::norm ? out.final_norm : out.head) = part;
      continue;
    }
    Params& layer = out.layers[static_cast<size_t>(row.layer)];
    add(layer.whole, part.whole);
    layer.expert_matrix = std::max(layer.expert_matrix, part.expert_matrix);
    layer.muon.widen(part.muon);
    for (size_t b = 0; b < kReplicas; ++b) {
      BlockPart& into = layer.blocks[b];
      const BlockPart& from = part.blocks[b];
      into.elements += from.elements;
      into.gap += from.gap;
      into.cut_master_bytes += from.cut_master_bytes;
      into.gathered = std::max(into.gathered, from.gathered);
      add(into.muon, from.muon, 1);
      into.stretches.insert(into.stretches.end(), from.stretches.begin(), from.stretches.end());
    }
  }
  if (kinds_.model.tie_embeddings) out.tied_embedding = params_of_row(param_rows_.front(), mesh, coords, true);
  return out;
}

std::vector<const MemoryModel::Params*> MemoryModel::parts_of(const Mesh& mesh, const MeshCoords& coords,
                                                              const std::vector<StagePlan>& stages) {
  const RankParams& params = params_of(mesh, coords);
  const bool tied = kinds_.model.tie_embeddings, has_head = stages.back().has_head;
  std::vector<const Params*> parts;
  if (has_head && tied) parts.push_back(&params.tied_embedding);
  else if (stages.front().embeds) parts.push_back(&params.embedding);
  for (const StagePlan& stage : stages)
    for (int64_t layer = stage.first_layer; layer < stage.end_layer; ++layer)
      parts.push_back(&params.layers[static_cast<size_t>(kinds_.of_layer[static_cast<size_t>(layer)])]);
  if (has_head) parts.push_back(&params.final_norm);
  if (has_head && !tied) parts.push_back(&params.head);
  return parts;
}

std::array<int64_t, kReplicas> MemoryModel::gradient_bytes(const Mesh& mesh, const MeshCoords& coords,
                                                           const std::vector<StagePlan>& stages) {
  std::array<int64_t, kReplicas> bytes{};
  for (const Params* part : parts_of(mesh, coords, stages))
    for (size_t b = 0; b < kReplicas; ++b) bytes[b] += 4 * part->blocks[b].elements;
  return bytes;
}

MuonWork MemoryModel::muon_work(const Layout& layout, const Mesh& mesh, const MeshCoords& coords,
                                const std::vector<StagePlan>& stages) {
  const int members[kReplicas] = {mesh.dp, mesh.dp * mesh.tp, mesh.edp};
  MuonWork work;
  if (run_.train.optimizer != Optimizer::muon) return work;
  for (const Params* part : parts_of(mesh, coords, stages))
    for (size_t b = 0; b < kReplicas; ++b) add(work, part->blocks[b].muon, layout.zero > 0 ? 1.0 / members[b] : 1.0);
  return work;
}

// Bytes of the moments of elements [begin, end) of a block.
int64_t MemoryModel::moments_in(const std::vector<const Params*>& parts, size_t block, int64_t begin,
                                int64_t end) const {
  int64_t bytes = 0, at = 0;
  for (const Params* part : parts)
    for (const Stretch& stretch : part->blocks[block].stretches) {
      const int64_t last = at + stretch.elements - stretch.gap;
      bytes +=
          stretch.moments * rounded(size_of(run_.moments) * (std::clamp(end, at, last) - std::clamp(begin, at, last)));
      at += stretch.elements;
    }
  return bytes;
}

// ZeRO: of every block that several ranks sum, moments and master weights of one cut remain.
void MemoryModel::cut(ByteSummary& sum, const std::vector<const Params*>& parts, const Mesh& mesh,
                      const MeshCoords& coords) const {
  const int members[kReplicas] = {mesh.dp, mesh.dp * mesh.tp, mesh.edp};
  const int member[kReplicas] = {coords.dp, coords.dp * mesh.tp + coords.tp, coords.edp};
  const bool offloads = run_.offload == Offload::optimizer;
  const auto leave = [&](ByteKind kind, int64_t bytes, bool on_host) {
    if (on_host) sum.on_host += bytes;
    else add(sum, kind, bytes);
  };
  int64_t gathered = 0;
  for (size_t b = 0; b < kReplicas; ++b) {
    if (members[b] == 1) continue;
    const DType dtype = gradient_dtype(static_cast<Replicas>(b), run_);
    int64_t elements = 0, gaps = 0, own_gaps = 0, cut_master_bytes = 0, own_master_bytes = 0, at = 0;
    for (const Params* part : parts) {
      elements += part->blocks[b].elements;
      gaps += part->blocks[b].gap;
      cut_master_bytes += part->blocks[b].cut_master_bytes;
      gathered = std::max(gathered, part->blocks[b].gathered);
    }
    const int64_t unit = cut_unit(static_cast<Replicas>(b), elements, members[b], dtype),
                  begin = cut_begin(elements, members[b], member[b], unit),
                  end = cut_begin(elements, members[b], member[b] + 1, unit);
    for (const Params* part : parts) {
      const BlockPart& block = part->blocks[b];
      const int64_t block_end = at + block.elements;
      if (at >= begin && block_end <= end) {
        own_master_bytes += block.cut_master_bytes;
        own_gaps += block.gap;
      } else if (at < end && block_end > begin) {
        for (const Stretch& stretch : block.stretches) {
          const int64_t stretch_end = at + stretch.elements,
                        own = std::clamp(end, at, stretch_end) - std::clamp(begin, at, stretch_end),
                        own_gap = begin < stretch_end && stretch_end <= end ? stretch.gap : 0;
          own_gaps += own_gap;
          own_master_bytes += rounded(stretch.cut_master * (own - own_gap));
          at = stretch_end;
        }
      }
      at = block_end;
    }
    // Tensors are rounded to 64 bytes: those of fp32 end where gradients do, others one by one.
    leave(ByteKind::moment,
          run_.moments == DType::f32 && run_.train.optimizer == Optimizer::adamw
              ? 2 * 4 * (end - begin - own_gaps - (elements - gaps))
              : moments_in(parts, b, begin, end) - moments_in(parts, b, 0, elements),
          offloads);
    leave(ByteKind::master, own_master_bytes - cut_master_bytes, offloads);  // of matrices in bf16
  }
  if (gathered > 0) add(sum, ByteKind::workspace, rounded(4 * gathered));
}

ByteSummary MemoryModel::parameters(const Layout& layout, const Mesh& mesh, const MeshCoords& coords,
                                    const std::vector<StagePlan>& stages) {
  ByteSummary sum;
  const std::vector<const Params*> params = parts_of(mesh, coords, stages);
  for (const Params* part : params) add(sum, part->whole);
  if (layout.zero > 0) cut(sum, params, mesh, coords);
  add_sum_pieces(sum, params, mesh);
  add_square_sums(sum, params, mesh);
  add_replica_gradient(sum, params, mesh);
  MuonBuffers buffers;
  for (const Params* part : params) buffers.widen(part->muon);
  add(sum, summarise(muon_rows(buffers, mesh)));
  return sum;
}

// As in the byte table.
void MemoryModel::add_sum_pieces(ByteSummary& sum, const std::vector<const Params*>& parts, const Mesh& mesh) const {
  if (mesh.edp == 1 || run_.expert_gradients != DType::bf16) return;
  int64_t largest = 0, block = 0;
  for (const Params* part : parts) {
    const int64_t elements = part->blocks[static_cast<size_t>(Replicas::edp)].elements;
    largest = std::max(largest, elements);
    block += elements;
  }
  if (block > 0) add(sum, ByteKind::workspace, rounded(2 * 4 * sum_piece_elements(largest, block)));
}

void MemoryModel::add_square_sums(ByteSummary& sum, const std::vector<const Params*>& parts, const Mesh& mesh) const {
  const bool trains_experts =
      std::any_of(parts.begin(), parts.end(), [](const Params* part) { return part->expert_matrix > 0; });
  if (trains_experts && squares_when_stored(run_, mesh, platform_.one_packed_form))
    add(sum, ByteKind::workspace, rounded(size_of(DType::i64) * kSquareSumValues));
}

void MemoryModel::add_replica_gradient(ByteSummary& sum, const std::vector<const Params*>& parts,
                                       const Mesh& mesh) const {
  int64_t largest = 0;
  for (const Params* part : parts) largest = std::max(largest, part->expert_matrix);
  if (largest > 0 && replica_slots(run_.moe, mesh.ep) > 0)
    add(sum, ByteKind::workspace, rounded(size_of(gradient_dtype(Replicas::edp, run_)) * largest));
}

std::vector<ByteSummary> MemoryModel::activations(const Layout& layout, const Mesh& mesh, const MeshCoords& coords,
                                                  const std::vector<std::vector<StagePlan>>& pipeline) {
  Activations& parts = activations_of(layout, mesh, coords);
  const int of_tokens = run_.data.document_mask ? 3 : 2;  // ids, labels, starts of documents
  const int64_t token_bytes = of_tokens * rounded(4 * layout.micro_batches * parts.tokens);
  std::vector<ByteSummary> sums(pipeline.size());
  for (size_t rank = 0; rank < pipeline.size(); ++rank) {
    ByteSummary& sum = sums[rank];
    add(sum, ByteKind::activation, token_bytes);
    uint32_t kinds = 0;
    WeightSlots slots{run_.moe.weight_slots};
    for (const StagePlan& stage : pipeline[rank]) {
      for (int kind = 0; kind < kinds_.count(); ++kind) {
        const int64_t layers = kinds_.layers_in(stage, kind);
        if (layers == 0) continue;
        kinds |= 1u << kind;
        slots.add(parts.pieces[static_cast<size_t>(kind)], layers);
        add(sum, parts.saved[static_cast<size_t>(kind)], layers * stage.slots);
        add(sum, parts.cached[static_cast<size_t>(kind)], layers);
      }
      add(sum, ByteKind::exchange, (int{stage.receives} + int{stage.sends}) * parts.boundary_bytes);
      if (stage.has_head) add(sum, ByteKind::activation, stage.slots * parts.boundary_bytes);
      else add(sum, stage.sends ? ByteKind::exchange : ByteKind::activation, stage.gradients * parts.boundary_bytes);
    }
    add(sum, shared_of(parts, layout, mesh, coords, kinds));
    add(sum, ByteKind::exchange, rounded(slots.all_bytes()));
    if (pipeline[rank].back().has_head) add(sum, parts.head);
  }
  return sums;
}

}  // namespace mw
