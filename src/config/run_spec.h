// RunSpec: what a run file says, as plain data. One table of keys (run_keys.cpp) reads, checks, prints and documents
// it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/choices.h"
#include "config/faults.h"
#include "config/model_spec.h"

namespace mw {

struct DataSpec {
  DataKind kind = DataKind::text;
  std::string path;
  std::vector<std::string> blend;  // "WEIGHT PATH" of several data sets, instead of path
  std::vector<std::string>
      suffixes;                  // text: which files of a directory; "" means files without an extension; empty: all
  std::string val_path;          // validation data of its own; empty: a part of `path` is held out
  double val_fraction = 0.05;    // share held out: whole files (text), the last tokens (others)
  bool document_mask = false;    // tokens see their own document alone
  bool whole_documents = false;  // no document that fits a sample is cut
  int64_t document_token = -1;   // shards: begins each document; -1: as the files' type tells
};

struct MuonSpec {
  double lr = 0;  // 0: train.lr
  double momentum = 0.95;
  bool nesterov = true, router = false;
  MuonScale scale = MuonScale::match_rms;
  bool operator==(const MuonSpec&) const = default;
};

struct TrainSpec {
  int64_t steps = 100, seq_len = 256, global_batch = 8, micro_batches = 1;
  std::vector<std::string> batch_ramp;  // "STEP SAMPLES" (config/batch_ramp.h)
  double lr = 3e-4, min_lr_ratio = 0.1, weight_decay = 0.1, clip = 1.0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  int64_t warmup = 0, seed = 1;
  LearningRateSchedule schedule = LearningRateSchedule::cosine;
  int64_t decay_steps = 0;             // wsd: 0: a tenth of `steps`
  std::vector<std::string> lr_points;  // piecewise: "STEP FACTOR"
  std::vector<std::string> lr_scales;  // "PATTERN FACTOR" of names of parameters
  Optimizer optimizer = Optimizer::adamw;
  MuonSpec muon;
  double qk_clip = 0;      // largest attention logit; 0: off
  double skip_spikes = 0;  // standard deviations; 0: off
  int64_t spike_window = 128;
  DType dtype = DType::bf16;
  DeviceChoice device = DeviceChoice::automatic;
  int64_t threads = 0;  // per rank; 0: cores of the node / ranks of the node
  bool deterministic = true;
  int64_t val_every = 0, val_batches = 8;
  bool byte_baseline = false;  // compare the validation loss with an order-2 byte-count model
  std::string val_questions;   // JSON lines (train/loop/choices.h)
};

struct MeshSpec {
  int64_t pp = 1, tp = 1, ep = 1;
  RankPlacement placement = RankPlacement::ep_first;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  int64_t chunks = 2;         // stages per rank of the interleaved schedule
  std::string stage_layers;   // layers of each stage, "8,8,7"; empty: cut by FLOPs
  std::string shares;         // samples of each data-parallel rank, as weights "3,1", or "measured"; empty: equal
  std::string width_shares;   // width of every expert on each expert-parallel rank, likewise
  std::string expert_shares;  // experts of a layer on each expert-parallel rank, likewise
  int64_t adapt_every = 0;    // steps between looks at measured shares; 0: they stay
  int64_t zero = 0, ranks_per_node = 0;  // 0: from the launcher
};

struct MoeRunSpec {
  double aux_loss_coef = -1;  // below 0: the model's own
  AuxScope aux_scope = AuxScope::automatic;
  double z_loss_coef = 0, bias_rate = 0.001;
  double capacity_factor = 0;  // 0: dropless
  CapacityDomain capacity_domain = CapacityDomain::sequence;
  double row_headroom = 1.5;
  MoeTpMode tp_mode = MoeTpMode::ssmb;
  std::string transport = "auto";  // of all MoE layers, or a list (layout/transport.h)
  int64_t row_chunks = 0;          // 0: automatic_chunks (layout/transport.h) between GPUs, else 1
  int64_t weight_slots = 2;        // for gathered pieces; 0: for all
  ExpertProducts expert_products = ExpertProducts::automatic;
  ForcedLoad forced_load = ForcedLoad::none;
  Balance balance = Balance::none;
  int64_t balance_every = 10, balance_horizon = 100;  // steps
  int64_t replica_slots = 0;                          // per rank
};

struct CheckpointSpec {
  std::string dir;  // empty: no checkpoints
  int64_t every = 0, keep = 3;
  bool background = true;
  std::string resume = "none";  // none | auto | a checkpoint folder
};

struct LogSpec {
  std::string jsonl = "auto", tensorboard, trace;  // jsonl: see metrics_file()
  int64_t every = 10;
  LogFormat format = LogFormat::brief;
};

struct WatchdogSpec {
  int64_t seconds = 600;  // 0: off
};

struct SampleSpec {
  std::string prompt;
  std::string tokenizer;  // file or folder; empty: of the Hugging Face model folder, else bytes
  int64_t tokens = 0;
  int64_t sequences = 1;  // generated at a time; not in run files: as many as the command has prompts
  double temperature = 0.8, top_p = 1;
  int64_t top_k = 40, seed = 1;
};

// What plans and predictions take; no result of a run depends on it, but `moe.transport = "auto"` chooses by it.
struct PlanSpec {
  std::string platform;  // a platform profile
  int64_t ranks = 0;
  double balance = 8;           // concentration of the Dirichlet distribution that shares of experts are drawn from
  double memory_margin = 0.03;  // share of a rank's memory that a recommended layout leaves free
};

struct VerifySpec {
  int64_t steps = 2;
  double tolerance = 1e-5, loss_tolerance_bf16 = 2e-3, grad_tolerance_bf16 = 0.3;
  double ignore_fraction = 0.1;  // share of labels set to -100, unevenly over samples
};

struct RunSpec {
  // Of many members: not for every file that copies one to compile.
  RunSpec();
  ~RunSpec();
  RunSpec(const RunSpec&);
  RunSpec(RunSpec&&) noexcept;
  RunSpec& operator=(const RunSpec&);
  RunSpec& operator=(RunSpec&&) noexcept;

