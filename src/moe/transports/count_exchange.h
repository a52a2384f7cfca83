// The exchange of an EP group's counts by way of the node (layout/exchange_plan.h).
#pragma once

#include <vector>

#include "comm/comm.h"
#include "layout/exchange_plan.h"

namespace mw {

// Collective over `ep`. own: this member's counts by chunk. Returns this member's plan of each chunk. Errors: comm, for
// counts that do not agree.
std::vector<ExchangePlan> exchange_counts(Comm& ep, const Islands& islands, const std::vector<int64_t>& rank_offsets,
                                          const std::vector<SourceCounts>& own);

}  // namespace mw
