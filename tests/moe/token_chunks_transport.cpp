#include "moe/token_chunks_transport.h"

#include <algorithm>

namespace mw::test {
namespace {

class TokenChunksTransport : public Transport {
 public:
  TokenChunksTransport(ResidentExperts experts, ExpertScratch scratch, int64_t chunks, TransportCalls& calls)
      : experts_(std::move(experts)), scratch_(std::move(scratch)), chunks_(chunks), calls_(calls) {
    calls_.done.assign(static_cast<size_t>(chunks), 0);
  }

  void prepare(Stream& stream, const TokenLayout& layout, TensorView gate_weights_TK, bool) override {
    stream.wait();
    layout_ = layout;
    gate_weights_ = gate_weights_TK;
    sort_by_chunk();
  }
  int64_t chunks() const override { return chunks_; }
  int64_t rows() const override { return layout_.rows; }

  void dispatch_begin(Stream&, Pass, int64_t, TensorView) override {
    calls_.most_in_flight = std::max(calls_.most_in_flight, ++calls_.in_flight);
  }
  ExpertBatch dispatch_finish(Stream& stream, Pass pass, int64_t chunk, TensorView source_TD) override {
    --calls_.in_flight;
    std::vector<float>& rows = pass == Pass::backward ? gradient_rows_ : forward_rows_;
    width_ = source_TD.cols();
    rows.resize(static_cast<size_t>(layout_.rows * width_));
    gather(stream, source_TD, chunk, rows);
    ExpertBatch batch = batch_of(chunk, rows);
    batch.out = {scratch_.y.take(layout_.rows), nullptr};
    if (pass != Pass::backward) return batch;
    batch.weights_R = scratch_.row_weights.take(layout_.rows);
    batch.d_weights_R = scratch_.d_row_weights.take(layout_.rows);
    for (int64_t r = batch.offsets.front(); r < batch.offsets.back(); ++r)
      batch.weights_R.as<float>()[r] = layout_.weights_R.as<float>()[sorted_row(r)];
    return batch;
  }
  ExpertBatch forward_rows(int64_t chunk, TensorView) override { return batch_of(chunk, forward_rows_); }
  void combine_begin(Stream&, Pass, int64_t) override {}
  void combine_finish(Stream& stream, Pass pass, int64_t chunk, const CombineTarget& target) override {
    if (chunk + 1 < chunks_) return;
    stream.wait();
    std::vector<float> rows(static_cast<size_t>(layout_.rows * width_)), d_weights(static_cast<size_t>(layout_.rows));
    const float* from = scratch_.y.take(layout_.rows).as<float>();
    const float* from_weights = scratch_.d_row_weights.take(layout_.rows).as<float>();
    for (int64_t r = 0; r < layout_.rows; ++r) {
      std::copy_n(from + r * width_, width_, rows.begin() + sorted_row(r) * width_);
      d_weights[static_cast<size_t>(sorted_row(r))] = from_weights[r];
    }
    sum_returned_rows(stream, pass, TensorView(rows.data(), DType::f32, {layout_.rows, width_}),
                      TensorView(d_weights.data(), DType::f32, {layout_.rows}), layout_.row_of_TK, gate_weights_,
                      target);
    stream.wait();
    if (pass == Pass::forward) gathered_ = false;
  }

  void weights_begin(Stream&, Pass pass) override {
    ++(pass == Pass::backward ? calls_.begun_backward : calls_.begun_forward);
    gathered_ = true;
  }
  ExpertWeights weights(Stream& stream, Pass pass, int64_t) override {
    if (!gathered_) weights_begin(stream, pass);
    return experts_.slice(0, layout_.experts);
  }
  void weights_done(Stream&, int64_t chunk) override {
    ++calls_.done[static_cast<size_t>(chunk)];
    if (chunk + 1 == chunks_) gathered_ = false;
  }

 private:
  int64_t sorted_row(int64_t row) const { return sorted_row_[static_cast<size_t>(row)]; }
  // Rows by (chunk of their token, expert, order of the layout).
  void sort_by_chunk() {
    const int32_t* token = layout_.token_ids_R.as<int32_t>();
    const int64_t* per_expert = layout_.rows_per_expert_E.as<int64_t>();
    sorted_row_.clear();
    offsets_.assign(static_cast<size_t>(chunks_), {});
    for (int64_t c = 0; c < chunks_; ++c) {
      const int64_t begin = layout_.tokens * c / chunks_, end = layout_.tokens * (c + 1) / chunks_;
      std::vector<int64_t>& offsets = offsets_[static_cast<size_t>(c)];
      offsets.push_back(std::ssize(sorted_row_));
      int64_t row = 0;
      for (int64_t e = 0; e < layout_.experts; ++e) {
        for (const int64_t stop = row + per_expert[e]; row < stop; ++row)
          if (token[row] >= begin && token[row] < end) sorted_row_.push_back(row);
        offsets.push_back(std::ssize(sorted_row_));
      }
    }
  }
  void gather(Stream& stream, TensorView source_TD, int64_t chunk, std::vector<float>& rows) {
    stream.wait();
    const std::vector<int64_t>& offsets = offsets_[static_cast<size_t>(chunk)];
    for (int64_t r = offsets.front(); r < offsets.back(); ++r)
      std::copy_n(source_TD.as<float>() + layout_.token_ids_R.as<int32_t>()[sorted_row(r)] * width_, width_,
                  rows.begin() + r * width_);
  }
  ExpertBatch batch_of(int64_t chunk, std::vector<float>& rows) {
    ExpertBatch batch;
    batch.slot_count = layout_.experts;
    batch.offsets = offsets_[static_cast<size_t>(chunk)];
    batch.accumulates = chunk > 0;
    batch.in = {TensorView(rows.data(), DType::f32, {layout_.rows, width_}), nullptr};
    return batch;
  }

  ResidentExperts experts_;
  ExpertScratch scratch_;
  int64_t chunks_, width_ = 0;
  TransportCalls& calls_;
  bool gathered_ = false;
  TokenLayout layout_;
  TensorView gate_weights_;
  std::vector<int64_t> sorted_row_;            // row of the chunks -> row of the layout
  std::vector<std::vector<int64_t>> offsets_;  // by chunk
  std::vector<float> forward_rows_, gradient_rows_;
};

}  // namespace

std::unique_ptr<Transport> make_token_chunks_transport(ResidentExperts experts, ExpertScratch scratch, int64_t chunks,
                                                       TransportCalls& calls) {
  return std::make_unique<TokenChunksTransport>(std::move(experts), std::move(scratch), chunks, calls);
}

}  // namespace mw::test
