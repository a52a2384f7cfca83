#include "probe/operators.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/tensor_store.h"
#include "ops/activation.h"
#include "ops/adamw.h"
#include "ops/attention.h"
#include "ops/device.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/norm.h"

namespace mw {
namespace {

struct Product {
  int64_t rows = 0, width = 0;  // [rows, width] x [width, width]
  double flops() const { return 2.0 * static_cast<double>(rows) * static_cast<double>(width * width); }
};

struct HeadWidth {
  int64_t keys = 0, values = 0;
  double mean() const { return static_cast<double>(keys + values) / 2; }
  bool operator==(const HeadWidth&) const = default;
};

// Sizes that take from microseconds to some 20 ms on such a device.
struct ProbeSizes {
  std::vector<Product> dense;
  int64_t experts = 0;
  std::vector<Product> expert;  // rows: of one expert, on average
  std::vector<int64_t> seq_lens;
  int64_t attention_tokens = 0;  // at least; longer sequences are measured one at a time
  int64_t heads = 0, kv_heads = 0;
  HeadWidth width;                // of all lengths
  std::vector<HeadWidth> widths;  // their means ascend
  int64_t width_seq_len = 0;      // of all widths
  int64_t elements = 0;           // of a tensor that no cache holds
};

ProbeSizes sizes_for(DeviceKind device) {
  if (device == DeviceKind::cpu)
    return {{{512, 64}, {512, 128}, {512, 256}, {512, 512}, {512, 1024}, {512, 2048}},
            8,
            {{16, 128}, {32, 256}, {64, 512}, {256, 512}, {512, 1024}},
            {64, 128, 256, 512, 1024, 2048},
            1024,
            8,
            2,
            {64, 64},
            {{8, 8}, {16, 16}, {32, 32}, {64, 64}, {128, 128}},
            512,
            int64_t{1} << 24};
  return {{{1024, 256}, {8192, 256}, {8192, 512}, {8192, 1024}, {8192, 2048}, {8192, 4096}, {8192, 8192}},
          16,
          {{64, 512}, {128, 1024}, {256, 1536}, {1024, 1536}, {2048, 2048}, {4096, 4096}},
          {512, 1024, 2048, 4096, 8192, 16384},
          16384,
          32,
          4,
          {128, 128},
          {{64, 64}, {128, 128}, {192, 128}},  // the last is DeepSeek's
          4096,
          int64_t{1} << 28};
}

// That training is done in: fp32 on GPUs is for tests.
std::vector<DType> dtypes_on(DeviceKind device) {
  if (device == DeviceKind::cpu) return {DType::bf16, DType::f32};
  return {DType::bf16};
}

// Values that keep multipliers as busy as weights do: zeros would let a GPU run faster than it can.
void fill_random(Stream& stream, TensorView tensor) {
  std::mt19937 bits(7);
  std::uniform_real_distribution<float> value(-1.0f, 1.0f);
  std::vector<float> piece(static_cast<size_t>(std::min<int64_t>(tensor.numel(), int64_t{1} << 20)));
  for (float& v : piece) v = value(bits);
  std::vector<bf16> rounded(piece.size());
  std::transform(piece.begin(), piece.end(), rounded.begin(), to_bf16);
  for (int64_t done = 0; done < tensor.numel(); done += std::ssize(piece)) {
    const size_t count = static_cast<size_t>(std::min<int64_t>(std::ssize(piece), tensor.numel() - done));
    auto* to = static_cast<std::byte*>(tensor.data) + done * size_of(tensor.dtype);
    const void* from = tensor.dtype == DType::f32 ? static_cast<const void*>(piece.data()) : rounded.data();
    stream.queue().copy(to, from, count * static_cast<size_t>(size_of(tensor.dtype)));
  }
  stream.wait();
}

// Tensors of one measurement, filled with random values.
class Tensors {
 public:
  Tensors(Stream& stream, const std::vector<TensorSlot>& slots)
      : stream_(stream), store_(slots, arenas_of(stream.device())) {
    for (const TensorSlot& slot : slots)
      if (slot.dtype != DType::u8 && slot.dtype != DType::i32) fill_random(stream, store_.fixed(slot.name));
  }
  TensorView operator()(const std::string& name) { return store_.fixed(name); }

