#include "planner/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "planner/remedies.h"
#include "planner/transfers.h"
#include "planner/unequal_ranks.h"
#include "planner/units.h"
#include "planner/volumes.h"

namespace mw {
namespace {

struct Rates {
  double tokens_per_s = 0, flops_per_rank = 0, mfu = 0;
};

Rates rates_of(const Request& request, double seconds) {
  const Estimator estimator(request.model, request.run, request.profile, request.load, request.ranks);
  const double flops_per_s = estimator.model_flops_per_step() / seconds;
  return {estimator.tokens_per_step() / seconds, flops_per_s / request.ranks,
          flops_per_s / estimator.peak_flops_per_s()};
}

std::string in_seconds(double seconds) {
  const Unit unit = time_unit(seconds);
  return fmt::format("{} {}", unit.of(seconds, seconds < 10 ? 1 : 2), unit.name);
}

std::string in_bytes(int64_t bytes, const Unit& unit) { return unit.of(static_cast<double>(bytes)); }

// "3 %"
std::string describe_margin(const Request& request) {
  return fmt::format("{:g} %", 100 * request.run.plan.memory_margin);
}

// "bubble +12.0 %, exchange +3.1 %" of the best step; "" where nothing costs half a percent more.
std::string why_slower(const StepTime& time, const StepTime& best) {
  std::vector<std::pair<double, const char*>> parts = {{time.compute - best.compute, "compute"},
                                                       {time.exchange - best.exchange, "exchange"},
                                                       {time.bubble - best.bubble, "bubble"},
                                                       {time.optimizer - best.optimizer, "optimizer"}};
  std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (const auto& [seconds, name] : parts)
    if (seconds > 0.005 * best.total())
      text += fmt::format("{}{} +{:.1f} %", text.empty() ? "" : ", ", name, 100 * seconds / best.total());
  return text;
}

const RankMemory& largest_of(const Estimate& estimate, size_t* rank = nullptr) {
  size_t largest = 0;
  for (size_t i = 1; i < estimate.memory.size(); ++i)
    if (estimate.memory[i].needed() > estimate.memory[largest].needed()) largest = i;
  if (rank != nullptr) *rank = largest;
  return estimate.memory[largest];
}

// "activations 61.2 GiB, optimizer 30.0 GiB"
std::string largest_kinds(const RankMemory& memory) {
  std::vector<std::pair<int64_t, std::string>> kinds = {{memory.libraries, "libraries"}};
  for (int kind = 0; kind < kByteKinds; ++kind)
    kinds.emplace_back(memory.table.by_kind[kind], name_of(static_cast<ByteKind>(kind)));
  std::sort(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  return fmt::format("{} {}, {} {}", kinds[0].second, format_bytes(kinds[0].first), kinds[1].second,
                     format_bytes(kinds[1].first));
}

int64_t most_on_host(const Estimate& estimate) {
  int64_t most = 0;
  for (const RankMemory& rank : estimate.memory) most = std::max(most, rank.table.on_host);
  return most;
}

// "61.20", or over several stages from the least to the most, "54.31..61.20".
std::string range_of_stages(const Estimate& estimate, const Unit& unit) {
  const auto [least, most] =
      std::minmax_element(estimate.memory.begin(), estimate.memory.end(),
                          [](const RankMemory& a, const RankMemory& b) { return a.needed() < b.needed(); });
  const std::string low = in_bytes(least->needed(), unit), high = in_bytes(most->needed(), unit);
  return low == high ? high : low + ".." + high;
}

// The columns of a stage, without its number.
std::string memory_columns(const RankMemory& rank, const Unit& unit) {
  std::string text = fmt::format(" {:>9}", in_bytes(rank.needed(), unit));
  for (int kind = 0; kind < kByteKinds; ++kind) {
    const bool routed = static_cast<ByteKind>(kind) == ByteKind::routed;
    const int64_t beyond = routed ? std::max<int64_t>(0, rank.rows_p99 - rank.table.routed_committed) : 0;
    text += fmt::format(" {:>15}", in_bytes(rank.table.by_kind[kind] + beyond, unit));
  }
  return text + fmt::format(" {:>10} {:>11} {:>14}\n", in_bytes(rank.libraries, unit),
                            in_bytes(rank.table.routed_mean, unit), in_bytes(rank.rows_fullest, unit));
}

// A line for each run of stages that need the same.
std::string describe_memory(const Request& request, const Estimate& estimate) {
  const Unit unit = byte_unit(estimate.needed);
  std::string text = fmt::format(
      "memory by stage in {}, of {} (of the largest rank; routed rows: room for the 99th percentile, and of those "
      "what an even load and the expected one take)\n",
      unit.name, format_bytes(request.profile.memory_bytes));
  text += "  stages    needed";
  for (int kind = 0; kind < kByteKinds; ++kind) text += fmt::format(" {:>15}", name_of(static_cast<ByteKind>(kind)));
  text += "  libraries   rows even  rows expected\n";
  for (size_t first = 0, end = 0; first < estimate.memory.size(); first = end) {
    const std::string columns = memory_columns(estimate.memory[first], unit);
    for (end = first + 1; end < estimate.memory.size() && memory_columns(estimate.memory[end], unit) == columns;) ++end;
    const std::string stages = end == first + 1 ? std::to_string(first) : fmt::format("{}-{}", first, end - 1);
    text += fmt::format("  {:>6}", stages) + columns;
  }
  const int64_t on_host = most_on_host(estimate);
  if (on_host > 0)
    text += fmt::format("  and {} of the host for each rank, by memory.offload\n", format_bytes(on_host));
  return text;
}

std::string describe_rates(const Request& request, const StepTime& time) {
  const Rates rates = rates_of(request, time.total());
  const auto share = [&](double seconds) { return 100 * seconds / time.total(); };
  const Unit unit = flops_unit(rates.flops_per_rank);
  return fmt::format(
      "step {}: compute {:.1f} %, exposed communication {:.1f} %, bubble {:.1f} %, optimizer {:.1f} %; {} tokens/s, "
      "{} {} per rank, MFU {:.1f} %\n",
      in_seconds(time.total()), share(time.compute), share(time.exchange), share(time.bubble), share(time.optimizer),
      format_count(rates.tokens_per_s), unit.of(rates.flops_per_rank, 1), unit.name, 100 * rates.mfu);
}

// Layouts that differ from this one in one choice and fit, the fastest.
std::string smallest_change(const Request& request, const SearchResult& result, const Layout& layout) {
  const auto differences = [&](const Layout& o) {
    const bool pipeline = o.schedule != layout.schedule || o.chunks != layout.chunks;
    return int{o.pp != layout.pp} + int{pipeline} + int{o.tp != layout.tp} + int{o.ep != layout.ep} +
           int{o.placement != layout.placement} + int{o.zero != layout.zero} +
           int{o.micro_batches != layout.micro_batches} + int{o.recompute != layout.recompute} +
           int{o.transport != layout.transport};
  };
  for (int changes = 1; changes <= 3; ++changes)
    for (const Weighed& weighed : result.weighed)
      if (fit_of(request, weighed.needed) == MemoryFit::with_margin && differences(weighed.layout) == changes)
        return fmt::format("the fastest that fits with {}: {}", counted(changes, "change"), describe(weighed.layout));
  return "no layout that differs in three choices fits";
}

// One way to bring tokens and experts of a kind of MoE layer together, and how long its bytes take the slower links.
struct PricedExchange {
  ExchangeVolume volume;
  double seconds = 0;
};

std::vector<PricedExchange> price_exchanges(const Request& request, const LayerSpec& layer, double tokens,
                                            RankGroup group, GroupShape shape) {
  const Transfers transfers(request.profile, request.ranks);
  std::vector<PricedExchange> priced;
  for (const ExchangeVolume& v :
       exchange_volumes(layer, request.model.width, tokens, shape, size_of(request.run.train.dtype))) {
    if (shape.nodes == 1 && std::string_view(v.transport) == "halo") continue;  // it is what flat is
    priced.push_back({v, transfers.at_best(group, v.forward.near, v.forward.far) +
                             transfers.at_best(group, v.backward.near, v.backward.far)});
  }
  return priced;
}

std::string describe_cheapest(const std::vector<PricedExchange>& exchanges, const LayerSpec& layer, int64_t layers) {
  const auto cheaper = [](const PricedExchange& a, const PricedExchange& b) { return a.seconds < b.seconds; };
  const PricedExchange& best = *std::min_element(exchanges.begin(), exchanges.end(), cheaper);
  return fmt::format("  cheapest for {} of {} experts x {}, top-{}: {}\n", counted(layers, "layer"), layer.moe.experts,
                     layer.moe.width, layer.moe.top_k, best.volume.transport);
}

// Loads that the plan reckons with, and what each way to bring tokens and experts together would send.
std::string describe_exchanges(const Request& request, const Layout& layout) {
  const Mesh mesh = mesh_of(layout, request.ranks);
  const RankGroup group = ep_group(mesh);
  const LayerKinds kinds(request.model, with_layout(request.run, layout).moe.transport);
  const std::vector<LayerSpec>& layers = kinds.model.layers;
  const auto moe = std::find_if(layers.begin(), layers.end(),
                                [](const LayerSpec& layer) { return layer.feed_forward == FeedForwardKind::moe; });
  if (moe == layers.end() || group.size == 1) return "";
  const std::string& transport = kinds.transports[static_cast<size_t>(moe - layers.begin())];
  const TransportTraits& traits = traits_of(choose_transport(transport, mesh.ep));
  RankLoad load;  // where rows do not follow the load, every rank has as many
  if (traits.follows_load())
    load = LoadModel(request.load, request.run.moe).of(moe->moe.experts, group.size, traits.equal_rows);
  std::string text = fmt::format(
      "routed rows of the fullest of {} ranks: {:.2f} times the mean, {:.2f} times at the 99th percentile ({})\n",
      group.size, load.mean, load.p99,
      request.load.measured.empty() ? fmt::format("drawn by plan.balance = {:g}", request.load.concentration)
                                    : fmt::format("of {} measured loads", request.load.measured.size()));
  const int64_t near = members_near(group, ranks_per_node(request.run, request.profile), request.ranks);
  if (group.size % near != 0) return text;
  const GroupShape shape{group.size / near, near};
  const int64_t tokens = most_samples(request.run, layout.micro_batches, mesh.dp) * request.run.train.seq_len;
  const auto routed = static_cast<double>(routed_tokens(mesh, {}, tokens).count);
  text += fmt::format(
      "an MoE layer's exchanges, forward and backward, of one rank and micro-batch with even loads, over {}\n",
      counted(shape.nodes, "node"));
  for (const PricedExchange& e : price_exchanges(request, *moe, routed, group, shape))
    text += fmt::format("  {:<14} {:>10} within a node {:>10} between nodes, {:>9} at best\n", e.volume.transport,
                        format_bytes(static_cast<int64_t>(e.volume.forward.near + e.volume.backward.near)),
                        format_bytes(static_cast<int64_t>(e.volume.forward.far + e.volume.backward.far)),
                        in_seconds(e.seconds));
  for (auto kind = moe; kind != layers.end(); ++kind)
    if (kind->feed_forward == FeedForwardKind::moe)
      text += describe_cheapest(price_exchanges(request, *kind, routed, group, shape), *kind,
                                kinds.before[static_cast<size_t>(kind - layers.begin())].back());
  if (shape.nodes > 1) {
    const RowsBetweenNodes rows = rows_between_nodes(moe->moe, shape.nodes);
    text += fmt::format("  rows a token between nodes: {:.2f} flat, {:.2f} by bypass, {:.1f} % fewer\n", rows.flat,
                        rows.bypass, 100 * (1 - rows.bypass / rows.flat));
  }
  return text;
}

std::string describe_request(const Request& request, const SearchResult& result) {
  const TrainSpec& train = request.run.train;
  std::string text = fmt::format("model {}\n", summary(request.model));
  text += fmt::format("{} of {}; {} samples of {} tokens a step, {}\n", counted(request.ranks, "rank"),
                      request.profile.name, train.global_batch, train.seq_len, word_of(train.dtype));
  for (const std::string& source : request.profile.sources) text += fmt::format("  {}\n", source);
  if (request.profile.rank_kinds) text += fmt::format("  unequal: {}\n", describe_rank_kinds(request.profile));
  text += fmt::format("weighed {} layouts in {:.2f} s, {} fit; {} simulated in {:.2f} s\n", result.layouts,
                      result.closed_form_s, result.fitting, result.best.size() + result.too_big.size(),
                      result.simulation_s);
  return text;
}

// What a run of the layout would choose in place of "measured", as `plan` expects it; "" where nothing.
std::string shares_of(const Request& request, const Layout& layout) {
  RunSpec run = request.run;
  if (!layout.transport.empty()) run.moe.transport = layout.transport;  // which decides what is shared
  return describe_shares(run,
                         with_shares_of(request.profile, request.model, run, layout, mesh_of(layout, request.ranks)));
}

std::string describe_chosen_shares(const Request& request, const Layout& layout) {
  const std::string shares = shares_of(request, layout);
  return shares.empty() ? "" : fmt::format("shares by the speeds of the ranks: {}\n", shares);
}

// Whether it fits, and what the best layout is short of: memory, and what takes most of its step.
std::string describe_limits(const Request& request, const SearchResult& result) {
  const Estimate& best = result.best.front();
  const StepTime& t = best.time;
  size_t stage = 0;
  const RankMemory& largest = largest_of(best, &stage);
  std::vector<std::pair<double, const char*>> parts = {
      {t.compute, "compute"}, {t.exchange, "exchanges"}, {t.bubble, "bubbles"}, {t.optimizer, "the optimizer"}};
  std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  const auto share = [&](size_t i) {
    return fmt::format("{} ({:.1f} %)", parts[i].second, 100 * parts[i].first / t.total());
  };
  const std::string margin = request.run.plan.memory_margin > 0
                                 ? fmt::format(" with a margin of {} of the memory", describe_margin(request))
                                 : "";
  std::string text = fmt::format(
      "it fits: {} of {} layouts do{}; the best needs {} of {} in stage {}, most of it {}\n"
      "what limits its speed: {}, then {}",
      result.fitting, result.layouts, margin, format_bytes(largest.needed()),
      format_bytes(request.profile.memory_bytes), stage, largest_kinds(largest), share(0), share(1));
  const auto faster = std::count_if(result.too_big.begin(), result.too_big.end(),
                                    [&](const Estimate& e) { return e.time.total() < t.total(); });
  return text +
         (faster > 0 ? "; and memory: faster layouts do not fit\n" : "; not memory: no faster layout needs more\n");
}

// Why a layout that is not recommended is not: "needs 70.1 GiB of 64.0 GiB".
std::string describe_excess(const Request& request, int64_t needed) {
  const std::string need =
      fmt::format("needs {} of {}", format_bytes(needed), format_bytes(request.profile.memory_bytes));
  if (fit_of(request, needed) == MemoryFit::none) return need;
  return fmt::format("{} and fits only without the margin of {}: set plan.memory_margin=0 to allow it", need,
                     describe_margin(request));
}

// The best layouts, a line each, and under each of the others why it is slower than the first.
std::string describe_best(const Request& request, const SearchResult& result, size_t count) {
  const std::span<const Estimate> shown = std::span(result.best).first(std::min(count, result.best.size()));
  const StepTime& best = shown.front().time;
  const Unit time_in = time_unit(best.total()), flops_in = flops_unit(rates_of(request, best.total()).flops_per_rank);
  int64_t most = 0;
  for (const Estimate& e : shown) most = std::max(most, e.needed);
  const Unit bytes_in = byte_unit(most);
  std::string text =
      fmt::format("\n{:>3} {:>10} {:>9} {:>6} {:>14}  {:>7} {:>8} {:>7} {:>9}  {}\n", "",
                  fmt::format("step {}", time_in.name), flops_in.name, "MFU", fmt::format("{} by stage", bytes_in.name),
                  "compute", "exchange", "bubble", "optimizer", "layout");
  for (size_t i = 0; i < shown.size(); ++i) {
    const StepTime& t = shown[i].time;
    const Rates rates = rates_of(request, t.total());
    const auto share = [&](double seconds) { return fmt::format("{:.1f} %", 100 * seconds / t.total()); };
    text += fmt::format("{:>3} {:>10} {:>9} {:>4.1f} % {:>14}  {:>7} {:>8} {:>7} {:>9}  {}\n", i + 1,
                        time_in.of(t.total()), flops_in.of(rates.flops_per_rank, 1), 100 * rates.mfu,
                        range_of_stages(shown[i], bytes_in), share(t.compute), share(t.exchange), share(t.bubble),
                        share(t.optimizer), describe(shown[i].layout));
    if (i == 0) continue;
    const std::string why = why_slower(t, best);
    text += fmt::format("    {:+.1f} %{}{}\n", 100 * (t.total() / best.total() - 1), why.empty() ? "" : ": ", why);
  }
  return text;
}

std::string wrapped(const std::string& text) { return wrap_text(text, kReportColumns, 2, true); }

}  // namespace

std::string describe(const Request& request, const SearchResult& result, int top) {
  std::string text = describe_request(request, result);
  for (const std::string& reason : trainable(request).refused) text += fmt::format("left out: {}\n", reason);
  if (result.best.empty()) return wrapped(text);
  const Estimate& best = result.best.front();
  text += describe_best(request, result, static_cast<size_t>(top));
  text += "\n" + describe_limits(request, result) + describe_chosen_shares(request, best.layout) +
          describe_memory(request, best) + describe_exchanges(request, best.layout);
  for (const Estimate& e : result.too_big)
    if (e.time.total() < best.time.total())
      text += fmt::format("faster by {:.1f} %, but {}: {}\n", 100 * (1 - e.time.total() / best.time.total()),
                          describe_excess(request, e.needed), describe(e.layout));
  return wrapped(text);
}

std::string describe_one(const Request& request, const SearchResult& result, const Estimate& estimate) {
  std::string text = describe_request(request, result) + "\n" + describe(estimate.layout) + "\n";
  text += describe_rates(request, estimate.time) + describe_chosen_shares(request, estimate.layout);
  const MemoryFit fit = fit_of(request, estimate.needed);
  if (!result.best.empty()) {
    const StepTime& best = result.best.front().time;
    const auto before = std::count_if(result.best.begin(), result.best.end(), [&](const Estimate& other) {
      return other.time.total() < estimate.time.total();
    });
    const std::string why = why_slower(estimate.time, best);
    text += fmt::format("{} of the {} simulated layouts that fit are faster; beside the best, {}: {:+.1f} %{}{}\n",
                        before, result.best.size(), describe(result.best.front().layout),
                        100 * (estimate.time.total() / best.total() - 1), why.empty() ? "" : ": ", why);
  }
  if (fit != MemoryFit::with_margin) {
    size_t rank = 0;
    const RankMemory& largest = largest_of(estimate, &rank);
    text += fmt::format("{}: stage {} {}; most of it is {}\n{}\n",
                        fit == MemoryFit::none ? "does not fit" : "fits, but is not recommended", rank,
                        describe_excess(request, largest.needed()), largest_kinds(largest),
                        smallest_change(request, result, estimate.layout));
  }
  return wrapped(text + describe_exchanges(request, estimate.layout) + describe_memory(request, estimate));
}

nlohmann::ordered_json to_json(const Request& request, const Estimate& estimate) {
  const Rates rates = rates_of(request, estimate.time.total());
  nlohmann::ordered_json json;
  const RunSpec run = with_layout(request.run, estimate.layout);
  json["layout"] = describe(estimate.layout);
  if (const std::string shares = shares_of(request, estimate.layout); !shares.empty()) json["shares"] = shares;
  const MemoryFit fit = fit_of(request, estimate.needed);
  json["fits"] = fit != MemoryFit::none;
  json["fits_with_margin"] = fit == MemoryFit::with_margin;
  json["step_s"] = estimate.time.total();
  json["compute_s"] = estimate.time.compute;
  json["exchange_s"] = estimate.time.exchange;
  json["bubble_s"] = estimate.time.bubble;
  json["optimizer_s"] = estimate.time.optimizer;
  json["tokens_per_s"] = rates.tokens_per_s;
  json["tflops_per_rank"] = rates.flops_per_rank * 1e-12;
  json["mfu"] = rates.mfu;
  json["needed_bytes"] = estimate.needed;
  for (const RankMemory& rank : estimate.memory) {
    nlohmann::ordered_json stage;
    stage["needed"] = rank.needed();
    for (int kind = 0; kind < kByteKinds; ++kind)
      stage[name_of(static_cast<ByteKind>(kind))] = rank.table.by_kind[kind];
    stage["fixed"] = rank.table.fixed;
    stage["on_host"] = rank.table.on_host;
    stage["libraries"] = rank.libraries;
    stage["rows_mean"] = rank.table.routed_mean;
    stage["rows_fullest"] = rank.rows_fullest;
    stage["rows_p99"] = rank.rows_p99;
    json["stages"].push_back(stage);
  }
  return json;
}

nlohmann::ordered_json to_json(const Request& request, const SearchResult& result, int top) {
  nlohmann::ordered_json json;
  json["model"] = summary(request.model);
  json["platform"] = request.profile.name;
  json["ranks"] = request.ranks;
  json["memory_bytes"] = request.profile.memory_bytes;
  json["memory_margin"] = request.run.plan.memory_margin;
  json["layouts"] = result.layouts;
  json["weighed"] = result.weighed.size();
  json["fitting"] = result.fitting;
  json["closed_form_s"] = result.closed_form_s;
  json["simulation_s"] = result.simulation_s;
  json["best"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < result.best.size() && i < static_cast<size_t>(top); ++i)
    json["best"].push_back(to_json(request, result.best[i]));
  return json;
}

std::string list_all(const Request& request, const SearchResult& result) {
  static constexpr const char* kNames[] = {"fits", "small-margin", "too-big"};  // by MemoryFit
  std::string text;
  for (const Weighed& weighed : result.weighed)
    text += fmt::format("{:.6f}\t{}\t{}\t{}\n", weighed.seconds, weighed.needed,
                        kNames[static_cast<size_t>(fit_of(request, weighed.needed))], describe(weighed.layout));
  return text;
}

void fail_without_room(const Request& request, const SearchResult& result) {
  const auto nearest = std::min_element(result.weighed.begin(), result.weighed.end(),
                                        [](const Weighed& a, const Weighed& b) { return a.needed < b.needed; });
  Estimator estimator(request.model, request.run, request.profile, request.load, request.ranks);
  const Estimate estimate = estimator.closed_form(nearest->layout);
  size_t stage = 0;
  const RankMemory& largest = largest_of(estimate, &stage);
  fail(Exit::memory,
       fmt::format("none of {} layouts fits{}: the nearest, {}, needs {} of {} in stage {}, most of it {}",
                   result.layouts,
                   fit_of(request, estimate.needed) == MemoryFit::none
                       ? ""
                       : fmt::format(" with the margin of {}", describe_margin(request)),
                   describe(nearest->layout), format_bytes(estimate.needed), format_bytes(request.profile.memory_bytes),
                   stage, largest_kinds(largest)),
       describe(find_remedies(request), request));
}

}  // namespace mw
