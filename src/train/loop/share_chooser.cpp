#include "train/loop/share_chooser.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/host.h"
#include "base/median.h"
#include "layout/divided.h"
#include "layout/shares.h"
#include "layout/stages.h"
#include "layout/transport.h"
#include "train/loop/slow_ranks.h"
#include "train/loop/train_step.h"

namespace mw {
namespace {

// As many passes measure as fit into a second, within limits.
constexpr double kSeconds = 1;
constexpr int64_t kLeastPasses = 3, kMostPasses = 15;

Lane lane_of(const Engine& engine) { return engine.device.kind == DeviceKind::cpu ? Lane::host : Lane::compute; }

struct Measured {
  ComputeSeconds seconds;
  int64_t rows = 0;      // that this rank's experts computed, in all layers
  double mean_rows = 0;  // of all ranks
};

// An odd number, the same on all ranks, of passes that take so many seconds here.
size_t passes_that_measure(Comm& world, double pass_seconds) {
  world.all_reduce_max(std::span(&pass_seconds, 1));
  const auto count = static_cast<int64_t>(std::min(kSeconds / pass_seconds, static_cast<double>(kMostPasses)));
  return static_cast<size_t>(std::max(count, kLeastPasses) | 1);
}

// By medians over passes, after one that commits memory.
Measured measure(Engine& engine, const SampleOrder& samples) {
  engine.params.initialise(static_cast<uint64_t>(engine.plan.run.train.seed), engine.stream);
  refresh_weights(engine);
  slow_down(engine, 0);
  Trace& trace = engine.stream.trace();
  if (lane_of(engine) == Lane::compute) trace.time_device(&engine.stream.queue());
  const std::vector<Batch> batches =
      stage(engine, read_step(samples, part_of_step(engine.plan, 0, engine.plan.run.train.micro_batches)));
  trace.keep_events(true);
  Measured measured;
  std::vector<double> all, experts;
  const auto pass = [&] {
    const StepStats stats = accumulate_gradients(engine, batches, forced_taps(engine.plan, 1));
    trace.settle();
    const ComputeSeconds seconds = compute_seconds(trace.take_events(), lane_of(engine));
    all.push_back(seconds.all);
    experts.push_back(seconds.experts);
    measured.rows = 0;
    for (const ExpertRows& rows : stats.rows) measured.rows += rows.all;
  };
  const double begin = now_seconds();
  pass();
  const size_t passes = passes_that_measure(engine.world, now_seconds() - begin);
  all.clear();
  experts.clear();
  for (size_t i = 0; i < passes; ++i) pass();
  trace.time_device(nullptr);
  measured.seconds = {median(std::move(all)), median(std::move(experts))};
  measured.mean_rows = static_cast<double>(measured.rows) / engine.world.size();
  engine.world.all_reduce_sum(std::span(&measured.mean_rows, 1));
  return measured;
}

// What a rank computes for its own samples: where rows travel, its experts compute those of other ranks.
double seconds_for_samples(const Plan& plan, const ComputeSeconds& seconds) {
  const bool stay = std::all_of(plan.transports.begin(), plan.transports.end(), [](TransportKind kind) {
    return !traits_of(kind).exchanges() && !traits_of(kind).slices_experts;
  });
  return stay ? seconds.all : seconds.all - seconds.experts;
}

// What a rank computes for its part of what is divided.
double seconds_for(const Divided& divided, const Plan& plan, const Measured& measured) {
  if (divided.key == &MeshSpec::shares) return seconds_for_samples(plan, measured.seconds);
  if (divided.key == &MeshSpec::stage_layers) return measured.seconds.all;
  if (divided.key == &MeshSpec::width_shares) return measured.seconds.experts;
  // As if its experts had got as many rows as those of others.
  return measured.seconds.experts * measured.mean_rows / static_cast<double>(std::max<int64_t>(1, measured.rows));
}

// The units of this rank's part when it was measured. Of layers, in layers of mean FLOPs.
double measured_units(const Divided& divided, const Plan& plan) {
  if (divided.key != &MeshSpec::stage_layers)
    return static_cast<double>(divided.equal()[static_cast<size_t>(divided.part)]);
  const int64_t seq_len = plan.run.train.seq_len;
  return flops_of_stage(plan.model, seq_len, plan.stages.front()) * static_cast<double>(divided.units) /
         forward_flops_per_token(plan.model, seq_len);
}

std::vector<int64_t> divide(const Divided& divided, const Plan& plan, std::span<const double> seconds,
                            std::span<const int64_t> most) {
  if (divided.key == &MeshSpec::stage_layers) return layers_by_speed(plan.model, plan.run.train.seq_len, seconds, most);
  return divide_by_speed(divided.units, seconds, most);
}

// Of each part, as the slowest of its ranks says.
std::vector<double> slowest_of_parts(Comm& world, const Divided& divided, double own) {
  std::vector<double> seconds(static_cast<size_t>(divided.parts));
  seconds[static_cast<size_t>(divided.part)] = own;
  world.all_reduce_max(std::span(seconds));
  return seconds;
}

// Of each part, as the one of its ranks with the least memory says.
std::vector<int64_t> most_units(Comm& world, const Divided& divided, int64_t own) {
  std::vector<int64_t> lacking(static_cast<size_t>(divided.parts));
  lacking[static_cast<size_t>(divided.part)] = divided.units - own;
  world.all_reduce_max(std::span(lacking));
  for (int64_t& units : lacking) units = divided.units - units;
  return lacking;
}

}  // namespace

ComputeSeconds compute_seconds(std::vector<TraceEvent> events, Lane lane) {
  std::sort(events.begin(), events.end(), [](const TraceEvent& a, const TraceEvent& b) {
    return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
  });
  ComputeSeconds sum;
  int64_t experts_end = 0, counted_end = 0;
  for (const TraceEvent& event : events) {
    if (event.lane != lane) continue;
    if (std::string_view(event.label).starts_with("expert_")) experts_end = event.end_ns;
    if (!computes(event.work) || event.begin_ns < counted_end) continue;  // the latter lies in one that was counted
    const double seconds = static_cast<double>(event.end_ns - event.begin_ns) * 1e-9;
    sum.all += seconds;
    if (event.begin_ns < experts_end) sum.experts += seconds;
    counted_end = event.end_ns;
  }
  return sum;
}

ShareChooser::ShareChooser(RunSpec& run, const Plan& plan, Comm& world, int threads, const NodePlace& place,
                           const SampleOrder& samples, const std::optional<RunSpec>& before) {
  if (run.mesh.stage_layers == kMeasuredShares && plan.stages.size() > 1)
    fail(Exit::unsupported,
         fmt::format("mesh.stage_layers = \"{}\" needs a schedule with one stage for each rank", kMeasuredShares),
         "set mesh.schedule = \"1f1b\" or \"zb_h1\", or leave mesh.stage_layers empty");
  std::vector<Divided> measured;
  if (run.mesh.shares == kMeasuredShares) measured.push_back(divided_samples(plan));
  if (run.mesh.width_shares == kMeasuredShares) measured.push_back(divided_width(plan));
  if (run.mesh.expert_shares == kMeasuredShares) measured.push_back(divided_experts(plan));
  if (run.mesh.stage_layers == kMeasuredShares) measured.push_back(divided_layers(plan));
  if (measured.empty()) return;
  const int64_t available = available_share(world, choose_device(run.train.device, place.rank), place);
  const RunSpec equal = run;
  std::optional<Measured> times;
  for (const Divided& divided : measured) {
    const std::vector<int64_t> most = most_units(world, divided, units_that_fit(divided, run, plan, available));
    if (divided.key == &MeshSpec::shares) most_ = most;
    const bool known = before && before->moe.transport == run.moe.transport;
    std::string& shares = run.mesh.*divided.key;
    shares = broadcast_text(world, known ? before->mesh.*divided.key : "", 0);
    if (!shares.empty() && shares != kMeasuredShares) {
      if (const std::vector<int64_t> kept = parse_shares(shares, divided.name); std::ssize(kept) == divided.parts) {
        notes_.push_back(
            fmt::format("{} = \"{}\": {}, as in the checkpoint", divided.name, kMeasuredShares, describe_parts(kept)));
        continue;
      }
    }
    if (!times) {
      Engine engine(plan.model, equal, world, threads, place);
      times = measure(engine, samples);
    }
    const std::vector<double> per_unit =
        slowest_of_parts(world, divided, seconds_for(divided, plan, *times) / measured_units(divided, plan));
    const std::vector<int64_t> best = divide(divided, plan, per_unit, most),
                               even = divide(divided, plan, std::vector<double>(per_unit.size(), 1), most);
    shares = list_of_shares(best);
    notes_.push_back(
        fmt::format("{} = \"{}\": {}, by the seconds of compute for one: {}; at most {:.3g} s in a step, "
                    "{:.3g} s with equal shares",
                    divided.name, kMeasuredShares, describe_parts(best), describe_parts(per_unit),
                    time_of_slowest(best, per_unit), time_of_slowest(even, per_unit)));
  }
}

bool ShareChooser::times(const Engine& engine, int64_t step) const {
  const int64_t every = engine.plan.run.mesh.adapt_every;
  return every > 0 && step < engine.plan.run.train.steps && (lane_of(engine) == Lane::host || step % every == 0);
}

void ShareChooser::begin_step(Engine& engine, int64_t step) {
  if (times(engine, step)) engine.stream.trace().keep_events(true);
}

void ShareChooser::end_step(Engine& engine, double seconds, int64_t step) {
  if (!times(engine, step)) return;
  Trace& trace = engine.stream.trace();
  trace.keep_events(false);
  own_seconds_ += seconds_for_samples(engine.plan, compute_seconds(trace.take_events(), lane_of(engine)));
  step_seconds_ += seconds;
  ++timed_steps_;
}

void ShareChooser::forget() {
  watch_.reset();
  own_seconds_ = step_seconds_ = 0;
  timed_steps_ = 0;
}

std::string ShareChooser::after_step(Engine& engine, int64_t step) {
  const Plan& plan = engine.plan;
  const int64_t every = plan.run.mesh.adapt_every;
  if (every == 0 || step % every != 0 || timed_steps_ == 0) return "";
  const Divided divided = divided_samples(plan);
  std::vector<int64_t> shares = samples_by_rank(plan.run, plan.run.train.micro_batches, divided.parts);
  for (int64_t& share : shares) share /= plan.batch.all / divided.units;
  if (!watch_) watch_.emplace(shares, most_, step - every);
  const double steps = static_cast<double>(std::exchange(timed_steps_, 0)),
               units = static_cast<double>(shares[static_cast<size_t>(divided.part)]);
  double step_seconds = std::exchange(step_seconds_, 0) / steps;
  engine.world.all_reduce_max(std::span(&step_seconds, 1));
  const std::vector<double> per_unit =
      slowest_of_parts(engine.world, divided, std::exchange(own_seconds_, 0) / steps / units);
  const std::optional<std::vector<int64_t>> next = watch_->look(per_unit, step_seconds, step);
  if (!next) return "";
  RunSpec run = plan.run;
  run.mesh.shares = list_of_shares(*next);
  const bool changed = change_run(engine, run);
  watch_->begin(changed ? *next : shares, step);
  return fmt::format("step {}: mesh.shares = \"{}\": {} in place of {}, by the seconds of compute in the last steps{}",
                     step, kMeasuredShares, describe_parts(*next), describe_parts(shares),
                     changed ? "" : "; but some rank has too little memory, and they stay");
}

}  // namespace mw
