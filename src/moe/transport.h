// Transport: moves rows between tokens and experts. The router, the layer and the experts do not know which transport
// moves them. Two motions serve every pass: dispatch brings rows of a [T, D] tensor to the experts, combine brings the
// experts' rows back and sums them by token.
//
// Each MoE layer has one Transport for every micro-batch in flight (more than one with a pipeline). The rows of a pass
// move in chunks, so that the exchange of one chunk overlaps with the expert compute of another:
//   prepare(routed, ...);                              // once, before the forward pass
//   dispatch_begin(pass, 0, source);
//   for each chunk c:
//     dispatch_begin(pass, c + 1, source);             // if there is such a chunk
//     batch = dispatch_finish(pass, c, source); the experts read batch.in and write batch.out; combine_begin(pass, c);
//   for each chunk c: combine_finish(pass, c, target);
// The caller must not begin chunk c + 2 before it has called dispatch_finish of chunk c. prepare, dispatch_*,
// combine_*, weights* and gradient* are collective over the EP group: every rank makes the same calls, also a rank
// without rows. The other calls are local.
//
// Suffixes of tensors name their dimensions: T tokens of this rank, D hidden size, K experts per token, R rows, E
// experts.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/comm.h"
#include "core/stream.h"
#include "core/tensor_store.h"
#include "layout/islands.h"
#include "layout/placement.h"
#include "ops/matmul.h"
#include "ops/token_layout.h"

namespace mw {

enum class Pass : uint8_t {
  forward,   // dispatch x; combine y with the gate weights
  again,     // recompute: dispatch x once more before a backward pass, because forward's rows were not kept; no combine
  backward,  // dispatch d_out; combine d_x without weights, and bring back the gate gradients
};

// Rows of one chunk as the experts of this rank see them. What a chunk is depends on the transport: with flat and
// padded the rows for a range of this rank's experts; with halo and bypass the rows of a range of the tokens of each
// sending rank; with gather_tokens those of a range of sending ranks; with in_place there is one chunk. Rows of
// replicas are chunks of their own. A slot is the index of an expert on its rank. The rows are sorted by (slot, source
// rank, order at the source). Sorted rows have one numbering for all chunks: chunk 1 begins where chunk 0 ends.
struct ExpertBatch {
  int64_t slot_begin = 0, slot_count = 0;
  std::span<const int64_t> offsets;  // slot_count + 1, in sorted rows
  SortedRows in;                     // rows to read: x, or d_out in the backward pass
  SortedRows out;                    // rows to write: y, or d_x in the backward pass
  TensorView weights_R;              // backward: f32 gate weight of each sorted row
  TensorView d_weights_R;            // backward: f32 gate gradient of each sorted row, written by the experts
};

// The two matrices of an expert: [g * F, D] and [D, F]. g: 2 with a gate projection (SwiGLU), else 1.
enum class ExpertMatrix : uint8_t { up, down };

// The weights of a chunk's experts, [slot_count] each.
struct ExpertWeights {
  std::span<const Weight> up, down;
};

// Where estmm puts the gradients of one matrix of a chunk's experts, and how.
struct GradientTarget {
  TensorView values;  // [slot_count, n, k], f32 or as memory.expert_gradients says
  GradientStore store;
};

// What the pass stores in the given one of several turns over the same experts, each with some of their rows: squares
// are those of complete gradients.
inline GradientStore store_in_turn(GradientStore pass, int64_t turn, int64_t turns) {
  if (turns == 1) return pass;
  return turn == 0 ? pass.store : Store::accumulate;
}

// Where combine puts its sums.
struct CombineTarget {
  TensorView base_TD;  // added to the sum; empty: zero; may be the same memory as out_TD
  // Overwritten: out[t] = base[t] + sum over k, in order, of the returned row of choice (t, k). In the forward pass
  // each row is multiplied by its gate weight, in the backward pass it is not. With bypass the ranks and gateways on
  // the way back multiply and sum already, and round their sums to the run's dtype.
  TensorView out_TD;
  TensorView d_weights_TK;  // backward: f32 gate gradients, overwritten; 0 for dropped choices
};

// What a layer has routed, when all work that finds it has been enqueued.
struct RoutedTokens {
  TokenLayout layout;
  // Where a capacity may drop choices: empty. Else the choices of each expert, [E] for each run of tokens: memory that
  // copies to the host fill, which were started before `counted`. Valid until the first dispatch_finish has returned.
  std::vector<std::span<const double>> choices;
  DeviceQueue::Mark counted;
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Starts to copy the number of rows of each expert to the host, if that has not been done. gate_weights [T, K], f32:
  // must stay unchanged until the last combine_finish. trains: a backward pass follows.
  virtual void prepare(Stream& stream, const RoutedTokens& routed, TensorView gate_weights_TK, bool trains) = 0;
  // The number of chunks, the same on all ranks of the EP group and in all passes.
  virtual int64_t chunks() const = 0;
  // Whether rows stay on their rank: combine_begin then sends nothing.
  virtual bool rows_stay() const { return false; }
  // The rows that the experts of this rank get: at least those of the chunks whose dispatch_finish has returned in the
  // forward pass, after the last of them those of all chunks.
  virtual int64_t rows() const = 0;
  // Of these, the rows of replicas.
  virtual int64_t replica_rows() const { return 0; }

