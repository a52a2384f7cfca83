// Shared by the tests of this room: one MoE layer with its own memory, over any transport of one rank.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "core/rng.h"
#include "moe/moe_layer.h"
#include "moe/transport_padded.h"
#include "support/counting_comm.h"
#include "support/op_case.h"

namespace mw::test {

struct LayerOptions {
  std::string transport = "in_place";  // in_place | flat | padded
  DType dtype = DType::f32;
  int64_t row_chunks = 1, tokens = 37, seq_len = 37;
  int64_t experts = 7, top_k = 3;
  Activation activation = Activation::swiglu;
  int64_t shared_width = 20;
  MoeOptions moe;
};

class TestLayer {
 public:
  static constexpr int64_t kWidth = 24, kExpertWidth = 18;

  explicit TestLayer(const LayerOptions& options) : o_(options), test_stream_(1), store_(slots()) {
    LayerSpec spec;
    spec.feed_forward = FeedForwardKind::moe;
    spec.activation = o_.activation;
    spec.moe.experts = o_.experts;
    spec.moe.top_k = o_.top_k;
    spec.moe.width = kExpertWidth;
    spec.moe.shared_width = o_.shared_width;
    spec.moe.renormalise = true;
    const int64_t c = halves_of(o_.activation);
    MoeWeights weights;
    weights.router = weight("router", o_.experts, kWidth, DType::f32);
    weights.d_router = gradient("router", {o_.experts, kWidth});
    if (o_.shared_width > 0)
      weights.shared = {weight("shared_up", c * o_.shared_width, kWidth, o_.dtype),
                        weight("shared_down", kWidth, o_.shared_width, o_.dtype),
                        gradient("shared_up", {c * o_.shared_width, kWidth}),
                        gradient("shared_down", {kWidth, o_.shared_width})};
    ResidentExperts experts;
    for (int64_t e = 0; e < o_.experts; ++e) {
      experts.up.push_back(weight(fmt::format("up.{}", e), c * kExpertWidth, kWidth, o_.dtype));
      experts.down.push_back(weight(fmt::format("down.{}", e), kWidth, kExpertWidth, o_.dtype));
    }
    experts.d_up = gradient("up", {o_.experts, c * kExpertWidth, kWidth});
    experts.d_down = gradient("down", {o_.experts, kWidth, kExpertWidth});

    const ExpertPlacement placement = make_block_placement(o_.experts, 1);
    const ExpertScratch scratch{store_.rows("a"),
                                store_.rows("y"),
                                store_.rows("sorted_weights"),
                                store_.rows("d_sorted_weights"),
                                store_.rows("exchange_rows"),
                                store_.rows("exchange_weights")};
    std::unique_ptr<Transport> transport = make_transport(placement, std::move(experts), scratch);
    const MoeSaved saved{store_.fixed("logits"),    store_.fixed("expert_choice"),   store_.fixed("gate_weights"),
                         store_.fixed("token_ids"), store_.fixed("expert_ids"),      store_.fixed("row_weights"),
                         store_.fixed("row_of"),    store_.fixed("rows_per_expert"), store_.fixed("shared_h"),
                         store_.rows("h")};
    layer_ = std::make_unique<MoeLayer>(spec, placement.position_of_expert(), std::move(weights), saved,
                                        MoeScratch{scratch, store_.fixed("d_gate"), store_.fixed("d_logits"),
                                                   store_.fixed("shared_a"), store_.fixed("branch")},
                                        std::move(transport), o_.moe);
  }

  struct Outcome {
    std::vector<float> out, d_x;
    std::map<std::string, std::vector<float>> gradients;
    LoadStatistics statistics;
    int64_t rows = 0;
  };

  // Forward and backward of random tokens; `ids` forces the choice of experts.
  Outcome run(int64_t tokens, const std::vector<int32_t>& ids = {}, const AuxGradient& aux = {}) {
    // Those of the experts are overwritten.
    for (auto& [name, values] : gradients_) {
      const bool expert = name == "up" || name == "down";
      std::fill(values.begin(), values.end(), expert ? std::numeric_limits<float>::quiet_NaN() : 0.0f);
    }
    const auto operand = [&](const char* name) { return to_operand(random_tensor(name, {tokens, kWidth}, o_.dtype)); };
    const Owned x = operand("x"), base = operand("base"), d_out = operand("d_out");
    Owned out = make_output(o_.dtype, {tokens, kWidth}), d_x = make_output(o_.dtype, {tokens, kWidth});
    const RoutingTap tap{.replay_ids = ids.data()};
    Stream& stream = test_stream_.stream;
    layer_->forward(stream, x.view, base.view, out.view, o_.seq_len, true, ids.empty() ? nullptr : &tap);
    Outcome result;
    result.statistics = layer_->statistics();
    result.rows = layer_->expert_rows();
    forget();
    layer_->backward(stream, x.view, d_out.view, d_x.view, aux, Store::overwrite);
    result.out = to_case_tensor(out).values;
    result.d_x = to_case_tensor(d_x).values;
    result.gradients = gradients_;
    return result;
  }

  const CountingComm& comm() const { return comm_; }

