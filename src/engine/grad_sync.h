// Gradient reduction over replicas (layout/mesh.h): plain sums in fp32; bf16 gradients are summed in fp32 too and
// rounded once. The loss is seeded with 1/N, N being the valid labels of the whole step, so that nothing is averaged or
// rescaled. With ZeRO each rank gets only the sums of the elements that it owns (Parameter::owned); the other elements
// are undefined afterwards.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/world.h"
#include "core/stream.h"
#include "model/param_store.h"

namespace mw {

// The reductions of one step, in place, over every trained gradient but one that is left out: all-reduce, or
// reduce-scatter for blocks that are sharded (ZeRO). Where the groups move GPU memory directly, reductions overlap with
// the last backward pass. Otherwise they run after it, because reductions on the host would delay the pass. The
// grouping into messages depends on sizes only, and its order is the same on every rank, whatever experts it holds.
class GradientSums {
 public:
  // All references must outlive this object. skip_router: injected fault, for tests.
  GradientSums(const Plan& plan, ParamStore& params, MeshComms& comms, Stream& stream, bool skip_router = false);

  // The FeedForwardDone callback (model/transformer.h) of the step's last backward pass. Collective over DP, EDP and,
  // with TP, the stage.
  void feed_forward_done(int64_t layer);
  // The gradient of `p` is summed elsewhere. It must be the first row of the table, which only finish() collects. All
  // ranks of its group must call this before finish().
  void leave_out(const Parameter& p) { left_out_ = &p; }
  // To be called after the last backward pass: reduces the remaining gradients. All sums are valid for work enqueued
  // afterwards. Collective over DP, EDP and, with TP, the stage.
  void finish();

 private:
  // Complete gradients that are neighbours in memory; messages take elements from its end. `widest`: the size on the
  // rank that has most elements, by which all ranks split ranges into messages; at least `size`.
  struct Range {
    std::byte* begin;
    int64_t at;  // offset of `begin` in its block
    int64_t size, widest;
  };
  struct Group {
    Comm& comm;
    const GradientBlock* block;
    DType dtype;
    std::vector<Range> waiting;
  };
  Group& group_of(const Parameter& p) { return groups_[static_cast<size_t>(p.replicas)]; }
  bool is_summed(const Parameter& p);
  int64_t widest_size(const Parameter& p) const;
  void collect_from(size_t first);
  void add(const Parameter& p);
  void start(int64_t elements);
  void sum(const Group& group, const Range& range, int64_t elements);
  std::unique_ptr<Pending> sum(const Group& group, std::span<float> values, std::span<const int64_t> counts);
  void sum_in_pieces(const Group& group, const TensorView& values, int64_t at);
  void finish_piece(int slot);

  const Plan& plan_;
  ParamStore& params_;
  Stream& stream_;
  std::vector<Group> groups_;  // by Replicas
  bool overlap_, skip_router_;
  const Parameter* left_out_ = nullptr;
  std::vector<size_t> feed_forward_;             // first row, by layer
  std::vector<int64_t> layers_;                  // that this rank holds
  size_t collected_;                             // rows from here on are collected
  int64_t total_ = 0, early_ = 0, started_ = 0;  // elements, of `widest`; early: complete in the last feed_forward_done
  std::vector<std::unique_ptr<Pending>> pending_;
  // A reduction in flight in one of ParamStore::sum_pieces, and its destination.
  struct Piece {
    std::unique_ptr<Pending> pending;
    TensorView sums, gradients;
  };
  std::array<Piece, 2> pieces_;
  int next_piece_ = 0;
};

// Tied embeddings that the first and the last stage of a pipeline hold on two ranks: both get the sum of their
// gradients. To be called after the last backward pass, before GradientSums::finish. Collective over `ends`.
void sum_tied_gradients(Stream& stream, ParamStore& params, Comm& ends);

// To be called after the update: copies tied embeddings, including packed forms, from the first stage to the last, bit
// for bit. The two stages sum their gradients over different ranks and in different blocks, and would drift apart by
// rounding. Collective over `ends`.
void copy_tied_weights(Stream& stream, ParamStore& params, Comm& ends);

// L2 norm of the whole model's gradient, counting every element once. Equal on all ranks, and to the bit the same
// wherever experts are placed: their squares are added without rounding (core/exact_sum.h). Collective over EP, TP and
// PP; with ZeRO also over the replicas.
double global_gradient_norm(Stream& stream, ParamStore& params, MeshComms& comms, Fault fault = Fault::none);

}  // namespace mw
