#include "train/loop/trainer.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>

#include "base/host.h"
#include "base/text.h"
#include "comm/agreement.h"
#include "comm/cores.h"
#include "comm/watchdog/watchdog.h"
#include "config/batch_ramp.h"
#include "config/idle_keys.h"
#include "config/learning_rate.h"
#include "engine/libraries.h"
#include "engine/memory_meter.h"
#include "formats/report/trace_file.h"
#include "formats/weights/hf_folder.h"
#include "ops/device.h"
#include "planner/layout.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_files.h"
#include "train/checkpoint/checkpoint_folder.h"
#include "train/checkpoint/disk_need.h"
#include "train/checkpoint/shared_folder.h"
#include "train/data/comm_ranks.h"
#include "train/data/data.h"
#include "train/data/read_ahead.h"
#include "train/loop/balancer.h"
#include "train/loop/console.h"
#include "train/loop/dry_run.h"
#include "train/loop/final_sample.h"
#include "train/loop/load_watch.h"
#include "train/loop/metrics.h"
#include "train/loop/run_before.h"
#include "train/loop/run_memory.h"
#include "train/loop/run_text.h"
#include "train/loop/run_validation.h"
#include "train/loop/same_run.h"
#include "train/loop/share_chooser.h"
#include "train/loop/signals.h"
#include "train/loop/slow_ranks.h"
#include "train/loop/spikes.h"
#include "train/loop/step_times.h"
#include "train/loop/train_step.h"
#include "train/loop/transport_chooser.h"

namespace mw {
namespace {

// Everything of one run; the loop's phases are its member functions.
class Trainer {
 public:
  Trainer(World& world, const RunSpec& run, const TrainOptions& options)
      : world_(world),
        run_(run),
        options_(options),
        leader_(world.comm().rank() == 0),
        console_(leader_, run.log.format == LogFormat::brief ? kReportColumns : 0) {}

  Exit train();
  Exit dry_run();

 private:
  void prepare();
  void print_header();
  void load_weights();
  void open_metrics();
  void time_device_from(int64_t step);
  bool train_step(int64_t step);
  StepStats compute_step(int64_t step);
  std::vector<Batch> read_batches(int64_t step);
  void report(const StepStats& stats, int64_t step);
  void change_run_after(const StepStats& stats, int64_t step);
  void validate(int64_t step);
  void save(int64_t step);
  bool finish_save();
  void keep_folder();
  void go_on_without_checkpoint(const Error& error);
  void finish();
  template <class... T>
  void say(fmt::format_string<T...> format, T&&... arguments) const {
    console_.say(format, std::forward<T>(arguments)...);
  }

