#include "planner/auto_transport.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "layout/transport.h"
#include "planner/search.h"

namespace mw {
namespace {

constexpr double kWorthwhile = 0.98, kWorthAChange = 0.9;

// Ranks of a node, if nodes are equal and hold consecutive ranks; else 0.
int64_t equal_nodes(const NodeMap& nodes, int ranks) {
  int near = 1;
  while (near < ranks && nodes.node_of(near) == nodes.node_of(0)) ++near;
  if (ranks % near != 0) return 0;
  for (int rank = 0; rank < ranks; ++rank)
    if (nodes.node_of(rank) != rank / near) return 0;
  return near;
}

// The transports to weigh, and the seconds of a step with each that fits in memory: flat, and transports_to_try.
std::map<std::string, double> seconds_by_transport(const Request& request) {
  Layout layout = layout_of(request.run);
  check_layout(request, layout);
  const std::vector<std::string> names = transports_to_try(request, layout);
  std::map<std::string, double> seconds;
  if (names.size() == 1) return seconds;
  Estimator estimator(request.model, request.run, request.profile, request.load, request.ranks);
  seconds["flat"] = estimator.closed_form(layout).time.total();
  for (const std::string& name : names) {
    if (name.empty()) continue;
    layout.transport = name;
    const Estimate estimate = estimator.closed_form(layout);
    if (fit_of(request, estimate.needed) != MemoryFit::none) seconds[name] = estimate.time.total();
  }
  return seconds;
}

// The fastest of them, if it takes at most `worthwhile` of the time with `instead`; else `instead`.
TransportChoice choose(const std::map<std::string, double>& seconds, const std::string& instead, double worthwhile) {
  TransportChoice choice;
  if (seconds.empty()) return choice;
  const auto fastest = std::min_element(seconds.begin(), seconds.end(),
                                        [](const auto& a, const auto& b) { return a.second < b.second; });
  const auto other = seconds.find(instead);
  const auto chosen = other == seconds.end() || fastest->second <= worthwhile * other->second ? fastest : other;
  choice.name = chosen->first;
  choice.seconds = chosen->second;
  if (const auto flat = seconds.find("flat"); flat != seconds.end()) choice.flat_seconds = flat->second;
  return choice;
}

// Calls decide(request) where a profile can decide; otherwise, and where that fails, the run's transport stays.
TransportChoice choose_by_profile(RunSpec run, int ranks, const NodeMap& nodes,
                                  const std::function<TransportChoice(Request)>& decide) {
  TransportChoice choice;
  choice.name = run.moe.transport;
  const int64_t near = equal_nodes(nodes, ranks);
  if (run.moe.transport != "auto" || run.plan.platform.empty() || near == 0) return choice;
  run.plan.ranks = ranks;
  run.mesh.ranks_per_node = near;
  try {
    return decide(make_request(run));
  } catch (const Error& error) {
    choice.why_none = error.what();
    return choice;
  }
}

bool slices_experts(std::string_view name) {
  const auto& table = transport_table();
  return std::any_of(table.begin(), table.end(),
                     [&](const TransportTraits& traits) { return traits.name == name && traits.slices_experts; });
}

}  // namespace

TransportChoice choose_auto_transport(RunSpec run, int ranks, const NodeMap& nodes, const std::string& before,
                                      MeasuredLoads loads) {
  return choose_by_profile(std::move(run), ranks, nodes, [&](Request request) {
    request.load.measured = std::move(loads);
    const std::map<std::string, double> seconds = seconds_by_transport(request);
    const bool keeps = seconds.count(before) > 0;
    return keeps ? choose(seconds, before, 0) : choose(seconds, "flat", kWorthwhile);
  });
}

TransportChoice choose_transport_again(RunSpec run, int ranks, const NodeMap& nodes, const std::string& now,
                                       MeasuredLoads loads) {
  return choose_by_profile(std::move(run), ranks, nodes, [&](Request request) {
    request.load.measured = std::move(loads);
    std::map<std::string, double> seconds = seconds_by_transport(request);
    for (auto other = seconds.begin(); other != seconds.end();)
      other = slices_experts(other->first) != slices_experts(now) ? seconds.erase(other) : std::next(other);
    if (!seconds.empty()) return choose(seconds, now, kWorthAChange);
    TransportChoice stays;
    stays.name = now;
    return stays;
  });
}

std::string describe(const TransportChoice& choice, const std::string& platform) {
  if (!choice.why_none.empty())
    return fmt::format("moe.transport = \"auto\": flat, because {} predicts no time: {}", platform, choice.why_none);
  if (choice.seconds == 0) return "";
  return fmt::format("moe.transport = \"auto\": {}, by {}: {:.3g} ms a step is predicted, {:.3g} ms with flat",
                     choice.name, platform, 1e3 * choice.seconds, 1e3 * choice.flat_seconds);
}

}  // namespace mw
