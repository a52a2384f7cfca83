// How unevenly experts are loaded, and what that makes of the rows of a rank.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "config/model_spec.h"
#include "config/run_spec.h"

namespace mw {

// Shares of the experts, drawn from a symmetric Dirichlet distribution, or measured.
struct ExpertLoad {
  // 1: a router without any balancing, whose fullest of 128 experts gets five times the mean; 8: about twice.
  double concentration = 8;
  // Rows by expert, each of one layer in one step; none: drawn. All of the same number of experts.
  std::vector<std::vector<double>> measured = {};
};

// Loads that a file holds: a JSON list of numbers, the rows of every expert in any layer; or the metrics.jsonl of a
// run, of which the last hundred steps count, layer by layer. Errors: data, config, naming path and line, for what is
// neither or of another model.
std::vector<std::vector<double>> read_loads(const std::string& path, const ModelSpec& model);
// The same of the file's text.
std::vector<std::vector<double>> parse_loads(const std::string& text, const std::string& path, const ModelSpec& model);

// Experts of the rank that holds most over the mean of the ranks: 1.6 for 5 experts on 4.
double largest_block(int64_t experts, int64_t ep);

// Rows of the fullest rank of an expert-parallel group over the mean of its ranks.
struct RankLoad {
  double mean = 1, p99 = 1;
};

class LoadModel {
 public:
  // moe: rows that its capacity drops do not count.
  // Errors: config, for loads of next to no rows, of absurdly many, or with a share that is negative.
  LoadModel(ExpertLoad load, const MoeRunSpec& moe);
  // Experts in blocks over `ep` ranks. equal_rows: every expert gets as many rows as the fullest one. Measured loads
  // count only for layers with as many experts. Deterministic.
  RankLoad of(int64_t experts, int64_t ep, bool equal_rows = false);

 private:
  const std::vector<std::vector<double>>& drawn(int64_t experts);

  ExpertLoad load_;
  double capacity_;
  std::map<int64_t, std::vector<std::vector<double>>> drawn_;  // by number of experts
  std::map<std::tuple<int64_t, int64_t, bool>, RankLoad> known_;
};

}  // namespace mw
