// How schedules are made: a generator puts the compute actions of each rank in order, the rest follows from that.
#pragma once

#include <vector>

#include "layout/schedule/schedule.h"

namespace mw {

// Per rank, in order: forward, backward, backward_input and backward_weight only.
using ComputeOrder = std::vector<std::vector<Action>>;

ComputeOrder zb_h1_order(const PipelineShape& shape);
ComputeOrder zb_v_order(const PipelineShape& shape);

// Adds messages, statistics and sums. A receive stands right before its user, unless the sender would then wait for its
// buffer: then as much earlier as that takes, but never before the payload is there. Both by the clock of a run with
// equal stages.
std::vector<std::vector<Action>> complete_order(const PipelineShape& shape, const ComputeOrder& order);

}  // namespace mw
