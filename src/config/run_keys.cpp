#include "config/run_keys.h"

#include <limits>
#include <span>
#include <type_traits>

#include "config/presets.h"

namespace mw {

constexpr int64_t kMany = int64_t{1} << 40;

#define FIELD(type, path) [](RunSpec& r) -> type& { return r.path; }
#define INTEGER(key, path, low, high, meaning) \
  { key, IntegerKey{FIELD(int64_t, path), low, high}, meaning }
#define REAL(key, path, low, high, meaning) \
  { key, RealKey{FIELD(double, path), low, high}, meaning }
#define TEXT(key, path, meaning) \
  { key, TextKey{FIELD(std::string, path)}, meaning }
#define CHOICE(key, path, meaning) \
  { key, choice_key(+FIELD(auto, path)), meaning }
#define FLAG(key, path, meaning) \
  { key, BoolKey{FIELD(bool, path)}, meaning }

namespace {

template <class Enum>
ChoiceKey choice_key(Enum& (*field)(RunSpec&),
                     std::type_identity_t<std::span<const EnumWord<Enum>>> table = kEnumWords<Enum>) {
  ChoiceKey key;
  for (const EnumWord<Enum>& entry : table) key.words.emplace_back(entry.word);
  key.word = [field](RunSpec& run) { return word_of(field(run)); };
  key.set = [field](RunSpec& run, const std::string& word) { field(run) = enum_of<Enum>(word).value(); };
  return key;
}

// "", or one of the presets.
ChoiceKey preset_key() {
  std::vector<std::string> names = preset_names();
  names.insert(names.begin(), "");
  return {std::move(names), [](RunSpec& run) { return run.native.preset; },
          [](RunSpec& run, const std::string& name) { run.native.preset = name; }};
}

}  // namespace

const std::vector<KeyRule>& key_rules() {
  static const std::vector<KeyRule> rules = {
      {"model.preset", preset_key(),
       "architecture of a published model, with random weights; the other keys of [model] must then be absent"},
      INTEGER("model.vocab", native.vocab, 1, 1 << 24, "vocabulary size; 256 for byte tokens"),
      INTEGER("model.width", native.width, 1, 1 << 24, "hidden size D"),
      INTEGER("model.layers", native.layers, 1, 10000, "number of layers"),
      INTEGER("model.heads", native.heads, 1, 1 << 16, "number of attention heads"),
      INTEGER("model.kv_heads", native.kv_heads, 0, 1 << 16, "number of key/value heads; 0: as many as heads"),
      INTEGER("model.head_dim", native.head_dim, 0, 1 << 14, "width of an attention head; 0: width / heads"),
      INTEGER("model.experts", native.experts, 1, 1 << 16, "routed experts per MoE layer"),
      INTEGER("model.top_k", native.top_k, 1, 1 << 16, "experts per token"),
      INTEGER("model.expert_width", native.expert_width, 1, 1 << 24, "hidden width F of an expert"),
      INTEGER("model.shared_experts", native.shared_experts, 0, 1024,
              "number of shared experts, which process every token"),
      INTEGER("model.dense_layers", native.dense_layers, 0, 10000,
              "number of leading layers with a dense feed-forward instead of MoE"),
      INTEGER("model.dense_width", native.dense_width, 0, 1 << 24, "hidden width of dense feed-forwards; 0: 4 x width"),
      CHOICE("model.activation", native.activation,
             "activation of feed-forwards and experts; swiglu has gate, up and down projections, gelu and "
             "relu only up and down"),
      CHOICE("model.score", native.score, "function from router logits to scores"),
      CHOICE("model.qk_norm", native.qk_norm, "RMSNorm of queries and keys"),
      FLAG("model.selection_bias", native.selection_bias,
           "auxiliary-loss-free load balancing: a bias on the scores that select experts (needs sigmoid scores)"),
      FLAG("model.renormalise", native.renormalise, "normalize gate weights to sum to 1 over the selected experts"),
      FLAG("model.tie_embeddings", native.tie_embeddings,
           "share the weights of the token embedding and the output head"),
      REAL("model.routed_scale", native.routed_scale, 1e-6, 1e6, "factor on the gate weights"),
      REAL("model.rope_theta", native.rope_theta, 1, 1e12, "base of the rotary position embedding"),
      REAL("model.norm_eps", native.norm_eps, 0, 1, "epsilon of RMSNorm"),
      REAL("model.init_std", native.init_std, 0, 100, "standard deviation of the initial weights"),
      REAL("model.clip_qkv", native.clip_qkv, 0, 1e30, "clamp queries, keys and values to [-x, x]; 0: off"),
      CHOICE("model.attention", native.attention,
             "grouped: multi-head or grouped-query attention; latent: multi-head latent attention (MLA) of DeepSeek"),
      INTEGER("model.q_rank", native.q_rank, 0, 1 << 24,
              "latent attention: rank of the query projection; 0: full rank"),
      INTEGER("model.kv_rank", native.kv_rank, 1, 1 << 24, "latent attention: rank of the compressed keys and values"),
      INTEGER("model.nope_dim", native.nope_dim, 1, 1 << 14,
              "latent attention: width of a query/key head without rotary embedding"),
      INTEGER("model.rope_dim", native.rope_dim, 2, 1 << 14,
              "latent attention: width of a query/key head with rotary embedding"),
      INTEGER("model.value_dim", native.value_dim, 1, 1 << 14, "latent attention: width of a value head"),
      INTEGER("model.expert_groups", native.expert_groups, 1, 1 << 16,
              "number of equal groups of experts for group-limited routing; 1: off"),
      INTEGER("model.kept_groups", native.kept_groups, 1, 1 << 16, "groups that a token may select experts from"),
      INTEGER("model.group_best", native.group_best, 1, 1 << 16, "number of best scores whose sum ranks a group"),
      CHOICE("data.kind", data.kind,
             "format of the training data; text: files as bytes; megatron: .bin/.idx; shards: llm.c .bin"),
      TEXT("data.path", data.path, "file, directory or prefix of the training data"),
      {"data.blend", ListKey{FIELD(std::vector<std::string>, data.blend)},
       "several weighted data sets instead of data.path: [\"0.7 data/web\", \"0.3 data/code\"]"},
      {"data.suffixes", ListKey{FIELD(std::vector<std::string>, data.suffixes)},
       "text: suffixes of the files to read in a directory; \"\": files without a suffix; []: all files"},
      TEXT("data.val_path", data.val_path,
           "separate validation data; empty: hold out data.val_fraction of the training data"),
      REAL("data.val_fraction", data.val_fraction, 0, 0.9,
           "fraction held out for validation; text holds out whole files, so that the share of its bytes may differ, "
           "and of a single file the last bytes; other kinds hold out the last tokens"),
      FLAG("data.document_mask", data.document_mask,
           "mask attention across documents and restart position ids; a document is a file (text), an "
           "entry of the index (megatron), or starts at data.document_token (shards)"),
      FLAG("data.whole_documents", data.whole_documents,
           "fill samples with whole documents and pad the rest, instead of cutting the stream of tokens anywhere; "
           "documents longer than train.seq_len are cut"),
      INTEGER("data.document_token", data.document_token, -1, (int64_t{1} << 31) - 1,
              "shards: token that starts each document; -1: 50256 (GPT-2) in u16 files, 128000 (Llama 3) in u32 files"),
      INTEGER("train.steps", train.steps, 1, kMany, "number of optimizer steps"),
      INTEGER("train.seq_len", train.seq_len, 1, 1 << 22, "tokens per sample"),
      INTEGER("train.global_batch", train.global_batch, 1, 1 << 24, "samples per optimizer step, over all ranks"),
      INTEGER("train.micro_batches", train.micro_batches, 1, 1 << 24,
              "micro-batches per optimizer step (gradient accumulation), the same number for every layout"),
      {"train.batch_ramp", ListKey{FIELD(std::vector<std::string>, train.batch_ramp)},
       "smaller global batches at the beginning, as \"STEP SAMPLES\": [\"100 64\", \"200 128\"] is 64 samples until "
       "step "
       "100, 128 until step 200, then train.global_batch; in multiples of a micro-batch (train.global_batch / "
       "train.micro_batches), so that steps have fewer micro-batches"},
      REAL("train.lr", train.lr, 0, 10, "peak learning rate"),
      REAL("train.min_lr_ratio", train.min_lr_ratio, 0, 1,
           "final learning rate of cosine, linear and wsd, and least of inverse_sqrt, as a fraction of train.lr"),
      INTEGER("train.warmup", train.warmup, 0, kMany, "steps of linear learning-rate warm-up"),
      CHOICE("train.schedule", train.schedule,
             "learning rate after warm-up; cosine, linear: falls until the last step; constant; inverse_sqrt: falls as "
             "1 / sqrt(step); wsd: constant, then falls linearly within train.decay_steps; piecewise: by "
             "train.lr_points"),
      INTEGER("train.decay_steps", train.decay_steps, 0, kMany,
              "wsd: number of last steps in which the learning rate falls; 0: a tenth of train.steps"),
      {"train.lr_points", ListKey{FIELD(std::vector<std::string>, train.lr_points)},
       "piecewise: learning rates as \"STEP FACTOR\" of train.lr, linear in between: [\"0 0\", \"100 1\", "
       "\"900 1\", \"1000 0.1\"]"},
      {"train.lr_scales", ListKey{FIELD(std::vector<std::string>, train.lr_scales)},
       "factors on the learning rate (and with it on weight decay) of parameters by name: [\"embed 0.1\", "
       "\"*.moe.router 0.5\"]; * stands for any characters, and the first match counts"},
      CHOICE("train.optimizer", train.optimizer,
             "adamw; or muon: matrices of layers get orthogonal updates (Muon), all else is updated by AdamW"),
      REAL("train.muon_lr", train.muon.lr, 0, 10,
           "peak learning rate of Muon's matrices, with the schedule of train.lr; 0: train.lr"),
      REAL("train.muon_momentum", train.muon.momentum, 0, 0.999999, "momentum of Muon"),
      FLAG("train.muon_nesterov", train.muon.nesterov, "Nesterov momentum in Muon"),
      CHOICE("train.muon_scale", train.muon.scale,
             "factor on Muon's updates of [n, m] matrices; match_rms: 0.2 sqrt(max(n, m)), as large as AdamW's, for "
             "learning rates of AdamW; original: sqrt(max(1, n / m))"),
      FLAG("train.muon_router", train.muon.router, "update routers by Muon instead of AdamW"),
      REAL("train.qk_clip", train.qk_clip, 0, 1e9,
           "QK-clip (MuonClip of Kimi K2, which sets 100): where a head's largest attention logit of a step exceeds "
           "this, the update also shrinks the head's query and key weights until the logit would not; largest_logit "
           "in the metrics is that of all heads; 0: off; needs model.qk_norm = \"none\" and model.clip_qkv = 0"),
      REAL("train.weight_decay", train.weight_decay, 0, 10, "weight decay of tensors with two or more dimensions"),
      REAL("train.clip", train.clip, 0, 1e9, "clip gradients to this global norm; 0: off"),
      REAL("train.beta1", train.beta1, 0, 0.999999, "AdamW beta1"),
      REAL("train.beta2", train.beta2, 0, 0.999999, "AdamW beta2"),
      REAL("train.eps", train.eps, 1e-30, 1, "AdamW epsilon"),
      REAL("train.skip_spikes", train.skip_spikes, 0, 1e6,
           "do not update weights in steps whose loss or gradient norm is more than so many standard deviations above "
           "its mean over the last train.spike_window steps; 0: off"),
      // Half of them are compared with at least, and one step has no deviation.
      INTEGER("train.spike_window", train.spike_window, 4, 1 << 16,
              "steps that train.skip_spikes compares with; the first half of them is never skipped"),
      INTEGER("train.seed", train.seed, 0, std::numeric_limits<int64_t>::max(),
              "random seed of initialization and data order"),
      CHOICE("train.dtype", train.dtype, "bf16: bf16 compute with fp32 master weights; fp32: full fp32, without TF32"),
      CHOICE("train.device", train.device, "device to compute on; auto: a GPU if there is one"),
      INTEGER("train.threads", train.threads, 0, 4096,
              "CPU threads per rank; 0: the cores that the rank is bound to, unbound the node's cores divided by its "
              "ranks"),
      FLAG("train.deterministic", train.deterministic,
           "bit-identical results in every run; false: attention on a GPU accumulates gradients in any order "
           "where that is faster"),
      INTEGER("train.val_every", train.val_every, 0, kMany, "steps between validations; 0: validate only at the end"),
      INTEGER("train.val_batches", train.val_batches, 0, 1 << 24,
              "global batches per validation, at most all of the data once; 0: no validation"),
      FLAG("train.byte_baseline", train.byte_baseline,
           "byte data: print the loss of an order-2 byte-count model beside the validation loss"),
      TEXT("train.val_questions", train.val_questions,
           "multiple-choice questions to answer at every validation: JSON lines {\"context\": TEXT, "
           "\"choices\": [TEXT, ...], \"answer\": INDEX}"),
      INTEGER("mesh.pp", mesh.pp, 1, 1 << 20, "pipeline-parallel size"),
      INTEGER("mesh.tp", mesh.tp, 1, 1 << 20,
              "tensor-parallel size: shards attention heads, dense feed-forwards and the vocabulary, and "
              "tokens between them (sequence parallelism)"),
      INTEGER("mesh.ep", mesh.ep, 1, 1 << 20, "expert-parallel size"),
      CHOICE("mesh.placement", mesh.placement,
             "ep_first: the ranks of an expert-parallel group are adjacent; dp_first: the replicas of an "
             "expert are adjacent"),
      CHOICE("mesh.schedule", mesh.schedule, "pipeline schedule"),
      INTEGER("mesh.chunks", mesh.chunks, 2, 1 << 10, "stages per rank of the interleaved schedule"),
      TEXT("mesh.stage_layers", mesh.stage_layers,
           "number of layers of each stage, such as \"8,8,7\"; measured: as for mesh.shares, where every rank has one "
           "stage; empty: balance stages by FLOPs"),
      TEXT("mesh.shares", mesh.shares,
           "weights by which the data-parallel ranks share the samples of each micro-batch, such as \"3,1\" if the "
           "first rank is three times as fast; experts get the rows of all ranks as before; measured: by the speeds "
           "that `train` measures before its first step (docs/balance.md); empty: equal shares"),
      TEXT("mesh.width_shares", mesh.width_shares,
           "weights by which the expert-parallel ranks share the width of every expert with moe.transport = "
           "\"gather_tokens\", such as \"3,1\"; measured: as for mesh.shares; empty: equal shares"),
      TEXT("mesh.expert_shares", mesh.expert_shares,
           "weights by which the expert-parallel ranks share the experts of each layer whose rows travel to them, such "
           "as \"3,1\"; measured: as for mesh.shares; empty: equal shares"),
      INTEGER("mesh.adapt_every", mesh.adapt_every, 0, kMany,
              "with mesh.shares = \"measured\", steps between looks at the ranks' speeds: the samples are shared again "
              "where looks agree that it makes steps faster by 3 % or more (docs/balance.md); 0: never"),
      INTEGER("mesh.zero", mesh.zero, 0, 1, "ZeRO stage; 1: shard optimizer states over replicas"),
      INTEGER("mesh.ranks_per_node", mesh.ranks_per_node, 0, 1 << 16,
              "consecutive ranks that share a node; the last node may have fewer; 0: as the launcher reports"),
      REAL("moe.aux_loss_coef", moe.aux_loss_coef, -1, 1e6,
           "coefficient of the load-balancing loss; 0: off; negative: the value of config.json for model = "
           "\"hf:DIR\", 0.05 for a [model] table, 0 with a selection bias"),
      CHOICE("moe.aux_scope", moe.aux_scope,
             "compute the load-balancing loss per layer; per layer and sequence, summed over layers (DeepSeek; "
             "with a selection bias, over the top-k of the unbiased scores); or over all layers together (Hugging "
             "Face: over the top-k of softmax, whatever the scores); auto: as the model's family does, else layer"),
      REAL("moe.z_loss_coef", moe.z_loss_coef, 0, 1e6, "coefficient of the router z-loss; 0: off"),
      REAL("moe.bias_rate", moe.bias_rate, 0, 10, "update step of the selection bias"),
      REAL("moe.capacity_factor", moe.capacity_factor, 0, 1e6,
           "rows an expert accepts, as a multiple of the mean; the rest is dropped; 0: dropless"),
      CHOICE("moe.capacity_domain", moe.capacity_domain,
             "tokens over which the capacity of an expert is counted: those of one sequence, whatever the layout; or "
             "those of one rank, so that another layout drops other rows"),
      REAL("moe.row_headroom", moe.row_headroom, 1, 1e6,
           "memory for received rows to allocate at the start, as a multiple of the mean"),
      CHOICE("moe.tp_mode", moe.tp_mode,
             "MoE layers under tensor parallelism; ssmb: shard the tokens (X-MoE), experts are whole; ted: shard the "
             "width of every expert (DeepSpeed-TED), each rank routes all tokens"),
      TEXT(
          "moe.transport", moe.transport,
          "how rows reach their experts: auto (in_place if mesh.ep = 1, else for each layer what plan.platform "
          "predicts to be fastest of flat, halo, bypass, gather_weights and gather_tokens; without a profile flat, or "
          "bypass where it sends at most half of flat's rows between NVIDIA GPUs of one node and experts do not move), "
          "in_place, flat (all-to-all), "
          "padded (GShard's equal buffers), halo (Piper: rows for another node go to one gateway rank there, which "
          "passes them on), bypass (X-MoE: as halo, and a token's row goes only once to each node), gather_weights "
          "(Hexa-MoE, data-centric: rows stay, and weights of other ranks' experts are gathered) or gather_tokens "
          "(Hexa-MoE, model-centric: a rank holds a slice of the width of every expert and computes it for the "
          "tokens of all ranks); or a list over the MoE layers, such as \"flat*4,padded*2\""),
      INTEGER("moe.row_chunks", moe.row_chunks, 0, 1024,
              "chunks of an all-to-all, pieces of gathered weights, or groups of ranks whose tokens are gathered "
              "together, to overlap with expert compute; 0: 2 between GPUs (1 for halo and bypass among at most 4 "
              "ranks of a node), else 1"),
      INTEGER("moe.weight_slots", moe.weight_slots, 0, kMany,
              "pieces of gathered weights that a rank has room for; all its layers share the slots. A piece that is "
              "still in its slot is not gathered again, and the piece whose next use is furthest away makes room. 0: "
              "as many as there are pieces, each of which is then gathered once a step; more slots are not used"),
      CHOICE("moe.expert_products", moe.expert_products,
             "NVIDIA GPUs: one grouped GEMM over all experts, or one cuBLASLt GEMM per expert"),
      CHOICE("moe.forced_load", moe.forced_load,
             "for benchmarks and tests: replace the experts that the router chooses in training steps and verify, so "
             "that experts get these shares of the tokens; gate weights are still the router's (docs/balance.md)"),
      CHOICE("moe.balance", moe.balance,
             "swap: move experts between expert-parallel ranks, with their optimizer state, so that ranks get equally "
             "many rows; changes where experts are computed, not the results (docs/balance.md)"),
      INTEGER("moe.balance_every", moe.balance_every, 1, kMany,
              "moe.balance plans new places for experts every so many steps"),
      INTEGER("moe.balance_horizon", moe.balance_horizon, 1, kMany,
              "experts move if that saves more time within so many steps than it takes"),
      INTEGER("moe.replica_slots", moe.replica_slots, 0, 1 << 16,
              "replicas of experts, without optimizer state, that a rank has room for in each layer; the rows of an "
              "expert are split over its home and its replicas, which moe.balance chooses (docs/balance.md); with "
              "moe.transport = \"flat\", \"halo\" or \"bypass\""),
      CHOICE("memory.recompute", recompute,
             "activations to recompute in backward instead of storing them; none: only normed inputs, rotated queries "
             "and keys, and activated hidden states; keep_norms: only activated hidden states (1.5 to 1.7 times the "
             "memory of activations, about 1 % faster); selective: as none, and pre-activations of feed-forwards; moe: "
             "as none, and pre-activations of experts and their dispatched rows; full: all but layer inputs and "
             "routing"),
      CHOICE("memory.offload", offload,
             "optimizer: keep AdamW's moments, and the low 16 bits of the fp32 master weights of bf16 matrices, "
             "in host memory; a GPU reads and writes them once per step"),
      {"memory.expert_gradients", choice_key(+FIELD(DType, expert_gradients), kStateDTypes),
       "dtype in which gradients of routed experts accumulate; bf16 (with train.dtype = \"bf16\"): "
       "half the memory, each micro-batch is summed in fp32 and rounded when it is added"},
      {"memory.moments", choice_key(+FIELD(DType, moments), kStateDTypes),
       "dtype of AdamW's moments; bf16: half the memory, with deterministic stochastic rounding"},
      {"memory.logits", choice_key(+FIELD(DType, logits), kStateDTypes),
       "dtype in which the loss reads its logits; bf16 (with train.dtype = \"bf16\"): less memory and traffic, and "
       "logits rounded to 8 bits, as in most training code; sums and the loss stay in fp32"},
      TEXT("checkpoint.dir", checkpoint.dir, "folder of checkpoints; empty: no checkpoints"),
      INTEGER("checkpoint.every", checkpoint.every, 0, kMany, "steps between checkpoints; 0: only at the end"),
      FLAG("checkpoint.background", checkpoint.background,
           "write checkpoints while the next step computes its gradients, and wait only before its update; "
           "false: wait at once"),
      INTEGER("checkpoint.keep", checkpoint.keep, 1, 1 << 20, "number of complete checkpoints to keep"),
      TEXT("checkpoint.resume", checkpoint.resume,
           "none: start from scratch; auto: resume from the newest complete checkpoint of checkpoint.dir; "
           "or a checkpoint folder"),
      TEXT("log.jsonl", log.jsonl,
           "metrics file to write, one JSON object per step; auto: metrics.jsonl in checkpoint.dir; empty: none"),
      TEXT("log.tensorboard", log.tensorboard, "folder of TensorBoard event files to write"),
      TEXT("log.trace", log.trace, "file for a Chrome trace of the final step (step train.steps)"),
      INTEGER("log.every", log.every, 1, kMany,
              "steps between lines on the console, and between the loads of experts in log.jsonl"),
      CHOICE("log.format", log.format,
             "short: lines of at most 120 columns; long: more figures per step, and messages are not wrapped"),
      INTEGER("watchdog.seconds", watchdog.seconds, 0, kMany,
              "end the job with a report when a rank has sent no sign of life, or no rank has made progress, "
              "for this many seconds; 0: never"),
      TEXT("sample.prompt", sample.prompt, "prompt of `sample` and of the text generated at the end of training"),
      TEXT("sample.tokenizer", sample.tokenizer,
           "tokenizer.json, SentencePiece .model or a folder with one, for the prompt and the generated text; empty: "
           "the tokenizer of the model = \"hf:DIR\" folder, else bytes"),
      INTEGER("sample.tokens", sample.tokens, 0, 1 << 20,
              "tokens to generate at the end of training; 0: none (the command sample: 256)"),
      REAL("sample.temperature", sample.temperature, 0, 100, "sampling temperature; 0: greedy"),
      INTEGER("sample.top_k", sample.top_k, 0, 1 << 24, "sample from the k most likely tokens only; 0: from all"),
      REAL("sample.top_p", sample.top_p, 0, 1,
           "sample from the fewest most likely tokens (of sample.top_k) that have at least this probability together; "
           "1: from all"),
      INTEGER("sample.seed", sample.seed, 0, std::numeric_limits<int64_t>::max(), "random seed of sampling"),
      INTEGER("verify.steps", verify.steps, 1, 10000, "number of steps that `verify` compares"),
      REAL("verify.tolerance", verify.tolerance, 0, 1,
           "largest relative error of losses and gradients allowed in fp32"),
      REAL("verify.loss_tolerance_bf16", verify.loss_tolerance_bf16, 0, 1,
           "largest relative loss error allowed in bf16"),
      REAL("verify.grad_tolerance_bf16", verify.grad_tolerance_bf16, 0, 10,
           "largest relative error of a gradient allowed in bf16"),
      REAL("verify.ignore_fraction", verify.ignore_fraction, 0, 0.9,
           "fraction of labels to ignore, unevenly over samples"),
      TEXT("plan.platform", plan.platform,
           "profile of the machine, such as those in profiles/: for `plan`, and in `train` for predictions, MFU and "
           "moe.transport = \"auto\""),
      INTEGER("plan.ranks", plan.ranks, 0, 1 << 20, "`plan`: number of ranks to plan for; 0: given by --ranks"),
      REAL("plan.balance", plan.balance, 0.01, 1e6,
           "evenness of expert loads in plans and predictions; 1: no balancing at all; 8: the fullest of 128 experts "
           "gets twice the mean"),
      REAL("plan.memory_margin", plan.memory_margin, 0, 0.5,
           "`plan`: fraction of each rank's memory that a recommended layout leaves free"),
      FLAG("debug.migrate", migrate,
           "tests only: move all experts to random places after every step, in pieces of 16 KiB, and fill replica "
           "slots with random ones"),
      INTEGER("debug.kill", kill, 0, kMany,
              "tests only: at this message of the moves of experts, counted from the start, the rank of this number "
              "modulo the number of ranks ends as if it were killed; 0: none"),
      TEXT("debug.slow", slow,
           "tests only: CPU ranks that compute slowly, such as \"1:0.5\" for rank 1 at half its speed, or "
           "\"1:0.5@100\" from step 100 on"),
      TEXT("debug.processors", processors,
           "tests only: how many processors (SMs) of its GPU each rank computes on, such as \"88,48\" for two ranks, "
           "in multiples of 8 on Hopper; NCCL may use all"),
      CHOICE("debug.fault", fault, "tests only: inject this fault"),
  };
  return rules;
}

}  // namespace mw
