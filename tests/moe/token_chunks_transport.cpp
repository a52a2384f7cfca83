#include "moe/token_chunks_transport.h"

#include <algorithm>
#include <limits>

namespace mw::test {
namespace {

class TokenChunksTransport : public Transport {
 public:
  TokenChunksTransport(ResidentExperts experts, ExpertScratch scratch, int64_t chunks, bool dispatches_again,
                       TransportCalls& calls)
      : experts_(std::move(experts)),
        gathered_(experts_),
        scratch_(std::move(scratch)),
        chunks_(chunks),
        dispatches_again_(dispatches_again),
        calls_(calls) {
    calls_.done.assign(static_cast<size_t>(chunks), 0);
    for (std::vector<Weight>* weights : {&gathered_.up, &gathered_.down})
      for (Weight& weight : *weights) {
        copies_.emplace_back(static_cast<size_t>(weight.n * weight.k));
        weight.values.data = copies_.back().data();
      }
    release_weights();
  }

  void prepare(Stream& stream, const RoutedTokens& routed, TensorView gate_weights_TK, bool) override {
    stream.wait();
    layout_ = routed.layout;
    gate_weights_ = gate_weights_TK;
    sort_by_chunk();
  }
  int64_t chunks() const override { return chunks_; }
  int64_t rows() const override { return layout_.rows; }

  void dispatch_begin(Stream&, Pass pass, int64_t, TensorView) override {
    ++(pass == Pass::forward ? calls_.dispatched
       : pass == Pass::again ? calls_.dispatched_again
                             : calls_.dispatched_back);
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
    release_weights();
    if (pass != Pass::forward) return;
    if (dispatches_again_) std::fill(forward_rows_.begin(), forward_rows_.end(), kLost);
  }

  void weights_begin(Stream&, Pass pass) override {
    ++(pass == Pass::backward ? calls_.begun_backward : calls_.begun_forward);
    is_gathered_ = true;
    auto copy = copies_.begin();
    for (const std::vector<Weight>* weights : {&experts_.up, &experts_.down})
      for (const Weight& weight : *weights) {
        std::copy_n(weight.values.as<float>(), copy->size(), copy->begin());
        ++copy;
      }
  }
  ExpertWeights weights(Stream& stream, Pass pass, int64_t) override {
    if (!is_gathered_) weights_begin(stream, pass);
    return gathered_.slice(0, layout_.experts);
  }
  // Every chunk may have rows of every expert.
  GradientTarget gradient(Stream&, ExpertMatrix matrix, int64_t chunk, GradientStore store) override {
    return {experts_.gradient(matrix, 0, layout_.experts), store_in_turn(store, chunk, chunks())};
  }
  void gradient_done(Stream&, ExpertMatrix, int64_t chunk, Store) override {
    ++calls_.done[static_cast<size_t>(chunk)];
  }
  void gradients_finish(Stream&) override { ++calls_.finished; }

 private:
  static constexpr float kLost = std::numeric_limits<float>::quiet_NaN();

  void release_weights() {
    is_gathered_ = false;
    for (std::vector<float>& copy : copies_) std::fill(copy.begin(), copy.end(), kLost);
  }
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
    batch.in = {TensorView(rows.data(), DType::f32, {layout_.rows, width_}), nullptr};
    return batch;
  }

  ResidentExperts experts_, gathered_;
  std::vector<std::vector<float>> copies_;  // of the weights, in the order of gathered_
  ExpertScratch scratch_;
  int64_t chunks_, width_ = 0;
  bool dispatches_again_;
  TransportCalls& calls_;
  bool is_gathered_ = false;
  TokenLayout layout_;
  TensorView gate_weights_;
  std::vector<int64_t> sorted_row_;            // row of the chunks -> row of the layout
  std::vector<std::vector<int64_t>> offsets_;  // by chunk
  std::vector<float> forward_rows_, gradient_rows_;
};

}  // namespace

std::unique_ptr<Transport> make_token_chunks_transport(ResidentExperts experts, ExpertScratch scratch, int64_t chunks,
                                                       bool dispatches_again, TransportCalls& calls) {
  return std::make_unique<TokenChunksTransport>(std::move(experts), std::move(scratch), chunks, dispatches_again,
                                                calls);
}

}  // namespace mw::test
