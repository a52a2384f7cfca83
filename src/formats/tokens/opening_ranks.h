// The ranks of a job that open the same token files: each looks at a part, so that not every rank looks at every file
// and every document. This room knows no communication: train/data/comm_ranks.h implements it over a group of ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace mw {

// By default a rank that opens files alone. All ranks call the same functions in the same order, and see the same
// files.
class OpeningRanks {
 public:
  OpeningRanks() = default;
  OpeningRanks(const OpeningRanks&) = delete;
  OpeningRanks& operator=(const OpeningRanks&) = delete;
  virtual ~OpeningRanks() = default;
  virtual int rank() const { return 0; }
  virtual int size() const { return 1; }
  // Calls `work` on this rank, and returns when all ranks have done theirs. Where it throws an Error on some, all throw
  // that of the lowest of them.
  virtual void agree(const std::function<void()>& work) const { work(); }
  // The text of rank 0.
  virtual std::string broadcast(const std::string& text) const { return text; }
  // In place, over all ranks.
  virtual void sum(std::span<int64_t>) const {}
  // To be called now and then in long work, so that a watchdog sees it move. Not collective.
  virtual void note_progress() const {}
};

}  // namespace mw
