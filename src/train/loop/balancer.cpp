#include "train/loop/balancer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <memory>
#include <span>
#include <utility>

#include "base/host.h"
#include "engine/migration.h"
#include "layout/balance.h"
#include "layout/row_split.h"
#include "layout/shares.h"
#include "layout/transport.h"

namespace mw {
namespace {

constexpr double kDecay = 0.1;                       // weight of a new step in the means
constexpr int64_t kSmallPieces = int64_t{16} << 10;  // of debug.migrate, so that small models take several rounds, too

std::vector<int64_t> rounded(const std::vector<double>& rows) {
  std::vector<int64_t> out;
  for (const double row : rows) out.push_back(std::llround(row));
  return out;
}

// That every rank of the placement computes.
std::vector<int64_t> rank_rows(const ExpertPlacement& placement, std::span<const int64_t> rows,
                               const std::vector<int64_t>& speeds) {
  return rows_of_ranks(placement, split_rows(placement, rows, speeds));
}

// Whether the rows of a rank depend on which experts it has.
bool rows_follow_experts(const Plan& plan, int64_t layer) {
  return traits_of(plan.transports[static_cast<size_t>(layer)]).follows_load();
}

// Elements of an expert on one rank; with TED each TP rank has its share.
double expert_elements(const Plan& plan, const LayerSpec& layer) {
  const auto matrices = static_cast<double>(halves_of(layer.activation) + 1);
  return matrices * static_cast<double>(plan.model.width * layer.moe.width) / (plan.mesh.ted ? plan.mesh.tp : 1);
}

// Master weights in fp32 and moments; with ZeRO each EDP rank receives its share.
double state_bytes(const Plan& plan, const LayerSpec& layer) {
  const int moments = plan.run.train.optimizer == Optimizer::muon ? 1 : 2;
  return expert_elements(plan, layer) * static_cast<double>(size_of(DType::f32) + moments * size_of(plan.run.moments)) /
         (plan.run.mesh.zero > 0 ? plan.mesh.edp : 1);
}

}  // namespace

std::string describe(const BalanceReport& report, int64_t step) {
  if (report.moved_experts == 0) return "";
  return fmt::format(
      "step {}: {} experts moved to other ranks in {:.1f} ms{}", step, report.moved_experts, report.move_seconds * 1e3,
      report.expected_gain.value_or(0) > 0 ? fmt::format("; a step should save {:.1f} ms", *report.expected_gain * 1e3)
                                           : "");
}

Balancer::Balancer(Engine& engine)
    : engine_(engine),
      speeds_(expert_speeds(engine.plan.run, engine.plan.mesh.ep)),
      link_bytes_per_second_(engine.plan.run.moe.balance == Balance::none ? 0 : measure_bandwidth(engine)),
      move_bytes_per_second_(link_bytes_per_second_) {
  const Plan& plan = engine.plan;
  all_flops_ = forward_flops_per_token(plan.model, -1);  // without those of attention scores
  for (const int64_t index : engine.model->moe_index()) {
    const LayerSpec& layer = plan.model.layers[static_cast<size_t>(index)];
    const auto matrices = static_cast<double>(halves_of(layer.activation) + 1);
    layers_.push_back({index,
                       {},
                       2 * matrices * static_cast<double>(plan.model.width * layer.moe.top_k * layer.moe.width),
                       state_bytes(plan, layer),
                       expert_elements(plan, layer) * size_of(plan.run.train.dtype),
                       expert_elements(plan, layer) * size_of(plan.run.expert_gradients)});
  }
}

void Balancer::observe(const StepStats& stats) {
  for (size_t l = 0; l < layers_.size(); ++l) {
    std::vector<double>& mean = layers_[l].mean;
    if (mean.empty()) mean = stats.load[l];
    for (size_t e = 0; e < mean.size(); ++e) mean[e] += kDecay * (stats.load[l][e] - mean[e]);
  }
}

// matmul_seconds: of all ranks together, in a step. gain: by the loads of that step; the means, which placements fit
// best, promise more than later loads keep.
Placements Balancer::plan_moves(const StepStats& stats, double matmul_seconds, int64_t step, double& gain) {
  const Plan& plan = engine_.plan;
  Placements next = *plan.placements;
  ++next.version;
  const double ranks = static_cast<double>(plan.mesh.world) / plan.mesh.pp;  // that share a layer
  const int64_t horizon = plan.run.moe.balance_horizon;
  for (size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    ExpertPlacement& placement = next.layers[static_cast<size_t>(layer.index)];
    if (!rows_follow_experts(plan, layer.index)) continue;
    const std::vector<int64_t> rows = rounded(layer.mean);
    const auto slots = static_cast<int>(replica_slots(plan.run.moe, plan.mesh.ep));
    const BalanceCosts costs{.expert_seconds = matmul_seconds * layer.expert_flops / all_flops_ / ranks,
                             .weight_bytes = slots > 0 ? layer.weight_bytes : 0,
                             .state_bytes = layer.state_bytes,
                             .bytes_per_second = move_bytes_per_second_,
                             .replica_seconds = (layer.weight_bytes + layer.gradient_bytes) / link_bytes_per_second_,
                             .horizon = layer.moved_at ? std::min(horizon, step - *layer.moved_at) : horizon};
    ExpertPlacement best = best_placement(placement, rows, speeds_, slots, costs);
    if (best == placement) continue;
    gain += seconds_saved_per_step(placement, best, rounded(stats.load[l]), speeds_, costs) / plan.mesh.pp;
    layer.moved_at = step;
    placement = std::move(best);
  }
  return next;
}

void Balancer::move(Placements next, BalanceReport& report) {
  for (size_t i = 0; i < next.layers.size(); ++i)
    if (next.layers[i].experts() > 0)
      report.moved_experts += change_between(engine_.plan.placements->layers[i], next.layers[i]).moves;
  const double begin = now_seconds();
  const Migrated done =
      migrate_experts(engine_, std::make_shared<Placements>(std::move(next)),
                      engine_.plan.run.migrate ? kSmallPieces : kMigrationBytes, [&] { count_message(); });
  std::array<double, 2> most = {now_seconds() - begin, static_cast<double>(done.received_bytes)};
  report.moved_bytes = done.sent_bytes;
  engine_.world.all_reduce_max(std::span(most));
  engine_.world.all_reduce_sum(std::span(&report.moved_bytes, 1));
  report.move_seconds = most[0];
  if (most[1] > 0) move_bytes_per_second_ = most[1] / most[0];
}

void Balancer::count_message() {
  const int64_t last = engine_.plan.run.kill;
  if (++messages_ == last && last % engine_.world.size() == engine_.world.rank()) std::raise(SIGKILL);
}

// With replica slots from the rows that ranks computed, because every micro-batch splits them anew; else from the
// loads.
void Balancer::report_imbalance(const StepStats& stats, BalanceReport& report) const {
  const Plan& plan = engine_.plan;
  const auto ep = static_cast<size_t>(plan.mesh.ep);
  std::vector<int64_t> computed;  // [layer, EP rank], and in all those of replicas
  if (replica_slots(plan.run.moe, plan.mesh.ep) > 0) {
    computed.resize(layers_.size() * ep + 1);
    for (size_t l = 0; l < layers_.size(); ++l) {
      computed[l * ep + static_cast<size_t>(plan.coords.ep)] = stats.rows[l].all;
      computed.back() += stats.rows[l].of_replicas;
    }
    engine_.world.all_reduce_sum(std::span(computed));
    report.replica_rows = computed.back();
  }
  for (size_t l = 0; l < layers_.size(); ++l) {
    const auto index = static_cast<size_t>(layers_[l].index);
    std::vector<int64_t> rows;
    if (!computed.empty())
      rows.assign(computed.begin() + std::ptrdiff_t(l * ep), computed.begin() + std::ptrdiff_t((l + 1) * ep));
    else if (rows_follow_experts(plan, layers_[l].index))
      rows = rank_rows(plan.placements->layers[index], rounded(stats.load[l]), speeds_);
    const double imbalance = rows.empty() ? 1 : imbalance_of(rows, speeds_);
    report.rank_imbalance += imbalance / static_cast<double>(layers_.size());
    report.worst_rank_imbalance = std::max(report.worst_rank_imbalance, imbalance);
    report.rank_rows.push_back(std::move(rows));
  }
}

BalanceReport Balancer::after_step(const StepStats& stats, int64_t step) {
  BalanceReport report;
  const RunSpec& run = engine_.plan.run;
  observe(stats);
  report_imbalance(stats, report);
  const std::vector<double> work = take_work();
  if (!work.empty()) matmul_seconds_ = work[static_cast<size_t>(Work::matmul)];
  if (run.migrate) {
    move(shuffle_experts(*engine_.plan.placements, static_cast<uint64_t>(run.train.seed), step,
                         replica_slots(run.moe, engine_.plan.mesh.ep)),
         report);
  } else if (run.moe.balance == Balance::swap && step % run.moe.balance_every == 0) {
    double seconds = matmul_seconds_;
    engine_.world.all_reduce_sum(std::span(&seconds, 1));
    double gain = 0;
    Placements next = plan_moves(stats, seconds, step, gain);
    if (next.layers != engine_.plan.placements->layers) {
      report.expected_gain = gain;
      move(std::move(next), report);
    }
  }
  return report;
}

std::vector<double> Balancer::take_work() {
  engine_.stream.trace().settle();
  return clock_.take(engine_.stream.trace(), engine_.device.kind != DeviceKind::cpu);
}

void Balancer::resume(const SharedPlacements& recorded) {
  const Plan& plan = engine_.plan;
  if (recorded == nullptr || plan.run.moe.balance == Balance::none) return;
  Placements next = *recorded;
  const std::vector<ExpertPlacement>& now = plan.placements->layers;
  for (size_t i = 0; i < std::min(now.size(), next.layers.size()); ++i)
    if (now[i].is_sliced()) next.layers[i] = now[i];  // a record does not say how experts are cut
  if (can_place_experts(plan, next)) migrate_experts(engine_, std::make_shared<Placements>(std::move(next)));
}

}  // namespace mw
