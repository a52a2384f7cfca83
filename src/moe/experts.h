// What the routed experts of a rank compute with the rows of one chunk (moe/transport.h), forward and backward.
#pragma once

#include <cstdint>
#include <vector>

#include "moe/transport.h"
#include "ops/activation.h"

namespace mw {

// Pre-activations [R, c, F] as products see them: one row of both halves.
inline TensorView flat_halves(TensorView h_RcF) { return h_RcF.reshape({h_RcF.dim(0), h_RcF.dim(1) * h_RcF.dim(2)}); }

// The biases of all experts of a layer, f32, and their gradients, which are added to; empty: none.
struct ExpertBiases {
  TensorView up, d_up;      // [E, c * F]
  TensorView down, d_down;  // [E, D]; empty also on ranks whose outputs are summed with those of one that adds it
  std::vector<int32_t> expert_of_slot;
};

// The computations of a layer's experts. h [R, c, F] and a [R, F] have a place for all sorted rows.
struct Experts {
  ActivationRule activation;
  ExpertProducts products = ExpertProducts::automatic;
  ExpertBiases biases = {};

  // h of the rows of a chunk.
  void hidden(Stream& stream, const ExpertBatch& rows, const ExpertWeights& weights, TensorView h_RcF) const;
  // h, and from it batch.out; a is scratch.
  void forward(Stream& stream, const ExpertBatch& batch, const ExpertWeights& weights, TensorView h_RcF,
               TensorView a_RF) const;
  // Down to d_h, which is left in h. The activation is recomputed from h, and the gate-weight gradient is taken as
  // <d_a, a>: expert outputs are never kept. Leaves the weighted activation in a. Adds to the gradients of the biases.
  void backward(Stream& stream, const ExpertBatch& batch, const ExpertWeights& weights, TensorView h_RcF,
                TensorView a_RF) const;
  // batch.out from d_h, so that d_x can travel while weight gradients are computed.
  void up_d_input(Stream& stream, const ExpertBatch& batch, const ExpertWeights& weights, TensorView d_h_RcF) const;

 private:
  std::span<const int32_t> experts_of(const ExpertBatch& batch) const;
};

}  // namespace mw
