#include "train/loop/transport_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "planner/search.h"
#include "train/loop/loads.h"
#include "train/loop/train_step.h"

namespace mw {
namespace {

constexpr int kWarmUp = 1, kFewestSteps = 3, kMostSteps = 15;
constexpr double kEnoughSeconds = 2;                    // of steps with one transport
constexpr double kLeastFactor = 0.1, kMostFactor = 10;  // a prediction that is further off says nothing

struct TimedSteps {
  double seconds = 0;  // the median
  MeasuredLoads loads;
};

TimedSteps time_steps(World& world, const RunSpec& run) {
  const std::unique_ptr<Engine> engine = make_engine(world, run);
  set_first_weights(*engine);
  const std::unique_ptr<SampleOrder> samples = open_samples(run, engine->plan.model.vocab, false);
  RunState state;
  TimedSteps timed;
  std::vector<double> seconds;
  for (double sum = 0;
       std::ssize(seconds) < kFewestSteps || (sum < kEnoughSeconds && std::ssize(seconds) < kMostSteps);) {
    world.comm().barrier();
    const auto begin = std::chrono::steady_clock::now();
    const StepStats stats = train_step(*engine, *samples, state);
    engine->stream.wait();
    double taken = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    world.comm().all_reduce_max(std::span(&taken, 1));
    if (state.step <= kWarmUp) continue;
    timed.loads = loads_by_place(*engine, stats);
    seconds.push_back(taken);
    sum += taken;
  }
  const auto middle = seconds.begin() + std::ssize(seconds) / 2;
  std::nth_element(seconds.begin(), middle, seconds.end());
  timed.seconds = *middle;
  return timed;
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
    return fit_of(request, estimator.closed_form(layout).needed) == MemoryFit::none;
  });
  return names;
}

}  // namespace

void check_transports_to_time(const RunSpec& run, int ranks) {
  if (run.moe.transport != "auto")
    fail(Exit::config,
         fmt::format("moe.transport = \"{}\": probe compares transports, expected \"auto\"", run.moe.transport),
         "set moe.transport = \"auto\", or probe the machine without a run file");
  if (run.mesh.ep < 2 || ranks < 2)
    fail(Exit::config,
         fmt::format("mesh.ep = {} on {} rank{}: nothing is exchanged whose transports could be compared", run.mesh.ep,
                     ranks, ranks == 1 ? "" : "s"),
         "start as many ranks as the run will have, with mesh.ep of at least 2, or probe without a run file");
}

void time_transports(World& world, RunSpec run, const std::function<void(const std::string&)>& say) {
  Comm& comm = world.comm();
  const std::string path = run.plan.platform;
  run.plan.ranks = comm.size();
  std::optional<Request> request;
  Layout layout;
  std::vector<std::string> names;  // on rank 0
  if (comm.rank() == 0) {
    RunSpec planned = run;
    planned.mesh.ranks_per_node = place_on_node(world, run.mesh).ranks;
    request = make_request(planned);
    request->profile.transport_times.reset();
    layout = layout_of(planned);
    check_layout(*request, layout);
    names = transports_of(*request, layout);
  }
  std::vector<TransportTime> times;
  for (size_t i = 0;; ++i) {
    const std::string name = broadcast_text(comm, i < names.size() ? names[i] : "", 0);
    if (name.empty()) break;
    run.moe.transport = name;
    const TimedSteps timed = time_steps(world, run);
    if (comm.rank() != 0) continue;
    request->load.measured = timed.loads;
    const double once = predicted(*request, layout, name, 1), twice = predicted(*request, layout, name, 2);
    const double factor = std::clamp(1 + (timed.seconds - once) / (twice - once), kLeastFactor, kMostFactor);
    times.push_back({name, std::strtod(fmt::format("{:.4g}", factor).c_str(), nullptr)});
    say(fmt::format("{}: a step takes {:.3g} ms, {:.3g} were predicted", name, 1e3 * timed.seconds, 1e3 * once));
  }
  if (comm.rank() != 0) return;
  request->profile.transport_times = times;
  write_text_file_atomically(path, to_json(request->profile));
}

}  // namespace mw