  // The weights of weight_slots, which hold `count` matrices of [n, k].
  std::vector<Weight> weights(DType dtype, int64_t count, int64_t n, int64_t k) {
    std::vector<Weight> all;
    const TensorView values = store_.fixed("values");
    for (int64_t i = 0; i < count; ++i) {
      if (dtype == DType::f32) {
        all.push_back({n, k, values.at(i), {}, {}});
        continue;
      }
      const TensorView packed = store_.fixed("packed");
      Weight w{n, k, values.at(i), packed.at(2 * i), packed.at(2 * i + 1)};
      if (stream_.device().kind != DeviceKind::cpu) w.packed_backward = w.packed_forward;
      pack_weight(stream_, w);
      all.push_back(w);
    }
    return all;
  }

 private:
  Stream& stream_;
  TensorStore store_;
};

std::vector<TensorSlot> weight_slots(Stream& stream, DType dtype, int64_t count, int64_t n, int64_t k) {
  std::vector<TensorSlot> slots = {{"values", DType::f32, {count, n, k}, 0}};
  const bool native = stream.device().kind != DeviceKind::cpu || cpu::matmul_traits().native_bf16;
  if (dtype == DType::bf16) slots.push_back({"packed", DType::u8, {2 * count, packed_weight_bytes(n, k, native)}, 0});
  return slots;
}

// Of a measured time the part that is not an operator's latency.
double net(double seconds, const PlatformProfile& profile) {
  return std::max(seconds - profile.operator_latency_s, 0.1 * seconds);
}

// Rows of `experts` experts, `rows` on average, from a half to one and a half of that.
std::vector<int64_t> ragged_offsets(int64_t experts, int64_t rows) {
  std::vector<int64_t> offsets = {0};
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t swing = rows / 2 * ((e * 5) % experts) / std::max<int64_t>(1, experts - 1);
    offsets.push_back(offsets.back() + (e + 1 == experts ? rows * experts - offsets.back()
                                        : e % 2 == 0     ? rows - swing
                                                         : rows + swing));
  }
  return offsets;
}

// Bytes read and written by the packing, in both forms, of weights that no cache holds together.
double pack_rate(Meter& meter, Stream& stream) {
  constexpr int64_t kWeights = 64, kWidth = 512;
  Tensors t(stream, weight_slots(stream, DType::bf16, kWeights, kWidth, kWidth));
  const std::vector<Weight> weights = t.weights(DType::bf16, kWeights, kWidth, kWidth);
  const auto bytes = static_cast<double>(2 * t("values").bytes() + t("packed").bytes());
  return bytes / meter.seconds_of([&] {
    for (const Weight& w : weights) pack_weight(stream, w);
  });
}

// Latent attention, which alone has two widths, has keys and values for every head.
AttentionShape attention_shape(const ProbeSizes& sizes, int64_t seq_len, HeadWidth width) {
  return {std::max<int64_t>(1, sizes.attention_tokens / seq_len),    seq_len,    sizes.heads,
          width.keys == width.values ? sizes.kv_heads : sizes.heads, width.keys, width.values,
          1.0f / std::sqrt(static_cast<float>(width.keys))};
}

std::vector<AttentionShape> attention_shapes(const ProbeSizes& sizes) {
  std::vector<AttentionShape> shapes;
  for (const int64_t length : sizes.seq_lens) shapes.push_back(attention_shape(sizes, length, sizes.width));
  for (const HeadWidth width : sizes.widths) shapes.push_back(attention_shape(sizes, sizes.width_seq_len, width));
  return shapes;
}

}  // namespace

