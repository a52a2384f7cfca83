#include "planner/estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "layout/gradient_blocks.h"
#include "planner/largest_ranks.h"

namespace mw {
namespace {

// Bytes that the optimizer's update moves for each byte of moments: gradient, master weight and moments are read, the
// latter two written. Of a split master weight half is written with the packed form; all are taken for split where some
// are.
double update_bytes(const RunSpec& run, const PlatformProfile& profile) {
  const int count = run.train.optimizer == Optimizer::muon ? 1 : 2;
  const auto moments = static_cast<double>(count * size_of(run.moments));
  const bool splits = run.train.dtype == DType::bf16 && profile.one_packed_form && profile.split_masters.value_or(true);
  return (4 + (splits ? 6 : 8) + 2 * moments) / moments;
}
// Share of a pass that gradient sums run beside: those of its first layers are complete at its end only.
constexpr double kBesideBackward = 0.9;

// What gradient sums add to a step whose last backward pass takes `last_pass`: the end that is waited for, and on GPUs
// what they take of the pass beside them.
double added_by_sums(const PlatformProfile& profile, double sums, double last_pass) {
  if (!profile.overlaps_gradient_sums) return sums;
  const double waited = std::max(sums * (1 - kBesideBackward), sums - kBesideBackward * last_pass);
  return waited + (profile.overlap_slowdown - 1) * (sums - waited);
}

int64_t row_growth(const ByteSummary& table, double load) {
  return std::min(table.routed_max, static_cast<int64_t>(std::ceil(static_cast<double>(table.routed_mean) * load)));
}

// Groups that a rank communicates in, and its links to other pipeline ranks.
int64_t groups_of(const Layout& layout, const Mesh& mesh) {
  std::vector<RankGroup> groups;
  for (const RankGroup group : {tp_group(mesh), ep_group(mesh), replica_group(mesh, Replicas::dp),
                                replica_group(mesh, Replicas::stage), replica_group(mesh, Replicas::edp)})
    if (group.size > 1 && std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
  const int links = layout.pp == 1 ? 0 : layout.chunks > 1 ? 2 : 1;
  return std::ssize(groups) + links;
}

}  // namespace

void check_offload(const RunSpec& run, const PlatformProfile& profile) {
  if (run.offload != Offload::none && !profile.host_bytes_per_s)
    fail(Exit::config,
         fmt::format("memory.offload = \"{}\", but the profile of {} has no host_bytes_per_s", word_of(run.offload),
                     profile.name),
         "measure it with `moewright probe` on these GPUs, or plan with memory.offload=none");
}

// Seconds of one micro-batch in a stage.
struct Estimator::StageTime {
  LayerTime work;
  double statistics = 0;
  double message = 0;        // to the next stage
  bool adds_squares = true;  // all layers do with gradients of experts
  double forward() const { return work.forward + work.forward_exchange; }
  double backward_input() const { return work.backward_input + work.backward_exchange; }
  double all() const { return forward() + backward_input() + work.backward_weight + statistics; }
  double exchanged() const { return work.forward_exchange + work.backward_exchange + statistics; }
};

struct Estimator::OtherRun {
  RunSpec run;
  Estimator estimator;
  OtherRun(const Estimator& of, RunSpec other)
      : run(std::move(other)), estimator(of.model_, run, of.profile_, of.expert_load_, of.ranks_) {}
};

Estimator::~Estimator() = default;

Estimator& Estimator::of_run(const Layout& layout) {
  const auto key_of = [](const RunSpec& run) {
    return std::array{run.moe.transport, run.mesh.shares, run.mesh.width_shares, run.mesh.expert_shares,
                      run.mesh.stage_layers};
  };
  const bool is_own = layout.transport.empty() || layout.transport == run_.moe.transport;
  if (is_own && !profile_.rank_kinds) return *this;
  RunSpec run = run_;
  if (!is_own) run.moe.transport = layout.transport;
  run = with_shares_of(profile_, model_, std::move(run), layout, mesh_of(layout, ranks_));
  const std::array<std::string, 5> key = key_of(run);
  if (key == key_of(run_)) return *this;
  std::unique_ptr<OtherRun>& other = others_[key];
  if (other == nullptr) other = std::make_unique<OtherRun>(*this, std::move(run));
  return other->estimator;
}

Estimator::Estimator(const ModelSpec& model, const RunSpec& run, const PlatformProfile& profile, const ExpertLoad& load,
                     int ranks)
    : model_(model),
      run_(run),
      profile_(profile),
      expert_load_(load),
      ranks_(ranks),
      memory_(model, run, platform_of(profile, run)),
      pipelines_(model, run.train.seq_len, run.mesh.stage_layers),
      gather_rates_(memory_, pipelines_, run.moe.weight_slots),
      times_(memory_.kinds(), run, profile, load, ranks),
      transfers_(profile, ranks) {
  check_offload(run, profile);
  tokens_per_step_ = static_cast<double>(run.train.global_batch * run.train.seq_len);
  flops_per_step_ = 3 * forward_flops_per_token(model, run.train.seq_len) * tokens_per_step_;
}

double Estimator::peak_flops_per_s() const {
  return profile_.peak_flops_per_s * ranks_ * (run_.train.dtype == DType::bf16 ? 1 : profile_.fp32_share);
}

std::vector<Estimator::StageTime> Estimator::stage_times(const Layout& layout, const Mesh& mesh) {
  const PipelineShape shape = layout.pipeline();
  const LayerKinds& kinds = memory_.kinds();
  const RankGroup stage_group = replica_group(mesh, Replicas::stage);
  const int64_t tokens = most_samples(run_, layout.micro_batches, mesh.dp) * run_.train.seq_len;
  const auto message_bytes =
      static_cast<double>(block_of(tokens, mesh.tp, 0).count * model_.width * size_of(run_.train.dtype));
  std::vector<StageTime> stages(static_cast<size_t>(layout.stages()));
  const auto add = [](LayerTime& sum, const LayerTime& layer, double times_of_it = 1) {
    sum.forward += times_of_it * layer.forward;
    sum.backward_input += times_of_it * layer.backward_input;
    sum.backward_weight += times_of_it * layer.backward_weight;
    sum.forward_exchange += times_of_it * layer.forward_exchange;
    sum.backward_exchange += times_of_it * layer.backward_exchange;
  };
  // What gathers add to layers that find all weights in their slots.
  const std::vector<GatherRates::Rate> gathers = gather_rates_.of(layout, mesh);
  const auto add_gather_times = [&](LayerTime& sum, const StagePlan& plan, const LayerTimes& times) {
    for (int64_t i = plan.first_layer; !gathers.empty() && i < plan.end_layer; ++i) {
      const auto kind = static_cast<size_t>(kinds.of_layer[static_cast<size_t>(i)]);
      const LayerTime &with = times.kinds[kind], &without = times.cached[kind];
      const auto [forward, backward] = gathers[static_cast<size_t>(i)];
      sum.forward += forward * (with.forward - without.forward);
      sum.forward_exchange += forward * (with.forward_exchange - without.forward_exchange);
      sum.backward_input += backward * (with.backward_input - without.backward_input);
      sum.backward_exchange += backward * (with.backward_exchange - without.backward_exchange);
    }
  };
  std::pair<int64_t, double> statistics;  // of so many experts, as most stages have
  int pp = 0;
  for (const std::vector<StagePlan>& rank : pipelines_.stages_of(layout)) {
    const LayerTimes& times = times_.of(layout, mesh, pace_of(profile_, model_, run_, layout, mesh, pp++));
    for (const StagePlan& plan : rank) {
      StageTime& stage = stages[static_cast<size_t>(plan.stage)];
      int64_t experts = 0;
      for (int kind = 0; kind < kinds.count(); ++kind) {
        const int64_t layers = kinds.layers_in(plan, kind);
        add(stage.work, times.cached[static_cast<size_t>(kind)], static_cast<double>(layers));
        experts += layers * kinds.spec(kind).moe.experts;
        if (layers > 0 && kinds.spec(kind).feed_forward == FeedForwardKind::moe)
          stage.adds_squares = stage.adds_squares && times.kinds[static_cast<size_t>(kind)].adds_squares;
      }
      add_gather_times(stage.work, plan, times);
      if (plan.embeds) add(stage.work, times.embedding);
      if (plan.has_head) add(stage.work, times.head);
      stage.work.forward += profile_.micro_batch_latency_s / 2;
      stage.work.backward_input += profile_.micro_batch_latency_s / 2;
      if (experts != statistics.first)
        statistics = {experts, transfers_.ring(stage_group, 12 * static_cast<double>(experts), 2)};
      stage.statistics = statistics.second;
      if (plan.has_head || layout.pp == 1) continue;
      // The slowest message counts. Where a border of nodes lies within a stage, only some of its ranks cross it: the
      // first of one stage and the last of the other do.
      const int64_t from = rank_of_stage(shape, plan.stage), to = rank_of_stage(shape, plan.stage + 1);
      stage.message = transfers_.message(std::min(from, to) * stage_group.size,
                                         (std::max(from, to) + 1) * stage_group.size - 1, message_bytes);
    }
  }
  return stages;
}

// Of the gradients of a pipeline rank; waited for at the end of a step.
double Estimator::replica_sums(const Layout& layout, const Mesh& mesh,
                               const std::array<int64_t, kReplicas>& bytes) const {
  double seconds = 0;
  for (size_t b = 0; b < kReplicas; ++b) {
    const RankGroup group = replica_group(mesh, static_cast<Replicas>(b));
    const auto block = static_cast<double>(bytes[b]);
    seconds += layout.zero > 0 ? transfers_.owner(group, block) : transfers_.ring(group, block, 2);
  }
  return seconds;
}

// ZeRO: what the owners of cuts send the other replicas, packed forms on GPUs, else fp32.
double Estimator::weights_gather(const Mesh& mesh, const std::array<int64_t, kReplicas>& gradients) const {
  const double share = run_.train.dtype == DType::bf16 && profile_.one_packed_form ? 0.5 : 1;
  double seconds = 0;
  for (size_t b = 0; b < kReplicas; ++b)
    seconds +=
        transfers_.owner(replica_group(mesh, static_cast<Replicas>(b)), share * static_cast<double>(gradients[b]));
  return seconds;
}

// The ends of a pipeline, where they are two ranks, wait for both at the end of a step.
double Estimator::tied_embeddings(const Layout& layout, const Mesh& mesh) const {
  const PipelineShape shape = layout.pipeline();
  const int64_t apart = std::abs(rank_of_stage(shape, layout.stages() - 1) - rank_of_stage(shape, 0));
  if (!model_.tie_embeddings || apart == 0) return 0;
  const int64_t elements = vocab_part(model_, mesh.tp, 0).count * model_.width;
  const int64_t stride = apart * mesh.dp * mesh.tp;
  return transfers_.ring({2, stride}, 4 * static_cast<double>(elements), 2) +
         transfers_.message(0, stride + mesh.dp * mesh.tp - 1, 4 * static_cast<double>(elements));
}

double Estimator::update_time(const ByteSummary& states) const {
  const auto bytes = [&](ByteKind kind) { return static_cast<double>(states.by_kind[static_cast<int>(kind)]); };
  const double packed = bytes(ByteKind::packed), packed_from = packed * (profile_.native_bf16 ? 2 : 1);
  double update = (update_bytes(run_, profile_) * bytes(ByteKind::moment) + bytes(ByteKind::gradient)) /
                  profile_.stream_bytes_per_s;
  // Those on the host are read and written over the bus.
  if (states.on_host > 0) update += 2 * static_cast<double>(states.on_host) / profile_.host_bytes_per_s.value();
  // A GPU's update writes its one form too; each of a CPU's two is an operator that reads fp32.
  if (profile_.one_packed_form) update += packed / profile_.stream_bytes_per_s;
  else update += (packed + packed_from) / profile_.pack_bytes_per_s.value_or(profile_.elementwise_bytes_per_s);
  return update;
}

// Of the slowest rank.
double Estimator::optimizer_time(const Layout& layout, const States& states, const std::vector<StageTime>& times) {
  const bool adds_squares =
      layout.micro_batches == 1 &&
      std::all_of(times.begin(), times.end(), [](const StageTime& stage) { return stage.adds_squares; });
  return states.optimizer - (adds_squares ? states.expert_squares : 0);
}

// Seconds in which gradients of experts are read for their norm, unless products have added their squares.
double Estimator::expert_gradients_read(const Mesh& mesh, const std::array<int64_t, kReplicas>& gradients) const {
  if (!profile_.squares_when_stored.value_or(false) || !squares_when_stored(run_, mesh, profile_.one_packed_form))
    return 0;
  const auto elements = static_cast<double>(gradients[static_cast<size_t>(Replicas::edp)]) / 4;
  return elements * static_cast<double>(size_of(run_.expert_gradients)) / profile_.stream_bytes_per_s;
}

// CPUs compute it in fp32, GPUs of bf16 runs in bf16.
double Estimator::muon_time(const MuonWork& work) const {
  if (work.products == 0) return 0;
  const DType dtype = profile_.one_packed_form ? run_.train.dtype : DType::f32;
  return work.flops / rate_at(rates_of(profile_, dtype).dense_products, work.flops / work.products);
}

const Estimator::States& Estimator::states_of(const Layout& layout, const Mesh& mesh) {
  // The kind of schedule matters where it cuts the layers otherwise.
  const ScheduleKind schedule = layout.chunks > 1 ? layout.schedule : ScheduleKind::one_f_one_b;
  // Samples are shared within a micro-batch.
  const int64_t micro_batches = run_.mesh.shares.empty() ? 0 : layout.micro_batches;
  const auto [entry, is_new] = states_.try_emplace(
      {schedule, layout.chunks, layout.pp, layout.tp, layout.ep, layout.placement, layout.zero, micro_batches});
  States& states = entry->second;
  if (!is_new) return states;
  std::vector<int>& ranks =
      largest_ranks_[{layout.pp, layout.tp, layout.ep, layout.placement, layout.zero, micro_batches}];
  if (ranks.empty()) ranks = largest_ranks(run_, layout, mesh, memory_);
  states.ranks = ranks;
  for (const LibraryBytes& library : profile_.libraries)
    states.libraries += library.bytes * (library.per_group ? groups_of(layout, mesh) : 1);
  const LayerKinds& kinds = memory_.kinds();
  for (int kind = 0; kind < kinds.count(); ++kind) {
    const LayerSpec& layer = kinds.spec(kind);
    if (layer.feed_forward != FeedForwardKind::moe) continue;
    const TransportTraits& traits = traits_of(choose_transport(kinds.transports[static_cast<size_t>(kind)], mesh.ep));
    if (!traits.follows_load()) continue;
    const RankLoad load = times_.load().of(layer.moe.experts, mesh.ep, traits.equal_rows);
    const double most = largest_block(layer.moe.experts, mesh.ep);
    states.load = {std::max(states.load.mean, load.mean / most), std::max(states.load.p99, load.p99 / most)};
  }
  const int stage_ranks = mesh.dp * mesh.tp;
  int pp = 0;
  for (const std::vector<StagePlan>& stages : pipelines_.stages_of(layout)) {
    const std::array<int64_t, kReplicas> gradients = memory_.gradient_bytes(mesh, {pp}, stages);
    const double gather = layout.zero > 0 ? weights_gather(mesh, gradients) : 0;
    states.gradient_sums.push_back(replica_sums(layout, mesh, gradients));
    std::vector<ByteSummary>& bytes = states.bytes.emplace_back();
    for (const int rank : states.ranks) {
      const MeshCoords at = coords_of(mesh, pp * stage_ranks + rank);
      bytes.push_back(memory_.parameters(layout, mesh, at, stages));
      const double update = update_time(bytes.back()) + muon_time(memory_.muon_work(layout, mesh, at, stages));
      // GPUs gather a parameter while they update those that follow.
      states.optimizer =
          std::max(states.optimizer, profile_.overlaps_gradient_sums ? std::max(update, gather) : update + gather);
    }
    const double reads = expert_gradients_read(mesh, gradients);
    states.expert_squares = pp == 0 ? reads : std::min(states.expert_squares, reads);
    ++pp;
  }
  states.optimizer += transfers_.ring({ranks_, 1}, 8, 2);
  states.tied = tied_embeddings(layout, mesh);
  return states;
}

void Estimator::fill_memory(Estimate& estimate, const Mesh& mesh, const States& states) {
  const Layout& layout = estimate.layout;
  estimate.memory.resize(static_cast<size_t>(layout.pp));
  const bool gateways_differ = !memory_.gateway_loads_of(mesh).empty();  // then each stage may have others
  for (size_t i = 0; i < states.ranks.size(); ++i) {
    std::vector<ByteSummary> activations;
    for (int pp = 0; pp < layout.pp; ++pp) {
      if (pp == 0 || gateways_differ)
        activations = memory_.activations(layout, mesh, coords_of(mesh, pp * mesh.dp * mesh.tp + states.ranks[i]),
                                          pipelines_.stages_of(layout));
      const auto stage = static_cast<size_t>(pp);
      RankMemory rank;
      rank.table = states.bytes[stage][i];
      add(rank.table, activations[stage]);
      rank.libraries = states.libraries;
      rank.rows_fullest = row_growth(rank.table, states.load.mean);
      rank.rows_p99 = row_growth(rank.table, states.load.p99);
      RankMemory& largest = estimate.memory[stage];
      if (rank.needed() > largest.needed()) largest = rank;
      estimate.needed = std::max(estimate.needed, largest.needed());
    }
  }
}

std::vector<StageCost> Estimator::stage_costs(const Layout& layout, const std::vector<StageTime>& times,
                                              const States& states) {
  std::vector<StageCost> costs;
  for (int stage = 0; stage < layout.stages(); ++stage) {
    const StageTime& time = times[static_cast<size_t>(stage)];
    StageCost cost;
    cost.forward = time.forward();
    cost.backward_input = time.backward_input();
    cost.backward_weight = time.work.backward_weight;
    cost.statistics = time.statistics;
    // A stage sends both ways over the same links; the first has gradients only.
    if (layout.pp > 1) cost.latency = times[static_cast<size_t>(std::min(stage, layout.stages() - 2))].message;
    const double sums = states.gradient_sums[static_cast<size_t>(rank_of_stage(layout.pipeline(), stage))];
    cost.gradients = added_by_sums(profile_, sums / layout.chunks, cost.backward_input + cost.backward_weight);
    costs.push_back(cost);
  }
  return costs;
}

Estimate Estimator::closed_form(const Layout& layout) {
  if (Estimator& own = of_run(layout); &own != this) return own.closed_form(layout);
  Estimate estimate;
  estimate.layout = layout;
  const Mesh mesh = mesh_of(layout, ranks_);
  const States& states = states_of(layout, mesh);
  fill_memory(estimate, mesh, states);
  const std::vector<StageTime> times = stage_times(layout, mesh);
  const PipelineShape shape = layout.pipeline();
  const auto m = static_cast<double>(layout.micro_batches);
  struct RankTotal {
    double work = 0, exchanged = 0, forward = 0, input = 0, weight = 0;
  };
  std::vector<RankTotal> totals(static_cast<size_t>(layout.pp));
  for (int stage = 0; stage < layout.stages(); ++stage) {
    const StageTime& time = times[static_cast<size_t>(stage)];
    RankTotal& total = totals[static_cast<size_t>(rank_of_stage(shape, stage))];
    double messages = 0;  // it waits for
    if (receives_activation(shape, stage)) messages += times[static_cast<size_t>(stage) - 1].message;
    if (sends_activation(shape, stage)) messages += time.message;
    total.work += time.all() + messages;
    total.exchanged += time.exchanged() + messages;
    total.forward += time.forward() + messages / 2;
    total.input += time.backward_input() + messages / 2;
    total.weight += time.work.backward_weight;
  }
  size_t busiest = 0;
  for (size_t rank = 1; rank < totals.size(); ++rank)
    if (totals[rank].work > totals[busiest].work) busiest = rank;
  double bubble = 0;
  for (size_t rank = 0; rank < totals.size(); ++rank) {
    if (rank == busiest) continue;
    const RankTotal& t = totals[rank];
    switch (layout.schedule) {
      case ScheduleKind::gpipe:
      case ScheduleKind::one_f_one_b: bubble += t.forward + t.input + t.weight; break;
      case ScheduleKind::interleaved: bubble += (t.forward + t.input + t.weight) / layout.chunks; break;
      case ScheduleKind::zb_h1: bubble += std::max(0.0, t.forward + t.input - t.weight); break;
      case ScheduleKind::zb_v: bubble += std::max(0.0, t.forward + t.input - 2 * t.weight) / 2; break;
    }
  }
  // No schedule is faster than the way of one micro-batch through all stages and back.
  double way = 0;
  for (const RankTotal& t : totals) way += t.forward + t.input;
  bubble = std::max(bubble, way - m * totals[busiest].work);
  const double sums =
      added_by_sums(profile_, states.gradient_sums[busiest], totals[busiest].input + totals[busiest].weight);
  estimate.time.exchange = m * totals[busiest].exchanged + sums + states.tied;
  estimate.time.compute = m * (totals[busiest].work - totals[busiest].exchanged);
  estimate.time.bubble = bubble;
  estimate.time.optimizer = optimizer_time(layout, states, times);
  return estimate;
}

Estimate Estimator::simulated(const Layout& layout, Timeline* timeline) {
  if (Estimator& own = of_run(layout); &own != this) return own.simulated(layout, timeline);
  Estimate estimate;
  estimate.layout = layout;
  const Mesh mesh = mesh_of(layout, ranks_);
  const States& states = states_of(layout, mesh);
  fill_memory(estimate, mesh, states);
  const Schedule schedule = make_schedule(layout.pipeline());
  const std::vector<StageTime> times = stage_times(layout, mesh);
  const std::vector<StageCost> costs = stage_costs(layout, times, states);
  Timeline run = simulate(schedule, costs);
  size_t busiest = 0;
  for (size_t rank = 1; rank < run.ranks.size(); ++rank)
    if (run.ranks[rank].busy > run.ranks[busiest].busy) busiest = rank;
  const auto m = static_cast<double>(layout.micro_batches);
  double work = 0, waits = 0;
  for (const int stage : stages_of_rank(schedule.shape, static_cast<int>(busiest))) {
    const StageCost& cost = costs[static_cast<size_t>(stage)];
    const StageTime& time = times[static_cast<size_t>(stage)];
    work += m * (time.all() - time.exchanged());
    waits += m * time.exchanged() + cost.gradients;
    if (receives_activation(schedule.shape, stage)) waits += m * costs[static_cast<size_t>(stage) - 1].latency;
    if (sends_activation(schedule.shape, stage)) waits += m * costs[static_cast<size_t>(stage) + 1].latency;
  }
  estimate.time.compute = work;
  estimate.time.exchange = waits + states.tied;
  estimate.time.bubble = std::max(0.0, run.makespan - work - waits);
  estimate.time.optimizer = optimizer_time(layout, states, times);
  if (timeline != nullptr) *timeline = std::move(run);
  return estimate;
}

}  // namespace mw
