// The gradient of an untied embedding is zero but for the rows of the tokens that a step has. Where these are few,
// replicas exchange rows instead of the whole gradient. This sum comes last in a step, when no computation can hide it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace mw {

// One step's sum of the embedding's gradient over its replicas (DP), by rows. Every replica sends the rows of its ids,
// and adds those of all to its gradient in rank order, in fp32: sums are deterministic and equal on all replicas. They
// may differ in the last bits from sums of the whole gradient, which other settings of memory or transport may bring.
class EmbeddingSums {
 public:
  // Reads the ids of the step's batches, for which it waits. Both references must outlive this object.
  EmbeddingSums(Engine& engine, std::span<const Batch> batches);
  // Two numbers for each replica: distinct ids in its part of the vocabulary, and rows for which
  // Transformer::scratch() has room. This rank sets its own two; the others are 0.
  std::vector<int64_t> counts() const;
  // counts: the sum of the replicas' counts(). Decides, the same on all of them, whether rows are summed: where they
  // move at most half as many bytes as the whole gradient would, and fit everywhere.
  void agree(std::span<const int64_t> counts);
  bool by_rows() const { return by_rows_; }

  // After the last backward pass; collective over DP where by_rows(), else without effect. Sums are valid for work
  // enqueued after finish().
  void start();
  void finish();

 private:
  TensorView ids() const;   // i32, of all replicas
  TensorView rows() const;  // f32 [ids, width], their gradients

  Engine& engine_;
  VocabPart part_;
  TensorView grad_;           // empty where rows are never summed
  std::vector<int32_t> own_;  // ids, ascending
  int64_t replicas_,
      most_ = 0;  // rows that each replica sends: the largest number of ids; others pad theirs with zeros
  bool by_rows_ = false;
  std::unique_ptr<Pending> gathered_ids_, gathered_rows_;
};

}  // namespace mw
