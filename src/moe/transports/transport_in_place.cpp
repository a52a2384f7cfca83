#include <utility>

#include "moe/transport.h"

namespace mw {
namespace {

class InPlaceTransport : public Transport {
 public:
  InPlaceTransport(const ExpertPlacement& placement, ResidentExperts experts, ExpertScratch scratch)
      : expert_in_slot_(placement.experts_of(0)), experts_(std::move(experts)), scratch_(std::move(scratch)) {}

  void prepare(Stream& stream, const TokenLayout& layout, TensorView gate_weights_TK, bool) override {
    layout_ = layout;
    gate_weights_ = gate_weights_TK;
    counts_.read(stream, layout.rows_per_expert_E);
  }
  int64_t chunks() const override { return 1; }
  int64_t rows() const override { return layout_.rows; }

  void dispatch_begin(Stream&, Pass, int64_t, TensorView) override {}
  ExpertBatch dispatch_finish(Stream& stream, Pass pass, int64_t, TensorView source_TD) override {
    if (pass == Pass::forward) find_offsets(stream);
    y_ = scratch_.y.take(layout_.rows);
    ExpertBatch batch = forward_rows(0, source_TD);
    batch.out = {y_, nullptr};
    if (pass != Pass::backward) return batch;
    batch.weights_R = layout_.weights_R.slice(0, layout_.rows);
    batch.d_weights_R = scratch_.d_row_weights.take(layout_.rows);
    return batch;
  }
  ExpertBatch forward_rows(int64_t, TensorView x_TD) override {
    ExpertBatch batch;
    batch.slot_count = layout_.experts;
    batch.offsets = offsets_;
    batch.in = {x_TD, layout_.token_ids_R.as<int32_t>()};
    return batch;
  }
  void combine_begin(Stream&, Pass, int64_t) override {}
  void combine_finish(Stream& stream, Pass pass, int64_t, const CombineTarget& target) override {
    sum_returned_rows(stream, pass, y_, scratch_.d_row_weights.take(layout_.rows), layout_.row_of_TK, gate_weights_,
                      target);
  }

  ExpertWeights weights(Stream&, Pass, int64_t) override { return experts_.slice(0, layout_.experts); }

 private:
  void find_offsets(Stream& stream) {
    const TraceScope scope(stream.trace(), Work::router, "row_counts");
    offsets_.assign(1, 0);
    const std::vector<int64_t>& rows_per_expert = counts_.wait(stream);
    for (const int expert : expert_in_slot_)
      offsets_.push_back(offsets_.back() + rows_per_expert[static_cast<size_t>(expert)]);
  }

  std::vector<int> expert_in_slot_;
  ResidentExperts experts_;
  ExpertScratch scratch_;
  TokenLayout layout_;
  RowCounts counts_;
  std::vector<int64_t> offsets_;
  TensorView gate_weights_, y_;
};

}  // namespace

std::unique_ptr<Transport> make_in_place_transport(const ExpertPlacement& placement, ResidentExperts experts,
                                                   ExpertScratch scratch) {
  return std::make_unique<InPlaceTransport>(placement, std::move(experts), std::move(scratch));
}

}  // namespace mw
