#include "train/loop/run_text.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/host.h"
#include "base/text.h"
#include "comm/cores.h"
#include "config/batch_ramp.h"
#include "config/learning_rate.h"
#include "engine/libraries.h"
#include "formats/report/trace_file.h"
#include "planner/layout.h"

namespace mw {
namespace {

std::string now_utc() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M UTC", &parts)};
}

std::string describe_attention(const AttentionSpec& a) {
  if (a.is_latent()) return fmt::format("latent attention with {} heads of {}", a.heads, a.head_dim);
  return fmt::format("{} heads of {}, {} key/value heads", a.heads, a.head_dim, a.kv_heads);
}

// Those that were consumed, and those of the steps to come.
double samples_of_run(const TrainSpec& train, const RunState& state) {
  return static_cast<double>(state.samples) + samples_of_steps(train, state.step, train.steps);
}

}  // namespace

std::string describe_optimizer(const TrainSpec& train) {
  std::string text = "AdamW";
  if (train.optimizer == Optimizer::muon)
    text = fmt::format("Muon{} and AdamW", train.muon.lr > 0 ? fmt::format(" (peak {:g})", train.muon.lr) : "");
  text += fmt::format(", learning rate {}; weight decay {:g}, clip {:g}", describe_learning_rate(train),
                      train.weight_decay, train.clip);
  if (!train.lr_scales.empty()) text += fmt::format("; factors of the rate: {}", fmt::join(train.lr_scales, ", "));
  if (train.skip_spikes > 0)
    text +=
        fmt::format("; skips steps {:g} standard deviations above the last {}", train.skip_spikes, train.spike_window);
  return text;
}

std::string describe_failed_save(const RunSpec& run, int64_t step, const Error& error) {
  std::string last = "no checkpoint is complete yet";
  try {
    if (const std::string folder = newest_checkpoint(run.checkpoint.dir); !folder.empty())
      last = fmt::format("the last complete checkpoint is of step {}",
                         step_of_folder(std::filesystem::path(folder).filename().string()));
  } catch (const Error& unreadable) {
    last = unreadable.what();
  }
  const int64_t next = std::min(step + run.checkpoint.every - step % run.checkpoint.every, run.train.steps);
  return fmt::format(
      "warning: no checkpoint of step {} in {}: {}; training goes on, {}, the next save is tried at "
      "step {}{}{}",
      step, run.checkpoint.dir, error.what(), last, next, error.hint().empty() ? "" : "; ", error.hint());
}

nlohmann::ordered_json describe_run(const World& world, const Engine& engine, const SampleOrder& data,
                                    const std::string& version, const RunState& state) {
  const Plan& plan = engine.plan;
  const TrainSpec& train = plan.run.train;
  const int threads = engine.stream.threads(), ranks = engine.world.size();
  return {
      {"model", summary(plan.model)},
      {"attention", describe_attention(plan.model.layers.back().attention)},
      {"data", data.describe(samples_of_run(train, state))},
      {"batch", fmt::format("{} of {} tokens, in micro-batches of {}", describe_batch(train), train.seq_len,
                            train.global_batch / train.micro_batches)},
      {"steps", fmt::format("{} to {}", state.step + 1, train.steps)},
      {"optimizer", describe_optimizer(train)},
      {"seed", std::to_string(train.seed)},
      {"layout", fmt::format("{}: {}", counted(ranks, "rank"), describe(layout_of(plan.run)))},
      {"machine", fmt::format("{}, {}, {} per rank; {}; messages by {}", host_name(), counted(world.nodes(), "node"),
                              counted(threads, "thread"),
                              describe_products(train.dtype, engine.device, engine.near_cores), world.library())},
      {"started", now_utc()},
      {"version", version},
      {"run_file", to_toml(plan.run)},
  };
}