namespace {

int64_t workspace_bytes(int threads, DeviceKind device, int64_t longest_sequence) {
  const ProbeSizes sizes = sizes_for(device);
  int64_t bytes = int64_t{1} << 20;
  for (const Product& p : sizes.dense) bytes = std::max(bytes, matmul_workspace_bytes(p.width, p.width, device));
  for (const Product& p : sizes.expert)
    bytes = std::max(
        bytes, matmul_workspace_bytes(p.width, p.width, device) +
                   esmm_workspace_bytes(ExpertProducts::automatic, p.rows * sizes.experts, p.width, p.width, device));
  for (const AttentionShape& shape : attention_shapes(sizes))
    for (const DType dtype : dtypes_on(device))
      if (shape.seq_len <= longest_sequence)
        bytes = std::max(bytes, attention_workspace_bytes(shape, dtype, threads, device));
  return bytes;
}

}  // namespace

int64_t probe_workspace_bytes(int threads, DeviceKind device) {
  return workspace_bytes(threads, device, std::numeric_limits<int64_t>::max());
}

int64_t run_workspace_bytes(int threads, DeviceKind device) { return workspace_bytes(threads, device, 8192); }

void measure_memory_operators(Meter& meter, Stream& stream, PlatformProfile& profile) {
  {
    Tensors t(stream, {{"a", DType::f32, {64}, 0}, {"b", DType::f32, {64}, 0}, {"out", DType::f32, {64}, 0}});
    const TensorView a = t("a"), b = t("b"), out = t("out");
    profile.operator_latency_s = meter.seconds_of([&] { add(stream, a, b, out); });
    // Routing waits twice for numbers that the host needs.
    profile.routing_latency_s = 2 * meter.seconds_of([&] {
      add(stream, a, b, out);
      read_values<float>(stream, out);
    });
  }
  const int64_t elements = sizes_for(stream.device().kind).elements, width = 1024, rows = elements / width;
  {
    Tensors t(stream, {{"a", DType::bf16, {rows, 2, width / 2}, 0},
                       {"b", DType::bf16, {rows, width}, 0},
                       {"out", DType::bf16, {rows, width}, 0},
                       {"gain", DType::f32, {width}, 0},
                       {"rstd", DType::f32, {rows}, 0}});
    const TensorView halves = t("a"), b = t("b"), out = t("out"), gain = t("gain"), rstd = t("rstd");
    const TensorView a(halves.data, DType::bf16, {rows, width}), half(out.data, DType::bf16, {rows, width / 2});
    const double seconds = meter.seconds_of([&] { add(stream, a, b, out); }) + meter.seconds_of([&] {
      rms_norm(stream, a, gain, 1e-6f, out, rstd);
    }) + meter.seconds_of([&] { activate(stream, Activation::swiglu, halves, half); });
    profile.elementwise_bytes_per_s = (3 + 2 + 1.5) * 2.0 * static_cast<double>(elements) / seconds;
  }
  Tensors t(stream, {{"grad", DType::f32, {elements / 2}, 0},
                     {"w", DType::f32, {elements / 2}, 0},
                     {"m", DType::f32, {elements / 2}, 0},
                     {"v", DType::f32, {elements / 2}, 0}});
  const TensorView grad = t("grad"), w = t("w"), m = t("m"), v = t("v");
  fill_zero(stream, v);
  const double seconds =
      meter.seconds_of([&] { adamw(stream, AdamW{}, 1000, 1e-6f, 0.0f, 1.0f, grad, w, m, v, TensorView()); });
  profile.stream_bytes_per_s = 28.0 * static_cast<double>(elements / 2) / seconds;
  if (profile.pack_bytes_per_s) profile.pack_bytes_per_s = pack_rate(meter, stream);
}

void measure_offloaded_update(Meter& meter, Stream& stream, PlatformProfile& profile) {
  const int64_t elements = sizes_for(stream.device().kind).elements / 4;
  Tensors t(stream, {{"grad", DType::f32, {elements}, 0}, {"copy", DType::bf16, {elements}, 0}});
  TensorStore states(
      {{"w", DType::f32, {elements}, 0}, {"m", DType::f32, {elements}, 0}, {"v", DType::f32, {elements}, 0}},
      host_arenas_of(stream.device()));
  const TensorView grad = t("grad"), copy = t("copy"), w = states.fixed("w"), m = states.fixed("m"),
                   v = states.fixed("v");
  const double seconds =
      meter.seconds_of([&] { adamw(stream, AdamW{}, 1000, 1e-6f, 0.0f, 1.0f, grad, w, m, v, copy); });
  profile.host_bytes_per_s = 2 * static_cast<double>(w.bytes() + m.bytes() + v.bytes()) / seconds;
}

