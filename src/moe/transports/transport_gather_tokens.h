// gather_tokens (Hexa-MoE, model-centric): every rank of an EP group holds a slice of the width of every expert, and
// computes it for the tokens of all ranks. Tokens, the experts that they keep and their gate weights are gathered. Each
// rank sums its rows by token and sends these sums, rounded to the run's dtype, to the ranks of the tokens, which add
// them in fp32 in the order of ranks. Gradients of weights are complete on their rank.
//
// Gathered order is the order of ranks from the own one on: rank 2 of 4 has the tokens of ranks 2, 3, 0, 1. Chunks are
// ranges of this order.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "comm/comm.h"
#include "layout/islands.h"
#include "moe/transport.h"

namespace mw {

// The tensors of layout/transport.cpp under their names there.
struct GatherTokensTensors {
  // Kept by the layer. gathered: x in gathered order. gathered_tokens, gathered_weights: token (of its chunk) and gate
  // weight of each sorted row. gathered_rows: sorted row (of its chunk) of each choice, -1 where it was dropped.
  GrowingTensor gathered, gathered_tokens, gathered_rows, gathered_weights;
  // Shared by all layers. choices: experts of the own tokens, -1 where dropped; token_choices, token_weights: those of
  // all tokens and their gate weights, in a backward pass gate gradients. leads: choice (of its chunk) of each sorted
  // row; then its row in the memory of outputs, which holds one chunk. sums: of each token; in a backward pass it holds
  // the chunk's d_out before. parts: the sums that all ranks have for the own tokens, by rank; part_order [T, ranks]:
  // the parts of each token.
  GrowingTensor choices, token_choices, token_weights, leads, sums, parts, part_weights, part_order;
};

// From tensors by name.
GatherTokensTensors gather_tokens_tensors(const std::function<GrowingTensor(const char*)>& kept,
                                          const std::function<GrowingTensor(const char*)>& scratch);

class GatherTokensTransport final : public Transport {
 public:
  // experts: slices of all experts, in the experts' order. chunks: at most one for each rank is used. `ep` must outlive
  // the transport.
  GatherTokensTransport(Comm& ep, Islands islands, ResidentExperts experts, ExpertScratch scratch,
                        GatherTokensTensors tensors, int64_t chunks);

  void prepare(Stream& stream, const RoutedTokens& routed, TensorView gate_weights_TK, bool trains) override;
  int64_t chunks() const override { return std::ssize(chunks_); }
  int64_t rows() const override { return rows_; }
  void dispatch_begin(Stream& stream, Pass pass, int64_t chunk, TensorView source_TD) override;
  ExpertBatch dispatch_finish(Stream& stream, Pass pass, int64_t chunk, TensorView source_TD) override;
  ExpertBatch forward_rows(int64_t chunk, TensorView x_TD) override;
  void combine_begin(Stream& stream, Pass pass, int64_t chunk) override;
  void combine_finish(Stream& stream, Pass pass, int64_t chunk, const CombineTarget& target) override;
  ExpertWeights weights(Stream& stream, Pass pass, int64_t chunk) override;
  GradientTarget gradient(Stream& stream, ExpertMatrix matrix, int64_t chunk, GradientStore store) override;

 private:
  struct Chunk {
    int64_t first_token = 0, tokens = 0;  // in gathered order
    std::vector<int64_t> offsets;         // of experts, in sorted rows
    std::unique_ptr<Pending> pending;
    int64_t first_row() const { return offsets.front(); }
    int64_t rows() const { return offsets.back() - offsets.front(); }
  };

  int64_t experts() const { return std::ssize(experts_.up); }
  void share_counts();
  void order_parts(Stream& stream);
  void sort(Stream& stream, Pass pass, int64_t chunk);
  void count(Stream& stream, Chunk& chunk, int64_t first_row);
  // The exchanges of a chunk: one gathers rows of the tokens of all ranks, one returns such rows to the tokens' ranks
  // as parts.
  RowExchange gather_exchange(int64_t chunk, TensorView own, TensorView gathered) const;
  RowExchange return_exchange(int64_t chunk, TensorView gathered, TensorView parts) const;
  void start(Stream& stream, int64_t chunk, std::span<const RowExchange> exchanges);
  void wait(Stream& stream, int64_t chunk);
  int place_of(int source, int reader) const;      // of the source's tokens in the reader's gathered order
  int64_t chunk_of(int source, int reader) const;  // in which they are
  TensorView by_choice(GrowingTensor& tensor, int64_t first, int64_t rows) const;  // [rows, K]
  TensorView choices_of(GrowingTensor& tensor, const Chunk& chunk) const;
  int64_t all_tokens() const { return first_token_.back(); }
  int64_t all_parts() const { return layout_.tokens * ep_.size(); }

  Comm& ep_;
  Islands islands_;
  ResidentExperts experts_;
  ExpertScratch scratch_;
  GatherTokensTensors t_;
  std::vector<int32_t> position_;  // of experts in sorted rows

  TokenLayout layout_;
  TensorView gate_weights_;
  RowCounts counts_;
  std::vector<int64_t> tokens_;       // by rank
  std::vector<int64_t> first_token_;  // by place in gathered order; and their number
  std::vector<int32_t> part_order_;
  std::vector<Chunk> chunks_;
  int64_t rows_ = 0;
};

}  // namespace mw
