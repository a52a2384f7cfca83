// Transport: how the rows of a TokenLayout and the experts meet. Routing, experts and combine do not know which one is
// at work.
//
// One object serves one layer and one live micro-batch. The rows travel in chunks of local slots, so that the exchange
// of one chunk runs beside the expert compute of another:
//   prepare(layout); begin();
//   for each chunk c: dispatch_begin(c) .. batch = dispatch_finish(c) .. experts write batch.y .. combine_begin(c);
//   for each c: combine_finish(c); combine(...).
// Backward moves gradients the same way round: rows of d_out go to the experts, rows of d_x and the gate-weight
// gradients come back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/stream.h"
#include "core/tensor_store.h"
#include "ops/matmul.h"
#include "ops/token_layout.h"

namespace mw {

// Rows of one chunk as the experts see them. Sorted rows are numbered over all chunks, by (slot, source rank, source
// order).
struct ExpertBatch {
  int64_t slot_begin = 0, slot_count = 0;
  std::span<const int64_t> offsets;  // slot_count + 1, in sorted rows
  SortedRows x;                      // rows to read
  SortedRows y;                      // rows to write
  TensorView weights_R;              // f32 gate weight of each sorted row; backward only
  TensorView d_weights_R;            // f32, to be written by backward
};

// The weights of a chunk's experts, resident or gathered, and where their gradients are summed.
struct ExpertWeights {
  std::span<const Weight> up, down;  // [slot_count] of [c * F, D] and [D, F]
  TensorView d_up, d_down;           // f32 [slot_count, ...]
};

// The rows of each expert, on their way to the host.
class RowCounts {
 public:
  void read(Stream& stream, TensorView rows_per_expert_E);
  const std::vector<int64_t>& wait(Stream& stream);  // nothing else has been read since

 private:
  std::vector<int64_t> rows_;
  DeviceQueue::Mark read_;
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Asks the device how many rows each expert gets, and enqueues what needs no answer. Nothing is read from the device
  // between this and begin. x [T, D] must stay untouched until the last dispatch_finish. with_weights: the gate weights
  // travel too, which gradients need.
  virtual void prepare(Stream& stream, const TokenLayout& layout, TensorView x_TD, bool with_weights) = 0;
  // Waits for the answer, and for nothing enqueued behind prepare; collective over the EP group where rows travel.
  // Returns the rows that this rank's experts get.
  virtual int64_t begin(Stream& stream) = 0;
  // Whether rows travel: then the device has better to do between dispatch_begin and dispatch_finish than before begin.
  virtual bool travels() const = 0;
  virtual int64_t chunks() const = 0;
  virtual ExpertWeights weights(int64_t chunk) = 0;

  virtual void dispatch_begin(Stream& stream, int64_t chunk, TensorView x_TD) = 0;
  virtual ExpertBatch dispatch_finish(Stream& stream, int64_t chunk) = 0;
  virtual void combine_begin(Stream& stream, int64_t chunk) = 0;
  virtual void combine_finish(Stream& stream, int64_t chunk) = 0;
  // out[t] = base[t] + sum over k of weights[t, k] * y of that choice. All chunks must have finished.
  virtual void combine(Stream& stream, TensorView weights_TK, TensorView base_TD, TensorView out_TD) = 0;

  // Before backward where the dispatched rows were not kept: they travel once more, with their gate weights and the
  // counts that begin learned. Every chunk's dispatch_begin and dispatch_finish follow, with the same x.
  virtual void begin_again(Stream& stream) = 0;
  // The forward rows of a chunk, dispatched and kept; x_TD is the forward input again. Waits for nothing.
  virtual ExpertBatch dispatched(int64_t chunk, TensorView x_TD) = 0;

  // Backward. x_TD is the forward input again. In the batch x are the forward rows, and d_y / d_x the gradient rows.
  struct GradientBatch {
    ExpertBatch rows;
    SortedRows d_y, d_x;
  };
  virtual void gradient_begin(Stream& stream, int64_t chunk, TensorView d_out_TD) = 0;
  virtual GradientBatch gradient_finish(Stream& stream, int64_t chunk, TensorView x_TD) = 0;
  virtual void gradient_return_begin(Stream& stream, int64_t chunk) = 0;
  virtual void gradient_return_finish(Stream& stream, int64_t chunk) = 0;
  // d_x[t] = base[t] + sum over k of the returned rows; d_weights[t, k] = the returned gate gradients.
  virtual void combine_gradient(Stream& stream, TensorView base_TD, TensorView d_x_TD, TensorView d_weights_TK) = 0;
};

// The experts of this rank: all slots, in slot order.
struct ResidentExperts {
  std::vector<Weight> up, down;
  TensorView d_up, d_down;  // f32 [e, c, F, D], [e, D, F]
  // Slots [begin, begin + count).
  ExpertWeights slice(int64_t begin, int64_t count) const;
};

// Scratch that all layers share.
struct ExpertScratch {
  GrowingTensor a, y, row_weights, d_row_weights;  // by sorted row
  GrowingTensor exchange_rows, exchange_weights;   // source side; unused in place
};

// EP = 1: experts read token rows through the layout's index; nothing is copied.
std::unique_ptr<Transport> make_in_place_transport(ResidentExperts experts, ExpertScratch scratch);

}  // namespace mw