namespace {

// FLOP/s of one dense product.
double dense_rate(Meter& meter, Stream& stream, const PlatformProfile& profile, const Product& p, DType dtype) {
  std::vector<TensorSlot> slots = weight_slots(stream, dtype, 1, p.width, p.width);
  slots.push_back({"x", dtype, {p.rows, p.width}, 0});
  slots.push_back({"y", dtype, {p.rows, p.width}, 0});
  Tensors t(stream, slots);
  const Weight w = t.weights(dtype, 1, p.width, p.width).front();
  const TensorView x = t("x"), y = t("y");
  return p.flops() / net(meter.seconds_of([&] { matmul(stream, x, w, y); }), profile);
}

// Seconds of a product of all experts: with rows, on CPUs the mean of both directions, which GPUs compute alike; and of
// their weights' gradients.
struct ExpertSeconds {
  double rows = 0, weights = 0;
};

ExpertSeconds time_experts(Meter& meter, Stream& stream, const PlatformProfile& profile, const Product& p, int64_t e,
                           DType dtype) {
  const int64_t rows = p.rows * e;
  std::vector<TensorSlot> slots = weight_slots(stream, dtype, e, p.width, p.width);
  slots.push_back({"x", dtype, {rows, p.width}, 0});
  slots.push_back({"y", dtype, {rows, p.width}, 0});
  slots.push_back({"dw", DType::f32, {e, p.width, p.width}, 0});
  slots.push_back({"index", DType::i32, {rows}, 0});
  Tensors t(stream, slots);
  // Rows lie in the order of tokens, as routing finds them.
  std::vector<int32_t> order(static_cast<size_t>(rows));
  for (int64_t i = 0; i < rows; ++i) order[static_cast<size_t>(i)] = static_cast<int32_t>(i * e % rows + i * e / rows);
  write_values<int32_t>(stream, order, t("index"));
  const std::vector<Weight> weights = t.weights(dtype, e, p.width, p.width);
  const std::vector<int64_t> offsets = ragged_offsets(e, p.rows);
  const SortedRows x{t("x"), t("index").as<int32_t>()}, y{t("y"), nullptr};
  const TensorView dw = t("dw");
  double by_rows = net(meter.seconds_of([&] { esmm(stream, x, offsets, weights, y); }), profile);
  if (stream.device().kind == DeviceKind::cpu) {
    const double back = net(meter.seconds_of([&] { esmm_d_input(stream, y, offsets, weights, x); }), profile);
    by_rows = (by_rows + back) / 2;
  }
  return {by_rows, net(meter.seconds_of([&] { estmm(stream, y, x, offsets, dw, Store::overwrite); }), profile)};
}

// What an expert's product costs beside its rows, as twice so many of them.
int64_t measured_row_tile(Meter& meter, Stream& stream, const PlatformProfile& profile, int64_t experts, DType dtype) {
  const Product few{16, 512}, many{256, 512};
  const double t_few = time_experts(meter, stream, profile, few, experts, dtype).rows,
               t_many = time_experts(meter, stream, profile, many, experts, dtype).rows;
  const auto few_rows = static_cast<double>(few.rows), many_rows = static_cast<double>(many.rows);
  const double beside = (t_few * many_rows - t_many * few_rows) / std::max(t_many - t_few, 1e-3 * t_many);
  return static_cast<int64_t>(std::clamp(std::round(2 * beside), 1.0, 2 * many_rows));
}

RateTable dense_rates(Meter& meter, Stream& stream, const PlatformProfile& profile, DType dtype) {
  RateTable table;
  for (const Product& p : sizes_for(stream.device().kind).dense)
    table.push_back({p.flops(), dense_rate(meter, stream, profile, p, dtype)});
  return table;
}

void measure_experts(Meter& meter, Stream& stream, const PlatformProfile& profile, DType dtype, OperatorRates& rates) {
  const ProbeSizes sizes = sizes_for(stream.device().kind);
  if (stream.device().kind == DeviceKind::cpu)  // kernels of GPUs have tiles
    rates.row_tile = measured_row_tile(meter, stream, profile, sizes.experts, dtype);
  rates.expert_products.clear();
  rates.expert_weight_products.clear();
  for (const Product& p : sizes.expert) {
    const ExpertSeconds taken = time_experts(meter, stream, profile, p, sizes.experts, dtype);
    const double all = p.flops() * static_cast<double>(sizes.experts);
    // Plans count half a tile of every expert on top.
    const double tiled = all * (1 + 0.5 * static_cast<double>(rates.row_tile) / static_cast<double>(p.rows));
    rates.expert_products.push_back({p.flops(), tiled / taken.rows});
    rates.expert_weight_products.push_back({p.flops(), all / taken.weights});
  }
}

// Both passes of attention over random values.
class AttentionCalls {
 public:
  AttentionCalls(Stream& stream, DType dtype, const AttentionShape& shape)
      : stream_(stream), shape_(shape), tensors_(stream, slots(dtype, shape)) {}
  void forward() { attention(stream_, shape_, q_, k_, v_, o_, lse_); }
  void backward() { attention_backward(stream_, shape_, q_, k_, v_, o_, lse_, d_o_, d_q_, d_k_, d_v_); }
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
    return {{"q", dtype, queries, 0}, {"k", dtype, keys, 0},      {"v", dtype, values, 0},
            {"o", dtype, outputs, 0}, {"d_o", dtype, outputs, 0}, {"d_q", dtype, queries, 0},
            {"d_k", dtype, keys, 0},  {"d_v", dtype, values, 0},  {"lse", DType::f32, {s.heads, tokens}, 0}};
  }
  Stream& stream_;
  AttentionShape shape_;
  Tensors tensors_;
  TensorView q_ = tensors_("q"), k_ = tensors_("k"), v_ = tensors_("v"), o_ = tensors_("o"), lse_ = tensors_("lse"),
             d_o_ = tensors_("d_o"), d_q_ = tensors_("d_q"), d_k_ = tensors_("d_k"), d_v_ = tensors_("d_v");
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

void measure_attentions(Meter& meter, Stream& stream, const PlatformProfile& profile, DType dtype,
                        OperatorRates& rates) {
  measure_attention_lengths(meter, stream, profile, dtype, rates);
  measure_attention_widths(meter, stream, dtype, rates);
}

}  // namespace

