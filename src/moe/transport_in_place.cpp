#include "moe/transport.h"
#include "ops/index.h"

namespace mw {
namespace {

class InPlaceTransport : public Transport {
 public:
  InPlaceTransport(ResidentExperts experts, ExpertScratch scratch)
      : experts_(std::move(experts)), scratch_(std::move(scratch)) {}

  void prepare(Stream& stream, const TokenLayout& layout, TensorView, bool) override {
    layout_ = layout;
    counts_.read(stream, layout.rows_per_expert_E);
  }
  int64_t begin(Stream& stream) override {
    const TraceScope scope(stream.trace(), Work::router, "row_counts");
    offsets_.assign(1, 0);
    // With one rank the placement's order is the experts' own.
    for (const int64_t rows : counts_.wait(stream)) offsets_.push_back(offsets_.back() + rows);
    y_ = scratch_.y.take(layout_.rows);
    return layout_.rows;
  }
  bool travels() const override { return false; }
  int64_t chunks() const override { return 1; }
  ExpertWeights weights(int64_t) override { return experts_.slice(0, layout_.experts); }

  void dispatch_begin(Stream&, int64_t, TensorView x_TD) override { x_ = x_TD; }
  ExpertBatch dispatch_finish(Stream&, int64_t) override { return batch(x_); }
  void combine_begin(Stream&, int64_t) override {}
  void combine_finish(Stream&, int64_t) override {}
  void combine(Stream& stream, TensorView weights_TK, TensorView base_TD, TensorView out_TD) override {
    combine_rows(stream, y_, layout_.row_of_TK, weights_TK, base_TD, out_TD);
  }

  void begin_again(Stream&) override {}
  ExpertBatch dispatched(int64_t, TensorView x_TD) override { return batch(x_TD); }

  void gradient_begin(Stream&, int64_t, TensorView d_out_TD) override { d_out_ = d_out_TD; }
  GradientBatch gradient_finish(Stream&, int64_t, TensorView x_TD) override {
    y_ = scratch_.y.take(layout_.rows);
    GradientBatch gradient;
    gradient.rows = batch(x_TD);
    gradient.rows.weights_R = layout_.weights_R.slice(0, layout_.rows);
    gradient.rows.d_weights_R = scratch_.d_row_weights.take(layout_.rows);
    gradient.d_y = {d_out_, layout_.token_ids_R.as<int32_t>()};
    gradient.d_x = {y_, nullptr};
    return gradient;
  }
  void gradient_return_begin(Stream&, int64_t) override {}
  void gradient_return_finish(Stream&, int64_t) override {}
  void combine_gradient(Stream& stream, TensorView base_TD, TensorView d_x_TD, TensorView d_weights_TK) override {
    combine_rows(stream, y_, layout_.row_of_TK, {}, base_TD, d_x_TD);
    gather_values(stream, scratch_.d_row_weights.take(layout_.rows), layout_.row_of_TK, d_weights_TK);
  }

 private:
  ExpertBatch batch(TensorView x_TD) const {
    ExpertBatch b;
    b.slot_count = layout_.experts;
    b.offsets = offsets_;
    b.x = {x_TD, layout_.token_ids_R.as<int32_t>()};
    b.y = {y_, nullptr};
    return b;
  }

  ResidentExperts experts_;
  ExpertScratch scratch_;
  TokenLayout layout_;
  RowCounts counts_;
  std::vector<int64_t> offsets_;
  TensorView x_, d_out_, y_;
};

}  // namespace

void RowCounts::read(Stream& stream, TensorView rows_per_expert_E) {
  rows_.resize(static_cast<size_t>(rows_per_expert_E.numel()));
  stream.queue().read(rows_.data(), rows_per_expert_E.as<int64_t>(), rows_.size() * sizeof(int64_t));
  read_ = stream.queue().mark();
}

const std::vector<int64_t>& RowCounts::wait(Stream& stream) {
  stream.queue().wait_until(read_);
  return rows_;
}

ExpertWeights ResidentExperts::slice(int64_t begin, int64_t count) const {
  const auto first = static_cast<size_t>(begin), n = static_cast<size_t>(count);
  return {std::span(up).subspan(first, n), std::span(down).subspan(first, n), d_up.slice(begin, count),
          d_down.slice(begin, count)};
}

std::unique_ptr<Transport> make_in_place_transport(ResidentExperts experts, ExpertScratch scratch) {
  return std::make_unique<InPlaceTransport>(std::move(experts), std::move(scratch));
}

}  // namespace mw
