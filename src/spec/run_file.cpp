// One table of keys does all the work: reading, checking, overriding, printing and documenting a run file.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <toml++/toml.h>
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <utility>
#include <variant>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "spec/run_spec.h"

namespace mw {
namespace {

using Choices = std::vector<std::string>;

struct IntegerKey {
  std::function<int64_t&(RunSpec&)> field;
  int64_t low, high;
};
struct RealKey {
  std::function<double&(RunSpec&)> field;
  double low, high;
};
struct TextKey {
  std::function<std::string&(RunSpec&)> field;
  Choices choices;  // empty: any text
};
struct BoolKey {
  std::function<bool&(RunSpec&)> field;
};
struct ListKey {
  std::function<std::vector<std::string>&(RunSpec&)> field;
};

struct KeyRule {
  std::string key;
  std::variant<IntegerKey, RealKey, TextKey, BoolKey, ListKey> kind;
  std::string meaning;
};

constexpr int64_t kMany = int64_t{1} << 40;

#define FIELD(type, path) [](RunSpec& r) -> type& { return r.path; }
#define INTEGER(key, path, low, high, meaning) \
  { key, IntegerKey{FIELD(int64_t, path), low, high}, meaning }
#define REAL(key, path, low, high, meaning) \
  { key, RealKey{FIELD(double, path), low, high}, meaning }
#define TEXT(key, path, meaning, ...) \
  { key, TextKey{FIELD(std::string, path), Choices{__VA_ARGS__}}, meaning }
#define FLAG(key, path, meaning) \
  { key, BoolKey{FIELD(bool, path)}, meaning }

const std::vector<KeyRule>& key_rules() {
  static const std::vector<KeyRule> rules = {
      TEXT("model.preset", native.preset,
           "a named model of the papers; leaves the other model keys at the paper's values", "", "x-moe-small",
           "x-moe-medium", "x-moe-large", "x-moe-super", "piper-m10b-16", "piper-m10b-128", "piper-m10b-256"),
      INTEGER("model.vocab", native.vocab, 1, 1 << 24, "vocabulary; 256 for byte tokens"),
      INTEGER("model.width", native.width, 1, 1 << 24, "model width D"),
      INTEGER("model.layers", native.layers, 1, 10000, "number of layers"),
      INTEGER("model.heads", native.heads, 1, 1 << 16, "attention heads"),
      INTEGER("model.kv_heads", native.kv_heads, 0, 1 << 16, "key/value heads; 0: as many as heads"),
      INTEGER("model.head_dim", native.head_dim, 0, 1 << 14, "width of a head; 0: width / heads"),
      INTEGER("model.experts", native.experts, 1, 1 << 16, "routed experts per MoE layer"),
      INTEGER("model.top_k", native.top_k, 1, 1 << 16, "experts per token"),
      INTEGER("model.expert_width", native.expert_width, 1, 1 << 24, "hidden width F of one expert"),
      INTEGER("model.shared_experts", native.shared_experts, 0, 1024, "experts that every token passes"),
      INTEGER("model.dense_layers", native.dense_layers, 0, 10000, "how many first layers are dense"),
      INTEGER("model.dense_width", native.dense_width, 0, 1 << 24, "hidden width of dense layers; 0: 4 x width"),
      TEXT("model.activation", native.activation, "swiglu has three matrices, gelu and relu two", "swiglu", "gelu",
           "relu"),
      TEXT("model.score", native.score, "router scores", "softmax", "sigmoid"),
      TEXT("model.qk_norm", native.qk_norm, "RMS norm of queries and keys", "none", "per_head", "full_width"),
      FLAG("model.selection_bias", native.selection_bias,
           "auxiliary-loss-free balancing by a bias on the choice (sigmoid scores)"),
      FLAG("model.renormalise", native.renormalise, "gate weights divided by their sum over the chosen experts"),
      FLAG("model.tie_embeddings", native.tie_embeddings, "the output head shares the embedding"),
      REAL("model.routed_scale", native.routed_scale, 1e-6, 1e6, "factor on the gate weights"),
      REAL("model.rope_theta", native.rope_theta, 1, 1e12, "rotary base"),
      REAL("model.norm_eps", native.norm_eps, 0, 1, "epsilon of the RMS norms"),
      REAL("model.init_std", native.init_std, 0, 100, "standard deviation of initial weights"),
      REAL("model.clip_qkv", native.clip_qkv, 0, 1e30, "clamp of queries, keys and values; 0: none"),
      TEXT("model.attention", native.attention, "latent: multi-head latent attention of DeepSeek", "grouped", "latent"),
      INTEGER("model.q_rank", native.q_rank, 0, 1 << 24, "latent: width of the queries' latent; 0: none"),
      INTEGER("model.kv_rank", native.kv_rank, 1, 1 << 24, "latent: width of the latent of keys and values"),
      INTEGER("model.nope_dim", native.nope_dim, 1, 1 << 14, "latent: unrotated width of a query/key head"),
      INTEGER("model.rope_dim", native.rope_dim, 2, 1 << 14, "latent: rotated width of a query/key head"),
      INTEGER("model.value_dim", native.value_dim, 1, 1 << 14, "latent: width of a value head"),
      INTEGER("model.expert_groups", native.expert_groups, 1, 1 << 16, "equal groups of experts"),
      INTEGER("model.kept_groups", native.kept_groups, 1, 1 << 16, "groups whose experts a token may choose"),
      INTEGER("model.group_best", native.group_best, 1, 1 << 16, "how many of its best scores rank a group"),
      TEXT("data.kind", data.kind, "text: bytes of files; megatron: .bin/.idx; shards: llm.c .bin", "text", "megatron",
           "shards"),
      TEXT("data.path", data.path, "file, directory or prefix of the training data"),
      {"data.blend", ListKey{FIELD(std::vector<std::string>, data.blend)},
       "several data sets with weights instead of data.path: [\"0.7 data/web\", \"0.3 data/code\"]"},
      {"data.suffixes", ListKey{FIELD(std::vector<std::string>, data.suffixes)},
       "text: which files of a directory; \"\" means no extension; empty: all"},
      TEXT("data.val_path", data.val_path, "validation data of its own; without it a part of data.path is held out"),
      REAL("data.val_fraction", data.val_fraction, 0, 0.9,
           "held out for validation: a share of whole files (text), or of the tokens, from the end (others)"),
      INTEGER("train.steps", train.steps, 1, kMany, "optimizer steps"),
      INTEGER("train.seq_len", train.seq_len, 1, 1 << 22, "tokens per sample"),
      INTEGER("train.global_batch", train.global_batch, 1, 1 << 24, "samples per optimizer step, over all ranks"),
      INTEGER("train.micro_batches", train.micro_batches, 1, 1 << 24,
              "micro-batches per step; does not depend on the layout"),
      REAL("train.lr", train.lr, 0, 10, "peak learning rate"),
      REAL("train.min_lr_ratio", train.min_lr_ratio, 0, 1, "last learning rate over the peak (cosine)"),
      INTEGER("train.warmup", train.warmup, 0, kMany, "steps of linear warm-up"),
      TEXT("train.schedule", train.schedule, "learning rate after warm-up", "cosine", "constant"),
      REAL("train.weight_decay", train.weight_decay, 0, 10, "AdamW decay of tensors with two or more dimensions"),
      REAL("train.clip", train.clip, 0, 1e9, "global gradient norm limit; 0: none"),
      REAL("train.beta1", train.beta1, 0, 0.999999, "AdamW"),
      REAL("train.beta2", train.beta2, 0, 0.999999, "AdamW"),
      REAL("train.eps", train.eps, 1e-30, 1, "AdamW"),
      INTEGER("train.seed", train.seed, 0, std::numeric_limits<int64_t>::max(),
              "seed of initialisation and data order"),
      TEXT("train.dtype", train.dtype, "bf16 keeps fp32 master weights; fp32 is true fp32", "bf16", "fp32"),
      TEXT("train.device", train.device, "where to compute", "auto", "cpu", "cuda", "hip"),
      INTEGER("train.threads", train.threads, 0, 4096, "threads per rank; 0: cores / ranks of the node"),
      INTEGER("train.val_every", train.val_every, 0, kMany, "validate each so many steps; 0: only at the end"),
      INTEGER("train.val_batches", train.val_batches, 0, 1 << 24, "global batches per validation; 0: no validation"),
      FLAG("train.byte_baseline", train.byte_baseline,
           "print an order-2 byte-count model's loss beside the validation loss (byte data)"),
      INTEGER("mesh.pp", mesh.pp, 1, 1 << 20, "ranks of a pipeline"),
      INTEGER("mesh.tp", mesh.tp, 1, 1 << 20,
              "tensor parallel size: cuts attention heads, dense widths, and tokens between them"),
      INTEGER("mesh.ep", mesh.ep, 1, 1 << 20, "expert parallel size"),
      TEXT("mesh.placement", mesh.placement,
           "ep_first: expert-parallel neighbours are next to each other; dp_first: replicas are", "ep_first",
           "dp_first"),
      TEXT("mesh.schedule", mesh.schedule, "pipeline schedule", "gpipe", "1f1b", "interleaved", "zb_h1", "zb_v"),
      INTEGER("mesh.chunks", mesh.chunks, 2, 1 << 10, "stages per rank of the interleaved schedule"),
      TEXT("mesh.stage_layers", mesh.stage_layers, "layers of each stage, as in \"8,8,7\"; empty: cut by FLOPs"),
      INTEGER("mesh.zero", mesh.zero, 0, 1, "ZeRO stage: 1 cuts optimizer states over replicas"),
      INTEGER("mesh.ranks_per_node", mesh.ranks_per_node, 0, 1 << 16, "0: from the launcher"),
      REAL("moe.aux_loss_coef", moe.aux_loss_coef, -1, 1e6, "load balance loss; below 0: the model's own coefficient"),
      TEXT("moe.aux_scope", moe.aux_scope,
           "auxiliary loss by layer, by layer and sequence (summed over layers), or of "
           "all layers together (Hugging Face); auto: the model's own, else layer",
           "auto", "layer", "sequence", "model"),
      REAL("moe.z_loss_coef", moe.z_loss_coef, 0, 1e6, "router z-loss"),
      REAL("moe.bias_rate", moe.bias_rate, 0, 10, "step of the selection bias"),
      REAL("moe.capacity_factor", moe.capacity_factor, 0, 1e6, "rows an expert takes over the mean; 0: dropless"),
      TEXT("moe.capacity_domain", moe.capacity_domain,
           "capacity counts per sequence (independent of the layout) or per rank", "sequence", "rank"),
      REAL("moe.row_headroom", moe.row_headroom, 1, 1e6, "memory for received rows committed at start, over the mean"),
      TEXT("moe.tp_mode", moe.tp_mode, "MoE blocks under tensor parallelism", "ssmb", "ted"),
      TEXT("moe.transport", moe.transport, "how tokens and experts meet", "auto", "flat", "halo", "bypass",
           "gather_tokens", "gather_weights", "in_place", "padded"),
      INTEGER("moe.row_chunks", moe.row_chunks, 0, 1024,
              "pieces of an exchange that overlap with expert compute; 0: 2 between GPUs, else 1"),
      TEXT("moe.expert_products", moe.expert_products,
           "on NVIDIA GPUs: one kernel over all experts, or one product of cuBLASLt per expert", "auto", "grouped",
           "per_expert"),
      TEXT("memory.recompute", recompute,
           "what backward computes again instead of keeping it; selective: pre-activations of feed-forwards; moe: "
           "those of "
           "experts and the rows sent to them; full: all but layer inputs and routing",
           "none", "moe", "selective", "full"),
      TEXT("memory.offload", offload,
           "what a GPU reads and writes in the host's memory, once per step: its moments, and the fp32 weights of bf16 "
           "matrices",
           "none", "optimizer"),
      TEXT("checkpoint.dir", checkpoint.dir, "folder of checkpoints; empty: none"),
      INTEGER("checkpoint.every", checkpoint.every, 0, kMany, "steps between checkpoints; 0: only at the end"),
      FLAG("checkpoint.background", checkpoint.background,
           "write beside the gradients of the next step, whose update waits for it; else the run waits at once"),
      INTEGER("checkpoint.keep", checkpoint.keep, 1, 1 << 20, "complete checkpoints kept"),
      TEXT("checkpoint.resume", checkpoint.resume, "none, auto (newest complete checkpoint) or a checkpoint folder"),
      TEXT("log.jsonl", log.jsonl, "metrics file, one JSON object per step"),
      TEXT("log.tensorboard", log.tensorboard, "folder of TensorBoard event files"),
      TEXT("log.trace", log.trace, "Chrome trace of the last step"),
      INTEGER("log.every", log.every, 1, kMany, "steps between log lines"),
      INTEGER("watchdog.seconds", watchdog.seconds, 0, kMany,
              "the job ends with a report when a rank has been silent, or no rank has moved, for so long; 0: never"),
      TEXT("sample.prompt", sample.prompt, "text that `sample` and the end of training continue"),
      INTEGER("sample.tokens", sample.tokens, 0, 1 << 20, "tokens generated at the end of training; 0: none"),
      REAL("sample.temperature", sample.temperature, 0, 100, "0: the likeliest token"),
      INTEGER("sample.top_k", sample.top_k, 0, 1 << 24, "draw from the likeliest tokens only; 0: all"),
      INTEGER("sample.seed", sample.seed, 0, std::numeric_limits<int64_t>::max(), "seed of the draw"),
      INTEGER("verify.steps", verify.steps, 1, 10000, "steps that `verify` compares"),
      REAL("verify.tolerance", verify.tolerance, 0, 1, "largest gradient error in fp32"),
      REAL("verify.loss_tolerance_bf16", verify.loss_tolerance_bf16, 0, 1, "largest relative loss error in bf16"),
      TEXT("verify.routing", verify.routing, "force hostile loads: every row on one expert, or an expert without rows",
           "learned", "one_expert", "skip_expert"),
      REAL("verify.ignore_fraction", verify.ignore_fraction, 0, 0.9, "share of labels ignored, unevenly over samples"),
      TEXT("plan.platform", plan.platform, "`plan`: profile of the machine, as in profiles/"),
      INTEGER("plan.ranks", plan.ranks, 0, 1 << 20, "`plan`: ranks to plan for; 0: --ranks must say"),
      REAL("plan.balance", plan.balance, 0.01, 1e6,
           "`plan`: evenness of expert loads; 1: no balancing at all, 8: the fullest of 128 gets twice the mean"),
      TEXT("debug.fault", fault, "test only: break the run on purpose", "", "double_expert_gradient", "skip_router_sum",
           "drop_row", "local_aux_counts", "wrong_denominator", "nan_gradient", "hang"),
  };
  return rules;
}

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const KeyRule& rule : key_rules()) {
    const std::string name = rule.key.substr(0, rule.key.find('.'));
    if (names.empty() || names.back() != name) names.push_back(name);
  }
  return names;
}

