// Forced loads (moe.forced_load): choices of experts with known shares, in place of the router's. They are functions of
// (workload, seed, step, layer, index of the token) alone, and so the same in every layout. A token chooses exactly K
// distinct experts. Gate weights come from the router's scores of these experts, so that gradients flow.
#pragma once

#include <cstdint>
#include <vector>

#include "config/run_spec.h"

namespace mw {

// 1 as a rate: the share of tokens that choose an expert, as an integer.
constexpr uint64_t kRateOne = uint64_t{1} << 32;

// By expert: the share of tokens that choose it. The rates are at most kRateOne each, and add up to K * kRateOne.
//   balanced      all experts alike
//   hot_experts   one sixteenth of the experts, drawn by the seed, get four times the mean (at most every token), all
//                 others alike
//   hot_rank      the same for neighbouring experts: one of the 16 parts of the list of experts
//   hot_spread    the same for every 16th expert
//   idle_experts  the last quarter of the experts gets no token, and every fourth of the others
//   moving        hot_rank, but the next part every 10 steps
//   burst         hot_rank in the last 5 of every 50 steps, else balanced
//   one_expert    the first K experts get every token
//   skip_expert   the first expert gets no token
// step: from 1. Errors: config, where fewer than K experts get tokens.
std::vector<uint64_t> forced_rates(ForcedLoad load, int64_t experts, int64_t top_k, uint64_t seed, int64_t step);

// Errors: config, as forced_rates, for the MoE layers of the model.
void check_forced_load(const RunSpec& run, const ModelSpec& model);

// The tokens of a micro-batch that a call is about. Tokens of all ranks are counted through a step.
struct ForcedTokens {
  int64_t step = 1, layer = 0;
  int64_t first = 0, count = 0;
};
// i32 [count, K]. Of any range of n tokens, an expert is chosen by n times its rate, give or take a few tokens (a
// golden ratio sequence). moe: experts and top_k of the layer. Requires a load other than none.
std::vector<int32_t> forced_choices(const RunSpec& run, const MoeSpec& moe, const ForcedTokens& tokens);

}  // namespace mw
