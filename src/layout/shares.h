// Shares: how many samples of a micro-batch each data-parallel coordinate gets. Everyone who needs one of these numbers
// asks here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/run_spec.h"

namespace mw {

// "3,1" as weights. Errors: config, naming `key`, for anything but a list of positive integers.
std::vector<int64_t> parse_shares(const std::string& text, const std::string& key);

// Divides `units` in proportion to the weights, by largest remainder, ties to the lower index, but at least one each.
// units >= weights.size().
std::vector<int64_t> divide_by_shares(int64_t units, const std::vector<int64_t>& weights);

// Samples of a micro-batch by data-parallel coordinate: equal, or by mesh.shares. Errors: config, when micro-batches or
// data-parallel ranks do not divide the global batch, naming the nearest micro_batches that work; for shares of another
// number of ranks; for fewer samples than ranks.
std::vector<int64_t> samples_by_rank(const RunSpec& run, int64_t micro_batches, int64_t dp);
// Whether samples_by_rank accepts these sizes.
bool can_share_samples(const RunSpec& run, int64_t micro_batches, int64_t dp);
// The largest of them, and each number once.
int64_t most_samples(const RunSpec& run, int64_t micro_batches, int64_t dp);
std::vector<int64_t> different_samples(const RunSpec& run, int64_t micro_batches, int64_t dp);

// Sizes of one rank's micro-batch.
struct LocalBatch {
  int64_t sequences = 0;  // samples of this rank and micro-batch
  int64_t seq_len = 0;
  int64_t first = 0;  // the rank's first sample in the micro-batch
  int64_t most = 0;   // the largest `sequences` of any rank
  int64_t all = 0;    // samples of the whole micro-batch
  int64_t tokens() const { return sequences * seq_len; }
  int64_t most_tokens() const { return most * seq_len; }
};
// Of data-parallel coordinate `rank` of `dp`. Errors: as samples_by_rank.
LocalBatch make_local_batch(const RunSpec& run, int64_t dp, int64_t rank);

}  // namespace mw