std::vector<std::string> key_names() {
  std::vector<std::string> names;
  for (const KeyRule& rule : key_rules()) names.push_back(rule.key);
  for (const std::string& name : section_names()) names.push_back(name);
  return names;
}

const KeyRule& find_rule(const std::string& key, const std::string& where) {
  for (const KeyRule& rule : key_rules())
    if (rule.key == key) return rule;
  fail(Exit::config, fmt::format("{}: unknown key \"{}\"{}", where, printable(key), did_you_mean(key, key_names())),
       "`moewright init` prints every key with its meaning");
}

std::string type_of(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table: return "a table";
    case toml::node_type::array: return "an array";
    case toml::node_type::string: return "a string";
    case toml::node_type::integer: return "an integer";
    case toml::node_type::floating_point: return "a number";
    case toml::node_type::boolean: return "true/false";
    default: return "a date or time";
  }
}

[[noreturn]] void fail_type(const std::string& where, const std::string& key, const char* expected,
                            const toml::node& node) {
  fail(Exit::config, fmt::format("{}: {} expects {}, got {}", where, key, expected, type_of(node)),
       node.is_string() ? "numbers and true/false stand without quotes" : "text stands in quotes, lists in [brackets]");
}

// What no file name may hold, and what the run file written from it could not hold either.
void check_text(const std::string& value, const std::string& key, const std::string& where) {
  if (value.find('\0') != std::string::npos)
    fail(Exit::config, fmt::format("{}: {} contains a NUL byte", where, key), "remove it");
  if (!is_utf8(value))
    fail(Exit::config, fmt::format("{}: {} = \"{}\" is not UTF-8", where, key, printable(value)),
         "rename the file, or write the text in UTF-8");
}

