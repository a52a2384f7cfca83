// in_place: experts read token rows through the layout's index; nothing is copied. Chunks are ranges of experts.
#pragma once

#include <vector>

#include "moe/transport.h"

namespace mw {

class InPlaceTransport : public Transport {
 public:
  // All experts are this rank's, in one chunk.
  InPlaceTransport(const ExpertPlacement& placement, ResidentExperts experts, ExpertScratch scratch);

  void prepare(Stream& stream, const RoutedTokens& routed, TensorView gate_weights_TK, bool trains) override;
  int64_t chunks() const override { return static_cast<int64_t>(chunk_begins_.size()) - 1; }
  bool rows_stay() const override { return true; }
  int64_t rows() const override { return layout_.rows; }
  void dispatch_begin(Stream& /*stream*/, Pass /*pass*/, int64_t /*chunk*/, TensorView /*source_TD*/) override {}
  ExpertBatch dispatch_finish(Stream& stream, Pass pass, int64_t chunk, TensorView source_TD) override;
  ExpertBatch forward_rows(int64_t chunk, TensorView x_TD) override;
  void combine_begin(Stream& /*stream*/, Pass /*pass*/, int64_t /*chunk*/) override {}
  void combine_finish(Stream& stream, Pass pass, int64_t chunk, const CombineTarget& target) override;
  ExpertWeights weights(Stream& stream, Pass pass, int64_t chunk) override;
  GradientTarget gradient(Stream& stream, ExpertMatrix matrix, int64_t chunk, GradientStore store) override;

 protected:
  // order: the global experts in the order of the layout's rows; chunk c has those from chunk_begins[c] to
  // chunk_begins[c + 1].
  InPlaceTransport(std::vector<int> order, std::vector<int64_t> chunk_begins, ResidentExperts experts,
                   ExpertScratch scratch);

  ResidentExperts experts_;

 private:
  void find_offsets(Stream& stream);

  std::vector<int> order_;
  std::vector<int64_t> chunk_begins_;
  ExpertScratch scratch_;
  TokenLayout layout_;
  RowCounts counts_;
  std::vector<int64_t> offsets_;
  TensorView gate_weights_, y_;
};

}  // namespace mw
