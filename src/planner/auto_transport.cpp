#include "planner/auto_transport.h"

#include "base/error.h"
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

TransportChoice choose(const Request& request, Layout layout, const std::string& before) {
  TransportChoice choice;
  check_layout(request, layout);
  const std::vector<std::string> names = transports_to_try(request, layout);
  if (names.size() == 1) return choice;
  Estimator estimator(request.model, request.run, request.profile, request.load, request.ranks);
  choice.name = "flat";
  choice.flat_seconds = choice.seconds = estimator.closed_form(layout).time.total();
  double seconds_before = before == "flat" ? choice.flat_seconds : 0;
  for (const std::string& name : names) {
    if (name.empty()) continue;
    layout.transport = name;
    const Estimate estimate = estimator.closed_form(layout);
    const double seconds = estimate.time.total();
    if (fit_of(request, estimate.needed) == MemoryFit::none) continue;
    if (name == before) seconds_before = seconds;
    if (seconds >= choice.seconds || seconds > kWorthwhile * choice.flat_seconds) continue;
    choice.name = name;
    choice.seconds = seconds;
  }
  if (choice.seconds > kWorthAChange * seconds_before && seconds_before > 0) {
    choice.name = before;
    choice.seconds = seconds_before;
  }
  return choice;
}

}  // namespace

TransportChoice choose_auto_transport(RunSpec run, int ranks, const NodeMap& nodes, const std::string& before) {
  TransportChoice choice;
  choice.name = run.moe.transport;
  const int64_t near = equal_nodes(nodes, ranks);
  if (run.moe.transport != "auto" || run.plan.platform.empty() || near == 0) return choice;
  run.plan.ranks = ranks;
  run.mesh.ranks_per_node = near;
  try {
    return choose(make_request(run), layout_of(run), before);
  } catch (const Error& error) {
    choice.why_none = error.what();
    return choice;
  }
}

std::string describe(const TransportChoice& choice, const std::string& platform) {
  if (!choice.why_none.empty())
    return fmt::format("moe.transport = \"auto\": flat, because {} predicts no time: {}", platform, choice.why_none);
  if (choice.seconds == 0) return "";
  return fmt::format("moe.transport = \"auto\": {}, by {}: {:.3g} ms a step is predicted, {:.3g} ms with flat",
                     choice.name, platform, 1e3 * choice.seconds, 1e3 * choice.flat_seconds);
}

}  // namespace mw