 private:
  std::unique_ptr<Transport> make_transport(const ExpertPlacement& placement, ResidentExperts experts,
                                            const ExpertScratch& scratch) {
    if (o_.transport == "in_place") return make_in_place_transport(std::move(experts), scratch);
    const FlatSaved saved{store_.rows("received"), store_.rows("received_index"), store_.rows("received_weights")};
    const FlatOptions options{o_.row_chunks, o_.moe.recompute.dispatched};
    if (o_.transport == "flat")
      return std::make_unique<FlatTransport>(comm_, placement, std::move(experts), scratch, saved, options);
    const PaddedSaved padded{store_.rows("padded_token_ids"), store_.fixed("padded_row_of")};
    return std::make_unique<PaddedTransport>(comm_, placement, std::move(experts), scratch, saved, padded, options);
  }
  // Spoils what the layer says that it does not keep.
  void forget() {
    const auto spoil = [&](std::initializer_list<const char*> names) {
      for (const char* name : names) {
        GrowingTensor rows = store_.rows(name);
        const TensorView all = rows.take(rows.committed_rows());
        std::memset(all.data, 0xff, static_cast<size_t>(all.bytes()));
      }
    };
    if (o_.moe.recompute.hidden) spoil({"h", "shared_h"});
    if (o_.moe.recompute.logits) spoil({"logits"});
    if (o_.moe.recompute.dispatched)
      spoil({"received", "received_index", "received_weights", "padded_token_ids", "padded_row_of", "exchange_rows",
             "exchange_weights"});
  }

  std::vector<TensorSlot> slots() const {
    const int64_t t = o_.tokens, k = o_.top_k, c = halves_of(o_.activation);
    const int64_t rows = o_.transport == "padded" ? t * o_.experts : t * k;  // at most
    std::vector<TensorSlot> list = {{"logits", DType::f32, {t, o_.experts}},
                                    {"expert_choice", DType::i32, {t, k}},
                                    {"gate_weights", DType::f32, {t, k}},
                                    {"token_ids", DType::i32, {t * k}},
                                    {"expert_ids", DType::i32, {t * k}},
                                    {"row_weights", DType::f32, {t * k}},
                                    {"row_of", DType::i32, {t, k}},
                                    {"rows_per_expert", DType::i64, {o_.experts}},
                                    {"shared_h", o_.dtype, {t, c, o_.shared_width}},
                                    {"padded_row_of", DType::i32, {t, k}},
                                    {"d_gate", DType::f32, {t, k}},
                                    {"d_logits", DType::f32, {t, o_.experts}},
                                    {"shared_a", o_.dtype, {t, o_.shared_width}},
                                    {"branch", o_.dtype, {t, kWidth}}};
    const auto growing = [&](const char* name, DType dtype, std::vector<int64_t> tail) {
      tail.insert(tail.begin(), 1);  // one row at start: the rest must grow
      list.push_back({name, dtype, std::move(tail), rows});
    };
    growing("h", o_.dtype, {c, kExpertWidth});
    growing("a", o_.dtype, {kExpertWidth});
    growing("y", o_.dtype, {kWidth});
    growing("exchange_rows", o_.dtype, {kWidth});
    growing("received", o_.dtype, {kWidth});
    for (const char* name : {"sorted_weights", "d_sorted_weights", "exchange_weights", "received_weights"})
      growing(name, DType::f32, {});
    for (const char* name : {"received_index", "padded_token_ids"}) growing(name, DType::i32, {});
    return list;
  }

  Weight weight(const std::string& name, int64_t n, int64_t k, DType dtype) {
    std::vector<float>& values = weights_[name];
    for (int64_t i = 0; i < n * k; ++i)
      values.push_back(0.3f * normal_at(make_rng_key(1, name), static_cast<uint64_t>(i)));
    Weight w;
    w.n = n;
    w.k = k;
    w.values = TensorView(values.data(), DType::f32, {n, k});
    if (dtype == DType::f32) return w;
    const int64_t bytes = packed_weight_bytes(n, k, cpu::matmul_traits().native_bf16);
    const auto packed = [&](const std::string& form) {
      std::vector<std::byte>& memory = packed_[name + form];
      memory.resize(static_cast<size_t>(bytes) + kTensorAlignment);
      const auto at = reinterpret_cast<uintptr_t>(memory.data());
      return TensorView(memory.data() + (kTensorAlignment - at % kTensorAlignment) % kTensorAlignment, DType::u8,
                        {bytes});
    };
    w.packed_forward = packed(".forward");
    w.packed_backward = packed(".backward");
    pack_weight(test_stream_.stream, w);
    return w;
  }
  TensorView gradient(const std::string& name, std::initializer_list<int64_t> shape) {
    std::vector<float>& values = gradients_[name];
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    values.resize(static_cast<size_t>(n));
    return TensorView(values.data(), DType::f32, shape);
  }

  LayerOptions o_;
  TestStream test_stream_;
  TensorStore store_;
  CountingComm comm_;
  std::map<std::string, std::vector<float>> weights_, gradients_;
  std::map<std::string, std::vector<std::byte>> packed_;
  std::unique_ptr<MoeLayer> layer_;
};

}  // namespace mw::test
