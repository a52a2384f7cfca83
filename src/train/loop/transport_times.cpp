#include "train/loop/transport_times.h"

#include <fmt/format.h>

#include <cstdlib>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/host.h"
#include "base/median.h"
#include "base/text.h"
#include "layout/shares.h"
#include "planner/search.h"
#include "train/data/comm_ranks.h"
#include "train/loop/loads.h"
#include "train/loop/train_step.h"

namespace mw {
namespace {

constexpr int kRounds = 2;  // a slow moment of the machine meets all transports
constexpr int kWarmUp = 1, kFewestSteps = 3, kMostSteps = 15;
constexpr double kEnoughSeconds = 2;                    // of steps with one transport in a round
constexpr double kLeastFactor = 0.1, kMostFactor = 10;  // beyond, the error lies in other parts of the step

struct TimedSteps {
  std::vector<double> seconds;
  MeasuredLoads loads;  // of the last one
};

// Adds steps of a new run. Collective.
void time_steps(World& world, const RunSpec& run, TimedSteps& timed) {
  const std::unique_ptr<Engine> engine = make_engine(world, run);
  set_first_weights(*engine);
  const std::unique_ptr<SampleOrder> samples =
      open_samples(run, engine->plan.model.vocab, false, CommRanks(world.comm()));
  RunState state;
  int steps = 0;
  for (double sum = 0; steps < kFewestSteps || (sum < kEnoughSeconds && steps < kMostSteps);) {
    world.comm().barrier();
    const double begin = now_seconds();
    const StepStats stats = train_step(*engine, *samples, state);
    engine->stream.wait();
    double taken = now_seconds() - begin;
    world.comm().all_reduce_max(std::span(&taken, 1));
    if (state.step <= kWarmUp) continue;
    timed.loads = loads_by_place(*engine, stats);
    timed.seconds.push_back(taken);
    sum += taken;
    ++steps;
  }
}

// Of a step by the profile with this factor of the transport's time.
double predicted(Request& request, Layout layout, const std::string& transport, double factor) {
  layout.transport = transport;
  request.profile.transport_times = {{transport, factor}};
  return Estimator(request.model, request.run, request.profile, request.load, request.ranks)
      .closed_form(layout)
      .time.total();
}

std::vector<std::string> transports_of(const Request& request, Layout layout) {
  std::vector<std::string> names = transports_to_try(request, layout);
  names.front() = "flat";
  Estimator estimator(request.model, request.run, request.profile, request.load, request.ranks);
  std::erase_if(names, [&](const std::string& name) {
    layout.transport = name;
    return !holds_rows(request, layout, name) ||
           fit_of(request, estimator.closed_form(layout).needed) == MemoryFit::none;
  });
  return names;
}

}  // namespace

void check_transports_to_time(const RunSpec& run, int ranks) {
  if (run.moe.transport != "auto")
    fail(Exit::config,
         fmt::format("moe.transport = \"{}\": probe compares transports, expected \"auto\"", run.moe.transport),
         "set moe.transport = \"auto\", or probe the machine without a run file");
  const std::pair<const char*, const std::string&> shares[] = {{"mesh.shares", run.mesh.shares},
                                                               {"mesh.width_shares", run.mesh.width_shares},
                                                               {"mesh.expert_shares", run.mesh.expert_shares}};
  for (const auto& [key, value] : shares)
    if (value == kMeasuredShares)
      fail(Exit::config, fmt::format("{} = \"measured\": probe times transports with equal or given shares", key),
           fmt::format("set {} = \"\" for the probe, or probe without a run file", key));
  if (!run.processors.empty())
    fail(Exit::config,
         fmt::format("debug.processors = \"{}\": probe measures operators on all processors of a GPU",
                     printable(run.processors)),
         "set debug.processors = \"\" for the probe, or probe without a run file");
  if (run.mesh.ep < 2 || ranks < 2)
    fail(Exit::config,
         fmt::format("mesh.ep = {} on {}: no rows are exchanged, so that there are no transports to compare",
                     run.mesh.ep, counted(ranks, "rank")),
         "start as many ranks as the run will have, with mesh.ep of at least 2, or probe without a run file");
}

void time_transports(World& world, RunSpec run, const std::function<void(const std::string&)>& say) {
  Comm& comm = world.comm();
  const std::string path = run.plan.platform;
  run.plan.ranks = comm.size();
  run.train.batch_ramp.clear();  // steps of the whole batch are what is predicted
  std::optional<Request> request;
  Layout layout;
  std::vector<std::string> names;
  if (comm.rank() == 0) {
    RunSpec planned = run;
    planned.mesh.ranks_per_node = place_on_node(world, run.mesh).ranks;
    request = make_request(planned);
    request->profile.transport_times.reset();
    layout = layout_of(planned);
    check_layout(*request, layout);
    names = transports_of(*request, layout);
  }
  int64_t count = std::ssize(names);
  comm.all_reduce_max(std::span(&count, 1));
  names.resize(static_cast<size_t>(count));
  for (std::string& name : names) name = broadcast_text(comm, name, 0);
  std::vector<TimedSteps> timed(names.size());
  for (int round = 0; round < kRounds; ++round)
    for (size_t i = 0; i < names.size(); ++i) {
      run.moe.transport = names[i];
      time_steps(world, run, timed[i]);
    }
  if (comm.rank() != 0) return;
  std::vector<TransportTime> times;
  bool usable = true;
  for (size_t i = 0; i < names.size(); ++i) {
    request->load.measured = timed[i].loads;
    const double seconds = median(timed[i].seconds), once = predicted(*request, layout, names[i], 1),
                 twice = predicted(*request, layout, names[i], 2);
    const double factor = 1 + (seconds - once) / (twice - once);
    usable = usable && factor >= kLeastFactor && factor <= kMostFactor;
    times.push_back({names[i], std::strtod(fmt::format("{:.4g}", factor).c_str(), nullptr)});
    say(fmt::format("{}: a step takes {:.3g} ms, {:.3g} were predicted", names[i], 1e3 * seconds, 1e3 * once));
  }
  if (!usable)
    return say(
        "no times of transports are written: the profile mispredicts other parts of the step by more than its MoE "
        "layers take");
  request->profile.transport_times = times;
  request->profile.sources.push_back(
      fmt::format("measured: transport_times, by steps of {} in {}; other runs may have other ones",
                  summary(request->model), describe(layout)));
  write_output_text(path, to_json(request->profile));
}

}  // namespace mw
