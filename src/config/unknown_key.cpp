#include "config/unknown_key.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "base/text.h"
#include "config/run_keys.h"

namespace mw {
namespace {

constexpr const char* kGeneralHint = "`moewright init` prints every key with its meaning; docs/run_file.md lists them";
constexpr const char* kDataParallelHint =
    "the data-parallel size follows from the number of ranks: ranks / (mesh.pp x mesh.tp)";
constexpr const char* kContextParallelHint =
    "context parallelism is not supported; mesh.tp shards the tokens of long sequences outside attention";
constexpr const char* kEpochsHint =
    "train.steps sets the length of a run; one epoch is the number of samples / train.global_batch steps, and the line "
    "\"data:\" of a run says how many epochs its steps are";
constexpr const char* kMicroBatchHint = "train.micro_batches is the number of micro-batches per step, not their size";

// Last parts of keys as PyTorch, Megatron, DeepSpeed, torchtitan and Hugging Face name them.
struct ForeignName {
  const char *name, *key;  // key: "" when there is none
  const char* hint = kGeneralHint;
};
constexpr ForeignName kForeignNames[] = {
    {"learning_rate", "train.lr"},
    {"min_lr", "train.min_lr_ratio"},
    {"batch_size", "train.global_batch"},
    {"global_batch_size", "train.global_batch"},
    {"rampup_batch_size", "train.batch_ramp"},
    {"micro_batch_size", "train.micro_batches", kMicroBatchHint},
    {"gradient_accumulation_steps", "train.micro_batches"},
    {"steps", "train.steps"},
    {"max_steps", "train.steps"},
    {"train_iters", "train.steps"},
    {"iterations", "train.steps"},
    {"epochs", "train.steps", kEpochsHint},
    {"num_epochs", "train.steps", kEpochsHint},
    {"num_train_epochs", "train.steps", kEpochsHint},
    {"sequence_length", "train.seq_len"},
    {"seq_length", "train.seq_len"},
    {"block_size", "train.seq_len"},
    {"context_length", "train.seq_len"},
    {"warmup_steps", "train.warmup"},
    {"clip_grad", "train.clip"},
    {"grad_clip", "train.clip"},
    {"max_grad_norm", "train.clip"},
    {"precision", "train.dtype"},
    {"hidden_size", "model.width"},
    {"d_model", "model.width"},
    {"n_embd", "model.width"},
    {"num_layers", "model.layers"},
    {"n_layer", "model.layers"},
    {"num_hidden_layers", "model.layers"},
    {"n_head", "model.heads"},
    {"num_heads", "model.heads"},
    {"num_attention_heads", "model.heads"},
    {"num_key_value_heads", "model.kv_heads"},
    {"num_query_groups", "model.kv_heads"},
    {"num_experts", "model.experts"},
    {"num_local_experts", "model.experts"},
    {"n_routed_experts", "model.experts"},
    {"topk", "model.top_k"},
    {"moe_router_topk", "model.top_k"},
    {"num_experts_per_tok", "model.top_k"},
    {"moe_intermediate_size", "model.expert_width"},
    {"moe_ffn_hidden_size", "model.expert_width"},
    {"ffn_hidden_size", "model.expert_width"},
    {"intermediate_size", "model.expert_width"},
    {"vocab_size", "model.vocab"},
    {"dp", "", kDataParallelHint},
    {"dp_size", "", kDataParallelHint},
    {"data_parallel_size", "", kDataParallelHint},
    {"edp", "", kDataParallelHint},
    {"cp", "", kContextParallelHint},
    {"context_parallel_size", "", kContextParallelHint},
    {"tp_size", "mesh.tp"},
    {"tensor_model_parallel_size", "mesh.tp"},
    {"pp_size", "mesh.pp"},
    {"pipeline_model_parallel_size", "mesh.pp"},
    {"ep_size", "mesh.ep"},
    {"expert_model_parallel_size", "mesh.ep"},
    {"zero_stage", "mesh.zero"},
    {"router_aux_loss_coef", "moe.aux_loss_coef"},
    {"moe_aux_loss_coeff", "moe.aux_loss_coef"},
    {"activation_checkpointing", "memory.recompute"},
    {"recompute_granularity", "memory.recompute"},
    {"save", "checkpoint.dir"},
    {"save_dir", "checkpoint.dir"},
    {"output_dir", "checkpoint.dir"},
    {"save_interval", "checkpoint.every"},
    {"save_steps", "checkpoint.every"},
    {"load", "checkpoint.resume"},
    {"resume_from_checkpoint", "checkpoint.resume"},
    {"log_interval", "log.every"},
    {"logging_steps", "log.every"},
    {"data_path", "data.path"},
    {"dataset", "data.path"},
    {"routing", "moe.forced_load"},
    {"model", "", "model = \"hf:DIR\" stands before the first [table] of a run file"},
};

std::string last_part(const std::string& key) { return key.substr(key.rfind('.') + 1); }

// "Learning-Rate" names the same as "learning_rate".
std::string spelled_plainly(const std::string& name) {
  std::string plain = lower_case(name);
  std::replace(plain.begin(), plain.end(), '-', '_');
  return plain;
}

std::string suggest(const std::vector<std::string>& keys) {
  return fmt::format(", did you mean \"{}\"?", fmt::join(keys, "\" or \""));
}

}  // namespace

UnknownKey explain_unknown_key(const std::string& key) {
  const std::string name = spelled_plainly(last_part(key));
  for (const ForeignName& foreign : kForeignNames)
    if (name == foreign.name) return {*foreign.key == 0 ? "" : suggest({foreign.key}), foreign.hint};
  std::vector<std::string> names, same_name;
  for (const KeyRule& rule : key_rules()) {
    if (rule.key.starts_with("debug.")) continue;
    names.push_back(rule.key);
    if (last_part(rule.key) == name) same_name.push_back(rule.key);
    const std::string section = rule.key.substr(0, rule.key.find('.'));
    if (std::find(names.begin(), names.end(), section) == names.end()) names.push_back(section);
  }
  constexpr size_t kFew = 3;
  if (!same_name.empty() && same_name.size() <= kFew) return {suggest(same_name), kGeneralHint};
  return {did_you_mean(key, names), kGeneralHint};
}

}  // namespace mw