std::string describe_other_samples(const TrainSpec& train, const RunState& state) {
  const double all = samples_of_steps(train, 0, train.steps), run = samples_of_run(train, state);
  if (state.step == 0 || state.step >= train.steps || run == all) return "";
  return fmt::format(
      "earlier steps had other batches: the run sees {:.0f} samples in all, {:.3g} of the epochs named above", run,
      run / all);
}

std::vector<std::string> describe_machine(World& world, Engine& engine, const CpuTimes& started) {
  const RunSpec& run = engine.plan.run;
  const int threads = engine.stream.threads();
  const bool on_cpu = engine.device.kind == DeviceKind::cpu;
  std::vector<std::string> lines = {fmt::format("{}, {} per rank, messages by {}; {}", counted(world.nodes(), "node"),
                                                counted(threads, "thread"), world.library(),
                                                describe_products(run.train.dtype, engine.device, engine.near_cores))};
  if (world.comm().rank() == 0 && !on_cpu) lines.push_back(describe_kernels(engine.plan, engine.params, engine.stream));
  if (on_cpu) {
    const std::string load = describe_load(measure_load(world, started, threads));
    if (!load.empty()) lines.push_back("warning: " + load);
    const int all_threads = threads * place_on_node(world, run.mesh).ranks;
    if (run.train.threads > 0 && all_threads > cores_of_node())
      lines.push_back(fmt::format(
          "warning: train.threads = {}: {} threads share the {} cores of this node, which makes steps slower; "
          "train.threads = 0 takes as many as there are cores",
          run.train.threads, all_threads, cores_of_node()));
  }
  if (!on_cpu && world.comm().size() > 1)
    lines.push_back(fmt::format("rows and gradients by {}",
                                engine.comms.gpu_library.empty()
                                    ? "host memory: ranks share a GPU, or this build has neither NCCL nor RCCL"
                                    : engine.comms.gpu_library));
  return lines;
}

std::string describe_grown_rows(const Plan& plan, std::span<const int64_t> moe_layers, const StepStats& stats) {
  const StepStats::Fullest fullest = stats.fullest();
  const MoeRunSpec& moe = plan.run.moe;
  const int64_t layer = moe_layers[fullest.layer];
  const bool padded = traits_of(plan.transports[static_cast<size_t>(layer)]).equal_rows;
  const std::string foreseen = padded && moe.capacity_factor > 0
                                   ? fmt::format("moe.capacity_factor = {}", moe.capacity_factor)
                                   : fmt::format("moe.row_headroom = {}", moe.row_headroom);
  return fmt::format(
      "{} exceeded {}, so more memory was allocated; the fullest is expert {} of layer {} with {:.1f} times the mean",
      padded ? "rows, padded to those of the fullest expert," : "routed rows", foreseen, fullest.expert, layer,
      fullest.ratio);
}

std::string describe_profile(Trace& trace) {
  trace.settle();
  double total = 0;
  for (int w = 0; w < kWorkKinds; ++w) total += trace.seconds(static_cast<Work>(w));
  std::string text = fmt::format("where the time of rank 0{} went ({:.1f} s from the first step on):",
                                 trace.times_device() ? "'s GPU" : "", total);
  for (int w = 0; w < kWorkKinds; ++w) {
    const double seconds = trace.seconds(static_cast<Work>(w));
    if (seconds > 0)
      text += fmt::format("\n  {:<12} {:>8.2f} s  {:>5.1f} %", name_of(static_cast<Work>(w)), seconds,
                          100.0 * seconds / total);
  }
  return text;
}

std::string write_trace(Trace& trace, const RunSpec& run, int rank) {
  if (run.log.trace.empty()) return "";
  trace.settle();
  const std::vector<TraceEvent>& events = trace.events();
  if (events.empty())
    return fmt::format("no trace is written to {}: step {} was not run", run.log.trace, run.train.steps);
  try {
    write_chrome_trace(run.log.trace, events, rank);
  } catch (const Error& error) {  // what was trained is not to be lost for it
    return fmt::format("warning: {}; there is no trace", error.what());
  }
  return "";
}

}  // namespace mw