  // source [T, D]: the tensor whose rows move, the same for all chunks; must stay unchanged until the last
  // dispatch_finish of the pass. Some transports send gate weights or expert numbers along with the rows.
  virtual void dispatch_begin(Stream& stream, Pass pass, int64_t chunk, TensorView source_TD) = 0;
  virtual ExpertBatch dispatch_finish(Stream& stream, Pass pass, int64_t chunk, TensorView source_TD) = 0;
  // The rows that Pass::forward (or Pass::again) dispatched, for weight gradients and recompute. Transports that kept
  // these rows return them; where rows stay on their rank they are read from x_TD, which must equal the forward input
  // bit for bit. Sets the slots, offsets and in; leaves out, weights_R and d_weights_R empty. Local: waits for nothing.
  virtual ExpertBatch forward_rows(int64_t chunk, TensorView x_TD) = 0;
  // Starts to return the rows that the experts wrote to batch.out, and in the backward pass the gate gradients.
  virtual void combine_begin(Stream& stream, Pass pass, int64_t chunk) = 0;
  // `target` is complete after the last chunk's combine_finish. The same target for all chunks of a pass.
  virtual void combine_finish(Stream& stream, Pass pass, int64_t chunk, const CombineTarget& target) = 0;

  // gather_weights gathers the experts of other ranks; the other transports compute with this rank's experts only, and
  // for them weights_begin does nothing. weights_begin starts to gather the weights of a pass; it may be called before
  // the attention that precedes the layer. Without this call weights() gathers. Both are collective if the transport
  // gathers.
  virtual void weights_begin(Stream& /*stream*/, Pass /*pass*/) {}
  // Called once for each pass (forward, backward) and chunk, in their order. Valid until the next call for a chunk, and
  // of the last chunk until the last combine_finish.
  virtual ExpertWeights weights(Stream& stream, Pass pass, int64_t chunk) = 0;

  // Called for each matrix and chunk once in a backward pass, or later where a schedule defers the gradients of up:
  // gradient(), estmm, gradient_done(). store: whether the pass overwrites the gradients of this rank's experts or adds
  // to them, and where it may add squares of those that are complete then. Gradients of other ranks' experts go to
  // those from gradient_done on.
  virtual GradientTarget gradient(Stream& stream, ExpertMatrix matrix, int64_t chunk, GradientStore store) = 0;
  virtual void gradient_done(Stream& /*stream*/, ExpertMatrix /*matrix*/, int64_t /*chunk*/, Store /*store*/) {}
  // The gradients that are done are then complete for work enqueued later.
  virtual void gradients_finish(Stream& /*stream*/) {}
};

// Copies the number of rows of each expert to the host.
class RowCounts {
 public:
  void read(Stream& stream, TensorView rows_per_expert_E);  // starts the copy
  void read(Stream& stream, const RoutedTokens& routed);    // takes the choices, or starts the copy
  // Waits for the copy, and for no work that was enqueued after it.
  const std::vector<int64_t>& wait(Stream& stream);

 private:
  std::vector<int64_t> rows_;
  std::vector<std::span<const double>> choices_;  // to be added up
  DeviceQueue::Mark read_;
};

// The e experts of this rank, in slot order. g: as for ExpertMatrix.
struct ResidentExperts {
  std::vector<Weight> up, down;
  TensorView d_up, d_down;  // [e, g * F, D], [e, D, F]; f32 or as memory.expert_gradients says
  // Of slots [begin, begin + count).
  ExpertWeights slice(int64_t begin, int64_t count) const;
  TensorView gradient(ExpertMatrix matrix, int64_t begin, int64_t count) const;
};

// Scratch that all layers share.
struct ExpertScratch {
  // Indexed by sorted row. a: output of the activation function; y: output of the experts, in backward d_x.
  GrowingTensor a, y, row_weights, d_row_weights;
  GrowingTensor exchange_rows, exchange_weights;  // flat, padded: by place in the send buffer of dispatch
};

// Computes `target` as CombineTarget says, from returned rows: the row of choice (t, k) is rows_RD[row_of[t, k]], and
// in the backward pass its gate gradient (f32) is d_weights_R[row_of[t, k]].
void sum_returned_rows(Stream& stream, Pass pass, TensorView rows_RD, TensorView d_weights_R, TensorView row_of_TK,
                       TensorView gate_weights_TK, const CombineTarget& target);

// member: this rank's number in the EP group. Returns the bytes that it sends in this exchange: to all other members,
// and of these to members on other nodes (those outside its island).
Trace::SentBytes sent_bytes(const RowExchange& exchange, const Islands& islands, int member);

// Starts exchanges of routed rows together, and counts the bytes that this rank sends in them. islands: of the members
// of `ep`.
std::unique_ptr<Pending> start_exchanges(Stream& stream, Comm& ep, const Islands& islands,
                                         std::span<const RowExchange> exchanges);

// Checks that no expert has replicas, and returns `placement` unchanged, for use in an initializer list. Errors:
// unsupported.
const ExpertPlacement& without_replicas(const ExpertPlacement& placement);

}  // namespace mw