  World& world_;
  RunSpec run_;
  TrainOptions options_;
  bool leader_;
  Console console_;
  std::unique_ptr<OutputLock> folder_lock_;  // of the leader
  std::unique_ptr<SampleOrder> data_;
  std::optional<ReadAhead> reader_;  // of data_
  std::unique_ptr<RunValidation> validation_;
  std::unique_ptr<FinalSample> sample_;
  std::unique_ptr<Engine> engine_;
  RunLog log_;  // of the leader; of others, nowhere
  WorkClock work_clock_;
  std::optional<Balancer> balancer_;
  BalanceReport balance_;  // of the last step
  std::string spike_;      // why the last step changed no weights, or ""
  ReportContext context_;
  std::optional<LoadWatch> load_watch_;  // of the leader
  std::unique_ptr<CheckpointSave> saving_;
  RunState state_;
  ByteSummary bytes_;
  RunMemory memory_;  // at the last report
  std::optional<ValidationReport> validated_;
  std::optional<TransportChooser> transport_;
  std::optional<ShareChooser> shares_;  // none in a dry run
  int64_t saved_step_ = -1, warned_grows_ = 0;
  int64_t free_memory_ = 0;  // of a dry run: this rank's share before anything is allocated
  double began_ = 0;         // when the first step began
  double trained_samples_ = 0;
  StepTimes times_;
  bool stopped_ = false;
};

void Trainer::prepare() {
  check_same_run(world_.comm(), run_, options_.version, options_.dry_run);
  check_training(run_);
  const ModelSpec model = load_model_spec(run_);
  if (!run_.hf_dir.empty() && run_.checkpoint.resume == "none") open_hf_folder(model, run_.hf_dir);
  const NodePlace place = place_on_node(world_, run_.mesh);
  const int threads = threads_per_rank(run_.train.threads, place.ranks);
  const Device device = choose_device(run_.train.device, place.rank);
  check_slow_ranks(run_.slow, world_.comm().size(), device.kind);
  if (options_.dry_run) free_memory_ = available_share(world_.comm(), device, place);
  const std::optional<RunSpec> before = leader_ ? run_before(run_) : std::nullopt;
  transport_.emplace(run_, world_.comm(), place.nodes, before ? before->moe.transport : "", leader_ && resumes(run_),
                     device.kind == DeviceKind::cuda);
  Plan plan = plan_on_machine(model, run_, world_.comm(), device, threads, place);  // refuses before anything is read
  if (leader_) check_outputs(run_);
  if (leader_ && options_.dry_run) {
    check_checkpoint_folder(run_);
  } else if (leader_) {
    folder_lock_ = claim_checkpoint_folder(run_);
    if (!run_.log.trace.empty()) prepare_trace_file(run_.log.trace);
  }
  if (!options_.dry_run && !run_.checkpoint.dir.empty()) check_shared_folder(world_.comm(), run_.checkpoint.dir);
  data_ = open_samples(run_, model.vocab, false, CommRanks(world_.comm()));
  reader_.emplace(*data_);
  state_.data_tokens = data_->tokens();
  validation_ = std::make_unique<RunValidation>(world_.comm(), run_, model, *data_);
  sample_ = std::make_unique<FinalSample>(world_.comm(), run_, model);
  if (leader_) check_vocabulary(*data_, run_, model.vocab);
  if (leader_ && validation_->data() != nullptr) check_vocabulary(*validation_->data(), run_, model.vocab);
  say("{}", options_.version);
  say("model: {}", summary(model));
  // The library's own memory is not to be taken for the model's.
  if (Stream stream(1); device.kind == DeviceKind::cpu) start_products(stream, DType::f32, reserve_host);
  if (!options_.dry_run && transport_->choose_by_first_batch(run_, model, world_.comm(), threads, place, *data_))
    plan = plan_on_machine(model, run_, world_.comm(), device, threads, place);
  if (!options_.dry_run) shares_.emplace(run_, plan, world_.comm(), threads, place, *data_, before);
  engine_ = std::make_unique<Engine>(model, run_, world_.comm(), threads, place);
  balancer_.emplace(*engine_);
  bytes_ = summarise(all_rows(engine_->plan));
  context_.flops_per_token = 3.0 * forward_flops_per_token(model, run_.train.seq_len);
  context_.steps = run_.train.steps;
  context_.global_batch = run_.train.global_batch;
  context_.byte_tokens = run_.data.kind == DataKind::text;
  context_.world = world_.comm().size();
  context_.layout = describe(layout_of(engine_->plan.run));
  context_.dtype = word_of(engine_->plan.run.train.dtype);
  if (!leader_) return;
  context_.forecast = make_forecast(engine_->plan, context_.world);
  load_watch_.emplace(model, run_);
}

void Trainer::print_header() {
  const Plan& plan = engine_->plan;
  say("{}", describe(plan));
  const RunMemory memory = of_largest_rank(
      world_.comm(), {bytes_.fixed, rows_taken(bytes_, 0, engine_->device.kind), engine_->library_bytes, 0});
  say("memory of the largest rank: predicted {}", describe_prediction(memory));
  for (const std::string& line : describe_machine(world_, *engine_, options_.started)) say("{}", line);
  say("data: {}", data_->describe(samples_of_steps(run_.train, 0, run_.train.steps)));
  if (const std::string doubt = leader_ ? doubt_about_text(run_, CommRanks(world_.comm())) : ""; !doubt.empty())
    say("{}", doubt);
  if (const std::string doubt = leader_ ? doubt_about_split(run_) : ""; !doubt.empty()) say("{}", doubt);
  if (validation_->data() != nullptr) {
    say("validation: {}", validation_->data()->describe());
    if (const std::string doubt = leader_ ? doubt_about_validation(run_) : ""; !doubt.empty()) say("{}", doubt);
  }
  if (run_.checkpoint.dir.empty() && !options_.dry_run) say("checkpoints: none, because checkpoint.dir is empty");
  for (const std::string& idle : describe_idle_keys(run_, plan.model)) say("warning: {}", idle);
  for (const std::string& unreached : describe_unreached(run_.train)) say("warning: {}", unreached);
  if (!sample_->why_none().empty()) say("warning: no sample at the end: {}", sample_->why_none());
  if (run_.data.document_mask) say("documents of a sample are kept apart");
  else if (data_->has_loss_mask())
    say("conversations of a sample see those before them: data.document_mask=true keeps them apart");
  if (data_->has_loss_mask() && !run_.data.whole_documents)
    say("conversations are cut where a sample ends: data.whole_documents=true keeps them whole");
  if (const std::string time = describe(context_.forecast); !time.empty()) say("{}", time);
  if (!transport_->note().empty()) say("{}", transport_->note());
  if (shares_)
    for (const std::string& note : shares_->notes()) say("{}", note);
  if (!run_.processors.empty())
    say("debug.processors = \"{}\": for tests, ranks compute on so many processors of their GPUs", run_.processors);
  if (!run_.slow.empty()) say("debug.slow = \"{}\": for tests, these ranks compute slowly", run_.slow);
}

void Trainer::load_weights() {
  // One rank looks and tells, so that all take the same.
  const std::string folder = broadcast_text(world_.comm(), leader_ ? folder_to_resume(run_) : "", 0);
  if (!folder.empty()) {
    const CheckpointIndex loaded = load_checkpoint(*engine_, folder);
    state_ = loaded.state;
    state_.data_tokens = data_->tokens();
    balancer_->resume(loaded.placements);
    if (replica_slots(run_.moe, engine_->plan.mesh.ep) > 0)
      say("replicas of experts are not in checkpoints: their slots are empty until moe.balance plans again");
    engine_->memory.forget_peak();  // the pages of the files that were read are not the run's memory
    if (leader_) refuse_newer_checkpoints(run_, state_.step, folder);
    // A checkpoint of another folder is not one of this run's yet, in its layout.
    if (on_any_rank(world_.comm(), leader_ && holds_checkpoint(run_, folder))) saved_step_ = state_.step;
    if (leader_)
      for (const std::string& unfinished : find_unfinished(run_, state_.step))
        say("passed over {}: it was not written to the end", unfinished);
    say("resumed from {} after step {}, {} samples", folder, state_.step, state_.samples);
    if (leader_)
      for (const std::string& line :
           describe_changes_since(loaded, engine_->plan.run, engine_->plan.model, state_.data_tokens))
        say("{}", line);
    if (const std::string other = describe_other_samples(run_.train, state_); !other.empty()) say("{}", other);
    return;
  }
  if (leader_ && run_.checkpoint.resume == "auto") {
    for (const std::string& unfinished : find_unfinished(run_, -1))
      say("passed over {}: it was not written to the end", unfinished);
    say("{} holds no complete checkpoint: the run begins at step 1", run_.checkpoint.dir);
  }
  if (const std::string note = set_first_weights(*engine_); !note.empty()) say("{}", note);
  if (!run_.hf_dir.empty()) engine_->memory.forget_peak();  // pages of the mapped files are not the run's memory
}

void Trainer::open_metrics() {
  if (!leader_) return;
  LogSpec log = run_.log;
  log.jsonl = metrics_file(run_);
  log_ = RunLog(log, state_.step, saved_step_ != state_.step);  // it resumed from another folder
  log_.describe_run(describe_run(world_, *engine_, *data_, options_.version, state_));
  if (!log_.note().empty()) say("{}", log_.note());
}

void Trainer::report(const StepStats& stats, int64_t step) {
  memory_ = memory_of_largest_rank(*engine_, bytes_);
  int64_t grows = engine_->model->activations().arena_grows();
  world_.comm().all_reduce_sum(std::span(&grows, 1));
  const StepTimes::OfAllRanks times = times_.gather(world_.comm());
  if (!leader_) return;
  if (grows > 0 && grows >= 2 * warned_grows_) {  // not at every step of a load that creeps up
    say("warning: step {}: {}", step, describe_grown_rows(engine_->plan, engine_->model->moe_index(), stats));
    warned_grows_ = grows;
  }
  if (!spike_.empty()) say("step {} changed no weights: {}", step, spike_);
  if (const std::string moved = describe(balance_, step); !moved.empty()) say("{}", moved);
  if (const std::string collapse = load_watch_->observe(step, stats.load); !collapse.empty())
    say("warning: {}", collapse);
  StepReport r;
  r.step = step;
  r.stats = stats;
  r.lr = learning_rate(run_.train, step);
  r.seconds = times_.last();
  r.parts = times.parts;
  r.samples = samples_of_step(run_.train, step);
  r.tokens = r.samples * run_.train.seq_len;
  r.memory = memory_;
  r.arena_grows = grows;
  r.sent = times.sent;
  r.balance = balance_;
  r.skipped_steps = state_.skipped;
  // The time so far includes validation, checkpoints and whatever else lies between steps.
  r.eta_seconds = (now_seconds() - began_) / trained_samples_ * samples_of_steps(run_.train, step, run_.train.steps);
  r.validation = std::exchange(validated_, std::nullopt);
  r.work_seconds = work_clock_.take(engine_->stream.trace(), engine_->device.kind != DeviceKind::cpu);
  const bool shown = step % run_.log.every == 0 || step == run_.train.steps || times_.steps() == 1;
  r.lists_loads = shown;
  log_.write(r, context_);
  if (shown) say("{}", format_step(r, context_, console_.columns()));
}

// Stamps on the device cost a step 1 to 3 %, so that only steps with parts have them, and all where somebody asked.
void Trainer::time_device_from(int64_t step) {
  const bool on_gpu = engine_->device.kind != DeviceKind::cpu,
             traced = step == run_.train.steps && !run_.log.trace.empty();
  Trace& trace = engine_->stream.trace();
  const bool wanted = on_gpu && (times_.next_has_parts(true) || shares_->times(*engine_, step) ||
                                 (leader_ && (options_.profile || traced)));
  if (wanted != trace.times_device()) trace.time_device(wanted ? &engine_->stream.queue() : nullptr);
  if (traced) trace.keep_events(true);
  shares_->begin_step(*engine_, step);
}

// Returns false when a stop was asked for.
bool Trainer::train_step(int64_t step) {
  const StepStats stats = compute_step(step);
  if (stopped_) return false;
  const bool stop = stop_requested(world_.comm());
  if (!stop && run_.train.val_every > 0 && step % run_.train.val_every == 0 && step != run_.train.steps) validate(step);
  report(stats, step);
  change_run_after(stats, step);
  return !stop;
}

StepStats Trainer::compute_step(int64_t step) {
  begin_step(world_.comm(), run_, step);
  slow_down(*engine_, step);
  const TraceScope whole(engine_->stream.trace(), "step", {"step", step});
  times_.begin(engine_->stream.trace(), engine_->device.kind != DeviceKind::cpu);
  const int64_t samples = samples_of_step(run_.train, step);
  if (samples != samples_of_step(run_.train, step - 1)) {
    say("step {}: the global batch is {} samples from here on", step, samples);
    times_.forget();
    shares_->forget();
  }
  const std::vector<Batch> batches = read_batches(step);
  const StepStats stats = accumulate_gradients(*engine_, batches, forced_taps(engine_->plan, step));
  times_.end_gradients(engine_->stream.trace());
  if (finish_save() && stop_requested(world_.comm())) {  // what was saved is the run's last step
    stopped_ = true;
    return {};
  }
  require_finite(*engine_, stats, step);
  spike_ = update_unless_spike(*engine_, stats, state_);
  balance_ = balancer_->after_step(stats, step);
  state_.step = step;
  state_.samples += samples;
  state_.loss = stats.loss;
  times_.end(engine_->stream.trace());
  shares_->end_step(*engine_, times_.last(), step);
  trained_samples_ += static_cast<double>(samples);
  return stats;
}

std::vector<Batch> Trainer::read_batches(int64_t step) {
  const TraceScope scope(engine_->stream.trace(), Work::data, "read_step");
  const auto part_of = [&](int64_t of, int64_t cursor) {
    return part_of_step(engine_->plan, cursor, micro_batches_of_step(run_.train, of));
  };
  std::vector<Batch> batches = stage(*engine_, reader_->take(part_of(step, state_.samples)));
  if (step < run_.train.steps) reader_->start(part_of(step + 1, state_.samples + samples_of_step(run_.train, step)));
  return batches;
}

void Trainer::change_run_after(const StepStats& stats, int64_t step) {
  const RunSpec& now = engine_->plan.run;
  if (const std::string change = transport_->after_step(*engine_, stats, step); !change.empty()) say("{}", change);
  if (now.moe.transport != run_.moe.transport) shares_->forget();
  if (const std::string change = shares_->after_step(*engine_, step); !change.empty()) say("{}", change);
  if (now.moe.transport == run_.moe.transport && now.mesh.shares == run_.mesh.shares) return;
  run_ = now;
  bytes_ = summarise(all_rows(engine_->plan));
  engine_->memory.forget_peak();
  if (leader_) context_.forecast = make_forecast(engine_->plan, context_.world);
  times_.forget();
  warned_grows_ = 0;
}

void Trainer::validate(int64_t step) {
  if (validation_->data() == nullptr) return;
  std::vector<std::string> lines;
  validated_ = validation_->run(*engine_, step, lines);
  balancer_->forget_work();
  if (!validated_) stopped_ = true;
  for (const std::string& line : lines) say("{}", line);
}

void Trainer::save(int64_t step) {
  if (run_.checkpoint.dir.empty() || saved_step_ == step) return;
  try {
    agree(world_.comm(), [&] { keep_folder(); });
    saving_ = std::make_unique<CheckpointSave>(*engine_, run_.checkpoint.dir, state_, run_.checkpoint.keep);
  } catch (const Error& error) {
    go_on_without_checkpoint(error);
    return;
  }
  saved_step_ = step;
  if (!run_.checkpoint.background) finish_save();
}

void Trainer::keep_folder() {
  if (!leader_ || (folder_lock_ != nullptr && !folder_lock_->is_lost())) return;
  say("warning: {}, or writer.lock in it, was removed or renamed: it is made again", run_.checkpoint.dir);
  folder_lock_.reset();
  folder_lock_ = lock_checkpoints(run_.checkpoint.dir);
  log_.reopen_lost();
}

// Before the weights change. False when nothing was under way, or was not written.
bool Trainer::finish_save() {
  if (saving_ == nullptr) return false;
  const double begin = now_seconds();
  try {
    saving_->finish();
  } catch (const Error& error) {
    go_on_without_checkpoint(error);
    return false;
  }
  say("checkpoint {} written in {:.1f} s, waited for {:.1f} s", saving_->folder(), saving_->write_seconds(),
      now_seconds() - begin);
  saving_.reset();
  return true;
}

// To be called where `error` is handled; throws it again where it is not of writing, or no later save follows.
void Trainer::go_on_without_checkpoint(const Error& error) {
  if (stopped_ || state_.step >= run_.train.steps || !is_save_failure(error)) throw;
  saving_.reset();
  saved_step_ = -1;
  if (leader_) say("{}", describe_failed_save(run_, state_.step, error));
}

void Trainer::finish() {
  const double total_tokens = trained_samples_ * static_cast<double>(run_.train.seq_len);
  if (times_.steps() > 0)
    say("trained {} tokens in {}: {} tokens/s", format_count(total_tokens), format_duration(times_.total()),
        format_count(total_tokens / times_.total()));
  if (samples_of_step(run_.train, state_.step) == run_.train.global_batch)  // as the forecast
    for (const std::string& line : times_.compare_with(context_.forecast)) say("{}", line);
  if (times_.steps() == 0) memory_ = memory_of_largest_rank(*engine_, bytes_);  // else as the last step reported it
  for (const std::string& line : describe_memory(*engine_, bytes_, memory_)) say("{}", line);
  if (options_.profile) say("{}", describe_profile(engine_->stream.trace()));
  engine_->stream.trace().time_device(nullptr);
}

// Allocates everything, but neither loads nor draws weights.
Exit Trainer::dry_run() {
  prepare();
  print_header();
  StartCheck start;
  if (leader_) start = check_start(engine_->plan, state_.data_tokens);
  if (const std::string metrics = metrics_file(run_); leader_ && !metrics.empty()) wait_for_writer(metrics, {});
  world_.comm().all_reduce_max(std::span(&start.state.samples, 1));
  read_step(*data_, part_of_step(engine_->plan, start.state.samples,
                                 run_.train.micro_batches));  // tokens outside the vocabulary are refused
  std::array<int64_t, 2> memory = {bytes_.total(), -free_memory_};
  world_.comm().all_reduce_max(std::span(memory));
  for (const std::string& line : start.changes) say("{}", line);
  for (const std::string& line : describe(start, engine_->plan, memory[0], -memory[1])) say("{}", line);
  return Exit::ok;
}

Exit Trainer::train() {
  watch_stop_signals(leader_ ? interrupt_notice(run_.checkpoint.dir) : "");
  prepare();
  print_header();
  load_weights();
  if (leader_ && state_.step < run_.train.steps)
    check_disk(run_.checkpoint, checkpoint_need(engine_->plan, state_.step));
  open_metrics();
  if (state_.step >= run_.train.steps)
    say("nothing to train: {} steps are done and train.steps = {}", state_.step, run_.train.steps);
  else if (engine_->device.kind == DeviceKind::cpu && !cpu::matmul_traits().native_bf16)
    say("this CPU has no fast bf16 products (AMX): expect about {} for {} steps",
        format_duration(estimate_seconds(*engine_, samples_of_steps(run_.train, state_.step, run_.train.steps))),
        run_.train.steps - state_.step);
  engine_->stream.trace().keep_events(false);
  engine_->stream.trace().reset();
  began_ = now_seconds();
  for (int64_t step = state_.step + 1; step <= run_.train.steps && !stopped_; ++step) {
    time_device_from(step);
    if (!train_step(step)) stopped_ = true;
    if (stopped_ || (run_.checkpoint.every > 0 && step % run_.checkpoint.every == 0)) save(state_.step);
    if (!stopped_ && saved_step_ == step) stopped_ = stop_requested(world_.comm());
  }
  finish_save();  // before what may fail
  if (leader_)
    if (const std::string note = write_trace(engine_->stream.trace(), run_, world_.comm().rank()); !note.empty())
      say("{}", note);
  engine_->stream.trace().keep_events(false);
  save(state_.step);
  finish_save();
  finish();
  if (stopped_) {
    say("stopped on request after step {}{}", state_.step,
        run_.checkpoint.dir.empty() ? "; nothing was saved: checkpoint.dir is empty"
                                    : "; checkpoint.resume=auto goes on from there");
    return Exit::ok;
  }
  validate(state_.step);
  if (validated_) log_.write_final_validation(state_.step, *validated_);
  if (const std::string text = sample_->draw(*engine_); !text.empty()) say("{}", text);
  return Exit::ok;
}

}  // namespace

Exit run_training(World& world, const RunSpec& run, const TrainOptions& options) {
  const SignalThread signals;
  Trainer trainer(world, run, options);
  return options.dry_run ? trainer.dry_run() : trainer.train();
}

}  // namespace mw
