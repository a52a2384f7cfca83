// halo and bypass: rows travel by way of the node (layout/exchange_plan.h; Piper section V, X-MoE section 4.2). halo
// sends a row for each choice and weighs it at its token's rank: all results equal flat's to the bit. bypass sends a
// token's row once over each link and sums what comes back before it travels on, in fp32, rounded to the run's dtype at
// each link; with one chunk the experts' gradients and the gate gradients equal flat's to the bit. Chunks are of
// tokens. Where experts have replicas, the rows of an expert are split over its copies as flat splits them, and each
// chunk of tokens is two chunks for the experts: rows of homes, then those of replicas.
//
// The same three sorts serve both ways (ops/units.h): 1. at the source, tokens to units by the member that takes them;
// 2. at the gateway, units by member of the island; 3. at the experts' rank, units to rows by slot, which experts read
// through an index. On the way back each level sums by the same tables.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/comm.h"
#include "config/faults.h"
#include "layout/exchange_plan.h"
#include "layout/placement.h"
#include "moe/transport.h"
#include "moe/transports/copy_split.h"
#include "moe/transports/leg_exchange.h"
#include "ops/units.h"

namespace mw {

// The tensors of layout/transport.cpp under their names there.
struct ByNodeTensors {
  // Kept by the layer.
  GrowingTensor sent_tokens, sent_leads, sent_units, spread_pilots, spread_leads, spread_units, units, unit_weights,
      unit_rows, unit_index;
  // Shared by all layers; `arrived` is their "units".
  GrowingTensor choices, rows, row_choices, row_weights, pilots, pilot_choices, pilot_weights, spread, spread_choices,
      spread_weights, arrived, unit_choices, unit_order, unit_leads;
};

// From tensors by name.
using TensorOf = std::function<GrowingTensor(const char*)>;
ByNodeTensors by_node_tensors(const TensorOf& kept, const TensorOf& scratch);

struct ByNodeOptions {
  bool merge = false;  // bypass
  int64_t chunks = 1;
  bool dispatches_again = false;  // Pass::again precedes the backward pass
  Fault fault = Fault::none;
  std::vector<int64_t> speeds = {};  // of the ranks, for the split of rows over replicas; empty: alike
};

class ByNodeTransport : public Transport {
 public:
  // islands: of the EP group. `ep` must outlive the transport. replicas: of this rank; needed if the placement has
  // some.
  ByNodeTransport(Comm& ep, Islands islands, const ExpertPlacement& placement, ResidentExperts experts,
                  ExpertScratch scratch, ByNodeTensors tensors, ByNodeOptions options, ResidentExperts replicas = {});

  void prepare(Stream& stream, const RoutedTokens& routed, TensorView gate_weights_TK, bool trains) override;
  int64_t chunks() const override { return std::ssize(chunks_) * kinds_; }
  int64_t rows() const override { return end_.row; }
  int64_t replica_rows() const override;
  void dispatch_begin(Stream& stream, Pass pass, int64_t chunk, TensorView source_TD) override;
  ExpertBatch dispatch_finish(Stream& stream, Pass pass, int64_t chunk, TensorView source_TD) override;
  ExpertBatch forward_rows(int64_t chunk, TensorView x_TD) override;
  void combine_begin(Stream& stream, Pass pass, int64_t chunk) override;
  void combine_finish(Stream& stream, Pass pass, int64_t chunk, const CombineTarget& target) override;
  ExpertWeights weights(Stream& stream, Pass pass, int64_t chunk) override;
  GradientTarget gradient(Stream& stream, ExpertMatrix matrix, int64_t chunk, GradientStore store) override;

 private:
  // Numbers of rows of the chunks before, in each buffer.
  struct Begins {
    int64_t sent = 0, pilot = 0, spread = 0, unit = 0, row = 0;
  };
  struct RowRange {
    int64_t first = 0, rows = 0;
    int64_t end() const { return first + rows; }
  };
  // A leg of the plan. Rows that a rank would send to itself do not travel: they are written to where they would
  // arrive. Choices, gate weights and gate gradients, which are few bytes, travel with the whole leg.
  struct Leg {
    ExchangeLeg others;               // without the own message
    RowRange own_sent, own_received;  // the own message's rows in the send and in the receive buffer
  };
  struct Chunk {
    int64_t first_token = 0, tokens = 0;
    int64_t sent_rows = 0;  // to all members; known before the plan, as home_leg.own_sent
    ExchangePlan plan;
    Leg home_leg, spread_leg;
    Begins first;
    std::vector<int64_t> offsets;  // of slots, in sorted rows
    std::unique_ptr<Pending> home, far, spread;
    bool passed_on = false;          // the gateway has sent what arrived from other nodes
    bool merged = false;             // the gateway has sent what came back
    DeviceQueue::Mark own_copied{};  // on the exchanges' stream: the gateway's own rows are where they would arrive
  };
  // Part of each copy of an expert in the sorts: the member that takes its rows from here, its rank, its rank's place
  // in this island, its slot here; its position in (rank, slot) order. -1: none. Copies are in the order of
  // CopySplit::sent; without replicas, of the experts.
  struct Parts {
    std::vector<int32_t> receiver, member, place, slot, position;
  };

