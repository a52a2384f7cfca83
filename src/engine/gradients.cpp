// The gradients of one step: the actions of the plan's schedule.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <utility>

#include "engine/embedding_sums.h"
#include "engine/executor.h"
#include "engine/grad_sync.h"
#include "engine/qk_clip.h"
#include "engine/replicas.h"
#include "engine/stage_messages.h"
#include "engine/step.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"

namespace mw {
namespace {

void multiply(TensorView tensor, float factor) {
  for (float& value : std::span(tensor.as<float>(), static_cast<size_t>(tensor.numel()))) value *= factor;
}

// Faults that `verify` must catch; set by debug.fault.
void inject_fault(Engine& engine, Fault fault) {
  for (Parameter& p : engine.params.all()) {
    if (fault == Fault::double_expert_gradient && p.row.expert) {
      add(engine.stream, p.grad, p.grad, p.grad);
      engine.stream.wait();
      return;
    }
    if ((fault == Fault::slight_gradient || fault == Fault::fleeting_gradient) && p.row.trained && p.grad.numel() > 0 &&
        p.grad.dtype == DType::f32) {
      multiply(p.grad, 1.001F);
      return;
    }
    if (fault == Fault::slight_query_norm && p.row.name.ends_with(".attn.q_norm")) {
      multiply(p.grad, 1.001F);
      return;
    }
    if (fault == Fault::nan_gradient && p.row.trained && p.grad.numel() > 0) {
      p.grad.as<float>()[0] = std::numeric_limits<float>::quiet_NaN();
      return;
    }
  }
}

// One step's passes over its micro-batches on this rank; each action is a member function.
class GradientPass {
 public:
  GradientPass(Engine& engine, std::span<const Batch> batches, const TapProvider& taps)
      : engine_(engine),
        plan_(engine.plan),
        batches_(batches),
        taps_(taps),
        couples_layers_(engine.model->auxiliary().couples_layers()),
        adds_squares_(engine.params.squares().limbs.data != nullptr && batches.size() == 1 &&
                      plan_.run.fault == Fault::none),
        aux_seed_(1.0 / static_cast<double>(batches.size())),
        messages_(*engine.model, engine.pipeline),
        embedding_(engine, batches),
        sums_(plan_, engine.params, engine.comms, engine.stream, plan_.run.fault == Fault::skip_router_sum),
        token_losses_(batches.size()) {}

  StepStats run();

 private:
  void count_labels();
  void receive_activation(const Action& a);
  void forward(const Action& a);
  void reduce_statistics(const Action& a);
  void send_activation(const Action& a);
  void receive_gradient(const Action& a);
  void backward(const Action& a);
  void backward_weights(const Action& a);
  void send_gradient(const Action& a);
  void reduce_gradients();
  void add_load(int stage, std::span<const double> summed);
  void add_losses(const AuxLosses& losses);
  void share_statistics();

  const StagePlan& stage_of(int stage) const {
    return *std::find_if(plan_.stages.begin(), plan_.stages.end(),
                         [&](const StagePlan& s) { return s.stage == stage; });
  }
  // Of a stage's pass that follows `done` others: the gradients of matrices, who hears of the last one.
  GradientStore store_of(int64_t done) {
    return {done == 0 ? Store::overwrite : Store::accumulate, adds_squares_ ? &engine_.params.squares() : nullptr};
  }
  FeedForwardDone hear_of(int64_t done) {
    if (done + 1 < std::ssize(batches_)) return {};
    return [this](int64_t layer) {
      return_replica_gradients(engine_, layer);
      sums_.feed_forward_done(layer);
    };
  }
  const Batch& batch_of(const Action& a) const { return batches_[static_cast<size_t>(a.micro_batch)]; }
  int64_t statistics_before(int64_t layer) const;
  int64_t experts_of_first_moe_layer() const;
  // Tokens of a micro-batch over which statistics were summed.
  int64_t counted_tokens(const Action& a) const {
    if (plan_.run.fault == Fault::local_aux_counts)
      return routed_tokens(plan_.mesh, plan_.coords, batch_of(a).tokens()).count;
    return plan_.batch.all * batch_of(a).seq_len;
  }

  Engine& engine_;
  const Plan& plan_;
  std::span<const Batch> batches_;
  const TapProvider& taps_;
  bool couples_layers_, adds_squares_;
  double aux_seed_;
  StageMessages messages_;
  EmbeddingSums embedding_;
  GradientSums sums_;