void assign(RunSpec& run, const KeyRule& rule, const toml::node& node, const std::string& where) {
  const std::string& key = rule.key;
  if (const auto* integer = std::get_if<IntegerKey>(&rule.kind)) {
    if (!node.is_integer()) fail_type(where, key, "an integer", node);
    const int64_t value = node.as_integer()->get();
    if (value < integer->low || value > integer->high)
      fail(
          Exit::config,
          fmt::format("{}: {} = {} is out of range, expected {} to {}", where, key, value, integer->low, integer->high),
          rule.meaning);
    integer->field(run) = value;
  } else if (const auto* real = std::get_if<RealKey>(&rule.kind)) {
    if (!node.is_number()) fail_type(where, key, "a number", node);
    const double value =
        node.is_integer() ? static_cast<double>(node.as_integer()->get()) : node.as_floating_point()->get();
    if (!(value >= real->low && value <= real->high))
      fail(Exit::config,
           fmt::format("{}: {} = {} is out of range, expected {} to {}", where, key, value, real->low, real->high),
           rule.meaning);
    real->field(run) = value;
  } else if (const auto* text = std::get_if<TextKey>(&rule.kind)) {
    if (!node.is_string()) fail_type(where, key, "a string", node);
    const std::string& value = node.as_string()->get();
    if (!text->choices.empty() && std::find(text->choices.begin(), text->choices.end(), value) == text->choices.end())
      fail(Exit::config,
           fmt::format("{}: {} = \"{}\" is not known{}", where, key, printable(value),
                       did_you_mean(value, text->choices)),
           fmt::format("one of: {}", fmt::join(text->choices, ", ")));
    check_text(value, key, where);
    text->field(run) = value;
  } else if (const auto* flag = std::get_if<BoolKey>(&rule.kind)) {
    if (!node.is_boolean()) fail_type(where, key, "true or false", node);
    flag->field(run) = node.as_boolean()->get();
  } else {
    const toml::array* array = node.as_array();
    if (array == nullptr) fail_type(where, key, "a list of strings", node);
    std::vector<std::string> values;
    for (const toml::node& item : *array) {
      if (!item.is_string()) fail_type(where, key, "a list of strings", item);
      check_text(item.as_string()->get(), key, where);
      values.push_back(item.as_string()->get());
    }
    std::get<ListKey>(rule.kind).field(run) = std::move(values);
  }
}

