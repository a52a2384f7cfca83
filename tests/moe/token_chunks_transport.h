// A transport for tests, on one rank: it uses what the product's transports do not need yet. Its chunks are of tokens,
// so every chunk has rows of all experts and later ones add to the weight gradients; it copies rows in both directions;
// its weights are there only after weights_begin or weights, until the last combine_finish.
#pragma once

#include <memory>
#include <vector>

#include "moe/transport.h"

namespace mw::test {

// Calls that a layer made.
struct TransportCalls {
  int begun_forward = 0, begun_backward = 0;                      // weights_begin
  int dispatched = 0, dispatched_again = 0, dispatched_back = 0;  // chunks, by pass
  std::vector<int> done;                                          // gradient_done, by chunk
  int finished = 0;                                               // gradients_finish
  int in_flight = 0, most_in_flight = 0;                          // chunks between dispatch_begin and dispatch_finish
};

// fp32 on a CPU. chunks: at least 1. dispatches_again: rows of the forward pass are lost after it. `calls` must outlive
// the transport.
std::unique_ptr<Transport> make_token_chunks_transport(ResidentExperts experts, ExpertScratch scratch, int64_t chunks,
                                                       bool dispatches_again, TransportCalls& calls);

}  // namespace mw::test
