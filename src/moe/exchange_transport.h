// Tokens move: rows are sent to the ranks of their experts by uneven all-to-all, and come back.
#pragma once

#include <memory>

#include "comm/comm.h"
#include "moe/transport.h"
#include "spec/placement.h"

namespace mw {

// What a layer saves of an exchange for its backward pass, or fills anew before it (begin_again).
struct ExchangeSaved {
  GrowingTensor received;          // rows as they arrived, [R, D]
  GrowingTensor received_index;    // i32 [R]: sorted row -> arrived row
  GrowingTensor received_weights;  // f32 [R], in arrival order
  GrowingTensor padded_token_ids;  // padded only: i32, token of each sent row, -1 for padding
  TensorView padded_row_of_TK;     // padded only
};

struct ExchangeOptions {
  bool padded = false;     // GShard's equal buffers: every expert is sent the same number of rows, filled with zeros
  int64_t row_chunks = 1;  // pieces of slots that overlap with compute
};

// flat: one uneven all-to-all per direction and chunk; ranks without rows take part. padded: the same with every expert
// filled up to the largest count of any expert on any rank, for comparison. `ep` must outlive the transport.
std::unique_ptr<Transport> make_exchange_transport(Comm& ep, const ExpertPlacement& placement, ResidentExperts experts,
                                                   ExpertScratch scratch, ExchangeSaved saved, ExchangeOptions options);

}  // namespace mw