void assign_model_text(RunSpec& run, const toml::node& node, const std::string& where) {
  const std::string& value = node.as_string()->get();
  if (value.rfind("hf:", 0) != 0 || value.size() == 3)
    fail(Exit::config,
         fmt::format("{}: model = \"{}\", expected a [model] table or \"hf:DIR\"", where, printable(value)),
         "\"hf:/path/to/folder\" names a Hugging Face model folder with its config.json");
  check_text(value, "model", where);
  run.hf_dir = value.substr(3);
}

bool is_section(const std::string& name) {
  const std::vector<std::string> names = section_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

void assign_table(RunSpec& run, const toml::table& table, const std::string& prefix, const std::string& where) {
  for (const auto& [name, node] : table) {
    const std::string key = prefix.empty() ? std::string(name.str()) : prefix + "." + std::string(name.str());
    const std::string at = fmt::format("{}:{}", where, node.source().begin.line);
    const bool section = prefix.empty() && is_section(key);
    if (key == "model" && node.is_string()) assign_model_text(run, node, at);
    else if (node.is_table() && (section || (prefix.empty() && !node.as_table()->empty())))
      assign_table(run, *node.as_table(), key, where);
    else if (section) fail_type(at, key, "a section of keys", node);
    else assign(run, find_rule(key, at), node, at);
  }
}

// The text as toml++ 3.3 survives it. Non-ASCII characters are undefined behaviour there wherever it does not see a
// string, and a hostile file makes it see other strings than we do: so it gets ASCII alone, with \u escapes for the
// rest. Refused: non-ASCII where no escape can stand, strings over several lines (this scan would have to follow them)
// and keys of many parts (they become tables nested as deep, which are destroyed recursively).
std::string ascii_toml(const std::string& text, const std::string& where) {
  constexpr int kMaxDots = 16;
  std::string out;
  int line = 1, dots = 0;
  char quote = 0;
  bool comment = false, escaped = false;
  const auto refuse = [&](const std::string& what, const char* hint) {
    fail(Exit::config, fmt::format("{}:{}: {}", where, line, what), hint);
  };
  for (size_t i = 0; i < text.size();) {
    const size_t start = i;
    const std::optional<uint32_t> code = next_code_point(text, i);
    if (!code) refuse("not UTF-8", "write the file in UTF-8");
    const bool after_backslash = std::exchange(escaped, false);
    if (*code >= 0x80) {
      if (!comment && quote == 0) refuse("a non-ASCII character outside quotes and comments", "put text in quotes");
      if (quote == '\'' || after_backslash)
        refuse(fmt::format("a non-ASCII character {}", quote == '\'' ? "in single quotes" : "after a backslash"),
               "double quotes take any text, with \\\\ for a backslash");
      out += comment ? "?" : fmt::format("\\U{:08x}", *code);
      continue;
    }
    const char c = text[start];
    out += c;
    if (c == '\n') {
      ++line;
      dots = 0;
      comment = false;
      quote = 0;
    } else if (*code < 0x20 && c != '\t' && c != '\r') {
      refuse(fmt::format("control byte 0x{:02x}", *code), "a run file is plain text");
    } else if (quote != 0) {
      if (c == '\\') escaped = quote == '"' && !after_backslash;
      else if (c == quote && !after_backslash) quote = 0;
    } else if (!comment && (c == '"' || c == '\'')) {
      if (text.compare(start, 3, std::string(3, c)) == 0)
        refuse("a string over several lines", "write \\n inside a string of one line");
      quote = c;
    } else if (c == '#') {
      comment = true;
    } else if (c == '.' && !comment && ++dots > kMaxDots) {
      refuse("a key of too many parts", "keys are of the form section.name");
    }
  }
  return out;
}

void apply_override(RunSpec& run, const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    fail(Exit::usage, fmt::format("\"{}\" is not of the form key=value", printable(text)), "for example train.lr=3e-4");
  const std::string key = text.substr(0, equals), value = text.substr(equals + 1), where = "command line";
  // A value that is not TOML is meant as text: data.path=/usr/include needs no quotes. A text key takes what stands
  // there as text.
  const bool model_text = key == "model";
  if (!model_text) find_rule(key, where);
  const bool text_key = model_text || std::holds_alternative<TextKey>(find_rule(key, where).kind);
  toml::table table;
  bool parsed = false;
  if (!text_key || (!value.empty() && (value.front() == '"' || value.front() == '\''))) {
    try {
      table = toml::parse(ascii_toml("value = " + value, where));
      parsed = table.size() == 1;
    } catch (const std::runtime_error&) {  // of either
      parsed = false;
    }
  }
  if (!parsed) {
    table.clear();
    table.insert("value", value);
  }
  const toml::node& node = *table.get("value");
  if (model_text) {
    if (!node.is_string()) fail_type(where, key, "\"hf:DIR\"", node);
    assign_model_text(run, node, where);
  } else {
    if (key.rfind("model.", 0) == 0) run.hf_dir.clear();
    assign(run, find_rule(key, where), node, where);
  }
}

std::string toml_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') out += fmt::format("\\{}", c);
    else if (byte < 0x20 || byte == 0x7f) out += fmt::format("\\u{:04x}", byte);
    else out += c;
  }
  return out + "\"";
}