void measure_dense_products(Meter& meter, Stream& stream, PlatformProfile& profile) {
  profile.bf16.dense_products = dense_rates(meter, stream, profile, DType::bf16);
  profile.peak_flops_per_s = 0;
  for (const RatePoint& point : profile.bf16.dense_products)
    profile.peak_flops_per_s = std::max(profile.peak_flops_per_s, point.per_second);
  const double fp32 = dense_rate(meter, stream, profile, sizes_for(stream.device().kind).dense.back(), DType::f32);
  profile.fp32_share = std::min(1.0, fp32 / profile.bf16.dense_products.back().per_second);
}

void measure_expert_products(Meter& meter, Stream& stream, PlatformProfile& profile) {
  measure_experts(meter, stream, profile, DType::bf16, profile.bf16);
}

void measure_attention(Meter& meter, Stream& stream, PlatformProfile& profile) {
  measure_attentions(meter, stream, profile, DType::bf16, profile.bf16);
  if (stream.device().kind != DeviceKind::cpu) measure_attention_in_any_order(meter, stream, profile.bf16);
}

void measure_fp32(Meter& meter, Stream& stream, PlatformProfile& profile) {
  OperatorRates rates;
  rates.dense_products = dense_rates(meter, stream, profile, DType::f32);
  measure_experts(meter, stream, profile, DType::f32, rates);
  measure_attentions(meter, stream, profile, DType::f32, rates);
  profile.fp32 = rates;
}

}  // namespace mw
