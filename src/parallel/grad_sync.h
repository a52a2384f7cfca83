// Gradients over replicas (spec/mesh.h): plain sums in fp32, of bf16 gradients too, whose sums are rounded once. The
// loss was seeded with 1/N of the whole step, so nothing is averaged or rescaled (DESIGN section 4). With ZeRO each
// rank gets the sums of what it owns only (Parameter::owned); the other elements then hold nothing of use.
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

// The sums of one step, in place, over every trained gradient: all-reduce, or reduce-scatter of a block that is cut.
// Where the groups move GPU memory themselves, they go on beside the last backward pass; the host would only hold it
// up, and does them after it. What is summed together is a function of sizes alone, and its order is the same on every
// rank, whatever experts it holds.
class GradientSums {
 public:
  // All must outlive it. skip_router: a test-only fault.
  GradientSums(const Plan& plan, ParamStore& params, MeshComms& comms, Stream& stream, bool skip_router = false);

  // A FeedForwardDone (model/transformer.h) of the step's last backward pass. Collective over DP, EDP and, with TP, the
  // stage.
  void feed_forward_done(int64_t layer);
  // After the last backward pass: sums what is left, and all sums are there for what is enqueued from then on.
  // Collective over DP, EDP and, with TP, the stage.
  void finish();

 private:
  // Neighbours in memory that are complete, taken from the end. `widest`: the elements of the rank that has most, by
  // which all ranks cut; never below `size`.
  struct Range {
    std::byte* begin;
    int64_t at;  // of `begin` in its block
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
  std::vector<size_t> feed_forward_;             // first row, by layer
  std::vector<int64_t> layers_;                  // that this rank holds
  size_t collected_;                             // rows from here on are
  int64_t total_ = 0, early_ = 0, started_ = 0;  // elements, of `widest`; early: complete in the last feed_forward_done
  std::vector<std::unique_ptr<Pending>> pending_;
  // A sum under way in one of ParamStore::sum_pieces, and what becomes of it.
  struct Piece {
    std::unique_ptr<Pending> pending;
    TensorView sums, gradients;
  };
  std::array<Piece, 2> pieces_;
  int next_piece_ = 0;
};

// Tied embeddings that the first and the last stage of a pipeline hold on two ranks: both get the sum of their
// gradients. After the last backward pass, before GradientSums::finish; collective over `ends`.
void sum_tied_gradients(Stream& stream, ParamStore& params, Comm& ends);

// After the update: the last stage's copy of tied embeddings becomes the first stage's, bit for bit, packed forms and
// all. The two sum their gradients over different ranks and in different places of their blocks, and would drift apart
// by rounding. Collective over `ends`.
void copy_tied_weights(Stream& stream, ParamStore& params, Comm& ends);

// L2 norm of the whole model's gradient, every element counted once. Equal on all ranks. Collective over EP, TP and
// PP; with ZeRO over the replicas too. counts_copies: a test-only fault.
double global_gradient_norm(Stream& stream, ParamStore& params, MeshComms& comms, bool counts_copies = false);

}  // namespace mw
