#include "planner/auto_transport.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "layout/transport.h"
#include "planner/search.h"
#include "planner/volumes.h"

namespace mw {
namespace {

constexpr double kWorthwhile = 0.95, kWorthAChange = 0.9;
constexpr double kFewRows = 0.5;  // of flat's

// Ranks of a node, if nodes are equal and hold consecutive ranks; else 0.
int64_t equal_nodes(const NodeMap& nodes, int ranks) {
  int near = 1;
  while (near < ranks && nodes.node_of(near) == nodes.node_of(0)) ++near;
  if (ranks % near != 0) return 0;
  for (int rank = 0; rank < ranks; ++rank)
    if (nodes.node_of(rank) != rank / near) return 0;
  return near;
}

bool slices_experts(std::string_view name) {
  const auto& table = transport_table();
  return std::any_of(table.begin(), table.end(),
                     [&](const TransportTraits& traits) { return traits.name == name && traits.slices_experts; });
}

// By transport, the seconds of a step whose MoE layers all use it and are all loaded as one of them is.
using Seconds = std::map<std::string, double>;

using Names = std::vector<std::string>;  // by MoE layer

// Of moe.transport = `setting`; none for "".
Names names_of(const std::string& setting, const ModelSpec& model) {
  if (setting.empty()) return {};
  Names names = transport_names(setting, model);
  std::erase(names, "");
  return names;
}

// By MoE layer; with flat, those in use, and those of transports_to_try that fit in memory with the loads of all
// layers. Empty: there is nothing to choose.
std::vector<Seconds> seconds_by_layer(const Request& request, const Names& in_use) {
  Layout layout = layout_of(request.run);
  check_layout(request, layout);
  std::vector<std::string> names = transports_to_try(request, layout);
  if (names.size() == 1) return {};
  const auto estimate = [&](Estimator& estimator, const std::string& name) {
    layout.transport = name;
    return estimator.closed_form(layout);
  };
  Estimator of_all(request.model, request.run, request.profile, request.load, request.ranks);
  std::erase_if(names, [&](const std::string& name) {
    if (std::find(in_use.begin(), in_use.end(), name) != in_use.end()) return false;
    return name.empty() || !holds_rows(request, layout, name) ||
           fit_of(request, estimate(of_all, name).needed) == MemoryFit::none;
  });
  names.emplace_back("flat");
  const auto seconds_with = [&](const ExpertLoad& load) {
    Estimator estimator(request.model, request.run, request.profile, load, request.ranks);
    Seconds seconds;
    for (const std::string& name : names) seconds[name] = estimate(estimator, name).time.total();
    return seconds;
  };
  const auto count = static_cast<size_t>(request.model.moe_layer_count());
  if (request.load.measured.empty()) return std::vector<Seconds>(count, seconds_with(request.load));
  std::vector<Seconds> layers;
  for (const std::vector<double>& rows : request.load.measured) {
    ExpertLoad load = request.load;
    load.measured = {rows};
    layers.push_back(seconds_with(load));
  }
  return layers;
}

// Of a step. Each layer has its share of the step's work. 0: some layer cannot use its transport.
double mean_seconds(const std::vector<Seconds>& layers, const Names& names) {
  double sum = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto found = layers[i].find(names[i]);
    if (found == layers[i].end()) return 0;
    sum += found->second;
  }
  return sum / static_cast<double>(layers.size());
}

TransportChoice choice_of(const std::vector<Seconds>& layers, const Names& names) {
  return {transport_setting(names), mean_seconds(layers, names), mean_seconds(layers, Names(layers.size(), "flat")),
          ""};
}

// One for all layers: the fastest, if it is worthwhile; else flat.
Names choose_for_all(const std::vector<Seconds>& layers) {
  const auto with = [&](const std::string& name) { return mean_seconds(layers, Names(layers.size(), name)); };
  std::string fastest = "flat";
  for (const auto& [name, seconds] : layers.front())
    if (with(name) < with(fastest)) fastest = name;
  return Names(layers.size(), with(fastest) <= kWorthwhile * with("flat") ? fastest : "flat");
}

// For each layer the fastest that stores the experts as `now` does, if that is worth a change by this layer's loads.
Names change_by_layer(const std::vector<Seconds>& layers, Names now) {
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto stays = layers[i].find(now[i]);
    double least = stays == layers[i].end() ? std::numeric_limits<double>::infinity() : kWorthAChange * stays->second;
    const bool slices = slices_experts(now[i]);
    for (const auto& [name, seconds] : layers[i]) {
      if (slices_experts(name) != slices || seconds >= least) continue;
      now[i] = name;
      least = seconds;
    }
  }
  return now;
}

