// The ranks of a group as those that open data together.
#pragma once

#include <string>

#include "comm/comm.h"
#include "formats/tokens/opening_ranks.h"

namespace mw {

// All functions but note_progress are collective over `comm`, which must outlive this object.
class CommRanks final : public OpeningRanks {
 public:
  explicit CommRanks(Comm& comm) : comm_(comm) {}
  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }
  void agree(const std::function<void()>& work) const override;
  std::string broadcast(const std::string& text) const override { return broadcast_text(comm_, text, 0); }
  void sum(std::span<int64_t> values) const override { comm_.all_reduce_sum(values); }
  void note_progress() const override;

 private:
  Comm& comm_;
};

}  // namespace mw
