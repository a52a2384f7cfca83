#include "planner/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/host.h"
#include "config/batch_ramp.h"
#include "layout/divided.h"
#include "layout/plan.h"
#include "planner/weigh.h"

namespace mw {
namespace {

constexpr int64_t kTooBig = 5;  // layouts that are faster but too big, and as many that leave too small a margin
constexpr int64_t kMostCells = int64_t{1} << 20;  // stages x micro-batches that are worth a simulation

std::vector<int64_t> divisors_of(int64_t n) {
  std::vector<int64_t> small, large;
  for (int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    small.push_back(d);
    if (d * d != n) large.push_back(n / d);
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  return small;
}

bool can_be_cut(const ModelSpec& model, const RunSpec& run, int tp) {
  try {
    Mesh mesh;
    mesh.tp = tp;
    mesh.ted = run.moe.tp_mode == MoeTpMode::ted;
    check_tensor_parallel(model, run, mesh, tp);
    return true;
  } catch (const Error&) {
    return false;
  }
}

int64_t most_ep(const ModelSpec& model) {
  int64_t most = 0;
  for (const LayerSpec& layer : model.layers)
    if (layer.feed_forward == FeedForwardKind::moe)
      most = most == 0 ? layer.moe.experts : std::min(most, layer.moe.experts);
  return std::max<int64_t>(most, 1);
}

// Stages per rank worth trying: all that the layers allow, in powers of two. Without a pipeline all schedules are 1F1B.
std::vector<int> chunks_of(ScheduleKind schedule, int pp, int64_t layers, bool on_gpu) {
  if (pp == 1 && schedule != ScheduleKind::one_f_one_b) return {};
  if (schedule == ScheduleKind::zb_v) return 2 * pp <= layers ? std::vector<int>{2} : std::vector<int>{};
  if (schedule != ScheduleKind::interleaved) return {1};
  std::vector<int> chunks;
  for (int c = 2; int64_t{c} * pp <= layers; c *= 2)
    if (!on_gpu || most_links({schedule, pp, c, pp}) <= kGpuLinks) chunks.push_back(c);
  return chunks;
}

// Pipeline and tensor-parallel sizes that the ranks and the model allow.
std::vector<std::pair<int, int>> dense_meshes(const ModelSpec& model, const RunSpec& run, int ranks) {
  std::vector<int> tensor;
  for (const int64_t tp : divisors_of(ranks))
    if (can_be_cut(model, run, static_cast<int>(tp))) tensor.push_back(static_cast<int>(tp));
  std::vector<std::pair<int, int>> meshes;
  for (const int64_t pp : divisors_of(ranks))
    for (const int tp : tensor)
      if (pp <= model.layer_count() && ranks / pp % tp == 0) meshes.emplace_back(static_cast<int>(pp), tp);
  return meshes;
}

// Whether the rows of a layer can be counted, as make_plan asks, where a rank routes so many tokens.
bool holds_rows_of_layer(const Request& request, const Layout& layout, int64_t routed, const LayerSpec& layer,
                         TransportKind transport) {
  if (layer.feed_forward != FeedForwardKind::moe) return true;
  const int64_t equal = (layer.moe.experts + layout.ep - 1) / layout.ep,
                most = request.run.mesh.expert_shares.empty() ? equal : layer.moe.experts;
  return are_rows_countable(routed, layer.moe, layout.ep, most + replica_slots(request.run.moe, layout.ep), transport);
}

// Whether a rank may have so many tokens and rows at a time, as make_plan asks.
bool holds_tokens(const Request& request, const Layout& layout, int64_t dp,
                  const std::vector<TransportKind>& transports) {
  const RunSpec& run = request.run;
  const int64_t sequences = most_samples(run, layout.micro_batches, dp), tokens = sequences * run.train.seq_len;
  const bool per_sequence =
      (run.moe.capacity_factor > 0 && run.moe.capacity_domain == CapacityDomain::sequence) ||
      (aux_scope(run, request.model) == AuxScope::sequence && aux_loss_coef(run, request.model) > 0);
  const bool cuts_sequences = layout.tp > 1 && layout.tp_mode != MoeTpMode::ted && per_sequence;
  if (cuts_sequences)
    for (const int64_t samples : different_samples(run, layout.micro_batches, dp))
      if (samples % layout.tp != 0) return false;
  if (tokens > kMostTokens) return false;
  const int64_t routed = routed_tokens(mesh_of(layout, request.ranks), {}, tokens).count;
  for (size_t i = 0; i < transports.size(); ++i)
    if (!holds_rows_of_layer(request, layout, routed, request.model.layers[i], transports[i])) return false;
  return true;
}

// Whether experts can be cut into slices where transports compute with them, and divided over the ranks elsewhere: in
// some layer, where they have shares.
bool can_divide_experts(const Request& request, const Layout& layout, const std::vector<TransportKind>& transports) {
  const std::vector<LayerSpec>& layers = request.model.layers;
  const bool any = std::any_of(transports.begin(), transports.end(), divides_experts);
  if (!any && !request.run.mesh.expert_shares.empty()) return false;
  const std::string& widths = request.run.mesh.width_shares;
  const auto slices = [](TransportKind kind) { return traits_of(kind).slices_experts; };
  if (!widths.empty() && widths != kMeasuredShares && std::none_of(transports.begin(), transports.end(), slices))
    return false;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (divides_experts(transports[i]) && !can_share_experts(request.run, layers[i].moe.experts, layout.ep))
      return false;
    if (traits_of(transports[i]).slices_experts &&
        ((layout.tp > 1 && layout.tp_mode == MoeTpMode::ted) || layers[i].moe.bias ||
         !can_share_width(request.run, layers[i].moe.width, layout.ep)))
      return false;
  }
  return true;
}

// Whether every EP group lies on several nodes, with equally many members on each.
bool fills_nodes(RankGroup group, int64_t node, int64_t ranks) {
  if (ranks % node != 0 || group.stride * group.size <= node) return false;
  return group.stride < node ? node % group.stride == 0 && group.stride * group.size % node == 0
                             : group.stride % node == 0;
}

// Placements that make a difference, each with the transports to weigh.
struct Placed {
  RankPlacement placement;
  std::vector<std::string> transports;
};
std::vector<Placed> placements_to_try(const Request& request, Layout layout, int64_t shared) {
  std::vector<Placed> placements;
  for (const RankPlacement placement : {RankPlacement::ep_first, RankPlacement::dp_first}) {
    if (placement == RankPlacement::dp_first && (layout.ep == 1 || layout.ep == shared)) continue;
    layout.placement = placement;
    placements.push_back({placement, transports_to_try(request, layout)});
  }
  return placements;
}

// Without transports whose rows a layout of so many micro-batches cannot count.
std::vector<Placed> countable(const Request& request, const Layout& layout, std::vector<Placed> placements) {
  for (Placed& placed : placements)
    std::erase_if(placed.transports, [&](const std::string& transport) {
      return !transport.empty() && !holds_rows(request, layout, transport);
    });
  return placements;
}

// The layout with each of these, and every ZeRO stage that makes a difference.
void add_placed(std::vector<Layout>& layouts, const std::vector<Placed>& placements, Layout layout, int64_t stage) {
  for (const Placed& placed : placements) {
    layout.placement = placed.placement;
    for (const std::string& transport : placed.transports) {
      // Gathered weights bring no rows that "moe" could drop.
      if (transport == "gather_weights" && layout.recompute == Recompute::moe) continue;
      layout.transport = transport;
      for (const int zero : {0, 1}) {
        if (zero == 1 && stage == 1) continue;
        layout.zero = zero;
        layouts.push_back(layout);
      }
    }
  }
}

bool faster(const Weighed& a, const Weighed& b) {
  return std::tie(a.seconds, a.needed) < std::tie(b.seconds, b.needed);
}

// Whether they differ only in their placement and cost the same, as where all ranks share a node.
bool are_twins(const Weighed& a, const Weighed& b) {
  Layout moved = a.layout;
  moved.placement = b.layout.placement;
  return a.seconds == b.seconds && a.needed == b.needed && moved == b.layout;
}

}  // namespace

Request make_request(const RunSpec& run) {
  Request request;
  request.run = run;
  if (run.plan.platform.empty())
    fail(Exit::usage, "no platform profile to plan for",
         "pass --platform profiles/h200x8.json or set plan.platform; `moewright probe` measures your machine");
  if (run.plan.ranks == 0) fail(Exit::usage, "no number of ranks to plan for", "pass --ranks 8 or set plan.ranks");
  request.ranks = static_cast<int>(run.plan.ranks);
  request.model = load_model_spec(run);
  request.profile = read_platform_profile(run.plan.platform, request.ranks);
  request.load.concentration = run.plan.balance;
  return request;
}

MemoryFit fit_of(const Request& request, int64_t needed) {
  const int64_t memory = request.profile.memory_bytes;
  const auto margin = static_cast<int64_t>(request.run.plan.memory_margin * static_cast<double>(memory));
  if (needed <= memory - margin) return MemoryFit::with_margin;
  return needed <= memory ? MemoryFit::without_margin : MemoryFit::none;
}

Trainable trainable(const Request& request) {
  // Two layers of each kind are enough to ask about.
  ModelSpec model = LayerKinds(request.model, "auto").model;
  const std::vector<LayerSpec> again = model.layers;
  model.layers.insert(model.layers.end(), again.begin(), again.end());
  Trainable out;
  std::optional<Error> first;
  std::set<std::string> reasons;
  for (const ScheduleKind schedule : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved,
                                      ScheduleKind::zb_h1, ScheduleKind::zb_v})
    for (const Recompute recompute :
         {Recompute::keep_norms, Recompute::none, Recompute::selective, Recompute::moe, Recompute::full}) {
      Layout layout;
      layout.schedule = schedule;
      layout.recompute = recompute;
      if (schedule == ScheduleKind::interleaved || schedule == ScheduleKind::zb_v) layout.chunks = 2;
      if (layout.chunks > request.model.layer_count()) continue;
      RunSpec run = with_layout(request.run, layout);
      run.train.global_batch = 1;
      run.train.batch_ramp.clear();
      run.mesh.stage_layers.clear();
      run.train.lr_scales.clear();
      run.moe.transport = "auto";
      run.mesh.shares.clear();
      run.mesh.width_shares.clear();
      run.mesh.expert_shares.clear();
      try {
        make_plan(model, run, 1, 0, platform_of(request.profile, run));
        out.pairs.emplace_back(schedule, recompute);
      } catch (const Error& error) {
        if (!first) first = error;
        if (reasons.insert(error.what()).second) out.refused.emplace_back(error.what());
      }
    }
  if (out.pairs.empty()) throw *first;
  return out;
}

