// gather_weights (Hexa-MoE, data-centric): the ranks of an EP group hold experts as with flat. The experts of all ranks
// are gathered piece by piece into slots that layers share, every rank computes its own tokens in place, and the
// weight gradients of a piece are summed to the ranks that hold its experts, in fp32 and in an order that the layout
// fixes: on hosts that of the ranks.
// Chunks are the pieces (layout/weight_gather.h).
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "comm/comm.h"
#include "config/faults.h"
#include "layout/islands.h"
#include "layout/weight_gather.h"
#include "moe/transports/transport_in_place.h"
#include "moe/weight_cache.h"

namespace mw {

// What all layers of the rank share, one after the other.
struct GatherShared {
  WeightCache* cache = nullptr;
  int64_t layer = 0;     // which asks the cache
  TensorView gradients;  // f32, at least gather.gradient_elements()
  Fault fault = Fault::none;
};

class GatherWeightsTransport final : public InPlaceTransport {
 public:
  // The layout's rows must be in the order of gather.position_of_expert(); gradients of `experts` are f32. `ep`
  // and the cache must outlive the transport. Errors: unsupported, for a placement with replicas.
  GatherWeightsTransport(Comm& ep, const ExpertPlacement& placement, const WeightGather& gather, Islands islands,
                         ResidentExperts experts, ExpertScratch scratch, GatherShared shared);

  // Collective over EP, as are those below.
  void weights_begin(Stream& stream, Pass pass) override;
  ExpertWeights weights(Stream& stream, Pass pass, int64_t piece) override;
  GradientTarget gradient(Stream& stream, ExpertMatrix matrix, int64_t piece, GradientStore store) override;
  void gradient_done(Stream& stream, ExpertMatrix matrix, int64_t piece, Store store) override;
  void gradients_finish(Stream& stream) override;

 private:
  // Experts of this rank in a piece: the first slot, the place of the first in the piece, and their number.
  struct Own {
    int64_t slot = 0, place = 0, count = 0;
  };
  // A sum of gradients that is under way: this rank's part, and where it goes.
  struct Sum {
    std::unique_ptr<Pending> pending;
    TensorView own, target;
    Store store = Store::accumulate;
  };

  void start(Stream& stream, int64_t piece);
  void gather(Stream& stream, int64_t piece);
  // The forms that a pass reads of an expert, one after the other in its part of a slot.
  std::vector<TensorView> forms_of(int64_t slot) const;
  Weight matrix(ExpertMatrix matrix, std::byte* expert) const;
  TensorView piece_gradients(ExpertMatrix matrix, int64_t piece) const;
  void finish(Stream& stream, Sum& sum);
  static void take(Stream& stream, Sum& sum);  // this rank's part, which then is empty
  void count_sent(Stream& stream, const std::vector<int64_t>& parts) const;
  Sum& sum_of(ExpertMatrix matrix) { return sums_[static_cast<size_t>(matrix)]; }
  int64_t bytes_of_expert() const {
    return pass_ == Pass::forward ? gather_.forms.forward_bytes() : gather_.forms.backward_bytes();
  }

  Comm& ep_;
  WeightGather gather_;
  Islands islands_;
  GatherShared shared_;
  std::vector<Own> own_;  // by piece
  // The pass whose weights are gathered: pieces whose gathers were started, and that were asked for.
  Pass pass_ = Pass::forward;
  int64_t started_ = 0, asked_ = 0;
  std::byte* slot_ = nullptr;           // of the piece that was started last
  std::unique_ptr<Pending> gathering_;  // its gather; null: it was there
  std::vector<Weight> up_, down_;       // of the piece that was asked for last
  std::array<Sum, 2> sums_;             // by matrix
};

}  // namespace mw
