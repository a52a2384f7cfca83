// flat: each (token, choice) is a row that one uneven all-to-all per direction and chunk sends to its expert's rank,
// and back. Chunks are of local slots. Where experts have replicas, these are the last chunk, and the rows of an expert
// are split over its copies from the counts of all ranks (moe/transports/copy_split.h).
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "comm/comm.h"
#include "layout/placement.h"
#include "moe/transport.h"
#include "moe/transports/copy_split.h"
#include "moe/transports/leg_exchange.h"
#include "ops/index.h"

namespace mw {

// What a layer keeps of its dispatched rows for the backward pass, or fills again before it (Pass::again).
struct FlatSaved {
  GrowingTensor received;          // rows as they arrived, [R, D]
  GrowingTensor received_index;    // i32 [R]: sorted row -> arrived row
  GrowingTensor received_weights;  // f32 [R], in arrival order
};

// The same of rows that are sent in another order than the layout's: with padding, or to replicas.
struct PlacedSaved {
  GrowingTensor token_ids;  // i32: token of each sent row, -1 for padding
  TensorView row_of_TK;     // i32 [T, K]
};

struct FlatOptions {
  int64_t row_chunks = 1;            // chunks of homes, at most as many as the largest number of homes of a rank
  bool dispatches_again = false;     // Pass::again precedes the backward pass
  Islands islands;                   // of the EP group
  std::vector<int64_t> speeds = {};  // of its ranks, for the split of rows over replicas; empty: alike
};

class FlatTransport : public Transport {
 public:
  // `ep` must outlive the transport. replicas, placed: the replicas of this rank; needed if the placement has some.
  FlatTransport(Comm& ep, const ExpertPlacement& placement, ResidentExperts experts, ExpertScratch scratch,
                FlatSaved saved, FlatOptions options, ResidentExperts replicas = {}, PlacedSaved placed = {});

  void prepare(Stream& stream, const RoutedTokens& routed, TensorView gate_weights_TK, bool trains) override;
  int64_t chunks() const override { return chunks_; }
  int64_t rows() const override { return rows_; }
  int64_t replica_rows() const override { return rows_ - offsets_[static_cast<size_t>(homes_of_rank())]; }
  void dispatch_begin(Stream& stream, Pass pass, int64_t chunk, TensorView source_TD) override;
  ExpertBatch dispatch_finish(Stream& stream, Pass pass, int64_t chunk, TensorView source_TD) override;
  ExpertBatch forward_rows(int64_t chunk, TensorView x_TD) override;
  void combine_begin(Stream& stream, Pass pass, int64_t chunk) override;
  void combine_finish(Stream& stream, Pass pass, int64_t chunk, const CombineTarget& target) override;
  ExpertWeights weights(Stream& stream, Pass pass, int64_t chunk) override;
  GradientTarget gradient(Stream& stream, ExpertMatrix matrix, int64_t chunk, GradientStore store) override;

 protected:
  // Rows to send in another order than sorted rows: how many, the row to send of each sorted row, and the sorted row of
  // each row to send.
  struct SendOrder {
    int64_t count = 0;
    std::vector<IndexRun> to_sent, to_sorted;
  };
  // Whether there is such an order. It needs the counts; otherwise rows are packed while the host waits for them.
  virtual bool has_order() const { return has_replicas_; }
  // Changes the rows to send of each expert, by (rank, slot), and returns their order; the sorted rows as they are:
  // nothing to do. Without replicas only.
  virtual SendOrder set_send_counts(std::vector<int64_t>& /*by_position*/) { return {}; }

  Comm& ep_;

 private:
  // Rows by (peer, slot): on the source side the peer is the destination, on the expert side the source.
  using PeerSlots = std::vector<std::vector<int64_t>>;
  // The rows to send: how many, the token and the gate weight of each, and the row of every choice.
  struct SendRows {
    int64_t count = 0;
    const int32_t* tokens = nullptr;
    TensorView weights_R, row_of_TK;
  };

  int64_t homes_of_rank() const { return homes_[static_cast<size_t>(ep_.rank())]; }
  std::pair<int64_t, int64_t> slot_range(int rank, int64_t chunk) const;
  bool is_of_replicas(int64_t chunk) const { return chunk == home_chunks_; }
  void start(Stream& stream, Pass pass, TensorView source_TD);
  void plan(Stream& stream);
  SendRows place_send(Stream& stream);
  void pack(Stream& stream, TensorView source_TD);
  void exchange_counts(const std::vector<int64_t>& rows_per_expert);
  void split_rows(const std::vector<int64_t>& rows_per_expert);
  void plan_receive();
  void index_received(Stream& stream);
  RowExchange exchange_of(int64_t chunk, TensorView from, TensorView to, Direction direction) const;
  void post(Stream& stream, int64_t chunk, std::span<const RowExchange> exchanges);
  void wait(Stream& stream, int64_t chunk);
  std::span<const int64_t> chunk_offsets(int64_t chunk) const;
  std::pair<int64_t, int64_t> chunk_rows(int64_t chunk) const;  // first sorted row, and their number

  bool has_replicas_;
  CopySplitter splitter_;
  std::vector<int32_t> position_;
  std::vector<int64_t> homes_, slots_;  // by rank: homes, and replicas too
  ResidentExperts experts_, replicas_;
  ExpertScratch scratch_;
  FlatSaved saved_;
  PlacedSaved placed_;
  FlatOptions options_;
  int64_t home_chunks_ = 1, chunks_ = 1;

  TokenLayout layout_;
  bool sends_weights_ = false;  // with the rows of this dispatch
  TensorView gate_weights_;
  RowCounts counts_;
  SendOrder order_;
  SendRows send_;
  PeerSlots sent_, received_;
  int64_t rows_ = 0;
  TensorView send_rows_, send_weights_;
  std::vector<IndexRun> received_runs_;
  std::vector<int64_t> offsets_;
  std::vector<std::vector<int64_t>> arrival_;      // [chunk][source]: first arrived row
  std::vector<std::unique_ptr<Pending>> pending_;  // by chunk
};

}  // namespace mw
