// Decides during a run when to change the shares of the samples (mesh.adapt_every). The decision depends on the
// arguments alone: ranks with the same arguments decide the same.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace mw {

class ShareWatch {
 public:
  // shares: units of a micro-batch by data-parallel rank; most: those that each rank has memory for; step: the last one
  // before the watch.
  ShareWatch(std::vector<int64_t> shares, std::vector<int64_t> most, int64_t step);

  // A look after `step`. seconds: that each rank computes in a step for each of its units; step_seconds: of a whole
  // step. Returns the best shares by the medians of the last looks if the shares now are at least 100 steps old and
  // either each of the last 5 looks would have been 3 % faster, or 5 of the last 6 looks 15 % faster. Once the shares
  // have changed: only if each of the last 20 would have been 3 % faster, because on a machine that is busy now and
  // then no split stays the best for long.
  std::optional<std::vector<int64_t>> look(std::span<const double> seconds, double step_seconds, int64_t step);
  // To be called when the shares are these from `step` on.
  void begin(std::vector<int64_t> shares, int64_t step);

 private:
  struct Look {
    std::vector<double> seconds;
    double step_seconds;
  };
  // The best shares by the medians of so many last looks. None, if in more than `doubts` of these they would have made
  // steps faster by less than `gain`.
  std::optional<std::vector<int64_t>> agreed(size_t looks, size_t doubts, double gain) const;
  std::vector<int64_t> shares_, most_;
  int64_t begun_;  // the step
  std::vector<Look> looks_;
  bool changed_ = false;
};

}  // namespace mw