std::vector<std::string> transports_to_try(const Request& request, const Layout& layout) {
  std::vector<std::string> names = {""};
  if (request.run.moe.transport != "auto" || layout.ep == 1) return names;
  const RankGroup group = ep_group(mesh_of(layout, request.ranks));
  const int64_t node = ranks_per_node(request.run, request.profile);
  const bool on_nodes = fills_nodes(group, node, request.ranks),
             on_one = members_near(group, node, request.ranks) == group.size, alone = node == 1;
  const bool sums_in_f32 = request.run.expert_gradients == DType::f32;
  for (const TransportTraits& traits : transport_table()) {
    const std::string name(traits.name);
    bool can = traits.gathers_weights && sums_in_f32;
    // Without merges, rows of a rank that is alone on its node travel as with flat.
    if (traits.by_node) can = traits.merges ? on_nodes || on_one : on_nodes && !alone;
    if (traits.slices_experts)
      can = can_divide_experts(request, layout, choose_transports(transport_names(name, request.model), layout.ep));
    can = can && (divides_experts(traits.kind) || request.run.mesh.expert_shares.empty());
    can = can && (traits.splits_rows || replica_slots(request.run.moe, layout.ep) == 0);
    if (can) names.push_back(name);
  }
  return names;
}

bool holds_rows(const Request& request, const Layout& layout, const std::string& transport) {
  const Mesh mesh = mesh_of(layout, request.ranks);
  const int64_t tokens = most_samples(request.run, layout.micro_batches, mesh.dp) * request.run.train.seq_len,
                routed = routed_tokens(mesh, {}, tokens).count;
  const TransportKind kind = choose_transport(transport, layout.ep);
  const std::vector<LayerSpec>& layers = request.model.layers;
  return std::all_of(layers.begin(), layers.end(),
                     [&](const LayerSpec& layer) { return holds_rows_of_layer(request, layout, routed, layer, kind); });
}

