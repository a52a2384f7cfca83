// Rows of the routed experts of a rank, as the byte table sets them aside.
#pragma once

#include <cstdint>

#include "spec/byte_table.h"
#include "spec/model_spec.h"
#include "spec/run_spec.h"

namespace mw {

// How many rows a rank's experts receive: exact for in_place, a distribution otherwise.
struct RoutedRows {
  bool grows = false;
  int64_t committed = 0, mean = 0, max = 0;
};

// Of `ep` ranks that route `most_tokens` tokens each at most, this one `own_tokens`, to its `local_experts`. What a
// capacity drops is not among them.
RoutedRows routed_rows(const MoeSpec& moe, const RunSpec& run, TransportKind transport, int64_t own_tokens,
                       int64_t most_tokens, int ep, int64_t local_experts);

// Of the padded send buffer on the source side: as many of every expert as the fullest has.
RoutedRows padded_send_rows(const MoeSpec& moe, const RunSpec& run, int64_t tokens);

}  // namespace mw
