#include "train/step.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "ops/adamw.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "parallel/executor.h"
#include "parallel/grad_sync.h"

namespace mw {
namespace {

int64_t count_valid(std::span<const Batch> batches) {
  int64_t valid = 0;
  for (const Batch& batch : batches)
    valid += batch.tokens() - std::count(batch.labels, batch.labels + batch.tokens(), kIgnoreLabel);
  return valid;
}

void add_load(const Engine& engine, const std::vector<double>& summed, StepStats& stats) {
  size_t at = 0;
  stats.load.resize(static_cast<size_t>(engine.model.moe_layers()));
  for (size_t i = 0; i < stats.load.size(); ++i) {
    const auto layer = static_cast<size_t>(engine.model.moe_index()[i]);
    const auto experts = static_cast<size_t>(engine.plan.model.layers[layer].moe.experts);
    stats.load[i].resize(experts);
    for (size_t e = 0; e < experts; ++e) stats.load[i][e] += summed[at + e];
    stats.dropped_rows += std::llround(summed[at + 2 * experts + 1]);
    at += 2 * experts + 2;
  }
}

// Faults that `verify` must catch; set by debug.fault.
void inject_fault(Engine& engine, const std::string& fault) {
  engine.stream.wait();
  for (Parameter& p : engine.params.all()) {
    if (fault == "double_expert_gradient" && p.row.expert) {
      float* g = p.grad.as<float>();
      for (int64_t i = 0; i < p.grad.numel(); ++i) g[i] *= 2.0f;
      return;
    }
    if (fault == "nan_gradient" && p.row.trained) {
      p.grad.as<float>()[0] = std::numeric_limits<float>::quiet_NaN();
      return;
    }
  }
}

// Aux-loss-free balancing (DeepSeek-V3): an expert above the mean load gets a lower bias, one below a higher.
void move_selection_bias(Engine& engine, const StepStats& stats) {
  engine.stream.wait();
  for (size_t i = 0; i < stats.load.size(); ++i) {
    const std::string name = fmt::format("layers.{}.moe.bias", engine.model.moe_index()[i]);
    if (!engine.params.has(name)) continue;
    double mean = 0;
    for (const double count : stats.load[i]) mean += count / static_cast<double>(stats.load[i].size());
    float* bias = engine.params.find(name).master.as<float>();
    const auto rate = static_cast<float>(engine.plan.run.moe.bias_rate);
    for (size_t e = 0; e < stats.load[i].size(); ++e) {
      const double excess = mean - stats.load[i][e];
      if (excess != 0) bias[e] += excess > 0 ? rate : -rate;
    }
  }
}

}  // namespace

double StepStats::imbalance() const {
  double worst = 0;
  for (const std::vector<double>& counts : load) {
    double sum = 0, most = 0;
    for (const double c : counts) {
      sum += c;
      most = std::max(most, c);
    }
    if (sum > 0) worst = std::max(worst, most * static_cast<double>(counts.size()) / sum);
  }
  return worst;
}

std::vector<Batch> stage(Engine& engine, std::span<const MicroBatch> batches) {
  const StepTokens& tokens = engine.model.step_tokens();
  std::vector<Batch> list;
  for (size_t j = 0; j < batches.size(); ++j) {
    const TensorView ids = tokens.ids.at(static_cast<int64_t>(j)), labels = tokens.labels.at(static_cast<int64_t>(j));
    MW_CHECK(
        static_cast<int64_t>(batches[j].ids.size()) <= ids.numel() && batches[j].labels.size() == batches[j].ids.size(),
        "{} ids and {} labels in room for {}", batches[j].ids.size(), batches[j].labels.size(), ids.numel());
    std::copy(batches[j].ids.begin(), batches[j].ids.end(), ids.as<int32_t>());
    std::copy(batches[j].labels.begin(), batches[j].labels.end(), labels.as<int32_t>());
    list.push_back({ids.as<int32_t>(), labels.as<int32_t>(), batches[j].sequences, batches[j].seq_len});
  }
  return list;
}

StepStats accumulate_gradients(Engine& engine, std::span<const Batch> batches, const TapProvider& taps) {
  const Plan& plan = engine.plan;
  const std::string& fault = plan.run.fault;
  MW_CHECK(static_cast<int64_t>(batches.size()) == plan.run.train.micro_batches,
           "{} micro-batches for a schedule of {}", batches.size(), plan.run.train.micro_batches);
  engine.params.zero_gradients(engine.stream);
  StepStats stats;
  stats.valid_labels = count_valid(batches);
  const int64_t own_valid = stats.valid_labels;
  engine.comms.dp->all_reduce_sum(std::span(&stats.valid_labels, 1));
  if (stats.valid_labels == 0)
    fail(Exit::data, "no label of this step is valid: every one is -100", "check the data and its labels");
  const int64_t denominator = fault == "wrong_denominator" ? std::max<int64_t>(own_valid, 1) : stats.valid_labels;
  const double aux_seed = 1.0 / static_cast<double>(plan.run.train.micro_batches);

  double loss_sum = 0, weighted_aux = 0;
  ActionHandlers handlers;
  handlers.forward = [&](int64_t j) {
    const Batch& batch = batches[static_cast<size_t>(j)];
    engine.model.forward(batch, true, taps ? taps(j) : std::vector<RoutingTap>{});
    loss_sum += engine.model.loss(batch, static_cast<float>(1.0 / static_cast<double>(denominator)));
  };
  handlers.reduce_statistics = [&](int64_t j) {
    const TraceScope scope(engine.stream.trace(), Work::reduce, "statistics");
    std::vector<double> summed = engine.model.statistics();
    int64_t tokens = batches[static_cast<size_t>(j)].tokens();
    if (fault != "local_aux_counts") {
      engine.comms.dp->all_reduce_sum(std::span(summed));
      tokens *= engine.comms.dp->size();
    }
    const AuxLosses aux = engine.model.set_auxiliary(summed, tokens, aux_seed);
    stats.aux_loss += aux.aux * aux_seed;
    stats.z_loss += aux.z * aux_seed;
    weighted_aux += aux.weighted * aux_seed;
    add_load(engine, summed, stats);
  };
  GradientSums sums(plan, engine.params, engine.comms, engine.stream, fault == "skip_router_sum");
  Store expert_gradients = Store::overwrite;
  size_t backward_left = batches.size();
  handlers.backward = [&](int64_t j) {
    FeedForwardDone done;
    if (--backward_left == 0) done = [&](int64_t layer) { sums.feed_forward_done(layer); };
    engine.model.backward(batches[static_cast<size_t>(j)], std::exchange(expert_gradients, Store::accumulate), done);
  };
  handlers.reduce_gradients = [&] { sums.finish(); };
  run_schedule(plan.schedule, plan.coords.pp, handlers);
  inject_fault(engine, fault);

  engine.comms.dp->all_reduce_sum(std::span(&loss_sum, 1));
  stats.loss = loss_sum / static_cast<double>(stats.valid_labels);
  stats.total_loss = stats.loss + weighted_aux;
  const TraceScope scope(engine.stream.trace(), Work::optimizer, "grad_norm");
  stats.grad_norm = global_gradient_norm(engine.stream, engine.params, engine.comms);
  return stats;
}

void apply_update(Engine& engine, const StepStats& stats, const UpdateRule& rule) {
  const TraceScope scope(engine.stream.trace(), Work::optimizer, "update");
  const TrainSpec& train = engine.plan.run.train;
  const AdamW adam{train.beta1, train.beta2, train.eps};
  // The small term is torch's clip_grad_norm_.
  const double clip = train.clip > 0 ? std::min(1.0, train.clip / (stats.grad_norm + 1e-6)) : 1.0;
  for (Parameter& p : engine.params.all()) {
    if (!p.row.trained || p.master.numel() == 0) continue;
    adamw(engine.stream, adam, rule.step, static_cast<float>(rule.lr),
          p.row.decay ? static_cast<float>(train.weight_decay) : 0.0f, static_cast<float>(clip), p.grad, p.master,
          p.adam_m, p.adam_v, p.copy_bf16);
  }
  move_selection_bias(engine, stats);
  engine.params.repack_updated(engine.stream);
  engine.stream.wait();  // what follows may read weights on the host
}

double learning_rate(const TrainSpec& train, int64_t step) {
  if (step <= train.warmup) return train.lr * static_cast<double>(step) / static_cast<double>(train.warmup);
  if (train.schedule == "constant" || train.steps <= train.warmup) return train.lr;
  const double progress = static_cast<double>(step - train.warmup) / static_cast<double>(train.steps - train.warmup);
  const double low = train.lr * train.min_lr_ratio;
  return low + (train.lr - low) * 0.5 * (1.0 + std::cos(3.14159265358979323846 * std::min(1.0, progress)));
}

std::string find_non_finite(Engine& engine, const StepStats& stats) {
  if (std::isfinite(stats.total_loss) && std::isfinite(stats.grad_norm)) return "";
  std::string text = fmt::format("loss {}, gradient norm {}", stats.total_loss, stats.grad_norm);
  for (const Parameter& p : engine.params.all())
    if (p.row.trained && !all_finite(engine.stream, p.grad))
      return text + fmt::format("; first bad gradient on rank {}: {}", engine.plan.rank, p.row.name);
  return text;
}

}  // namespace mw