std::vector<Layout> layouts_of(const Request& request) {
  const RunSpec& run = request.run;
  const std::vector<std::pair<ScheduleKind, Recompute>> pairs = trainable(request).pairs;
  const int64_t layers = request.model.layer_count(), experts = most_ep(request.model);
  const std::vector<std::string> names = transport_names(run.moe.transport, request.model);
  check_dtypes(run, choose_transports(names, 1));
  std::vector<Layout> layouts;
  for (const auto& [pp, tp] : dense_meshes(request.model, run, request.ranks)) {
    const int64_t stage = request.ranks / pp, dp = stage / tp;
    Layout layout;
    layout.pp = pp;
    layout.tp = tp;
    layout.tp_mode = run.moe.tp_mode;
    const int64_t shared = layout.tp_mode == MoeTpMode::ted ? dp : stage;  // ranks that share the experts out
    for (const int64_t ep : divisors_of(shared)) {
      if (ep > experts || (ep > 1 && !allows_sharded_experts(run.moe.transport))) continue;
      layout.ep = static_cast<int>(ep);
      const std::vector<TransportKind> transports = choose_transports(names, ep);
      check_replicas(run, ep, transports);
      if (!can_divide_experts(request, layout, transports)) continue;
      const std::vector<Placed> placements = placements_to_try(request, layout, shared);
      for (const int64_t micro_batches : divisors_of(run.train.global_batch)) {
        layout.micro_batches = micro_batches;
        if (!can_share_samples(run, micro_batches, dp) || !divides_batch_ramp(run.train, micro_batches) ||
            !holds_tokens(request, layout, dp, transports))
          continue;
        const std::vector<Placed> placed = countable(request, layout, placements);
        for (const auto& [schedule, recompute] : pairs) {
          layout.schedule = schedule;
          layout.recompute = recompute;
          for (const int chunks : chunks_of(schedule, pp, layers, request.profile.one_packed_form)) {
            layout.chunks = chunks;
            if (micro_batches * layout.stages() <= kMostCells) add_placed(layouts, placed, layout, stage);
          }
        }
      }
    }
  }
  return layouts;
}