  // What is behind a chunk of the callers: its tokens' chunk, and whether its rows are those of replicas.
  Chunk& tokens_of(int64_t chunk) { return chunks_[static_cast<size_t>(chunk / kinds_)]; }
  bool is_of_replicas(int64_t chunk) const { return chunk % kinds_ == 1; }
  bool is_last_of_tokens(int64_t chunk) const { return chunk % kinds_ == kinds_ - 1; }

  void find_parts(const ExpertPlacement& placement);
  void find_part(const ExpertHome& copy);
  void choose_copies(Stream& stream);
  void split_tokens(int64_t tokens);
  void sort_sent(Stream& stream, const Chunk& chunk);
  void sort_and_count(Stream& stream);
  void count(Stream& stream);
  // Before a forward pass's first chunk leaves: take_counts, pack of that chunk, plan.
  std::vector<SourceCounts> take_counts(Stream& stream);  // by chunk
  // The first chunk's rows may be packed before this call, because they begin at row 0 of every buffer.
  void plan(Stream& stream, const std::vector<SourceCounts>& own);
  Leg leg_of(const ExchangeLeg& leg) const;
  // The parts of [0, rows) outside of these ranges, which ascend.
  static std::vector<RowRange> ranges_outside(std::initializer_list<RowRange> ranges, int64_t rows);
  bool carries_weights(Pass pass) const;
  TensorView by_choice(GrowingTensor& tensor) const;  // [tokens, top_k]
  TensorView choices_of(const Chunk& chunk);          // [its tokens, top_k]: numbers of copies, -1 for dropped choices
  TensorView of_choices(GrowingTensor& table, const Chunk& chunk) const;  // entries of its choices
  void pack(Stream& stream, Pass pass, const Chunk& chunk, TensorView source_TD);
  void pack_rows(Stream& stream, const Chunk& chunk, TensorView source_TD, RowRange sent, TensorView out);
  static void gather_range(Stream& stream, TensorView from, TensorView table, RowRange range, TensorView out);
  TensorView units_of(Pass pass, const Chunk& chunk);  // the receive buffer of home and spread
  void send_units(Stream& stream, Pass pass, Chunk& chunk);
  // The stream of the gateway's part of a chunk. With several chunks, between GPUs, it is that of the exchanges: the
  // part then runs beside the experts of other chunks. Else it is `stream`.
  Stream& relay_of(Stream& stream) const;
  // Makes that stream wait for what the gateway's part reads.
  void start_relay(Stream& stream, std::unique_ptr<Pending>& arrives);
  void pass_on(Stream& stream, Pass pass, Chunk& chunk);
  void order_units(Stream& stream, const Chunk& chunk);
  void sort_arrived(Stream& stream, const Chunk& chunk);
  void place_weights(Stream& stream, const Chunk& chunk);
  // One leg of an exchange of a chunk's rows, or of what travels with them: they lie in `from` and `to` whatever the
  // direction.
  RowExchange exchange_of(const ExchangeLeg& leg, Direction direction, TensorView from, TensorView to) const;
  void wait(Stream& stream, std::unique_ptr<Pending>& pending);
  void send_back_units(Stream& stream, Pass pass, Chunk& chunk);
  void merge_rows(Stream& stream, Pass pass, const Chunk& chunk, RowRange units, TensorView out);
  void send_back_pilots(Stream& stream, Pass pass, Chunk& chunk);
  // Sums of numbers that travel with units, by the table of a level.
  void merge_values(Stream& stream, TensorView from, TensorView table, TensorView out) const;
  TensorView by_unit(GrowingTensor& tensor, int64_t first, int64_t rows) const;  // [rows, width_]

  Comm& ep_;
  Islands islands_;
  ResidentExperts experts_, replicas_;
  ExpertScratch scratch_;
  ByNodeTensors t_;
  ByNodeOptions options_;
  CopySplitter splitter_;
  std::vector<int64_t> rank_offsets_;  // of copies
  Parts parts_;
  int64_t homes_ = 0, slots_ = 0, island_size_ = 1;
  int64_t kinds_ = 1;  // of copies, homes and replicas: each chunk of tokens is as many chunks of the callers

  TokenLayout layout_;
  TensorView gate_weights_;
  bool trains_ = false;
  int64_t width_ = 1;  // choices that travel with a unit
  RowCounts counts_;
  std::vector<Chunk> chunks_;
  Begins end_;
};

}  // namespace mw