std::string value_text(const KeyRule& rule, RunSpec& run) {
  if (const auto* integer = std::get_if<IntegerKey>(&rule.kind)) return fmt::format("{}", integer->field(run));
  if (const auto* real = std::get_if<RealKey>(&rule.kind)) {
    std::string text = fmt::format("{}", real->field(run));
    if (text.find_first_of(".en") == std::string::npos) text += ".0";
    return text;
  }
  if (const auto* text = std::get_if<TextKey>(&rule.kind)) return toml_string(text->field(run));
  if (const auto* flag = std::get_if<BoolKey>(&rule.kind)) return flag->field(run) ? "true" : "false";
  std::vector<std::string> quoted;
  for (const std::string& item : std::get<ListKey>(rule.kind).field(run)) quoted.push_back(toml_string(item));
  return fmt::format("[{}]", fmt::join(quoted, ", "));
}

std::string print_run(RunSpec run, bool comments) {
  std::string out, section;
  if (!run.hf_dir.empty()) out += fmt::format("model = {}\n", toml_string("hf:" + run.hf_dir));
  for (const KeyRule& rule : key_rules()) {
    const size_t dot = rule.key.find('.');
    const std::string group = rule.key.substr(0, dot);
    if (group == "model" && !run.hf_dir.empty()) continue;
    if (comments && group == "debug") continue;
    if (group != section) out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", group);
    section = group;
    const std::string line = fmt::format("{} = {}", rule.key.substr(dot + 1), value_text(rule, run));
    if (!comments) {
      out += line + "\n";
      continue;
    }
    std::string meaning = rule.meaning;
    if (const auto* text = std::get_if<TextKey>(&rule.kind); text != nullptr && !text->choices.empty())
      meaning += fmt::format(" ({})", fmt::join(text->choices, " | "));
    out += fmt::format("{:<36} # {}\n", line, meaning);
  }
  return out;
}

}  // namespace

