// Sliding-window attention: the mask that ops/attention.h takes.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace mw {

// first[t] = max(p - window + 1, start, 0), where p = past + t mod S is the position of token t: the first key that its
// query sees, when it sees `window` keys, its own included. start: i32 [T], the beginnings of documents as in
// ops/attention.h, or empty. first: i32 [T], overwritten; not start itself.
void first_keys_of_window(Stream& stream, int64_t seq_len, int64_t window, TensorView start_T, TensorView first_T,
                          int64_t past = 0);

}  // namespace mw