void check_layout(const Request& request, const Layout& layout) {
  if (const int links = most_links(layout.pipeline()); request.profile.one_packed_form && links > kGpuLinks)
    fail(Exit::unsupported,
         fmt::format("stages of one rank send and receive {} kinds of messages, a GPU has queues for {}", links,
                     kGpuLinks),
         "use fewer stages per rank: a smaller chunks");
  RunSpec run = with_layout(request.run, layout);
  if (layout.stages() == layout_of(request.run).stages()) run.mesh.stage_layers = request.run.mesh.stage_layers;
  make_plan(request.model, run, request.ranks, 0, platform_of(request.profile, request.run));
}

// The most ranks, fewer than those of the request, of which a data-parallel size divides the step.
static int64_t most_ranks_below(const Request& request) {
  const int64_t below = request.ranks - 1;
  const std::vector<int64_t> sizes = divisors_of(request.run.train.global_batch);
  int64_t most = 1, heads = below;
  for (const LayerSpec& layer : request.model.layers) heads = std::min(heads, layer.attention.heads);
  for (int64_t tp = 1; tp <= heads; ++tp) {
    if (!can_be_cut(request.model, request.run, static_cast<int>(tp))) continue;
    for (int64_t pp = 1; pp <= std::min<int64_t>(request.model.layer_count(), below / tp); ++pp) {
      const auto dp = std::upper_bound(sizes.begin(), sizes.end(), below / (pp * tp)) - 1;
      most = std::max(most, pp * tp * *dp);
    }
  }
  return most;
}

// key: shares of the expert-parallel ranks.
static void fail_without_groups_of(const Request& request, const char* key, const std::string& shares) {
  if (shares.empty() || shares == kMeasuredShares) return;
  const int64_t ep = std::ssize(parse_shares(shares, key));
  if (request.ranks % ep == 0) return;
  fail(Exit::config,
       fmt::format("no layout of {} ranks has expert-parallel groups of {} ranks, as {} = \"{}\" lists", request.ranks,
                   ep, key, shares),
       fmt::format("set --ranks to a multiple of the number of shares, or leave {} empty", key));
}

