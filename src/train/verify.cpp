#include "train/verify.h"
#include "comm/cores.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/text.h"
#include "core/rng.h"
#include "moe/moe_layer.h"
#include "ops/cross_entropy.h"
#include "train/reference_state.h"
#include "train/routing_check.h"
#include "train/step.h"
#include "train/watchdog.h"

namespace mw {
namespace {

constexpr double kGapOfAFlip = 1e-5;
constexpr double kSumsOverLoss = 10;  // what bf16 does to other sums than the loss
constexpr double kUpdateTolerance = 1e-4, kUpdateToleranceBf16 = 1e-2;
constexpr double kDocuments = 4;           // of a sample
constexpr double kGradientOfAKink = 1e-2;  // the most that a value on the other side of a kink may change
constexpr int kOtherTokens = 2;            // times that such a step is made again

// of_a_kink: nothing but gradients is wrong, and by no more than that.
enum class Verdict : int64_t { passed, of_a_kink, failed };

struct Difference {
  std::string name;
  double error = 0;
};

bool differs(const RoutingDifference& d) { return d.tokens > 0 || d.drops > 0; }

// Whether the derivative of the model jumps somewhere, where rounding decides which side a value is on.
bool has_kinks(const ModelSpec& model) {
  return std::any_of(model.layers.begin(), model.layers.end(), [](const LayerSpec& layer) {
    return layer.attention.clip_qkv > 0 || layer.activation == Activation::relu;
  });
}

RunSpec reference_run(RunSpec run) {
  run.mesh = MeshSpec{};
  run.moe.transport = "auto";
  run.moe.row_chunks = 1;
  run.moe.expert_products = "grouped";
  run.recompute = run.offload = "none";
  run.fault.clear();
  return run;
}

class Verifier {
 public:
  Verifier(World& world, const RunSpec& run)
      : comm_(world.comm()),
        run_(run),
        leader_(comm_.rank() == 0),
        fp32_(run.dtype() == DType::f32),
        model_(load_model_spec(run)),
        self_(make_self_comm()) {
    if (run.moe.capacity_factor > 0 && run.moe.capacity_domain == "rank" && comm_.size() > 1)
      fail(Exit::config, "with moe.capacity_domain = \"rank\" the dropped rows depend on the layout by definition",
           "set moe.capacity_domain = \"sequence\"");
    const NodePlace place = place_on_node(world, run.mesh);
    const int threads = threads_per_rank(run.train.threads, place.ranks);
    layout_ = std::make_unique<Engine>(model_, run_, comm_, threads, place);
    if (!leader_) return;
    reference_ = std::make_unique<Engine>(model_, reference_run(run_), *self_, threads);
    reference_->stream.trace().note_phases(comm_.progress());  // this rank is at work, though alone
    reference_->params.initialise(static_cast<uint64_t>(run_.train.seed), reference_->stream);
    refresh_weights(*reference_);
  }

  Exit run();

 private:
  std::vector<MicroBatch> make_batches(const Plan& plan, int64_t step, int attempt) const;
  Routing empty_routing(const Plan& plan) const;
  bool forces_routing() const { return run_.verify.routing != "learned"; }
  void force_routing(Routing& routing) const;
  // Watch a run's choices and gate weights, into `own`, unless they are forced; replay those of another one, and with
  // them what its capacity dropped.
  TapProvider taps(Routing& own, const Routing* replayed = nullptr, bool with_drops = false) const;
  void share_routing(Routing& global) const;
  Routing local_part(const Routing& global) const;
  bool is_routed_here(size_t l) const;
  std::vector<double> square_differences(const Parameter& p, const std::vector<float>& global, int64_t units,
                                         std::vector<int64_t>& compared);
  int64_t domain_tokens(int64_t tokens) const {
    return run_.moe.capacity_domain == "sequence" ? run_.train.seq_len : std::max<int64_t>(tokens, 1);
  }
  RoutingDifference compare_with(const Routing& expected, const Routing& got, bool alike) const;
  bool judge_routing(const RoutingDifference& difference, const RoutingDifference& own);
  std::vector<Difference> compare_gradients(double reference_norm);
  Verdict judge(const StepStats& expected, const StepStats& got);
  Verdict try_step(int64_t step, int attempt, StepStats& expected);
  bool judge_update(int64_t step, StepStats expected);
  void say(const std::string& text) const {
    if (leader_) std::fputs((text + "\n").c_str(), stdout);
    if (leader_) std::fflush(stdout);
  }

