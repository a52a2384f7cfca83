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
  // step. Returns other shares if three looks in a row, each by itself and all by their mean, say that others would
  // have made steps faster by 3 %, and the shares now are 100 steps old. The shares are the best by that mean.
  std::optional<std::vector<int64_t>> look(std::span<const double> seconds, double step_seconds, int64_t step);
  // To be called when the shares are these from `step` on.
  void begin(std::vector<int64_t> shares, int64_t step);

 private:
  std::optional<std::vector<int64_t>> better_shares(std::span<const double> seconds, double step_seconds) const;
  std::vector<int64_t> shares_, most_;
  int64_t begun_;  // the step
  // Of the last looks in a row that would have changed the shares.
  int64_t looks_ = 0;
  std::vector<double> seconds_;  // means
  double step_seconds_ = 0;
};

}  // namespace mw
