#include "layout/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "config/batch_ramp.h"
#include "config/hf_config.h"
#include "config/learning_rate.h"
#include "config/param_groups.h"
#include "layout/divided.h"
#include "layout/recompute.h"

namespace mw {

LayerSpec local_layer(const Plan& plan, int64_t index) {
  const auto i = static_cast<size_t>(index);
  return local_layer(plan.model.layers[i], plan.placements->layers[i], plan.mesh, plan.coords);
}

int64_t first_routed_token(const Plan& plan) {
  return plan.batch.first * plan.batch.seq_len + routed_tokens(plan.mesh, plan.coords, plan.batch.tokens()).begin;
}

ModelSpec load_model_spec(const RunSpec& run) {
  return run.hf_dir.empty() ? build_native_model(run.native) : read_hf_config(run.hf_dir + "/config.json");
}

// Sums of bytes must stay exact integers, at the worst load too.
static void check_total(const Plan& plan) {
  double bytes = 0;
  for (const ByteRow& row : all_rows(plan)) {
    double row_bytes = static_cast<double>(size_of(row.dtype));
    for (size_t i = 1; i < row.shape.size(); ++i) row_bytes *= static_cast<double>(row.shape[i]);
    bytes += row_bytes * static_cast<double>(std::max(row.max_rows, row.shape[0])) + 64;
  }
  if (bytes > 0x1p60)
    fail(Exit::memory,
         fmt::format("rank {} would need more than 2^60 bytes for the model and {} tokens per micro-batch", plan.rank,
                     plan.batch.tokens()),
         "lower the sizes of the model, or raise train.micro_batches");
}

// Placements are tables of every expert: a model that no machine holds must not fill the memory with them.
static void check_expert_count(const ModelSpec& model) {
  constexpr int64_t kMost = int64_t{1} << 20;
  int64_t experts = 0;
  for (const LayerSpec& layer : model.layers)
    if (layer.feed_forward == FeedForwardKind::moe) experts += layer.moe.experts;
  if (experts > kMost)
    fail(Exit::config,
         fmt::format("the model has {} routed experts over all layers, at most {} are supported", experts, kMost),
         "lower model.experts or model.layers");
}

// A token has a row for each of its experts there; or one row, of whose choices all are counted.
bool are_rows_countable(int64_t tokens, const MoeSpec& moe, int64_t ep, int64_t rank_experts, TransportKind transport) {
  constexpr int64_t kTooMany = int64_t{1} << 31;
  const TransportTraits& traits = traits_of(transport);
  const int64_t choices = traits.merges ? moe.top_k : std::min(moe.top_k, rank_experts);
  if (tokens > kMostTokens || tokens * choices * ep >= kTooMany) return false;
  return !traits.equal_rows || tokens * (moe.experts + ep) < kTooMany;
}

void check_dtypes(const RunSpec& run, const std::vector<TransportKind>& transports) {
  const std::pair<const char*, DType> states[] = {{"memory.expert_gradients", run.expert_gradients},
                                                  {"memory.logits", run.logits}};
  for (const auto& [key, dtype] : states)
    if (dtype == DType::bf16 && run.train.dtype != DType::bf16)
      fail(Exit::config, fmt::format("{} = \"bf16\" needs train.dtype = \"bf16\", got \"fp32\"", key),
           fmt::format("set train.dtype = \"bf16\", or {} = \"fp32\"", key));
  for (const TransportKind kind : transports)
    if (run.expert_gradients == DType::bf16 && traits_of(kind).gathers_weights)
      fail(Exit::unsupported,
           fmt::format("memory.expert_gradients = \"bf16\" is not supported with moe.transport = \"{}\" yet",
                       traits_of(kind).name),
           "set memory.expert_gradients = \"fp32\", or moe.transport = \"flat\"");
}

void check_replicas(const RunSpec& run, int64_t ep, const std::vector<TransportKind>& transports) {
  if (replica_slots(run.moe, ep) == 0) return;
  for (const TransportKind kind : transports)
    if (const TransportTraits& traits = traits_of(kind); !traits.splits_rows && !traits.needs_all_experts)
      fail(Exit::unsupported,
           fmt::format("moe.replica_slots = {} is not supported with moe.transport = \"{}\"", run.moe.replica_slots,
                       traits.name),
           "set moe.replica_slots = 0, or moe.transport = \"flat\"");
}

void check_training(const RunSpec& run) {
  if (run.mesh.adapt_every > 0 && run.mesh.shares != kMeasuredShares)
    fail(Exit::config, fmt::format("mesh.adapt_every = {} changes measured shares only", run.mesh.adapt_every),
         fmt::format("set mesh.shares = \"{}\", or mesh.adapt_every = 0", kMeasuredShares));
  if (run.moe.replica_slots > 0 && run.moe.balance == Balance::none && !run.migrate)
    fail(Exit::config, fmt::format("moe.replica_slots = {} needs moe.balance, which fills them", run.moe.replica_slots),
         "set moe.balance = \"swap\", or moe.replica_slots = 0");
}

static void check_qk_clip(const ModelSpec& model, const TrainSpec& train) {
  const bool has_norm = std::any_of(model.layers.begin(), model.layers.end(),
                                    [](const LayerSpec& layer) { return layer.attention.qk_norm != QkNorm::none; });
  if (train.qk_clip > 0 && has_norm)
    fail(Exit::config,
         fmt::format(
             "train.qk_clip = {:g} shrinks query and key weights, but this model norms queries and keys, so that "
             "their weights do not change the size of logits",
             train.qk_clip),
         "set train.qk_clip = 0, or use a model with qk_norm = \"none\"");
  const bool has_limit = std::any_of(model.layers.begin(), model.layers.end(),
                                     [](const LayerSpec& layer) { return layer.attention.clip_qkv > 0; });
  if (train.qk_clip > 0 && has_limit)
    fail(Exit::config,
         fmt::format(
             "train.qk_clip = {:g} shrinks query and key weights, but this model limits queries and keys (clip_qkv), "
             "so that smaller weights may leave them as large",
             train.qk_clip),
         "set train.qk_clip = 0, or use a model with clip_qkv = 0");
}

static bool has_room_for_replicas(const ExpertPlacement& placement, const RunSpec& run) {
  for (int rank = 0; rank < placement.ep; ++rank)
    if (std::ssize(placement.replicas_of(rank)) > replica_slots(run.moe, placement.ep)) return false;
  return true;
}

Placements start_placements(const ModelSpec& model, const RunSpec& run, const std::vector<TransportKind>& transports,
                            int ep) {
  std::vector<std::vector<int64_t>> widths(model.layers.size());
  for (size_t i = 0; i < widths.size(); ++i)
    if (traits_of(transports[i]).slices_experts) widths[i] = expert_widths(run, model.layers[i].moe.width, ep);
  Placements placements = make_block_placements(model, ep, widths);
  if (run.mesh.expert_shares.empty()) return placements;
  for (size_t i = 0; i < widths.size(); ++i)
    if (model.layers[i].feed_forward == FeedForwardKind::moe && !placements.layers[i].is_sliced() &&
        !traits_of(transports[i]).needs_all_experts)
      placements.layers[i] = make_block_placement(experts_by_rank(run, model.layers[i].moe.experts, ep));
  return placements;
}

static void check_expert_shares(const Plan& plan) {
  const bool any = std::any_of(plan.transports.begin(), plan.transports.end(), divides_experts);
  if (!any && !plan.run.mesh.expert_shares.empty())
    fail(Exit::config,
         fmt::format(
             "mesh.expert_shares = \"{}\" needs a layer that sends rows to the ranks of experts, and there is none",
             plan.run.mesh.expert_shares),
         "set mesh.ep above 1 and moe.transport = \"flat\", or leave mesh.expert_shares empty");
}

// Whether experts are slices where, and only where, the transports compute with them.
static void check_slices(const Plan& plan) {
  const bool any = std::any_of(plan.transports.begin(), plan.transports.end(),
                               [](TransportKind kind) { return traits_of(kind).slices_experts; });
  if (!any && !plan.run.mesh.width_shares.empty())
    fail(Exit::config,
         fmt::format("mesh.width_shares = \"{}\" divides the width of experts, but no layer has slices of experts",
                     plan.run.mesh.width_shares),
         "set moe.transport = \"gather_tokens\", or leave mesh.width_shares empty");
  for (size_t i = 0; i < plan.transports.size(); ++i) {
    const TransportTraits& traits = traits_of(plan.transports[i]);
    if (traits.slices_experts && plan.mesh.ted)
      fail(Exit::config,
           fmt::format("moe.transport = \"{}\" and moe.tp_mode = \"ted\" both shard the width of experts", traits.name),
           "set moe.tp_mode = \"ssmb\", or another moe.transport");
    if (traits.slices_experts && plan.model.layers[i].moe.bias)
      fail(Exit::unsupported,
           fmt::format("moe.transport = \"{}\" has no slices of the biases that experts of this model have",
                       traits.name),
           "set another moe.transport");
    if (plan.placements->layers[i].is_sliced() != traits.slices_experts)
      fail(Exit::config,
           fmt::format("the placement of layer {} has {} experts, but its transport is {}", i,
                       traits.slices_experts ? "whole" : "slices of", traits.name),
           "make the placement for these transports");
  }
}

static void check_row_counts(const Plan& plan) {
  const int64_t tokens = routed_tokens(plan.mesh, {}, plan.batch.most_tokens()).count, ep = plan.mesh.ep;
  for (size_t i = 0; i < plan.model.layers.size(); ++i) {
    const LayerSpec& layer = plan.model.layers[i];
    if (layer.feed_forward != FeedForwardKind::moe) continue;
    const ExpertPlacement& placement = plan.placements->layers[i];
    const int64_t homes =
        placement.is_sliced() ? layer.moe.experts : placement.parts()[static_cast<size_t>(placement.widest())];
    if (!are_rows_countable(tokens, layer.moe, ep, homes + replica_slots(plan.run.moe, ep), plan.transports[i]))
      fail(Exit::config,
           fmt::format("one rank could receive 2^31 {} rows or more in a micro-batch",
                       traits_of(plan.transports[i]).equal_rows ? "padded" : "routed"),
           fmt::format("raise train.micro_batches, or mesh.tp where a micro-batch is one sequence{}",
                       ep > 1 ? "; or lower mesh.ep" : ""));
  }
}

// A fault: the last slices lack a feature.
static void shorten_slices(Plan& plan) {
  auto placements = std::make_shared<Placements>(*plan.placements);
  for (ExpertPlacement& placement : placements->layers)
    if (placement.is_sliced()) --placement.widths.back();
  plan.placements = std::move(placements);
}

// A fault: the last gather of a step is left out.
static void leave_out_gather(std::vector<WeightUse>& uses) {
  const auto last = std::find_if(uses.rbegin(), uses.rend(), [](const WeightUse& use) { return use.gathers; });
  if (last != uses.rend()) last->gathers = false;
}

static std::string describe_cache(const WeightCachePlan& cache) {
  const auto gathers =
      std::count_if(cache.step.begin(), cache.step.end(), [](const WeightUse& use) { return use.gathers; });
  return fmt::format("gathered weights: {} slots of {} for {} pieces; {} of {} uses in a step gather\n",
                     cache.slots.count(), format_bytes(cache.slots.bytes), cache.slots.different, gathers,
                     cache.step.size());
}

static std::vector<int64_t> first_layers_of(const Plan& plan) {
  return split_layers(plan.model, plan.pipeline, plan.run.train.seq_len, plan.run.mesh.stage_layers);
}

static void plan_pipeline(Plan& plan) {
  plan.pipeline = pipeline_shape(plan.run.mesh, plan.run.train.micro_batches);
  if (splits_backward(plan.pipeline.kind) && weight_part(plan.run).empty())
    fail(Exit::config,
         fmt::format("mesh.schedule = \"{}\" computes weight gradients later, but memory.recompute = \"{}\" keeps "
                     "none of the activations that they need",
                     word_of(plan.run.mesh.schedule), word_of(plan.run.recompute)),
         "set memory.recompute to \"moe\", \"selective\" or \"none\", or mesh.schedule = \"1f1b\"");
  plan.stages = plan_stages(make_schedule(plan.pipeline), plan.coords.pp, first_layers_of(plan));
  plan_steps(plan, plan.run.train.micro_batches);
}

void plan_steps(Plan& plan, int64_t micro_batches) {
  plan.pipeline.micro_batches = micro_batches;
  Schedule schedule = make_schedule(plan.pipeline);
  std::vector<LayerPieces> layers;
  for (const WeightGather& gather : plan.gathers) layers.push_back(pieces_of(gather));
  plan.weight_cache =
      plan_weight_cache(schedule, plan.coords.pp, first_layers_of(plan), layers, plan.run.moe.weight_slots);
  if (plan.run.fault == Fault::stale_cache_slot) leave_out_gather(plan.weight_cache.step);
  plan.schedule = std::move(schedule.ranks[static_cast<size_t>(plan.coords.pp)]);
}

Plan make_plan(const ModelSpec& model, const RunSpec& run, int world, int rank, const Platform& platform,
               SharedPlacements placements) {
  Plan plan;
  plan.model = model;
  plan.run = run;
  plan.mesh = make_mesh(run.mesh, world, run.moe.tp_mode);
  plan.rank = rank;
  plan.coords = coords_of(plan.mesh, rank);
  plan.platform = platform;
  plan.nodes = node_map(run.mesh, platform);
  plan.batch = make_local_batch(run, plan.mesh.dp, plan.coords.dp);
  if (run.fault == Fault::wrong_share_offset && plan.mesh.dp > 1 && plan.coords.dp == plan.mesh.dp - 1)
    --plan.batch.first;
  plan.transports = choose_transports(transport_names(run.moe.transport, model), plan.mesh.ep);
  if (plan.mesh.ep > 1 && model.moe_layer_count() == 0)
    fail(Exit::config, fmt::format("mesh.ep = {}, but the model has no MoE layer", plan.mesh.ep), "set mesh.ep = 1");
  if (plan.batch.most_tokens() > kMostTokens)
    fail(Exit::config,
         fmt::format("a micro-batch has {} tokens per rank, at most 2^30 are supported", plan.batch.most_tokens()),
         fmt::format("raise train.micro_batches to at least {}",
                     run.train.micro_batches * ((plan.batch.most_tokens() + kMostTokens - 1) / kMostTokens)));
  check_learning_rate(run.train);
  check_batch_ramp(run.train);
  check_dtypes(run, plan.transports);
  check_qk_clip(model, run.train);
  check_replicas(run, plan.mesh.ep, plan.transports);
  for (const int64_t samples : different_samples(run, run.train.micro_batches, plan.mesh.dp))
    check_tensor_parallel(model, run, plan.mesh, samples);
  check_expert_count(model);
  if (placements == nullptr)
    placements = std::make_shared<Placements>(start_placements(model, run, plan.transports, plan.mesh.ep));
  validate(*placements, model, plan.mesh.ep);
  for (const ExpertPlacement& placement : placements->layers)
    if (!has_room_for_replicas(placement, run))
      fail(Exit::config,
           fmt::format("a placement has more replicas on a rank than moe.replica_slots = {}", run.moe.replica_slots),
           "raise moe.replica_slots, or use a placement without replicas");
  plan.placements = std::move(placements);
  check_slices(plan);
  check_expert_shares(plan);
  check_row_counts(plan);
  if (run.fault == Fault::short_slice) shorten_slices(plan);
  for (size_t i = 0; i < model.layers.size(); ++i)
    plan.gathers.push_back(weight_gather_of(plan.transports[i], local_layer(plan, static_cast<int64_t>(i)), model.width,
                                            run, plan.placements->layers[i], platform));
  plan.params = run_params(model, run.train);
  check_param_groups(plan.params, run.train);
  plan_pipeline(plan);
  plan.parameter_rows =
      parameter_bytes(own_params(plan), model, run, plan.mesh, plan.coords, plan.placements->layers, platform);
  plan.activation_rows = activation_bytes(model, run, plan.mesh, plan.coords, plan.stages, plan.placements->layers,
                                          plan.transports, platform);
  check_total(plan);
  return plan;
}

bool can_place_experts(const Plan& plan, const Placements& placements) {
  const auto alike = [&](const ExpertPlacement& now, const ExpertPlacement& next) {
    if (now.is_sliced() || next.is_sliced()) return now == next;
    return now.ep == next.ep && now.experts() == next.experts() && has_room_for_replicas(next, plan.run) &&
           now.rank_offsets() == next.rank_offsets();
  };
  return std::equal(plan.placements->layers.begin(), plan.placements->layers.end(), placements.layers.begin(),
                    placements.layers.end(), alike);
}

void place_experts(Plan& plan, SharedPlacements placements) {
  validate(*placements, plan.model, plan.mesh.ep);
  if (!can_place_experts(plan, *placements))
    fail(Exit::config, "a placement moves experts to ranks without room for them",
         "keep the number of experts that have their home on each rank in each layer, and at most moe.replica_slots "
         "replicas");
  plan.placements = std::move(placements);
  for (size_t i = 0; i < plan.gathers.size(); ++i)
    if (const WeightGather& gather = plan.gathers[i]; gather.pieces() > 0)
      plan.gathers[i] = make_weight_gather(plan.placements->layers[i], gather.pieces(), gather.forms);
}

std::vector<ParamRow> own_params(const Plan& plan) {
  std::vector<ParamRow> rows;
  for (const ParamRow& row : plan.params)
    if (holds(plan.stages, row, plan.model.tie_embeddings)) rows.push_back(row);
  return rows;
}

std::vector<ByteRow> all_rows(const Plan& plan) {
  std::vector<ByteRow> rows = plan.parameter_rows;
  rows.insert(rows.end(), plan.activation_rows.begin(), plan.activation_rows.end());
  return rows;
}

std::string describe(const Plan& plan) {
  const std::vector<ByteRow> rows = all_rows(plan);
  const ByteSummary s = summarise(rows);
  const auto halves = [&](ByteKind kind, DType dtype, const char* note) {
    const bool any = std::any_of(rows.begin(), rows.end(),
                                 [&](const ByteRow& row) { return row.kind == kind && row.dtype == dtype; });
    return std::pair(kind, any ? note : "");
  };
  const std::map<ByteKind, const char*> notes = {halves(ByteKind::master, DType::u16, " (what packed weights lack)"),
                                                 halves(ByteKind::gradient, DType::bf16, " (those of experts in bf16)"),
                                                 halves(ByteKind::moment, DType::bf16, " (in bf16)")};
  const int64_t version = plan.placements == nullptr ? 0 : plan.placements->version;
  std::string text = fmt::format(
      "mesh {}{}; {} sequences{} x {} tokens per rank and micro-batch, {} per step\n", describe(plan.mesh),
      version == 0 ? "" : fmt::format("; version {} of the placement", version), plan.batch.sequences,
      plan.run.mesh.shares.empty() ? "" : fmt::format(" (of {}, shared {})", plan.batch.all, plan.run.mesh.shares),
      plan.batch.seq_len, counted(plan.run.train.micro_batches, "micro-batch"));
  if (plan.mesh.pp > 1)
    text += fmt::format("pipeline {}; rank {} has {}\n", describe(plan.pipeline), plan.rank, describe(plan.stages));
  if (plan.run.moe.weight_slots != MoeRunSpec{}.weight_slots && plan.weight_cache.slots.count() > 0)
    text += describe_cache(plan.weight_cache);
  text += fmt::format("memory {}: {} of tensors",
                      plan.mesh.pp * plan.mesh.tp > 1 ? fmt::format("of rank {}", plan.rank) : "per rank",
                      format_bytes(s.total()));
  for (int k = 0; k < kByteKinds; ++k) {
    if (s.by_kind[k] == 0) continue;
    const auto kind = static_cast<ByteKind>(k);
    const auto note = notes.find(kind);
    text += fmt::format("{} {} {}{}", k == 0 ? ":" : ",", name_of(kind), format_bytes(s.by_kind[k]),
                        note == notes.end() ? "" : note->second);
  }
  if (s.on_host > 0) text += fmt::format("; {} more on the host", format_bytes(s.on_host));
  if (s.routed_committed > 0)
    text += fmt::format("; rows that depend on the load: {} balanced, {} committed, {} at worst",
                        format_bytes(s.routed_mean), format_bytes(s.routed_committed), format_bytes(s.routed_max));
  return text;
}

}  // namespace mw
