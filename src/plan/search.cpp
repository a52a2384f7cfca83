#include "plan/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>

#include "base/error.h"
#include "spec/plan.h"

namespace mw {
namespace {

constexpr int kThreads = 2;
constexpr size_t kTooBig = 5;
constexpr int64_t kMostTokens = int64_t{1} << 30;  // of a rank and micro-batch, as make_plan allows
constexpr int64_t kMostCells = int64_t{1} << 20;   // stages x micro-batches that are worth a simulation

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

bool divides_heads(const ModelSpec& model, const RunSpec& run, int tp) {
  try {
    Mesh mesh;
    mesh.tp = tp;
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

// Stages per rank worth trying: all that the layers allow, in powers of two.
std::vector<int> chunks_of(ScheduleKind schedule, int pp, int64_t layers) {
  if (schedule == ScheduleKind::zb_v) return pp > 1 && 2 * pp <= layers ? std::vector<int>{2} : std::vector<int>{};
  if (schedule != ScheduleKind::interleaved) return {1};
  std::vector<int> chunks;
  for (int c = 2; pp > 1 && int64_t{c} * pp <= layers; c *= 2) chunks.push_back(c);
  return chunks;
}

bool faster(const Weighed& a, const Weighed& b) {
  return std::tie(a.seconds, a.needed) < std::tie(b.seconds, b.needed);
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Calls body(estimator, index) for every index on kThreads threads; the first error is thrown.
void for_each_estimated(const Request& request, size_t count, const std::function<void(Estimator&, size_t)>& body) {
  std::atomic<size_t> next{0};
  std::exception_ptr error;
  std::mutex mutex;
  constexpr size_t kPiece = 64;  // neighbours share what an estimator remembers
  const auto work = [&] {
    try {
      Estimator estimator(request.model, request.run, request.profile, request.load, request.ranks);
      for (size_t begin = next.fetch_add(kPiece); begin < count; begin = next.fetch_add(kPiece))
        for (size_t i = begin; i < std::min(count, begin + kPiece); ++i) body(estimator, i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      next = count;
    }
  };
  std::thread other(work);
  work();
  other.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace

Trainable trainable(const Request& request) {
  Trainable out;
  std::set<std::string> reasons;
  for (const ScheduleKind schedule : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved,
                                      ScheduleKind::zb_h1, ScheduleKind::zb_v})
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::moe, Recompute::full}) {
      Layout layout;
      layout.schedule = schedule;
      layout.recompute = recompute;
      if (schedule == ScheduleKind::interleaved || schedule == ScheduleKind::zb_v) layout.chunks = 2;
      if (layout.chunks > request.model.layer_count()) continue;
      RunSpec run = with_layout(request.run, layout);
      run.train.global_batch = 1;
      run.mesh.stage_layers.clear();
      if (run.moe.transport == "in_place") run.moe.transport = "auto";
      try {
        make_plan(request.model, run, 1, 0, platform_of(request.profile));
        out.pairs.emplace_back(schedule, recompute);
      } catch (const Error& error) {
        if (reasons.insert(error.what()).second) out.refused.emplace_back(error.what());
      }
    }
  return out;
}

std::vector<Layout> layouts_of(const Request& request) {
  const ModelSpec& model = request.model;
  const RunSpec& run = request.run;
  const Trainable kinds = trainable(request);
  const int64_t layers = model.layer_count(), experts = most_ep(model);
  std::vector<Layout> layouts;
  std::vector<int> tensor;
  for (const int64_t tp : divisors_of(request.ranks))
    if (divides_heads(model, run, static_cast<int>(tp))) tensor.push_back(static_cast<int>(tp));
  for (const int64_t pp : divisors_of(request.ranks)) {
    if (pp > layers) break;
    const int64_t stage = request.ranks / pp;
    for (const int tp : tensor) {
      if (stage % tp != 0 || run.train.global_batch % (stage / tp) != 0) continue;
      const int64_t samples = run.train.global_batch / (stage / tp);
      const bool cuts_sequences = tp > 1 && run.moe.capacity_factor > 0 && run.moe.capacity_domain == "sequence";
      const bool ted = run.moe.tp_mode == "ted";
      const int64_t shared = ted ? stage / tp : stage;  // ranks that share the experts out
      for (const int64_t ep : divisors_of(shared)) {
        if (ep > experts || (ep > 1 && run.moe.transport == "in_place")) continue;
        for (const int64_t micro_batches : divisors_of(samples)) {
          const int64_t sequences = samples / micro_batches, tokens = sequences * run.train.seq_len;
          if (cuts_sequences && sequences % tp != 0) continue;
          if (tokens > kMostTokens || tokens * ep > (int64_t{1} << 31) / std::max<int64_t>(1, experts)) {
            // Rows are counted in 32 bits: make_plan has the exact rule for the few that come near.
            try {
              Layout probe;
              probe.pp = static_cast<int>(pp), probe.tp = tp, probe.ep = static_cast<int>(ep), probe.ted = ted;
              probe.micro_batches = micro_batches;
              check_layout(request, probe);
            } catch (const Error&) {
              continue;
            }
          }
          for (const auto& [schedule, recompute] : kinds.pairs) {
            if (pp == 1 && schedule != ScheduleKind::one_f_one_b) continue;  // all the same
            for (const int chunks : chunks_of(schedule, static_cast<int>(pp), layers)) {
              if (micro_batches * pp * chunks > kMostCells) continue;
              for (const bool ep_first : {true, false}) {
                if (!ep_first && (ep == 1 || ep == shared)) continue;  // the same
                for (const int zero : {0, 1}) {
                  if (zero == 1 && stage == 1) continue;
                  layouts.push_back({static_cast<int>(pp), schedule, chunks, tp, static_cast<int>(ep), ep_first, ted,
                                     zero, micro_batches, recompute});
                }
              }
            }
          }
        }
      }
    }
  }
  return layouts;
}

void check_layout(const Request& request, const Layout& layout) {
  RunSpec run = with_layout(request.run, layout);
  if (std::count(run.mesh.stage_layers.begin(), run.mesh.stage_layers.end(), ',') + 1 != layout.stages())
    run.mesh.stage_layers.clear();
  make_plan(request.model, run, request.ranks, 0, platform_of(request.profile));
}

void fail_without_layouts(const Request& request) {
  const auto works = [&](int64_t batch, int ranks) {
    Request other = request;
    other.run.train.global_batch = batch;
    other.ranks = ranks;
    return !layouts_of(other).empty();
  };
  const int64_t batch = request.run.train.global_batch;
  std::string changes;
  for (int64_t more = 1; more <= 4 * batch + request.ranks && changes.empty(); ++more)
    if (works(batch + more, request.ranks)) changes = fmt::format("train.global_batch={}", batch + more);
  for (int fewer = request.ranks - 1; fewer >= 1; --fewer) {
    if (!works(batch, fewer)) continue;
    changes += fmt::format("{}--ranks {}", changes.empty() ? "" : ", or ", fewer);
    break;
  }
  fail(
      Exit::config,
      fmt::format("no layout of {} ranks can share a step of {} samples: mesh.pp (at most {}, the layers) x mesh.tp (a "
                  "divisor of the attention heads) leave a data-parallel size that does not divide them",
                  request.ranks, batch, request.model.layer_count()),
      fmt::format("the nearest that works: {}", changes));
}

SearchResult search(const Request& request, int simulated) {
  const std::vector<Layout> layouts = layouts_of(request);
  if (layouts.empty()) fail_without_layouts(request);
  SearchResult result;
  auto begin = std::chrono::steady_clock::now();
  result.weighed.resize(layouts.size());
  for_each_estimated(request, layouts.size(), [&](Estimator& estimator, size_t i) {
    const Estimate estimate = estimator.closed_form(layouts[i]);
    result.weighed[i] = {layouts[i], estimate.time.total(), estimate.needed};
  });
  std::stable_sort(result.weighed.begin(), result.weighed.end(), faster);
  result.closed_form_s = seconds_since(begin);

  begin = std::chrono::steady_clock::now();
  std::vector<Layout> chosen;
  size_t too_big = 0;
  for (const Weighed& weighed : result.weighed) {
    const bool fits = weighed.needed <= request.profile.memory_bytes;
    if (fits) ++result.fitting;
    if (fits && std::ssize(chosen) < simulated + static_cast<int64_t>(too_big)) chosen.push_back(weighed.layout);
    else if (!fits && too_big < kTooBig && result.fitting < 1) chosen.push_back(weighed.layout), ++too_big;
  }
  std::vector<Estimate> exact(chosen.size());
  for_each_estimated(request, chosen.size(),
                     [&](Estimator& estimator, size_t i) { exact[i] = estimator.simulated(chosen[i]); });
  std::stable_sort(exact.begin(), exact.end(), [](const Estimate& a, const Estimate& b) {
    return std::make_tuple(a.time.total(), a.needed) < std::make_tuple(b.time.total(), b.needed);
  });
  for (Estimate& estimate : exact) {
    const bool fits = estimate.needed <= request.profile.memory_bytes;
    (fits ? result.best : result.too_big).push_back(std::move(estimate));
  }
  result.simulation_s = seconds_since(begin);
  return result;
}

int ranks_that_fit(const Request& request) {
  Request more = request;
  for (int i = 0; i < 6 && more.ranks < 1 << 20; ++i) {
    more.ranks *= 2;
    if (!layouts_of(more).empty() && search(more, 0).fitting > 0) return more.ranks;
  }
  return 0;
}

}  // namespace mw
