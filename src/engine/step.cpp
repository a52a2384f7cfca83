#include "engine/step.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/grad_sync.h"
#include "engine/muon.h"
#include "engine/qk_clip.h"
#include "engine/replicas.h"
#include "engine/zero.h"
#include "ops/adamw.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"

namespace mw {
namespace {

// Aux-loss-free balancing (DeepSeek-V3): an expert above the mean load gets a lower bias, one below a higher.
void move_selection_bias(Engine& engine, const StepStats& stats) {
  for (size_t i = 0; i < stats.load.size(); ++i) {
    const std::string name = fmt::format("layers.{}.moe.bias", engine.model->moe_index()[i]);
    if (!engine.params.has(name)) continue;
    double mean = 0;
    for (const double count : stats.load[i]) mean += count / static_cast<double>(stats.load[i].size());
    const TensorView master = engine.params.find(name).master;
    std::vector<float> bias = read_values<float>(engine.stream, master);  // a GPU would fault its pages back and forth
    const auto rate = static_cast<float>(engine.plan.run.moe.bias_rate);
    for (size_t e = 0; e < stats.load[i].size(); ++e) {
      const double excess = mean - stats.load[i][e];
      if (excess != 0) bias[e] += excess > 0 ? rate : -rate;
    }
    write_values<float>(engine.stream, bias, master);
  }
}

}  // namespace

StepStats::Fullest StepStats::fullest() const {
  Fullest found;
  for (size_t l = 0; l < load.size(); ++l) {
    const std::vector<double>& counts = load[l];
    const double sum = std::accumulate(counts.begin(), counts.end(), 0.0);
    if (sum <= 0) continue;
    const auto most = std::max_element(counts.begin(), counts.end());
    const double ratio = *most * static_cast<double>(counts.size()) / sum;
    if (ratio > found.ratio) found = {l, static_cast<size_t>(most - counts.begin()), ratio};
  }
  return found;
}

double StepStats::largest_logit() const {
  double largest = 0;
  for (const std::vector<double>& of_heads : largest_logits)
    largest =
        std::accumulate(of_heads.begin(), of_heads.end(), largest, [](double a, double b) { return std::max(a, b); });
  return largest;
}

std::vector<Batch> stage(Engine& engine, std::span<const MicroBatch> batches) {
  const StepTokens& tokens = engine.model->step_tokens();
  std::vector<Batch> list;
  for (size_t j = 0; j < batches.size(); ++j) {
    const auto slot = static_cast<int64_t>(j);
    const TensorView ids = tokens.ids.at(slot), labels = tokens.labels.at(slot);
    MW_CHECK(
        static_cast<int64_t>(batches[j].ids.size()) <= ids.numel() && batches[j].labels.size() == batches[j].ids.size(),
        "{} ids and {} labels in room for {}", batches[j].ids.size(), batches[j].labels.size(), ids.numel());
    write_values<int32_t>(engine.stream, batches[j].ids, ids);
    write_values<int32_t>(engine.stream, batches[j].labels, labels);
    list.push_back({ids.as<int32_t>(), labels.as<int32_t>(), batches[j].sequences, batches[j].seq_len});
    list.back().valid_labels =
        std::ssize(batches[j].labels) - std::count(batches[j].labels.begin(), batches[j].labels.end(), kIgnoreLabel);
    const std::vector<int32_t>& starts = batches[j].document_starts;
    const bool masked = tokens.document_starts.data != nullptr;
    MW_CHECK(starts.size() == (masked ? batches[j].ids.size() : 0), "{} starts of documents for {} ids", starts.size(),
             batches[j].ids.size());
    if (!masked) continue;
    const TensorView place = tokens.document_starts.at(slot);
    write_values<int32_t>(engine.stream, starts, place);
    list.back().document_starts = place.as<int32_t>();
  }
  return list;
}

void apply_update(Engine& engine, const StepStats& stats, const UpdateRule& rule) {
  const TraceScope scope(engine.stream.trace(), Work::optimizer, "update");
  const TrainSpec& train = engine.plan.run.train;
  const AdamW adam{train.beta1, train.beta2, train.eps};
  // The small term is torch's clip_grad_norm_.
  double clip = train.clip > 0 ? std::min(1.0, train.clip / (stats.grad_norm + 1e-6)) : 1.0;
  const Fault fault = engine.plan.run.fault;
  if (fault == Fault::wrong_clip && engine.plan.rank > 0) clip *= 0.99;
  WeightGathers gathers(engine.params, engine.comms, engine.stream);
  update_by_muon(engine, rule, static_cast<float>(clip));
  const auto update = [&](std::span<Parameter* const> group) {
    std::vector<AdamWTensor> tensors;
    for (const Parameter* p : group)
      if (p->row.trained && !p->row.muon && p->owned.count > 0)
        tensors.push_back({static_cast<float>(rule.lr * p->row.lr_scale),
                           p->row.decay ? static_cast<float>(train.weight_decay) : 0.0f, p->owned_grad(),
                           p->owned_master(), p->adam_m, p->adam_v, p->owned_copy()});
    adamw(engine.stream, adam, rule.step, static_cast<float>(clip), tensors);
    for (Parameter* p : group) {
      clip_queries_and_keys(engine, stats, *p);
      if (fault != Fault::stale_gather || !p->row.expert) gathers.add(*p);
    }
  };
  // Weights that are gathered come first, one after the other, so that the update of the others hides their gathers.
  std::vector<Parameter*> others;
  for (Parameter& p : engine.params.all()) {
    if (Parameter* one = &p; engine.params.block(p.replicas).is_cut()) update({&one, 1});
    else others.push_back(&p);
  }
  update(others);
  gathers.finish();
  if (engine.plan.model.tie_embeddings) copy_tied_weights(engine.stream, engine.params, *engine.pipeline.ends);
  move_selection_bias(engine, stats);
  engine.params.repack_updated(engine.stream);
  if (fault != Fault::stale_replica) refresh_replicas(engine);
  engine.stream.wait();                         // what follows may read weights on the host
  engine.params.zero_gradients(engine.stream);  // a GPU does while the host reports this step and reads the next one
  engine.gradients_are_zero = true;
}

std::string find_non_finite(Engine& engine, const StepStats& stats) {
  if (std::isfinite(stats.total_loss) && std::isfinite(stats.grad_norm)) return "";
  std::string text = fmt::format("loss {}, gradient norm {}", stats.total_loss, stats.grad_norm);
  for (const Parameter& p : engine.params.all())
    if (p.row.trained && p.owned.count > 0 && !all_finite(engine.stream, p.owned_grad()))
      return text + fmt::format("; first bad gradient on rank {}: {}", engine.plan.rank, p.row.name);
  return text;
}

}  // namespace mw
