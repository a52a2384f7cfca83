#include "train/verify/verify_replay.h"

#include <algorithm>
#include <span>

#include "moe/forced_load.h"
#include "moe/moe_layer.h"

namespace mw {
namespace {

// Whether MoE layer l is on one of this rank's stages.
bool is_routed_here(const Engine& layout, size_t l) {
  const int64_t layer = layout.model->moe_index()[l];
  return std::any_of(layout.plan.stages.begin(), layout.plan.stages.end(),
                     [&](const StagePlan& s) { return s.has_layer(layer); });
}

int64_t domain_tokens(const RunSpec& run, int64_t tokens) {
  return run.moe.capacity_domain == CapacityDomain::sequence ? run.train.seq_len : std::max<int64_t>(tokens, 1);
}

}  // namespace

bool forces_routing(const RunSpec& run) { return run.moe.forced_load != ForcedLoad::none; }

Routing empty_routing(const Plan& plan) {
  Routing r;
  r.tokens = routed_tokens(plan.mesh, plan.coords, plan.batch.tokens()).count;
  for (int64_t j = 0; j < plan.run.train.micro_batches; ++j) {
    r.ids.emplace_back();
    r.gaps.emplace_back();
    r.weights.emplace_back();
    for (const bool best : {false, true})
      for (const LayerSpec& layer : plan.model.layers) {
        if (layer.feed_forward != FeedForwardKind::moe) continue;
        const bool is_there = !best || counts_best_scores(plan.run, plan.model, layer);
        r.ids.back().emplace_back(static_cast<size_t>(is_there ? r.tokens * layer.moe.top_k : 0));
        r.gaps.back().emplace_back(static_cast<size_t>(is_there ? r.tokens : 0));
        const bool drops = !best && plan.run.moe.capacity_factor > 0;
        r.weights.back().emplace_back(static_cast<size_t>(drops ? r.tokens * layer.moe.top_k : 0));
      }
  }
  return r;
}

void force_routing(const Plan& plan, int64_t step, Routing& routing) {
  for (size_t j = 0; j < routing.ids.size(); ++j) {
    size_t l = 0;
    for (int64_t i = 0; i < plan.model.layer_count(); ++i) {
      const LayerSpec& layer = plan.model.layers[static_cast<size_t>(i)];
      if (layer.feed_forward == FeedForwardKind::moe)
        routing.ids[j][l++] =
            forced_choices(plan.run, layer.moe, {step, i, static_cast<int64_t>(j) * routing.tokens, routing.tokens});
    }
  }
}

TapProvider tap_routing(const RunSpec& run, Routing& own, const Routing* replayed, bool with_drops) {
  return [forced = forces_routing(run), &own, replayed, with_drops](int64_t micro_batch) {
    const auto j = static_cast<size_t>(micro_batch);
    std::vector<RoutingTap> list(own.ids[j].size() / 2);
    for (size_t l = 0; l < list.size(); ++l) {
      const size_t best = list.size() + l;
      const bool drops = !own.weights[j][l].empty(), counts_best = !own.ids[j][best].empty() && !forced;
      RoutingTap& tap = list[l];
      if (!forced) tap.ids = own.ids[j][l].data(), tap.gaps = own.gaps[j][l].data();
      if (counts_best) tap.best_ids = own.ids[j][best].data(), tap.best_gaps = own.gaps[j][best].data();
      if (drops) tap.weights = own.weights[j][l].data();
      if (replayed == nullptr) continue;
      tap.replay_ids = replayed->ids[j][l].data();
      if (counts_best) tap.replay_best_ids = replayed->ids[j][best].data();
      if (drops && with_drops) tap.ranking = replayed->weights[j][l].data();
    }
    return list;
  };
}

void share_routing(Comm& comm, Routing& global) {
  for (auto& layers : global.ids)
    for (auto& ids : layers) comm.broadcast(std::as_writable_bytes(std::span(ids)), 0);
  for (auto* values : {&global.gaps, &global.weights})
    for (auto& layers : *values)
      for (auto& of_layer : layers) comm.broadcast(std::as_writable_bytes(std::span(of_layer)), 0);
}

Routing local_part(const Plan& plan, const Routing& global) {
  Routing local = empty_routing(plan);
  const int64_t first = first_routed_token(plan);
  for (size_t j = 0; j < local.ids.size(); ++j)
    for (size_t l = 0; l < local.ids[j].size(); ++l) {
      const std::vector<int32_t>& ids = local.ids[j][l];
      if (ids.empty()) continue;
      const int64_t top_k = std::ssize(global.ids[j][l]) / global.tokens;
      std::copy_n(global.ids[j][l].begin() + first * top_k, ids.size(), local.ids[j][l].begin());
      std::copy_n(global.gaps[j][l].begin() + first, local.gaps[j][l].size(), local.gaps[j][l].begin());
      if (!local.weights[j][l].empty())
        std::copy_n(global.weights[j][l].begin() + first * top_k, ids.size(), local.weights[j][l].begin());
    }
  return local;
}

RoutingDifference compare_all_routing(Comm& comm, const Engine& layout, const Routing& expected, const Routing& got,
                                      bool alike) {
  const Plan& plan = layout.plan;
  const std::vector<int64_t>& moe_layers = layout.model->moe_index();
  const bool copies = plan.mesh.ted && plan.coords.tp > 0;  // of the same tokens
  std::vector<int64_t> counts;
  std::vector<double> gaps;
  for (size_t j = 0; j < expected.ids.size(); ++j)
    for (size_t l = 0; l < moe_layers.size(); ++l) {
      RoutingDifference choice, best;
      if (!copies && is_routed_here(layout, l)) {
        const MoeSpec& moe = plan.model.layers[static_cast<size_t>(moe_layers[l])].moe;
        const CapacityRule capacity =
            capacity_rule(moe, domain_tokens(plan.run, expected.tokens), plan.run.moe.capacity_factor);
        const auto compare = [&](size_t at) {
          return compare_routing(layer_of(expected, j, at), layer_of(got, j, at), expected.tokens, capacity);
        };
        choice = compare(l);
        best = compare(moe_layers.size() + l);
      }
      counts.insert(counts.end(), {choice.tokens, choice.drops, best.tokens});
      gaps.push_back(std::max(choice.widest_gap, best.widest_gap));
    }
  comm.all_reduce_sum(std::span(counts));
  comm.all_reduce_max(std::span(gaps));
  RoutingDifference sum;
  bool differed = false;  // in this micro-batch
  for (size_t i = 0; i < gaps.size(); ++i) {
    if (i % moe_layers.size() == 0) differed = false;
    const int64_t tokens = counts[3 * i], drops = counts[3 * i + 1], best = counts[3 * i + 2];
    sum.add({tokens + best, drops, alike || !differed ? gaps[i] : 0});
    differed = differed || tokens > 0 || drops > 0;  // the best scores have no part in what follows
  }
  return sum;
}

}  // namespace mw
