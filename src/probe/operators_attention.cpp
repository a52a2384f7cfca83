#include <vector>

#include "core/tensor_store.h"
#include "ops/attention.h"
#include "ops/device.h"
#include "probe/operators.h"
#include "probe/probe_tensors.h"

namespace mw {
namespace {

// Both passes of attention over random values.
class AttentionCalls {
 public:
  AttentionCalls(Stream& stream, DType dtype, const AttentionShape& shape)
      : stream_(stream), shape_(shape), tensors_(stream, slots(dtype, shape)) {
    if (!shape.documents) return;
    std::vector<int32_t> first;
    for (int64_t t = 0; t < shape.sequences * shape.seq_len; ++t) {
      const int64_t at = t % shape.seq_len, document = shape.seq_len / kProbedDocuments;
      first.push_back(static_cast<int32_t>(at - at % document));
    }
    write_values<int32_t>(stream, first, first_);
  }
  void forward() { attention(stream_, shape_, q_, k_, v_, o_, lse_, first()); }
  void backward() { attention_backward(stream_, shape_, q_, k_, v_, o_, lse_, d_o_, d_q_, d_k_, d_v_, first()); }
  // FLOP of forward; plans count 2.5 times as many for backward.
  double flops() const {
    return static_cast<double>(shape_.sequences * shape_.seq_len * (shape_.seq_len + 1) * shape_.heads *
                               (shape_.head_dim + shape_.value_dim));
  }

 private:
  static std::vector<TensorSlot> slots(DType dtype, const AttentionShape& s) {
    const int64_t tokens = s.sequences * s.seq_len;
    const std::vector<int64_t> queries = {tokens, s.heads, s.head_dim}, keys = {tokens, s.kv_heads, s.head_dim},
                               values = {tokens, s.kv_heads, s.value_dim}, outputs = {tokens, s.heads, s.value_dim};
    return {{"q", dtype, queries, 0},          {"k", dtype, keys, 0},      {"v", dtype, values, 0},
            {"o", dtype, outputs, 0},          {"d_o", dtype, outputs, 0}, {"d_q", dtype, queries, 0},
            {"d_k", dtype, keys, 0},           {"d_v", dtype, values, 0},  {"lse", DType::f32, {s.heads, tokens}, 0},
            {"first", DType::i32, {tokens}, 0}};
  }
  TensorView first() const { return shape_.documents ? first_ : TensorView(); }
  Stream& stream_;
  AttentionShape shape_;
  ProbeTensors tensors_;
  TensorView q_ = tensors_("q"), k_ = tensors_("k"), v_ = tensors_("v"), o_ = tensors_("o"), lse_ = tensors_("lse"),
             first_ = tensors_("first"), d_o_ = tensors_("d_o"), d_q_ = tensors_("d_q"), d_k_ = tensors_("d_k"),
             d_v_ = tensors_("d_v");
};

void measure_attention_lengths(Meter& meter, Stream& stream, const PlatformProfile& profile, DType dtype,
                               OperatorRates& rates) {
  const ProbeSizes sizes = sizes_for(stream.device().kind);
  rates.attention_forward.clear();
  rates.attention_backward.clear();
  for (const int64_t length : sizes.seq_lens) {
    AttentionCalls calls(stream, dtype, attention_shape(sizes, length, sizes.width));
    const double forward = net(meter.seconds_of([&] { calls.forward(); }), profile),
                 backward = net(meter.seconds_of([&] { calls.backward(); }), profile);
    rates.attention_forward.push_back({static_cast<double>(length), calls.flops() / forward});
    rates.attention_backward.push_back({static_cast<double>(length), 2.5 * calls.flops() / backward});
  }
}

void measure_attention_widths(Meter& meter, Stream& stream, DType dtype, OperatorRates& rates) {
  const ProbeSizes sizes = sizes_for(stream.device().kind);
  const auto calls_of = [&](HeadWidth width) {
    return AttentionCalls(stream, dtype, attention_shape(sizes, sizes.width_seq_len, width));
  };
  AttentionCalls whole = calls_of(sizes.width);
  RateTable forward, backward;
  for (const HeadWidth width : sizes.widths) {
    if (width == sizes.width) {
      forward.push_back({width.mean(), 1});
      backward.push_back({width.mean(), 1});
      continue;
    }
    AttentionCalls calls = calls_of(width);
    const double flops = calls.flops() / whole.flops();
    forward.push_back({width.mean(), flops / meter.ratio_of([&] { calls.forward(); }, [&] { whole.forward(); })});
    backward.push_back({width.mean(), flops / meter.ratio_of([&] { calls.backward(); }, [&] { whole.backward(); })});
  }
  rates.attention_forward_widths = forward;
  rates.attention_backward_widths = backward;
}

// On GPUs, whose library has a form of its own for each; operators of CPUs have one.
void measure_attention_in_any_order(Meter& meter, Stream& stream, OperatorRates& rates) {
  const ProbeSizes sizes = sizes_for(stream.device().kind);
  AttentionCalls calls(stream, DType::bf16, attention_shape(sizes, sizes.width_seq_len, sizes.width));
  const auto backward = [&](bool deterministic) {
    return [&calls, &stream, deterministic] {
      stream.set_deterministic(deterministic);
      calls.backward();
    };
  };
  rates.attention_any_order = meter.ratio_of(backward(true), backward(false));
  stream.set_deterministic(true);
}

// On GPUs, where other kernels compute it (ops/gpu/attention_choice.h).
void measure_attention_of_documents(Meter& meter, Stream& stream, OperatorRates& rates) {
  const ProbeSizes sizes = sizes_for(stream.device().kind);
  AttentionShape shape = attention_shape(sizes, sizes.width_seq_len, sizes.width);
  AttentionCalls whole(stream, DType::bf16, shape);
  shape.documents = true;
  AttentionCalls parts(stream, DType::bf16, shape);
  rates.attention_forward_documents = meter.ratio_of([&] { whole.forward(); }, [&] { parts.forward(); });
  rates.attention_backward_documents = meter.ratio_of([&] { whole.backward(); }, [&] { parts.backward(); });
}

}  // namespace

void measure_attention(Meter& meter, Stream& stream, const PlatformProfile& profile, DType dtype,
                       OperatorRates& rates) {
  measure_attention_lengths(meter, stream, profile, dtype, rates);
  measure_attention_widths(meter, stream, dtype, rates);
}

void measure_attention(Meter& meter, Stream& stream, PlatformProfile& profile) {
  measure_attention(meter, stream, profile, DType::bf16, profile.bf16);
  if (stream.device().kind == DeviceKind::cpu) return;
  measure_attention_in_any_order(meter, stream, profile.bf16);
  measure_attention_of_documents(meter, stream, profile.bf16);
}

}  // namespace mw