  Comm& comm_;
  RunSpec run_;
  bool leader_, fp32_;
  ModelSpec model_;
  std::unique_ptr<Comm> self_;
  std::unique_ptr<Engine> layout_, reference_;
};

// Sample i of a step is the same in every layout; later samples have more ignored labels, so that ranks have unequal
// numbers. With data.document_mask about kDocuments begin anywhere in a sample, some on neighbouring tokens.
std::vector<MicroBatch> Verifier::make_batches(const Plan& plan, int64_t step, int attempt) const {
  const std::string other = attempt > 0 ? fmt::format(".{}", attempt) : "";
  const RngKey key = make_rng_key(static_cast<uint64_t>(run_.train.seed), fmt::format("verify.{}{}", step, other));
  const int64_t per_micro_batch = run_.train.global_batch / run_.train.micro_batches, seq_len = run_.train.seq_len;
  std::vector<MicroBatch> batches;
  for (int64_t j = 0; j < run_.train.micro_batches; ++j) {
    MicroBatch batch;
    batch.sequences = plan.batch.sequences;
    batch.seq_len = seq_len;
    for (int64_t b = 0; b < batch.sequences; ++b) {
      const int64_t sample = j * per_micro_batch + plan.coords.dp * batch.sequences + b;
      const double ignored = std::min(0.95, 2.0 * run_.verify.ignore_fraction * static_cast<double>(sample + 1) /
                                                static_cast<double>(run_.train.global_batch));
      for (int64_t t = 0; t < seq_len; ++t) {
        const auto at = static_cast<uint64_t>(sample * (seq_len + 1) + t);
        const auto token = [&](uint64_t i) {
          return static_cast<int32_t>(bits_at(key, i) % static_cast<uint64_t>(model_.vocab));
        };
        batch.ids.push_back(token(at));
        batch.labels.push_back(uniform_at(key, (uint64_t{1} << 40) + at) < ignored ? kIgnoreLabel : token(at + 1));
        if (!run_.data.document_mask) continue;
        const bool begins = uniform_at(key, (uint64_t{1} << 41) + at) < kDocuments / static_cast<double>(seq_len);
        const auto here = static_cast<int32_t>(t);
        batch.document_starts.push_back(begins || t == 0 ? here : batch.document_starts.back());
      }
    }
    batches.push_back(std::move(batch));
  }
  return batches;
}

Routing Verifier::empty_routing(const Plan& plan) const {
  Routing r;
  r.tokens = routed_tokens(plan.mesh, plan.coords, plan.batch.tokens()).count;
  for (int64_t j = 0; j < run_.train.micro_batches; ++j) {
    r.ids.emplace_back();
    r.gaps.emplace_back();
    r.weights.emplace_back();
    for (const bool best : {false, true})
      for (const LayerSpec& layer : model_.layers) {
        if (layer.feed_forward != FeedForwardKind::moe) continue;
        const bool is_there = !best || counts_best_scores(run_, model_, layer);
        r.ids.back().emplace_back(static_cast<size_t>(is_there ? r.tokens * layer.moe.top_k : 0));
        r.gaps.back().emplace_back(static_cast<size_t>(is_there ? r.tokens : 0));
        const bool drops = !best && run_.moe.capacity_factor > 0;
        r.weights.back().emplace_back(static_cast<size_t>(drops ? r.tokens * layer.moe.top_k : 0));
      }
  }
  return r;
}

// Hostile loads: every row on the first K experts, or none on expert 0.
void Verifier::force_routing(Routing& routing) const {
  const bool skip = run_.verify.routing == "skip_expert";
  for (auto& layers : routing.ids) {
    size_t l = 0;
    for (const LayerSpec& layer : model_.layers) {
      if (layer.feed_forward != FeedForwardKind::moe) continue;
      const int64_t experts = layer.moe.experts, k = layer.moe.top_k;
      if (skip && k > experts - 1)
        fail(Exit::config, "verify.routing = \"skip_expert\" needs fewer experts per token than experts",
             "lower model.top_k");
      for (int64_t t = 0; t < routing.tokens; ++t)
        for (int64_t i = 0; i < k; ++i)
          layers[l][static_cast<size_t>(t * k + i)] = static_cast<int32_t>(skip ? 1 + (t * 5 + i) % (experts - 1) : i);
      ++l;
    }
  }
}

TapProvider Verifier::taps(Routing& own, const Routing* replayed, bool with_drops) const {
  return [this, &own, replayed, with_drops](int64_t micro_batch) {
    const auto j = static_cast<size_t>(micro_batch);
    std::vector<RoutingTap> list(own.ids[j].size() / 2);
    for (size_t l = 0; l < list.size(); ++l) {
      const size_t best = list.size() + l;
      const bool drops = !own.weights[j][l].empty(), counts_best = !own.ids[j][best].empty() && !forces_routing();
      RoutingTap& tap = list[l];
      if (!forces_routing()) tap.ids = own.ids[j][l].data(), tap.gaps = own.gaps[j][l].data();
      if (counts_best) tap.best_ids = own.ids[j][best].data(), tap.best_gaps = own.gaps[j][best].data();
      if (drops) tap.weights = own.weights[j][l].data();
      if (replayed == nullptr) continue;
      tap.replay_ids = replayed->ids[j][l].data();
      if (counts_best) tap.replay_best_ids = replayed->ids[j][best].data();
      if (drops && with_drops) tap.ranking = replayed->weights[j][l].data();
    }
    return list;
  };
}

void Verifier::share_routing(Routing& global) const {
  for (auto& layers : global.ids)
    for (auto& ids : layers) comm_.broadcast(std::as_writable_bytes(std::span(ids)), 0);
  for (auto* values : {&global.gaps, &global.weights})
    for (auto& layers : *values)
      for (auto& of_layer : layers) comm_.broadcast(std::as_writable_bytes(std::span(of_layer)), 0);
}

// This rank's tokens: neighbours in every micro-batch.
Routing Verifier::local_part(const Routing& global) const {
  const Plan& plan = layout_->plan;
  Routing local = empty_routing(plan);
  const int64_t first =
      plan.coords.dp * plan.batch.tokens() + routed_tokens(plan.mesh, plan.coords, plan.batch.tokens()).begin;
  for (size_t j = 0; j < local.ids.size(); ++j)
    for (size_t l = 0; l < local.ids[j].size(); ++l) {
      const std::vector<int32_t>& ids = local.ids[j][l];
      if (ids.empty()) continue;
      const int64_t top_k = std::ssize(global.ids[j][l]) / global.tokens;
      std::copy_n(global.ids[j][l].begin() + first * top_k, ids.size(), local.ids[j][l].begin());
      std::copy_n(global.gaps[j][l].begin() + first, local.gaps[j][l].size(), local.gaps[j][l].begin());
      if (!local.weights[j][l].empty())
        std::copy_n(global.weights[j][l].begin() + first * top_k, ids.size(), local.weights[j][l].begin());
    }
  return local;
}

// Whether MoE layer l is on one of this rank's stages.
bool Verifier::is_routed_here(size_t l) const {
  const int64_t layer = layout_->model.moe_index()[l];
  return std::any_of(layout_->plan.stages.begin(), layout_->plan.stages.end(),
                     [&](const StagePlan& s) { return s.has_layer(layer); });
}

// Over all ranks. alike: what comes before each layer is the reference's. Else only the gaps of the first layer of a
// micro-batch that differs count: what differs behind it may come of it.
RoutingDifference Verifier::compare_with(const Routing& expected, const Routing& got, bool alike) const {
  const std::vector<int64_t>& moe_layers = layout_->model.moe_index();
  const bool copies = layout_->plan.mesh.ted && layout_->plan.coords.tp > 0;  // of the same tokens
  std::vector<int64_t> counts;
  std::vector<double> gaps;
  for (size_t j = 0; j < expected.ids.size(); ++j)
    for (size_t l = 0; l < moe_layers.size(); ++l) {
      RoutingDifference choice, best;
      if (!copies && is_routed_here(l)) {
        const MoeSpec& moe = model_.layers[static_cast<size_t>(moe_layers[l])].moe;
        const CapacityRule capacity = capacity_rule(moe, domain_tokens(expected.tokens), run_.moe.capacity_factor);
        const auto compare = [&](size_t at) {
          return compare_routing(layer_of(expected, j, at), layer_of(got, j, at), expected.tokens, capacity);
        };
        choice = compare(l);
        best = compare(moe_layers.size() + l);
      }
      counts.insert(counts.end(), {choice.tokens, choice.drops, best.tokens});
      gaps.push_back(std::max(choice.widest_gap, best.widest_gap));
    }
  comm_.all_reduce_sum(std::span(counts));
  comm_.all_reduce_max(std::span(gaps));
  RoutingDifference sum;
  bool differed = false;  // in this micro-batch
  for (size_t i = 0; i < gaps.size(); ++i) {
    if (i % moe_layers.size() == 0) differed = false;
    const int64_t tokens = counts[3 * i], drops = counts[3 * i + 1], best = counts[3 * i + 2];
    sum.add({tokens + best, drops, alike || !differed ? gaps[i] : 0});
    differed = differed || tokens > 0 || drops > 0;  // the best scores have no part in what follows
  }
  return sum;
}

// Between the gradient of the reference and this rank's, per unit: summed over the owners where each has a cut.
// compared: elements of each unit on this rank.
std::vector<double> Verifier::square_differences(const Parameter& p, const std::vector<float>& global, int64_t units,
                                                 std::vector<int64_t>& compared) {
  const std::vector<int64_t>& shape = p.row.shape;
  const int64_t per_unit = p.row.numel() / units;
  std::vector<double> squares(static_cast<size_t>(units));
  for (const HeldSlice& part : held_slices(shape, p.pieces, p.owned))
    for_each_shared_run(shape, whole_tensor(shape), part.slice, [&](int64_t from, int64_t to, int64_t count) {
      const int64_t own = p.owned.begin + part.at + to;
      for (int64_t i = 0; i < count; ++i) {
        const double d =
            static_cast<double>(value_at(p.grad, own + i)) - static_cast<double>(global[static_cast<size_t>(from + i)]);
        squares[static_cast<size_t>((from + i) / per_unit)] += d * d;
        ++compared[static_cast<size_t>((from + i) / per_unit)];
      }
    });
  if (layout_->params.block(p.replicas).is_cut()) layout_->comms.of(p.replicas).all_reduce_sum(std::span(squares));
  const bool is_slice = p.replicas == Replicas::dp || (p.row.expert && layout_->plan.mesh.ted);
  if (is_slice) layout_->comms.tp->all_reduce_sum(std::span(squares));
  return squares;
}

std::vector<Difference> Verifier::compare_gradients(double reference_norm) {
  std::vector<Difference> differences;
  comm_.broadcast(std::as_writable_bytes(std::span(&reference_norm, 1)), 0);
  for (const ParamRow& row : layout_->plan.params) {
    if (!row.trained) continue;
    std::vector<float> global(static_cast<size_t>(row.numel()));
    if (leader_)
      for (int64_t i = 0; i < row.numel(); ++i)
        global[static_cast<size_t>(i)] = value_at(reference_->params.find(row.name).grad, i);
    comm_.broadcast(std::as_writable_bytes(std::span(global)), 0);
    // One unit per expert, or the whole tensor.
    const int64_t units = row.expert ? row.shape[0] : 1, per_unit = row.numel() / units;
    std::vector<double> errors(static_cast<size_t>(units));
    std::vector<int64_t> compared(static_cast<size_t>(units));
    if (layout_->params.has(row.name))
      errors = square_differences(layout_->params.find(row.name), global, units, compared);
    comm_.all_reduce_sum(std::span(compared));
    for (size_t u = 0; u < errors.size(); ++u) {
      double norm = 0;
      for (int64_t i = 0; i < per_unit; ++i) {
        const double b = global[u * static_cast<size_t>(per_unit) + static_cast<size_t>(i)];
        norm += b * b;
      }
      errors[u] = std::sqrt(errors[u]) / std::max(std::sqrt(norm), 1e-6 * reference_norm);
      // All replicas and both copies of a dense gradient must agree: the largest counts, and a NaN is the largest.
      if (std::isnan(errors[u])) errors[u] = HUGE_VAL;
      // Whole copies only, and one at least.
      if (compared[u] == 0 || compared[u] % per_unit != 0) errors[u] = HUGE_VAL;
    }
    comm_.all_reduce_max(std::span(errors));
    for (int64_t u = 0; u < units; ++u)
      differences.push_back(
          {row.expert ? fmt::format("{}[{}]", row.name, u) : row.name, errors[static_cast<size_t>(u)]});
  }
  std::stable_sort(differences.begin(), differences.end(),
                   [](const Difference& a, const Difference& b) { return a.error > b.error; });
  return differences;
}

Verdict Verifier::judge(const StepStats& expected, const StepStats& got) {
  std::vector<Difference> gradients = compare_gradients(expected.grad_norm);
  Verdict verdict = Verdict::passed;
  if (leader_) {
    const auto relative = [](double a, double b) {
      return a == b ? 0.0 : std::abs(a - b) / std::max(std::abs(b), 1e-12);
    };
    const VerifySpec& v = run_.verify;
    const double loss_tolerance = fp32_ ? v.tolerance : v.loss_tolerance_bf16;
    const double sum_tolerance = fp32_ ? v.tolerance : kSumsOverLoss * v.loss_tolerance_bf16;
    const double tolerance = fp32_ ? v.tolerance : v.grad_tolerance_bf16;
    const double most_of_a_kink = fp32_ && has_kinks(model_) ? kGradientOfAKink : 0;
    const auto judged = [](double error, double most, double at_kinks) {
      return error <= most ? Verdict::passed : error <= at_kinks ? Verdict::of_a_kink : Verdict::failed;
    };
    const auto line = [&](const std::string& name, double value, double error, double most, double at_kinks = 0) {
      const Verdict of_line = judged(error, most, at_kinks);
      const char* word = of_line == Verdict::passed ? "" : of_line == Verdict::failed ? "FAIL: tolerance" : "beyond";
      say(fmt::format("  {:<44} {:>14} {:>10.2e}{}", name, std::isnan(value) ? "" : fmt::format("{:.8g}", value), error,
                      of_line == Verdict::passed ? "" : fmt::format("   {} {:.0e}", word, most)));
      verdict = std::max(verdict, of_line);
    };
    line("loss", got.loss, relative(got.loss, expected.loss), loss_tolerance);
    line("aux_loss", got.aux_loss, relative(got.aux_loss, expected.aux_loss), sum_tolerance);
    line("z_loss", got.z_loss, relative(got.z_loss, expected.z_loss), sum_tolerance);
    line("grad_norm", got.grad_norm, relative(got.grad_norm, expected.grad_norm), sum_tolerance, most_of_a_kink);
    const bool same_load = expected.load == got.load && expected.dropped_rows == got.dropped_rows;
    if (fp32_ && !same_load) verdict = Verdict::failed;
    say(fmt::format("  {:<44} {}, {} dropped", "expert load and dropped rows",
                    same_load ? "equal"
                    : fp32_   ? "FAIL: differ"
                              : "differ (printed only)",
                    got.dropped_rows));
    size_t printed = 0;
    for (const Difference& d : gradients) {
      const bool bad = !(d.error <= tolerance);
      if (printed < 3 || (bad && printed < 40))
        line("grad " + d.name, std::nan(""), d.error, tolerance, most_of_a_kink);
      verdict = std::max(verdict, judged(d.error, tolerance, most_of_a_kink));
      ++printed;
    }
    const auto beyond =
        std::count_if(gradients.begin(), gradients.end(), [&](const Difference& d) { return !(d.error <= tolerance); });
    say(fmt::format("  {} gradients compared, {} beyond {:.0e}, largest {:.2e}", gradients.size(), beyond, tolerance,
                    gradients.front().error));
  }
  comm_.broadcast(std::as_writable_bytes(std::span(&verdict, 1)), 0);
  return verdict;
}

// difference: from the reference. own: when all that comes before a layer is the reference's. What a layer chooses
// otherwise must be rounding in both.
bool Verifier::judge_routing(const RoutingDifference& difference, const RoutingDifference& own) {
  const auto count = [](int64_t n, const char* what) { return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s"); };
  const auto describe = [&](const RoutingDifference& d) {
    std::string text = count(d.tokens, "token") + " routed differently";
    if (d.drops > 0) text += fmt::format(", {} dropped by one alone", count(d.drops, "row"));
    return text;
  };
  if (differs(difference))
    say(fmt::format(
        "  {}, widest gap of the first {:.1e}; redone with the reference's routing, from equal inputs {}, widest gap "
        "{:.1e}",
        describe(difference), difference.widest_gap, describe(own), own.widest_gap));
  else if (!forces_routing()) say("  " + describe(difference));
  const double widest = std::max(difference.widest_gap, own.widest_gap);
  if (!fp32_ || widest < kGapOfAFlip) return true;
  say(fmt::format("  FAIL: a gap of {:.1e} is more than rounding can explain ({:.0e})", widest, kGapOfAFlip));
  return false;
}

// Both are updated from the reference's gradients and loads, and go on from there: what follows sees also what only
// forward reads. Moments that are rounded by chance are so for each element alike, but not on two kinds of kernel.
bool Verifier::judge_update(int64_t step, StepStats expected) {
  share_gradients(comm_, reference_.get(), *layout_);
  comm_.broadcast(std::as_writable_bytes(std::span(&expected.grad_norm, 1)), 0);
  const std::vector<int64_t>& moe_layers = layout_->model.moe_index();
  for (size_t i = 0; i < expected.load.size(); ++i) {
    expected.load[i].resize(static_cast<size_t>(model_.layers[static_cast<size_t>(moe_layers[i])].moe.experts));
    comm_.broadcast(std::as_writable_bytes(std::span(expected.load[i])), 0);
  }
  const UpdateRule rule{learning_rate(run_.train, step), step};
  if (leader_) apply_update(*reference_, expected, rule);
  apply_update(*layout_, expected, rule);
  const StateDifference d = compare_state(comm_, reference_.get(), *layout_, rule.lr);
  const double tolerance = run_.moment_dtype() == DType::bf16 ? kUpdateToleranceBf16 : kUpdateTolerance;
  const bool fine = d.worst <= tolerance;
  say(fmt::format("  update from equal gradients: {} of {} weights and moments differ{}{}", d.differing, d.elements,
                  d.differing > 0 ? fmt::format(", {} by {:.1e}", d.name, d.worst) : "",
                  fine ? "" : fmt::format("   FAIL: tolerance {:.0e}", tolerance)));
  return fine;
}

// Both runs' gradients of one step, from equal weights. attempt: above 0, on other tokens. expected: the reference's.
Verdict Verifier::try_step(int64_t step, int attempt, StepStats& expected) {
  const bool forced = forces_routing();
  // Routing of the whole micro-batch: the reference's tokens are all ranks' in order.
  Routing global = empty_routing(leader_ ? reference_->plan : make_plan(model_, reference_run(run_), 1, 0, Platform{}));
  if (forced) force_routing(global);
  if (leader_)
    expected = accumulate_gradients(*reference_, stage(*reference_, make_batches(reference_->plan, step, attempt)),
                                    taps(global, forced ? &global : nullptr));
  share_routing(global);
  const Routing local = local_part(global);
  Routing own;
  const std::vector<MicroBatch> batches = make_batches(layout_->plan, step, attempt);
  const auto run_layout = [&](const Routing* replayed, bool with_drops) {
    own = forced ? local : empty_routing(layout_->plan);
    return accumulate_gradients(*layout_, stage(*layout_, batches), taps(own, replayed, with_drops));
  };
  StepStats got = run_layout(forced ? &local : nullptr, false);
  const RoutingDifference difference = compare_with(local, own, false);
  RoutingDifference alike;
  if (differs(difference)) {
    got = run_layout(&local, true);
    alike = compare_with(local, own, true);
  }
  const bool routed_well = judge_routing(difference, alike);
  const Verdict verdict = judge(expected, got);
  expected.load.resize(got.load.size());
  return routed_well ? verdict : Verdict::failed;
}

Exit Verifier::run() {
  say(fmt::format("model: {}", summary(model_)));
  say(fmt::format("layout: {}; against one process, {}, {} steps", describe(layout_->plan.mesh), run_.train.dtype,
                  run_.verify.steps));
  bool ok = true;
  share_weights(comm_, reference_.get(), *layout_);
  for (int64_t step = 1; step <= run_.verify.steps; ++step) {
    begin_step(comm_, run_, step);
    say(fmt::format("step {}", step));
    StepStats expected;
    Verdict verdict = try_step(step, 0, expected);
    // Rounding moves hardly any value over a kink, and other values with other tokens; an error is there with all.
    if (verdict == Verdict::of_a_kink) {
      if (run_.fault == "fleeting_gradient") layout_->plan.run.fault.clear();
      verdict = Verdict::passed;
      say(fmt::format("  at most {:.0e}: a value may have been rounded over the border of relu or model.clip_qkv",
                      kGradientOfAKink));
      for (int other = 1; other <= kOtherTokens; ++other) {
        say(fmt::format("step {} with other tokens ({} of {})", step, other, kOtherTokens));
        if (try_step(step, other, expected) != Verdict::passed) verdict = Verdict::failed;
      }
      if (verdict == Verdict::failed) say("  FAIL: gradients are off with other tokens too");
    }
    ok = verdict == Verdict::passed && ok;
    ok = judge_update(step, std::move(expected)) && ok;
  }
  say(ok ? "verify: passed" : "verify: FAILED");
  return ok ? Exit::ok : Exit::check_failed;
}

}  // namespace

Exit run_verify(World& world, const RunSpec& run) { return Verifier(world, run).run(); }

}  // namespace mw
