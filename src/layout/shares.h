// Shares: how many samples of a micro-batch each data-parallel (DP) rank gets, and how many experts, or how much of the
// width of every expert, each expert-parallel (EP) rank, equally much or as mesh.shares, mesh.expert_shares and
// mesh.width_shares say. In this file a micro-batch is that of all DP ranks together: train.global_batch /
// train.micro_batches samples. Example: 8 samples for mesh.shares = "3,1" are 6 for DP rank 0 and 2 for DP rank 1. All
// other code takes these numbers from here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "config/run_spec.h"

namespace mw {

// What these keys say for shares by measured speeds, which `train` puts in its place
// (train/loop/share_chooser.h). Everything else takes it for equal shares.
inline constexpr const char* kMeasuredShares = "measured";

// "3,1" as the list {3, 1}. Errors: config, naming `key` and with `hint`, for anything but a list of positive integers.
std::vector<int64_t> parse_shares(const std::string& text, const std::string& key,
                                  const char* hint = "write for example \"3,1\": three quarters and one quarter");

// Divides `units` in proportion to `weights` (shares such as {3, 1}). Every part gets at least one unit. The parts are
// as near to the exact proportion as that allows: what is left over goes to the largest remainders, with ties to the
// lower index. Requires units >= weights.size().
std::vector<int64_t> divide_by_shares(int64_t units, const std::vector<int64_t>& weights);

// Divides `units` so that the slowest part takes the least time: part i takes seconds[i] for each of its units, of
// which it gets at least one and at most most[i]. Exact: no other division has a shorter longest time. Requires
// units >= seconds.size(), and room for all units.
std::vector<int64_t> divide_by_speed(int64_t units, std::span<const double> seconds, std::span<const int64_t> most);
// Of the part that takes longest, with seconds[i] for each of its units.
double time_of_slowest(std::span<const int64_t> parts, std::span<const double> seconds);

// Samples of a micro-batch by DP rank: equal, or by mesh.shares. Errors: config, in these cases:
//   without mesh.shares: train.global_batch is not a multiple of micro_batches * dp (the hint names the nearest
//   micro_batches that work);
//   with mesh.shares: it does not list dp shares, train.global_batch is not a multiple of micro_batches, or a
//   micro-batch has fewer samples than dp.
std::vector<int64_t> samples_by_rank(const RunSpec& run, int64_t micro_batches, int64_t dp);
// Whether samples_by_rank accepts these sizes.
bool can_share_samples(const RunSpec& run, int64_t micro_batches, int64_t dp);
// The largest number in samples_by_rank.
int64_t most_samples(const RunSpec& run, int64_t micro_batches, int64_t dp);
// The different numbers in samples_by_rank, ascending, each once.
std::vector<int64_t> different_samples(const RunSpec& run, int64_t micro_batches, int64_t dp);

// One rank's part of a micro-batch.
struct LocalBatch {
  int64_t sequences = 0;  // samples of this rank
  int64_t seq_len = 0;
  int64_t first = 0;  // index of this rank's first sample in the micro-batch of all DP ranks
  int64_t most = 0;   // the largest `sequences` of any DP rank
  int64_t all = 0;    // samples of all DP ranks together
  int64_t tokens() const { return sequences * seq_len; }
  int64_t most_tokens() const { return most * seq_len; }
  bool operator==(const LocalBatch&) const = default;
};
// The part of DP rank `rank` of `dp`. Errors: as samples_by_rank.
LocalBatch make_local_batch(const RunSpec& run, int64_t dp, int64_t rank);

// What the width of experts is shared in: 128 features if equal shares are multiples of 128 and at least 8 x 128; else
// 64 if `width` is a multiple of 64 and at least 64 ep; else one.
int64_t width_unit(int64_t width, int64_t ep);
// The width of each EP rank's slice of every expert, where ranks hold slices (moe.transport = "gather_tokens"), in
// multiples of width_unit. Errors: config, if mesh.width_shares does not list ep shares, or width is less than ep.
std::vector<int64_t> expert_widths(const RunSpec& run, int64_t width, int64_t ep);
// Whether expert_widths accepts these sizes.
bool can_share_width(const RunSpec& run, int64_t width, int64_t ep);

// The experts of a layer by EP rank: equal, or by mesh.expert_shares. Errors: config, if that does not list ep shares,
// or experts is less than ep.
std::vector<int64_t> experts_by_rank(const RunSpec& run, int64_t experts, int64_t ep);
// Whether experts_by_rank accepts these sizes.
bool can_share_experts(const RunSpec& run, int64_t experts, int64_t ep);
// How fast EP ranks compute experts, relative to each other: mesh.expert_shares, from 1 to kMostSpeed
// (layout/row_split.h). Errors: as experts_by_rank.
std::vector<int64_t> expert_speeds(const RunSpec& run, int64_t ep);

}  // namespace mw
