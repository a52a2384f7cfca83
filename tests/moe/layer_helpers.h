// Shared by the tests of this room: one MoE layer with its own memory, over any transport, on one rank or on several.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "layout/islands.h"
#include "layout/placement.h"
#include "layout/weight_gather.h"
#include "moe/moe_layer.h"
#include "moe/token_chunks_transport.h"
#include "moe/weight_cache.h"
#include "support/counting_comm.h"
#include "support/delayed_comm.h"
#include "support/op_case.h"

namespace mw::test {

struct LayerOptions {
  // in_place | flat | padded | halo | bypass | gather_weights | gather_tokens | token_chunks
  std::string transport = "in_place";
  DType dtype = DType::f32;
  int64_t row_chunks = 1, tokens = 37, seq_len = 37;  // tokens: of the rank that has most
  int64_t experts = 7, top_k = 3;
  Activation activation = Activation::swiglu;
  int64_t shared_width = 20;
  bool exact = false;            // weights are multiples of 1/8: with input to match, sums of products round nothing
  int micro_batches = 1;         // the same one several times: gradients add up
  int64_t weight_slots = 2;      // of gather_weights
  bool prefetch = false;         // weights_begin is called before forward and backward
  ExpertPlacement placement;     // empty: blocks, or with gather_tokens equal slices
  NodeMap nodes;                 // of the ranks of the group
  bool exchange_stream = false;  // exchanges have a stream of their own, as between GPUs
  MoeOptions moe;
};

// What one rank puts in; `ids` forces the choice of experts.
struct LayerInput {
  CaseTensor x, base, d_out;
  std::vector<int32_t> ids;
  AuxGradient aux;
  int64_t tokens() const { return x.shape[0]; }
  LayerInput slice(int64_t begin, int64_t count) const;
};

class TestLayer {
 public:
  static constexpr int64_t kWidth = 24, kExpertWidth = 18;

  // Alone, with a stream of its own.
  explicit TestLayer(const LayerOptions& options);
  // As one rank of a group of experts. Both must outlive it.
  TestLayer(const LayerOptions& options, Comm& ep, Stream& stream);

  struct Outcome {
    std::vector<float> out, d_x;
    std::map<std::string, std::vector<float>> gradients;  // of the experts: those of this rank, in slot order
    LoadStatistics statistics;
    int64_t rows = 0;
  };

  // Random tokens. Forward, then backward with what the layer does not keep spoiled, then what was deferred.
  static LayerInput random_input(int64_t tokens, DType dtype = DType::f32);
  Outcome run(const LayerInput& input);
  Outcome run(int64_t tokens, const std::vector<int32_t>& ids = {}, const AuxGradient& aux = {});

  const CountingComm& comm() const { return comm_; }
  const WeightGather& gather() const { return gather_; }
  const std::vector<WeightUse>& weight_uses() const { return weight_uses_; }  // of gather_weights, in one run
  const TransportCalls& calls() const { return calls_; }                      // of token_chunks

 private:
  LayerSpec spec() const;
  WeightGather make_gather() const;
  WeightSlots weight_slots() const;
  MoeWeights token_weights();
  // Of these experts, whose width this rank has; up and down are the names of their gradients.
  ResidentExperts resident_experts(const std::vector<int>& own, const std::string& up, const std::string& down);
  ExpertScratch expert_scratch();
  // Here alone is it known how a layer and its transport are put together.
  std::unique_ptr<Transport> make_transport();
  Islands islands() const;
  std::unique_ptr<Transport> make_by_node();
  std::unique_ptr<Transport> make_gather_tokens();
  std::unique_ptr<MoeLayer> make_layer();

  void exchange_with_replicas(bool gradients);  // else weights
  void clear_gradients();
  void spoil(std::initializer_list<const char*> names);
  void forget();
  std::vector<TensorSlot> slots() const;
  void add_by_traits(std::vector<TensorSlot>& list) const;
  int64_t width() const;  // of this rank's experts
  // part: entries of its middle axis that this rank has of a tensor [outer, width, inner]; n x k of them in all.
  struct Part {
    int64_t width = 1, begin = 0, count = 1, inner = 1;
  };
  Weight weight(const std::string& name, int64_t n, int64_t k, DType dtype, const Part& part);
  Weight weight(const std::string& name, int64_t n, int64_t k, DType dtype) {
    return weight(name, n, k, dtype, {n * k, 0, n * k, 1});
  }
  TensorView gradient(const std::string& name, std::initializer_list<int64_t> shape);

  LayerOptions o_;
  std::unique_ptr<Comm> alone_;
  std::unique_ptr<TestStream> own_stream_, exchange_stream_;
  CountingComm comm_;
  std::vector<StartedSum> sums_;
  DelayedComm delayed_;
  Stream& stream_;
  ExpertPlacement placement_;
  WeightGather gather_;
  TensorStore store_;
  std::vector<WeightUse> weight_uses_;
  std::unique_ptr<WeightCache> weight_cache_;
  TransportCalls calls_;
  ResidentExperts experts_, replicas_;
  std::map<std::string, std::vector<float>> weights_, gradients_;
  std::map<std::string, std::vector<std::byte>> packed_;
  std::unique_ptr<MoeLayer> layer_;
};

}  // namespace mw::test