void fail_without_layouts(const Request& request) {
  fail_without_groups_of(request, "mesh.expert_shares", request.run.mesh.expert_shares);
  fail_without_groups_of(request, "mesh.width_shares", request.run.mesh.width_shares);
  const int64_t batch = request.run.train.global_batch;
  const std::string& shares = request.run.mesh.shares;
  if (!shares.empty() && shares != kMeasuredShares) {
    const int64_t dp = std::ssize(parse_shares(shares, "mesh.shares"));
    fail(Exit::config,
         fmt::format(
             "no layout of {} ranks has {} data-parallel ranks, as mesh.shares = \"{}\" lists, and divides a step "
             "of {} samples into micro-batches of at least {}",
             request.ranks, dp, shares, batch, dp),
         "set --ranks to a multiple of the number of shares, raise train.global_batch, or leave mesh.shares empty");
  }
  // The smallest batch from `batch` on that some data-parallel size of so many ranks divides.
  const auto batch_for = [&](int ranks) {
    int64_t smallest = 0;
    for (const auto& [pp, tp] : dense_meshes(request.model, request.run, ranks)) {
      const int64_t dp = ranks / pp / tp, above = (batch + dp - 1) / dp * dp;
      if (smallest == 0 || above < smallest) smallest = above;
    }
    return smallest;
  };
  const int64_t nearest = batch_for(request.ranks);
  if (nearest == batch) {  // it is not the batch: the plainest layouts say what it is
    for (const auto& [pp, tp] : dense_meshes(request.model, request.run, request.ranks)) {
      const int64_t dp = request.ranks / pp / tp;
      if (batch % dp != 0) continue;
      Layout plain;
      plain.pp = pp;
      plain.tp = tp;
      plain.tp_mode = request.run.moe.tp_mode;
      plain.micro_batches = batch / dp;
      check_layout(request, plain);
    }
    fail(Exit::config, fmt::format("no layout of {} ranks is possible for this model and step", request.ranks),
         "`plan RUN --why \"pp=1 tp=2\"` says why one layout is refused");
  }
  fail(
      Exit::config,
      fmt::format("no layout of {} ranks can share a step of {} samples: whatever mesh.pp (at most {}, the layers) and "
                  "mesh.tp (of divisors of the attention heads) are, the data-parallel size does not divide them",
                  request.ranks, batch, request.model.layer_count()),
      fmt::format("the nearest that works: train.global_batch={}, or --ranks {}", nearest, most_ranks_below(request)));
}

// Sums of bytes must stay exact integers, with every micro-batch of a step alive.
static void check_countable(const Request& request) {
  constexpr double kMostBytesOfAnElement = 64;
  double elements = 0;  // of a token
  for (const LayerSpec& layer : request.model.layers) {
    const MoeSpec& m = layer.moe;
    elements += static_cast<double>(request.model.width + layer.attention.heads * layer.attention.head_dim + m.experts +
                                    m.shared_width + layer.dense_width) +
                static_cast<double>(m.top_k) * static_cast<double>(request.model.width + m.width);
  }
  const TrainSpec& train = request.run.train;
  const double tokens = static_cast<double>(train.global_batch) * static_cast<double>(train.seq_len);
  if (tokens * elements * kMostBytesOfAnElement > 0x1p60)
    fail(Exit::config, fmt::format("a step of {:.3g} tokens is more than a plan can count", tokens),
         "lower train.global_batch or train.seq_len");
}

SearchResult search(const Request& request, int simulated, const std::function<void(int64_t)>& found) {
  check_countable(request);
  check_offload(request.run, request.profile);
  double begin = now_seconds();
  const std::vector<Layout> layouts = layouts_of(request);
  if (layouts.empty()) fail_without_layouts(request);
  SearchResult result;
  result.layouts = std::ssize(layouts);
  if (found) found(result.layouts);
  result.weighed = weigh(request, layouts);
  std::stable_sort(result.weighed.begin(), result.weighed.end(), faster);
  result.closed_form_s = now_seconds() - begin;

  begin = now_seconds();
  std::vector<Weighed> chosen;
  std::array<int64_t, 3> taken{};  // by MemoryFit
  for (const Weighed& weighed : result.weighed) {
    const MemoryFit fit = fit_of(request, weighed.needed);
    const bool fits = fit == MemoryFit::with_margin;
    if (fits) ++result.fitting;
    int64_t& alike = taken[static_cast<size_t>(fit)];
    if (alike >= (fits ? simulated : kTooBig)) continue;
    if (std::any_of(chosen.begin(), chosen.end(), [&](const Weighed& w) { return are_twins(w, weighed); })) continue;
    ++alike;
    chosen.push_back(weighed);
  }
  std::vector<Layout> exactly;
  for (const Weighed& weighed : chosen) exactly.push_back(weighed.layout);
  std::vector<Estimate> exact(exactly.size());
  for_each_estimated(request, exactly,
                     [&](Estimator& estimator, size_t i) { exact[i] = estimator.simulated(exactly[i]); });
  std::stable_sort(exact.begin(), exact.end(), [](const Estimate& a, const Estimate& b) {
    return std::make_tuple(a.time.total(), a.needed) < std::make_tuple(b.time.total(), b.needed);
  });
  for (Estimate& estimate : exact) {
    const bool fits = fit_of(request, estimate.needed) == MemoryFit::with_margin;
    (fits ? result.best : result.too_big).push_back(std::move(estimate));
  }
  result.simulation_s = now_seconds() - begin;
  return result;
}

bool fits_somehow(const Request& request) {
  bool fits = false;
  weigh(request, layouts_of(request), &fits);
  return fits;
}

}  // namespace mw
