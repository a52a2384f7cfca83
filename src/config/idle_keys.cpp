#include "config/idle_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "config/batch_ramp.h"
#include "config/learning_rate.h"
#include "config/model_spec.h"

namespace mw {
namespace {

struct IdleRule {
  const char* key;
  const char* needs;  // what would let it have an effect
  bool (*is_idle)(const RunSpec&, const ModelSpec&);
};

bool is_grouped(const RunSpec& run, const ModelSpec&) { return run.native.attention != AttentionKind::latent; }
bool has_one_group(const RunSpec& run, const ModelSpec&) { return run.native.expert_groups == 1; }
bool is_unbalanced(const RunSpec& run, const ModelSpec&) { return run.moe.balance == Balance::none; }

bool has_no_bias(const ModelSpec& model) {
  return std::none_of(model.layers.begin(), model.layers.end(), [](const LayerSpec& layer) {
    return layer.feed_forward == FeedForwardKind::moe && layer.moe.selection_bias;
  });
}

const std::array kTrainRules = {
    IdleRule{"model.dense_width", "model.dense_layers above 0",
             [](const RunSpec& run, const ModelSpec&) { return run.native.dense_layers == 0; }},
    IdleRule{"model.q_rank", "model.attention = \"latent\"", is_grouped},
    IdleRule{"model.kv_rank", "model.attention = \"latent\"", is_grouped},
    IdleRule{"model.nope_dim", "model.attention = \"latent\"", is_grouped},
    IdleRule{"model.rope_dim", "model.attention = \"latent\"", is_grouped},
    IdleRule{"model.value_dim", "model.attention = \"latent\"", is_grouped},
    IdleRule{"model.group_best", "model.expert_groups above 1", has_one_group},
    IdleRule{"data.suffixes", "data.kind = \"text\"",
             [](const RunSpec& run, const ModelSpec&) { return run.data.kind != DataKind::text; }},
    // 0 beside data.val_path says the same twice.
    IdleRule{
        "data.val_fraction", "an empty data.val_path",
        [](const RunSpec& run, const ModelSpec&) { return !run.data.val_path.empty() && run.data.val_fraction > 0; }},
    IdleRule{"data.document_token", "data.kind = \"shards\" with data.document_mask or data.whole_documents",
             [](const RunSpec& run, const ModelSpec&) {
               return run.data.kind != DataKind::shards || !(run.data.document_mask || run.data.whole_documents);
             }},
    IdleRule{"train.min_lr_ratio", "another train.schedule than \"constant\" or \"piecewise\"",
             [](const RunSpec& run, const ModelSpec&) {
               return run.train.schedule == LearningRateSchedule::constant ||
                      run.train.schedule == LearningRateSchedule::piecewise;
             }},
    IdleRule{"train.spike_window", "train.skip_spikes above 0",
             [](const RunSpec& run, const ModelSpec&) { return run.train.skip_spikes == 0; }},
    IdleRule{"train.val_every", "train.val_batches above 0",
             [](const RunSpec& run, const ModelSpec&) { return run.train.val_batches == 0; }},
    IdleRule{"mesh.chunks", "mesh.schedule = \"interleaved\"",
             [](const RunSpec& run, const ModelSpec&) { return run.mesh.schedule != ScheduleKind::interleaved; }},
    IdleRule{"moe.bias_rate", "a model with a selection bias",
             [](const RunSpec& run, const ModelSpec& model) { return run.moe.bias_rate > 0 && has_no_bias(model); }},
    IdleRule{"moe.capacity_domain", "moe.capacity_factor above 0",
             [](const RunSpec& run, const ModelSpec&) { return run.moe.capacity_factor == 0; }},
    IdleRule{"moe.weight_slots", "moe.transport = \"gather_weights\"",
             [](const RunSpec& run, const ModelSpec&) {
               return run.moe.transport != "auto" && run.moe.transport.find("gather_weights") == std::string::npos;
             }},
    IdleRule{"moe.balance_every", "moe.balance = \"swap\"", is_unbalanced},
    IdleRule{"moe.balance_horizon", "moe.balance = \"swap\"", is_unbalanced},
};

bool is_fp32(const RunSpec& run, const ModelSpec&) { return run.train.dtype == DType::f32; }
bool is_bf16(const RunSpec& run, const ModelSpec&) { return run.train.dtype != DType::f32; }

const std::array kVerifyRules = {
    IdleRule{"verify.tolerance", "train.dtype = \"fp32\"", is_bf16},
    IdleRule{"verify.loss_tolerance_bf16", "train.dtype = \"bf16\"", is_fp32},
    IdleRule{"verify.grad_tolerance_bf16", "train.dtype = \"bf16\"", is_fp32},
};

std::vector<std::string> describe_idle(std::span<const IdleRule> rules, const RunSpec& run, const ModelSpec& model) {
  RunSpec defaults;
  defaults.hf_dir = run.hf_dir;
  std::vector<std::string> lines;
  for (const KeyChange& change : changed_keys(defaults, run))
    for (const IdleRule& rule : rules)
      if (change.key == rule.key && rule.is_idle(run, model))
        lines.push_back(fmt::format("{} = {} has no effect: it needs {}", change.key, change.to, rule.needs));
  return lines;
}

}  // namespace

std::vector<std::string> describe_idle_keys(const RunSpec& run, const ModelSpec& model) {
  return describe_idle(kTrainRules, run, model);
}

std::vector<std::string> describe_idle_tolerances(const RunSpec& run) { return describe_idle(kVerifyRules, run, {}); }

std::vector<std::string> describe_unreached(const TrainSpec& train) {
  std::vector<std::string> lines;
  if (train.warmup > train.steps && train.lr > 0)
    lines.push_back(
        fmt::format("train.warmup = {} is longer than the run, train.steps = {}: the learning rate ends at "
                    "{:.2g} and never reaches train.lr = {:g}",
                    train.warmup, train.steps, learning_rate(train, train.steps), train.lr));
  if (const int64_t last = samples_of_step(train, train.steps); last < train.global_batch)
    lines.push_back(
        fmt::format("train.batch_ramp is longer than the run, train.steps = {}: steps have at most {} "
                    "samples and never train.global_batch = {}",
                    train.steps, last, train.global_batch));
  return lines;
}

}  // namespace mw