RunSpec parse_run_text(const std::string& text, const std::string& where, const std::vector<std::string>& overrides) {
  RunSpec run;
  const std::string ascii = ascii_toml(text, where);
  try {
    assign_table(run, toml::parse(ascii, where), "", where);
  } catch (const toml::parse_error& error) {
    fail(
        Exit::config,
        fmt::format("{}:{}: not valid TOML: {}", where, error.source().begin.line, printable(error.description(), 200)),
        "`moewright init` writes a valid file to start from");
  }
  for (const std::string& item : overrides) apply_override(run, item);
  return run;
}

RunSpec read_run_file(const std::string& path, const std::vector<std::string>& overrides) {
  std::string text;
  try {
    text = read_text_file(path, size_t{1} << 20);
  } catch (const Error& error) {
    fail(Exit::config, error.what(), "`moewright init` writes a run file to start from");
  }
  return parse_run_text(text, path, overrides);
}

std::string to_toml(const RunSpec& run) { return print_run(run, false); }

std::string commented_run_file() {
  return "# A Moewright run file. Every key is optional and shown with its default; `key=value` on the command line "
         "overrides it.\n"
         "# Instead of the [model] table: model = \"hf:DIR\" takes a Hugging Face model folder.\n" +
         print_run(RunSpec{}, true);
}

std::vector<KeyDoc> run_file_reference() {
  std::vector<KeyDoc> docs;
  RunSpec defaults;
  for (const KeyRule& rule : key_rules()) docs.push_back({rule.key, value_text(rule, defaults), rule.meaning});
  return docs;
}

}  // namespace mw
