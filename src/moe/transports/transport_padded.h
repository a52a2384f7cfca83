// padded: GShard's equal buffers, for comparison. As flat, with every expert's rows filled with zeros up to the largest
// count of any expert on any rank.
#pragma once

#include <vector>

#include "moe/transports/transport_flat.h"

namespace mw {

// What a layer keeps beside FlatSaved.
struct PaddedSaved {
  GrowingTensor token_ids;  // i32: token of each sent row, -1 for padding
  TensorView row_of_TK;     // i32 [T, K]
};

class PaddedTransport final : public FlatTransport {
 public:
  PaddedTransport(Comm& ep, const ExpertPlacement& placement, ResidentExperts experts, ExpertScratch scratch,
                  FlatSaved saved, PaddedSaved padded, FlatOptions options)
      : FlatTransport(ep, placement, std::move(experts), std::move(scratch), std::move(saved), std::move(options)),
        padded_(std::move(padded)) {}

 private:
  void set_send_counts(std::vector<int64_t>& by_position) override;
  bool places_by_counts() const override { return true; }
  SendRows place_send(Stream& stream) override;

  PaddedSaved padded_;
  int64_t count_ = 0;  // rows to send
  std::vector<IndexRun> to_padded_, to_sorted_;
};

}  // namespace mw
