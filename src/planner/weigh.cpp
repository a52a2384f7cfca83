#include "planner/weigh.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

namespace mw {
namespace {

constexpr double kSurelyTooBig = 1.05;  // times the memory: no buffer that a layout saves makes up for it
constexpr size_t kMostThreads = 16;     // each remembers much, some of it what another one does, too

// All but what needs_no_less compares.
auto shape_of(const Layout& l) { return std::tie(l.pp, l.schedule, l.chunks, l.tp, l.ep, l.placement, l.transport); }

// More is kept where the number is larger; "selective" and "moe" are not compared.
int kept(Recompute mode) {
  switch (mode) {
    case Recompute::full: return 0;
    case Recompute::selective:
    case Recompute::moe: return 1;
    case Recompute::none: return 2;
    case Recompute::keep_norms: return 3;
  }
  return 3;
}

// Of one shape: those that need less memory come first.
auto memory_order(const Layout& l) {
  return std::make_tuple(-l.zero, kept(l.recompute), l.recompute, -l.micro_batches);
}

// Layouts that share what an estimator remembers, by their indices; the largest group first. In a group, layouts of one
// shape are neighbours, in the order of their memory.
std::vector<std::vector<size_t>> alike(const std::vector<Layout>& layouts) {
  std::map<std::tuple<int, int, std::string>, std::vector<size_t>> by_estimator;
  for (size_t i = 0; i < layouts.size(); ++i)
    by_estimator[{layouts[i].tp, layouts[i].ep, layouts[i].transport}].push_back(i);
  std::vector<std::vector<size_t>> groups;
  for (auto& [key, members] : by_estimator) {
    std::sort(members.begin(), members.end(), [&](size_t i, size_t j) {
      const Layout &a = layouts[i], &b = layouts[j];
      if (shape_of(a) != shape_of(b)) return shape_of(a) < shape_of(b);
      return memory_order(a) < memory_order(b);
    });
    groups.push_back(std::move(members));
  }
  std::stable_sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
  return groups;
}

// Calls body(estimator, group) for every group, on as many threads as there are cores for this process.
void for_each_group(const Request& request, const std::vector<std::vector<size_t>>& groups,
                    const std::function<void(Estimator&, const std::vector<size_t>&)>& body) {
  std::atomic<size_t> next{0};
  std::exception_ptr error;
  std::mutex mutex;
  const auto work = [&] {
    try {
      Estimator estimator(request.model, request.run, request.profile, request.load, request.ranks);
      for (size_t group = next++; group < groups.size(); group = next++) body(estimator, groups[group]);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      next = groups.size();
    }
  };
  const size_t cores = std::max(1u, std::thread::hardware_concurrency());
  const size_t threads = std::min({cores, groups.size(), kMostThreads});
  {
    std::vector<std::jthread> others;  // joined at the end of the block
    for (size_t i = 1; i < threads; ++i) others.emplace_back(work);
    work();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace

void for_each_estimated(const Request& request, const std::vector<Layout>& layouts,
                        const std::function<void(Estimator&, size_t)>& body) {
  for_each_group(request, alike(layouts), [&](Estimator& estimator, const std::vector<size_t>& group) {
    for (const size_t i : group) body(estimator, i);
  });
}

bool needs_no_less(const Layout& more, const Layout& less) {
  return shape_of(more) == shape_of(less) && more.zero <= less.zero && more.micro_batches <= less.micro_batches &&
         (more.recompute == less.recompute || kept(more.recompute) > kept(less.recompute));
}

std::vector<Weighed> weigh(const Request& request, const std::vector<Layout>& layouts, bool* fits) {
  struct Weight {
    double seconds = -1;
    int64_t needed = 0;
  };
  std::vector<Weight> weights(layouts.size());
  std::atomic<bool> found{false};
  const double limit = kSurelyTooBig * static_cast<double>(request.profile.memory_bytes);
  for_each_group(request, alike(layouts), [&](Estimator& estimator, const std::vector<size_t>& group) {
    std::vector<size_t> too_big;  // of the shape of the one before
    for (const size_t i : group) {
      const Layout& layout = layouts[i];
      if (fits != nullptr && found) return;
      if (!too_big.empty() && shape_of(layouts[too_big.front()]) != shape_of(layout)) too_big.clear();
      if (std::any_of(too_big.begin(), too_big.end(), [&](size_t j) { return needs_no_less(layout, layouts[j]); }))
        continue;
      const Estimate estimate = estimator.closed_form(layout);
      weights[i] = {estimate.time.total(), estimate.needed};
      if (static_cast<double>(estimate.needed) > limit) too_big.push_back(i);
      if (fit_of(request, estimate.needed) == MemoryFit::with_margin) found = true;
    }
  });
  if (fits != nullptr) *fits = found;
  std::vector<Weighed> weighed;
  for (size_t i = 0; i < layouts.size(); ++i)
    if (weights[i].seconds >= 0) weighed.push_back({layouts[i], weights[i].seconds, weights[i].needed});
  return weighed;
}

}  // namespace mw
