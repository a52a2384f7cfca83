// One leg of an exchange by way of the node (layout/exchange_plan.h) as an uneven all-to-all.
#pragma once

#include <cstdint>

#include "comm/comm.h"
#include "layout/exchange_plan.h"

namespace mw {

enum class Direction : uint8_t { to_experts, to_tokens };

// Rows of row_bytes between two buffers, whatever the direction: `from`, which the leg sends from on the way to the
// experts, and `to`, which it receives into then. members: of the EP group.
RowExchange exchange_of(const ExchangeLeg& leg, Direction direction, int members, int64_t row_bytes, void* from,
                        void* to);

}  // namespace mw
