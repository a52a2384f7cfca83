// How unevenly experts are loaded, and what that makes of the rows of a rank.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace mw {

// Shares of the experts, drawn from a symmetric Dirichlet distribution, or measured.
struct ExpertLoad {
  // 1: a router without any balancing, whose fullest of 128 experts gets five times the mean; 8: about twice.
  double concentration = 8;
  std::vector<double> histogram;  // rows by expert; empty: drawn
};

// Rows of the fullest rank of an expert-parallel group over the mean of its ranks.
struct RankLoad {
  double mean = 1, p99 = 1;
};

class LoadModel {
 public:
  // Errors: config, for a histogram of no rows or with a share that is negative.
  explicit LoadModel(ExpertLoad load);
  // Experts in blocks over `ep` ranks. The histogram counts only for layers with as many experts. Deterministic.
  RankLoad of(int64_t experts, int64_t ep);

 private:
  ExpertLoad load_;
  std::map<std::pair<int64_t, int64_t>, RankLoad> known_;
};

}  // namespace mw