  std::string hf_dir;  // model = "hf:DIR"; empty: the native table
  NativeModel native;
  DataSpec data;
  TrainSpec train;
  MeshSpec mesh;
  MoeRunSpec moe;
  Recompute recompute = Recompute::none;
  Offload offload = Offload::none;
  // Of the gradients that a rank keeps of routed experts' matrices (all others are f32), of AdamW's moments, and of the
  // logits in the loss.
  DType expert_gradients = DType::f32, moments = DType::f32, logits = DType::f32;
  CheckpointSpec checkpoint;
  LogSpec log;
  WatchdogSpec watchdog;
  SampleSpec sample;
  VerifySpec verify;
  PlanSpec plan;
  bool migrate = false;       // debug.migrate: experts move to random places after every step
  int64_t kill = 0;           // debug.kill: a message of migrations at which a rank dies; 0: none
  std::string slow;           // debug.slow: ranks that compute slowly (train/loop/slow_ranks.h)
  std::string processors;     // debug.processors: processors of its GPU that each rank computes on; "": all
  Fault fault = Fault::none;  // debug.fault: test-only, makes `verify` fail on purpose
};

// The metrics file of a run: log.jsonl, which "auto" makes metrics.jsonl in checkpoint.dir; "" for none.
std::string metrics_file(const RunSpec& run);

// Over what the auxiliary loss of routing is taken, never `automatic`, and its coefficient: the run's, or the model's
// own.
AuxScope aux_scope(const RunSpec& run, const ModelSpec& model);
double aux_loss_coef(const RunSpec& run, const ModelSpec& model);
// Whether a layer's loss counts each token's experts of best score, instead of those that a selection bias, within
// groups, made it choose: per sequence, as in DeepSeek-V3 (section 2.1.2, eq. 17 to 20), and over the whole model, as
// in Hugging Face.
bool counts_best_scores(const RunSpec& run, const ModelSpec& model, const LayerSpec& layer);

// Reads a run file and applies `key=value` overrides in order. Every key, type and range is checked here, before
// anything is allocated. Relative paths in the file are kept as written (relative to the working directory). Errors:
// config; an unknown key names the nearest valid one, a bad value names what is expected.
RunSpec read_run_file(const std::string& path, const std::vector<std::string>& overrides);
RunSpec parse_run_text(const std::string& text, const std::string& where, const std::vector<std::string>& overrides);
// The run that a Hugging Face model folder stands for where no run file names it.
RunSpec run_of_hf_folder(const std::string& dir, std::vector<std::string> overrides = {});

// The resolved run as TOML that read_run_file takes back unchanged.
std::string to_toml(const RunSpec& run);

// Keys whose values differ, in the order of a run file and as it writes them. Models of a Hugging Face folder are one
// key, "model", against the table of another run too, which is then "a table of its own".
struct KeyChange {
  std::string key, from, to;
};
std::vector<KeyChange> changed_keys(RunSpec from, RunSpec to);

// A commented run file with every key, its value and its meaning (`moewright init`).
std::string commented_run_file(const RunSpec& run = {});

// Every key: name, default, meaning.
struct KeyDoc {
  std::string key, value, meaning;
};
std::vector<KeyDoc> run_file_reference();

}  // namespace mw
