#include "moe/transports/copy_split.h"

#include <utility>

#include "layout/row_split.h"

namespace mw {
namespace {

// The rows of every expert on every rank, rank by rank.
std::vector<int64_t> counts_of_all(Comm& ep, const std::vector<int64_t>& own) {
  const auto peers = static_cast<size_t>(ep.size());
  std::vector<int64_t> all(peers * own.size());
  RowExchange x;
  x.row_bytes = sizeof(int64_t);
  x.send = own.data();
  x.receive = all.data();
  x.send_counts = x.receive_counts = std::vector<int64_t>(peers, std::ssize(own));
  x.send_offsets.assign(peers, 0);
  for (size_t r = 0; r < peers; ++r) x.receive_offsets.push_back(static_cast<int64_t>(r) * std::ssize(own));
  ep.all_to_all(x)->wait();
  return all;
}

}  // namespace

CopySplitter::CopySplitter(const ExpertPlacement& placement, int member, std::vector<int64_t> speeds)
    : placement_(placement),
      expert_at_(placement.homes.size()),
      slots_(placement.copies_of(member).size()),
      speeds_(std::move(speeds)) {
  if (speeds_.empty()) speeds_.assign(static_cast<size_t>(placement.ep), 1);
  const std::vector<int32_t> position = placement.position_of_expert();
  for (size_t e = 0; e < position.size(); ++e) expert_at_[static_cast<size_t>(position[e])] = e;
}

std::vector<ExpertHome> CopySplitter::copies() const {
  std::vector<ExpertHome> copies;
  for (const size_t e : expert_at_) copies.insert(copies.end(), placement_.homes[e].begin(), placement_.homes[e].end());
  return copies;
}

CopySplit CopySplitter::split(Comm& ep, const std::vector<int64_t>& rows_per_expert) const {
  const size_t experts = expert_at_.size(), peers = static_cast<size_t>(ep.size()),
               own = static_cast<size_t>(ep.rank());
  const std::vector<int64_t> all = counts_of_all(ep, rows_per_expert);
  std::vector<int64_t> totals(experts), before(experts);  // before: of the sources before this rank
  for (size_t r = 0; r < peers; ++r)
    for (size_t e = 0; e < experts; ++e) {
      if (r == own) before[e] = totals[e];
      totals[e] += all[r * experts + e];
    }
  const RowQuotas quotas = split_rows(placement_, totals, speeds_);
  CopySplit split;
  split.received.assign(peers, std::vector<int64_t>(slots_));
  int64_t first = 0;
  for (const size_t e : expert_at_) {
    const RowRange from_here{before[e], rows_per_expert[e]};
    RowRange of_copy;
    for (size_t i = 0; i < quotas[e].size(); ++i) {
      const ExpertHome& copy = placement_.homes[e][i];
      of_copy = {of_copy.begin + of_copy.count, quotas[e][i]};
      const int64_t sent = shared_rows(from_here, of_copy);
      split.sent.push_back({copy, first, sent});
      first += sent;
      if (copy.ep_rank != ep.rank()) continue;
      RowRange of_source;
      for (size_t r = 0; r < peers; ++r) {
        of_source = {of_source.begin + of_source.count, all[r * experts + e]};
        split.received[r][static_cast<size_t>(copy.slot)] = shared_rows(of_source, of_copy);
      }
    }
  }
  return split;
}

}  // namespace mw
