// padded: GShard's equal buffers, for comparison. As flat, with every expert's rows filled with zeros up to the largest
// count of any expert on any rank.
#pragma once

#include <vector>

#include "moe/transports/transport_flat.h"

namespace mw {

class PaddedTransport final : public FlatTransport {
 public:
  // placed: what a layer keeps beside `saved`. Errors: unsupported, for a placement with replicas.
  PaddedTransport(Comm& ep, const ExpertPlacement& placement, ResidentExperts experts, ExpertScratch scratch,
                  FlatSaved saved, PlacedSaved placed, FlatOptions options)
      : FlatTransport(ep, without_replicas(placement), std::move(experts), std::move(scratch), std::move(saved),
                      std::move(options), {}, std::move(placed)) {}

 private:
  bool has_order() const override { return true; }
  SendOrder set_send_counts(std::vector<int64_t>& by_position) override;
};

}  // namespace mw