// Calls decide(request) where a profile can decide; otherwise, and where that fails, the run's transport stays.
TransportChoice choose_by_profile(RunSpec run, int ranks, const NodeMap& nodes,
                                  const std::function<TransportChoice(Request)>& decide) {
  TransportChoice choice;
  choice.name = run.moe.transport;
  const int64_t near = equal_nodes(nodes, ranks);
  if (run.moe.transport != "auto" || run.mesh.ep == 1) return choice;
  if (run.plan.platform.empty())
    choice.why_none = "plan.platform names no profile; `moewright probe` under mpirun writes one";
  else if (near == 0) choice.why_none = "plans need nodes with equally many, consecutive ranks";
  if (!choice.why_none.empty()) return choice;
  run.plan.ranks = ranks;
  run.mesh.ranks_per_node = near;
  try {
    return decide(make_request(run));
  } catch (const Error& error) {
    choice.why_none = error.what();
    return choice;
  }
}

// Of flat's rows, those that bypass sends between ranks of a node, in the MoE layer where it saves least.
double rows_of_bypass(const RunSpec& run) {
  double share = 0;
  for (const LayerSpec& layer : load_model_spec(run).layers) {
    if (layer.feed_forward != FeedForwardKind::moe) continue;
    const RowsBetweenNodes rows = rows_between_nodes(layer.moe, run.mesh.ep);
    share = std::max(share, rows.bypass / rows.flat);
  }
  return share;
}

// Transports that only move rows suit every run of the layout. Others may not suit other keys that a resumed run has.
bool suits_any_run(const std::string& setting, const RunSpec& run) {
  const std::vector<TransportKind> kinds = choose_transports(names_of(setting, load_model_spec(run)), run.mesh.ep);
  return std::all_of(kinds.begin(), kinds.end(), [](TransportKind kind) { return traits_of(kind).splits_rows; });
}

TransportChoice choose_on_one_node(const RunSpec& run, const std::string& before) {
  TransportChoice choice;
  // Where experts move, only flat and halo keep a run's numbers to the bit.
  const bool moves_experts = run.moe.balance != Balance::none || run.migrate;
  if (!before.empty() && suits_any_run(before, run)) {
    choice.name = before;
    choice.rule = "as in the checkpoint";
  } else if (const double share = rows_of_bypass(run); !moves_experts && share <= kFewRows) {
    choice.name = "bypass";
    choice.rule = fmt::format(
        "which sends {:.2g} of flat's rows between the GPUs of this node; plan.platform names no profile to predict "
        "times",
        share);
  }
  return choice;
}

}  // namespace

TransportChoice choose_auto_transport(RunSpec run, int ranks, const NodeMap& nodes, const std::string& before,
                                      MeasuredLoads loads, bool on_nvidia) {
  if (on_nvidia && run.moe.transport == "auto" && run.mesh.ep > 1 && run.plan.platform.empty() &&
      equal_nodes(nodes, ranks) == ranks) {
    TransportChoice choice = choose_on_one_node(run, before);
    if (!choice.rule.empty()) return choice;
  }
  return choose_by_profile(std::move(run), ranks, nodes, [&](Request request) {
    request.load.measured = std::move(loads);
    const Names kept = names_of(before, request.model);
    const std::vector<Seconds> layers = seconds_by_layer(request, kept);
    if (layers.empty()) return TransportChoice{};
    if (!kept.empty() && mean_seconds(layers, kept) > 0) return choice_of(layers, kept);
    return choice_of(layers, change_by_layer(layers, choose_for_all(layers)));
  });
}

TransportChoice choose_transport_again(RunSpec run, int ranks, const NodeMap& nodes, const std::string& now,
                                       MeasuredLoads loads) {
  return choose_by_profile(std::move(run), ranks, nodes, [&](Request request) {
    request.load.measured = std::move(loads);
    const std::vector<Seconds> layers = seconds_by_layer(request, names_of(now, request.model));
    if (layers.empty()) return TransportChoice{now, 0, 0, ""};
    return choice_of(layers, change_by_layer(layers, names_of(now, request.model)));
  });
}

std::string describe(const TransportChoice& choice, const std::string& platform) {
  if (!choice.rule.empty())
    return fmt::format("moe.transport = \"auto\": {}, {}", choice.name == "auto" ? "flat" : choice.name, choice.rule);
  if (!choice.why_none.empty())
    return fmt::format("moe.transport = \"auto\": flat, because {}{}",
                       platform.empty() ? "" : platform + " predicts no time: ", choice.why_none);
  if (choice.seconds == 0) return "";
  const auto ms = [](double seconds) {
    return seconds < 1 ? fmt::format("{:.3g} ms", 1e3 * seconds) : fmt::format("{:.0f} ms", 1e3 * seconds);
  };
  return fmt::format("moe.transport = \"auto\": {}, by {}: {} a step is predicted, {} with flat", choice.name, platform,
                     ms(choice.seconds), ms(choice.flat_seconds));
}

}  // namespace mw
