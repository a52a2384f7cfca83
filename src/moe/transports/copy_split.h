// Splits the rows of a micro-batch over the copies of their experts (layout/row_split.h), from the counts of all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/comm.h"
#include "layout/placement.h"

namespace mw {

// What one rank sends and gets.
struct CopySplit {
  // Neighbouring sorted rows (ops/token_layout.h: by the position of their expert's home) for one copy. In the order of
  // the sorted rows, one for each copy of each expert.
  struct Part {
    ExpertHome copy;
    int64_t first = 0, rows = 0;
  };
  std::vector<Part> sent;
  std::vector<std::vector<int64_t>> received;  // rows by source and slot; slots of homes, then of replicas
};

class CopySplitter {
 public:
  // member: this rank's number in the EP group. speeds: of its ranks, as split_rows (layout/row_split.h); empty: alike.
  CopySplitter(const ExpertPlacement& placement, int member, std::vector<int64_t> speeds);
  // rows_per_expert: of this rank. Collective over `ep`.
  CopySplit split(Comm& ep, const std::vector<int64_t>& rows_per_expert) const;
  // All copies, in the order of CopySplit::sent.
  std::vector<ExpertHome> copies() const;

 private:
  ExpertPlacement placement_;
  std::vector<size_t> expert_at_;  // by position
  size_t slots_;                   // of this rank
  std::vector<int64_t> speeds_;
};

}  // namespace mw