  StepStats stats_;
  std::vector<std::vector<float>> token_losses_;  // by micro-batch, once the stream was waited for
  double loss_sum_ = 0, weighted_aux_ = 0;
  float loss_seed_ = 0;
  // By stage and micro-batch, from its forward to its backward: summed statistics of the stage's layers.
  std::map<std::pair<int, int64_t>, std::vector<double>> summed_;
  // Where the auxiliary loss couples all layers, by micro-batch: statistics of the layers so far, on the way down; the
  // mean load, on the way back.
  std::map<int64_t, std::vector<double>> riding_, mean_load_;
  std::map<int, int64_t> backwards_, weight_parts_;  // done, by stage
  size_t reduced_stages_ = 0;
};

int64_t GradientPass::statistics_before(int64_t layer) const {
  int64_t size = 0;
  for (int64_t i = 0; i < layer; ++i)
    if (const LayerSpec& spec = plan_.model.layers[static_cast<size_t>(i)]; spec.feed_forward == FeedForwardKind::moe)
      size += statistics_size(spec.moe);
  return size;
}

int64_t GradientPass::experts_of_first_moe_layer() const {
  const std::vector<int64_t>& layers = engine_.model->moe_index();
  return layers.empty() ? 0 : plan_.model.layers[static_cast<size_t>(layers.front())].moe.experts;
}

void GradientPass::count_labels() {
  int64_t own = 0;
  for (const Batch& batch : batches_) own += batch.valid_labels;
  std::vector<int64_t> counted = embedding_.counts();
  counted.push_back(own);
  engine_.comms.dp->all_reduce_sum(std::span(counted));
  stats_.valid_labels = counted.back();
  counted.pop_back();
  embedding_.agree(counted);
  if (stats_.valid_labels == 0)
    fail(Exit::data, "no label of this step is valid: all are -100 (ignored)",
         "raise train.global_batch or train.seq_len, or check the loss mask (.mask) of the data");
  const int64_t denominator =
      plan_.run.fault == Fault::wrong_denominator ? std::max<int64_t>(own, 1) : stats_.valid_labels;
  loss_seed_ = static_cast<float>(1.0 / static_cast<double>(denominator));
}

void GradientPass::receive_activation(const Action& a) {
  std::vector<double> riding;
  if (couples_layers_) riding.resize(static_cast<size_t>(statistics_before(stage_of(a.stage).first_layer)));
  messages_.receive_activation(a.stage, a.micro_batch, batch_of(a).tokens(), riding);
  if (couples_layers_) riding_[a.micro_batch] = std::move(riding);
}

void GradientPass::forward(const Action& a) {
  messages_.before_output(a.stage);
  engine_.model->forward(a.stage, a.micro_batch, batch_of(a), true,
                         taps_ ? taps_(a.micro_batch) : std::vector<RoutingTap>{});
  const std::vector<ExpertRows> rows = engine_.model->expert_rows(a.stage, a.micro_batch);
  auto of_layer = rows.begin();
  for (size_t i = 0; i < stats_.rows.size(); ++i) {
    if (!stage_of(a.stage).has_layer(engine_.model->moe_index()[i])) continue;
    stats_.rows[i].all += of_layer->all;
    stats_.rows[i].of_replicas += of_layer++->of_replicas;
  }
}

void GradientPass::reduce_statistics(const Action& a) {
  const TraceScope scope(engine_.stream.trace(), Work::reduce, "statistics");
  std::vector<double> summed = engine_.model->statistics(a.stage, a.micro_batch);
  // Of the ranks that route the same tokens one counts.
  Comm& routing = plan_.mesh.ted ? *engine_.comms.dp : *engine_.comms.stage;
  if (plan_.run.fault != Fault::local_aux_counts) routing.all_reduce_sum(std::span(summed));
  add_load(a.stage, summed);
  const Auxiliary& auxiliary = engine_.model->auxiliary();
  if (!couples_layers_) {
    add_losses(auxiliary.losses(engine_.model->moe_layers_of(a.stage), summed, counted_tokens(a)));
  } else {
    std::vector<double>& all = riding_[a.micro_batch];
    all.insert(all.end(), summed.begin(), summed.end());
    if (stage_of(a.stage).has_head) {
      add_losses(auxiliary.losses(engine_.model->moe_index(), all, counted_tokens(a)));
      mean_load_[a.micro_batch] = auxiliary.mean_load(engine_.model->moe_index(), all, counted_tokens(a));
      riding_.erase(a.micro_batch);
    }
  }
  summed_[{a.stage, a.micro_batch}] = std::move(summed);
}

void GradientPass::send_activation(const Action& a) {
  messages_.send_activation(a.stage, a.micro_batch, batch_of(a).tokens(),
                            couples_layers_ ? riding_[a.micro_batch] : std::vector<double>{});
  riding_.erase(a.micro_batch);
}

void GradientPass::receive_gradient(const Action& a) {
  std::vector<double> riding;
  if (couples_layers_) riding.resize(static_cast<size_t>(experts_of_first_moe_layer()));
  messages_.receive_gradient(a.stage, a.micro_batch, batch_of(a).tokens(), riding);
  if (couples_layers_) mean_load_[a.micro_batch] = std::move(riding);
}

void GradientPass::backward(const Action& a) {
  const StagePlan& stage = stage_of(a.stage);
  const int64_t done = backwards_[a.stage]++;
  if (stage.has_head)
    engine_.model->loss(a.micro_batch, batch_of(a), loss_seed_, token_losses_[static_cast<size_t>(a.micro_batch)],
                        store_of(done).store);
  const auto summed = summed_.extract({a.stage, a.micro_batch});
  const bool seeds = !plan_.mesh.ted || plan_.coords.tp == 0;
  engine_.model->set_auxiliary(a.stage, a.micro_batch, summed.mapped(), mean_load_[a.micro_batch], counted_tokens(a),
                               seeds ? aux_seed_ : 0.0);
  messages_.before_input_gradient(a.stage);
  engine_.model->backward(a.stage, a.micro_batch, batch_of(a), store_of(done), hear_of(done));
}

void GradientPass::backward_weights(const Action& a) {
  const int64_t done = weight_parts_[a.stage]++;
  engine_.model->backward_weights(a.stage, a.micro_batch, batch_of(a), store_of(done), hear_of(done));
}

void GradientPass::send_gradient(const Action& a) {
  messages_.send_gradient(a.stage, a.micro_batch, batch_of(a).tokens(),
                          couples_layers_ ? mean_load_[a.micro_batch] : std::vector<double>{});
}

// Stages end from the last to the first: what is left is summed behind the last of them.
void GradientPass::reduce_gradients() {
  if (++reduced_stages_ < plan_.stages.size()) return;
  messages_.finish();
  if (plan_.model.tie_embeddings && plan_.run.fault != Fault::skip_tied_sum)
    sum_tied_gradients(engine_.stream, engine_.params, *engine_.pipeline.ends);
  if (embedding_.by_rows()) sums_.leave_out(engine_.params.find("embed"));
  embedding_.start();
  sums_.finish();
  embedding_.finish();
}

void GradientPass::add_load(int stage, std::span<const double> summed) {
  for (size_t i = 0; i < stats_.load.size(); ++i) {
    const int64_t number = engine_.model->moe_index()[i];
    if (!stage_of(stage).has_layer(number)) continue;
    const LoadStatistics sums = take_statistics(plan_.model.layers[static_cast<size_t>(number)].moe, summed);
    for (size_t e = 0; e < sums.counts.size(); ++e) stats_.load[i][e] += sums.counts[e];
    stats_.dropped_rows += std::llround(sums.dropped);
  }
}

void GradientPass::add_losses(const AuxLosses& losses) {
  stats_.aux_loss += losses.aux * aux_seed_;
  stats_.z_loss += losses.z * aux_seed_;
  weighted_aux_ += losses.weighted * aux_seed_;
}

// What each stage knows of its own layers, to all stages.
void GradientPass::share_statistics() {
  std::vector<double> shared = {loss_sum_, stats_.aux_loss, stats_.z_loss, weighted_aux_,
                                static_cast<double>(stats_.dropped_rows)};
  for (const std::vector<double>& load : stats_.load) shared.insert(shared.end(), load.begin(), load.end());
  engine_.comms.pp->all_reduce_sum(std::span(shared));
  loss_sum_ = shared[0];
  stats_.aux_loss = shared[1];
  stats_.z_loss = shared[2];
  weighted_aux_ = shared[3];
  stats_.dropped_rows = std::llround(shared[4]);
  auto at = shared.begin() + 5;
  for (std::vector<double>& load : stats_.load) {
    std::copy_n(at, load.size(), load.begin());
    at += std::ssize(load);
  }
}

StepStats GradientPass::run() {
  const bool clips_logits = plan_.run.train.qk_clip > 0;
  if (!std::exchange(engine_.gradients_are_zero, false)) engine_.params.zero_gradients(engine_.stream);
  clear(engine_.stream, engine_.params.squares());
  if (clips_logits) reset_largest_logits(engine_);
  count_labels();
  for (const int64_t layer : engine_.model->moe_index())
    stats_.load.emplace_back(static_cast<size_t>(plan_.model.layers[static_cast<size_t>(layer)].moe.experts));
  stats_.rows.resize(stats_.load.size());
  ActionHandlers handlers;
  const auto on = [&](ActionKind kind, void (GradientPass::*member)(const Action&)) {
    handlers[kind] = [this, member](const Action& a) { (this->*member)(a); };
  };
  on(ActionKind::receive_activation, &GradientPass::receive_activation);
  on(ActionKind::forward, &GradientPass::forward);
  on(ActionKind::reduce_statistics, &GradientPass::reduce_statistics);
  on(ActionKind::send_activation, &GradientPass::send_activation);
  on(ActionKind::receive_gradient, &GradientPass::receive_gradient);
  on(ActionKind::backward, &GradientPass::backward);
  on(ActionKind::backward_input, &GradientPass::backward);
  on(ActionKind::backward_weight, &GradientPass::backward_weights);
  on(ActionKind::send_gradient, &GradientPass::send_gradient);
  handlers[ActionKind::reduce_gradients] = [this](const Action&) { reduce_gradients(); };
  run_schedule(plan_.schedule, handlers, engine_.stream.trace());
  engine_.stream.wait();
  inject_fault(engine_, plan_.run.fault);
  for (const std::vector<float>& losses : token_losses_)
    loss_sum_ = std::accumulate(losses.begin(), losses.end(), loss_sum_);

  {  // where ranks that are done wait for the others
    const TraceScope scope(engine_.stream.trace(), Work::reduce, "share_losses");
    engine_.comms.stage->all_reduce_sum(std::span(&loss_sum_, 1));
    share_statistics();
  }
  stats_.loss = loss_sum_ / static_cast<double>(stats_.valid_labels);
  stats_.total_loss = stats_.loss + weighted_aux_;
  if (clips_logits) stats_.largest_logits = gather_largest_logits(engine_);
  const TraceScope scope(engine_.stream.trace(), Work::optimizer, "grad_norm");
  stats_.grad_norm = global_gradient_norm(engine_.stream, engine_.params, engine_.comms, plan_.run.fault);
  return std::move(stats_);
}

}  // namespace

StepStats accumulate_gradients(Engine& engine, std::span<const Batch> batches, const TapProvider& taps) {
  const auto count = static_cast<int64_t>(batches.size());
  MW_CHECK(count > 0 && count <= engine.plan.run.train.micro_batches, "{} micro-batches in a plan for {}", count,
           engine.plan.run.train.micro_batches);
  if (count != engine.plan.pipeline.micro_batches) {
    plan_steps(engine.plan, count);
    engine.model->plan_steps(count);
  }
  return GradientPass(engine, batches, taps).run();
}

std::vector<float> evaluate(Engine& engine, const Batch& batch) {
  StageMessages messages(*engine.model, engine.pipeline);
  std::vector<double> nothing;
  std::vector<float> losses;
  for (const StagePlan& stage : engine.plan.stages) {
    if (stage.receives) messages.receive_activation(stage.stage, 0, batch.tokens(), nothing);
    engine.model->forward(stage.stage, 0, batch, false);
    if (stage.sends) messages.send_activation(stage.stage, 0, batch.tokens(), nothing);
    if (stage.has_head && batch.labels != nullptr) engine.model->loss(0, batch, 0.0f, losses);
  }
  engine.stream.wait();
  messages.finish();
  for (const StagePlan& stage : engine.plan.stages) engine.model->release(stage.stage, 0);
  return losses;
}

}  // namespace mw
