#include "probe/operators.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/tensor_store.h"
#include "ops/activation.h"
#include "ops/adamw.h"
#include "ops/device.h"
#include "ops/elementwise.h"
#include "ops/norm.h"
#include "probe/probe_tensors.h"

namespace mw {
namespace {

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
  ProbeTensors t(stream, weight_slots(stream, DType::bf16, kWeights, kWidth, kWidth));
  const std::vector<Weight> weights = t.weights(DType::bf16, kWeights, kWidth, kWidth);
  const auto bytes = static_cast<double>(2 * t("values").bytes() + t("packed").bytes());
  return bytes / meter.seconds_of([&] {
    for (const Weight& w : weights) pack_weight(stream, w);
  });
}

int64_t product_workspace_bytes(const ProbeSizes& sizes, DeviceKind device) {
  int64_t bytes = int64_t{1} << 20;
  for (const Product& p : sizes.dense) bytes = std::max(bytes, matmul_workspace_bytes(p.width, p.width, device));
  for (const int64_t experts : sizes.expert_counts)
    for (const Product& p : expert_products(sizes, experts))
      bytes = std::max(bytes,
                       matmul_workspace_bytes(p.width, p.width, device) +
                           esmm_workspace_bytes(ExpertProducts::automatic, p.rows * experts, p.width, p.width, device));
  return bytes;
}

}  // namespace

int64_t probe_workspace_bytes(int threads, DeviceKind device) {
  const ProbeSizes sizes = sizes_for(device);
  int64_t bytes = product_workspace_bytes(sizes, device);
  for (const AttentionShape& shape : attention_shapes(sizes))
    for (const DType dtype : dtypes_on(device))
      bytes = std::max(bytes, attention_workspace_bytes(shape, dtype, threads, device));
  return bytes;
}

int64_t run_workspace_bytes(DeviceKind device) {
  ProbeSizes sizes = sizes_for(device);
  sizes.expert_counts = {sizes.experts};
  return product_workspace_bytes(sizes, device);
}

bool has_attention_library(DeviceKind device) {
  const auto bytes = [&](DType dtype) {
    return attention_workspace_bytes({1, 4096, 8, 8, 128, 128}, dtype, 1, device);
  };
  return device != DeviceKind::cpu && bytes(DType::bf16) > bytes(DType::f32);  // own kernels take as much of both
}

void measure_memory_operators(Meter& meter, Stream& stream, PlatformProfile& profile) {
  {
    ProbeTensors t(stream, {{"a", DType::f32, {64}, 0}, {"b", DType::f32, {64}, 0}, {"out", DType::f32, {64}, 0}});
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
    ProbeTensors t(stream, {{"a", DType::bf16, {rows, 2, width / 2}, 0},
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
  ProbeTensors t(stream, {{"grad", DType::f32, {elements / 2}, 0},
                          {"w", DType::f32, {elements / 2}, 0},
                          {"m", DType::f32, {elements / 2}, 0},
                          {"v", DType::f32, {elements / 2}, 0}});
  const TensorView grad = t("grad"), w = t("w"), m = t("m"), v = t("v");
  fill_zero(stream, v);
  const AdamWTensor tensor{1e-6f, 0.0f, grad, w, m, v};
  const double seconds = meter.seconds_of([&] { adamw(stream, AdamW{}, 1000, 1.0f, {&tensor, 1}); });
  profile.stream_bytes_per_s = 28.0 * static_cast<double>(elements / 2) / seconds;
  if (profile.pack_bytes_per_s) profile.pack_bytes_per_s = pack_rate(meter, stream);
}

void measure_host_memory(Meter& meter, Stream& stream, PlatformProfile& profile) {
  const int64_t elements = sizes_for(stream.device().kind).elements / 4;
  ProbeTensors t(stream, {{"grad", DType::f32, {elements}, 0}, {"copy", DType::bf16, {elements}, 0}});
  TensorStore states(
      {{"w", DType::f32, {elements}, 0}, {"m", DType::f32, {elements}, 0}, {"v", DType::f32, {elements}, 0}},
      host_arenas_of(stream.device()));
  const TensorView grad = t("grad"), copy = t("copy"), w = states.fixed("w"), m = states.fixed("m"),
                   v = states.fixed("v");
  const AdamWTensor tensor{1e-6f, 0.0f, grad, w, m, v, copy};
  const double seconds = meter.seconds_of([&] { adamw(stream, AdamW{}, 1000, 1.0f, {&tensor, 1}); });
  profile.host_bytes_per_s = 2 * static_cast<double>(w.bytes() + m.bytes() + v.bytes()) / seconds;
  const auto rate = [&](const TensorView& to, const TensorView& from) {
    const auto bytes = static_cast<double>(from.bytes());
    return bytes / meter.seconds_of([&] { stream.queue().copy(to.data, from.data, static_cast<size_t>(bytes)); });
  };
  profile.to_host_bytes_per_s = rate(w, grad);
  profile.from_host_bytes_per_s = rate(grad, w);
}

namespace {

// Calls body(one dense product).
template <class Body>
auto with_product(Stream& stream, const Product& p, DType dtype, const Body& body) {
  std::vector<TensorSlot> slots = weight_slots(stream, dtype, 1, p.width, p.width);
  slots.push_back({"x", dtype, {p.rows, p.width}, 0});
  slots.push_back({"y", dtype, {p.rows, p.width}, 0});
  ProbeTensors t(stream, slots);
  const Weight w = t.weights(dtype, 1, p.width, p.width).front();
  const TensorView x = t("x"), y = t("y");
  return body([&] { matmul(stream, x, w, y); });
}

// FLOP/s of one dense product.
double dense_rate(Meter& meter, Stream& stream, const PlatformProfile& profile, const Product& p, DType dtype) {
  return with_product(stream, p, dtype,
                      [&](const auto& product) { return p.flops() / net(meter.seconds_of(product), profile); });
}

// Seconds of a product of all experts: with rows, on CPUs the mean of both directions, which GPUs compute alike; and of
// their weights' gradients.
struct ExpertSeconds {
  double rows = 0, weights = 0;
};

ExpertSeconds time_experts(Meter& meter, Stream& stream, const PlatformProfile& profile, const Product& p, int64_t e,
                           DType dtype) {
  const int64_t rows = p.rows * e, n = p.result_width(), k = p.width;
  std::vector<TensorSlot> slots = weight_slots(stream, dtype, e, n, k);
  slots.push_back({"x", dtype, {rows, k}, 0});
  slots.push_back({"y", dtype, {rows, n}, 0});
  slots.push_back({"dw", DType::f32, {e, n, k}, 0});
  slots.push_back({"index", DType::i32, {rows}, 0});
  ProbeTensors t(stream, slots);
  // Rows lie in the order of tokens, as routing finds them.
  std::vector<int32_t> order(static_cast<size_t>(rows));
  for (int64_t i = 0; i < rows; ++i) order[static_cast<size_t>(i)] = static_cast<int32_t>(i * e % rows + i * e / rows);
  write_values<int32_t>(stream, order, t("index"));
  const std::vector<Weight> weights = t.weights(dtype, e, n, k);
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

ExpertRates expert_rates(Meter& meter, Stream& stream, const PlatformProfile& profile, DType dtype, int64_t experts,
                         int64_t row_tile) {
  ExpertRates rates;
  rates.experts = experts;
  for (const Product& p : expert_products(sizes_for(stream.device().kind), experts)) {
    const ExpertSeconds taken = time_experts(meter, stream, profile, p, experts, dtype);
    const double all = p.flops() * static_cast<double>(experts);
    // Plans count half a tile of every expert on top.
    const double tiled = all * (1 + 0.5 * static_cast<double>(row_tile) / static_cast<double>(p.rows));
    rates.products.push_back({p.flops(), tiled / taken.rows});
    rates.weight_products.push_back({p.flops(), all / taken.weights});
  }
  return rates;
}

// Shares of the rates of square matrices with as many FLOP.
void measure_narrow_experts(Meter& meter, Stream& stream, const PlatformProfile& profile, DType dtype,
                            OperatorRates& rates) {
  constexpr int64_t kRows = 256, kWidth = 512, kLast = 128;
  const int64_t experts = sizes_for(stream.device().kind).experts;
  RateTable products, weight_products;
  for (const int64_t narrow : {16, 32, 64}) {
    const Product p{kRows, kWidth, narrow};
    const ExpertSeconds taken = time_experts(meter, stream, profile, p, experts, dtype);
    const double all = p.flops() * static_cast<double>(experts),
                 tiled = all * (1 + 0.5 * static_cast<double>(rates.row_tile) / static_cast<double>(p.rows)),
                 size = static_cast<double>(narrow);
    products.push_back({size, tiled / taken.rows / rate_at(rates.expert_products, p.flops())});
    weight_products.push_back({size, all / taken.weights / rate_at(rates.expert_weight_products, p.flops())});
  }
  products.push_back({kLast, 1});
  weight_products.push_back({kLast, 1});
  rates.expert_widths = products;
  rates.expert_weight_widths = weight_products;
}

// PlatformProfile::squares_when_stored.
bool adds_squares(Stream& stream) {
  constexpr int64_t kSide = 64;
  ProbeTensors t(stream, {{"x", DType::bf16, {kSide, kSide}, 0},
                          {"dw", DType::f32, {1, kSide, kSide}, 0},
                          {"limbs", DType::i64, {SquareSums::kSets, ExactSum::kLimbs}, 0}});
  SquareSums squares{t("limbs")};
  estmm(stream, {t("x")}, {t("x")}, std::vector<int64_t>{0, kSide}, t("dw"), {Store::overwrite, &squares});
  stream.wait();
  return squares.elements > 0;
}

void measure_experts(Meter& meter, Stream& stream, const PlatformProfile& profile, DType dtype, OperatorRates& rates) {
  const ProbeSizes sizes = sizes_for(stream.device().kind);
  if (stream.device().kind == DeviceKind::cpu)  // kernels of GPUs have tiles
    rates.row_tile = measured_row_tile(meter, stream, profile, sizes.experts, dtype);
  std::vector<ExpertRates> counts;
  for (const int64_t experts : sizes.expert_counts) {
    counts.push_back(expert_rates(meter, stream, profile, dtype, experts, rates.row_tile));
    if (experts != sizes.experts) continue;
    rates.expert_products = counts.back().products;
    rates.expert_weight_products = counts.back().weight_products;
  }
  if (counts.size() > 1) rates.expert_counts = counts;
  if (stream.device().kind == DeviceKind::cpu) measure_narrow_experts(meter, stream, profile, dtype, rates);
}

}  // namespace

void measure_rank_kinds(Meter& meter, Stream& stream, PlatformProfile& profile) {
  const std::vector<double> seconds = with_product(stream, sizes_for(stream.device().kind).dense.back(), DType::bf16,
                                                   [&](const auto& product) { return meter.seconds_by_rank(product); });
  std::vector<RankKind> kinds = rank_kinds_of(seconds);
  if (kinds.size() > 1) profile.rank_kinds = std::move(kinds);
  else profile.rank_kinds.reset();
}

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
  if (stream.device().kind != DeviceKind::cpu) profile.squares_when_stored = adds_squares(stream);
}

void measure_fp32(Meter& meter, Stream& stream, PlatformProfile& profile) {
  OperatorRates rates;
  rates.dense_products = dense_rates(meter, stream, profile, DType::f32);
  measure_experts(meter, stream, profile, DType::f32, rates);
  measure_attention(meter, stream, profile, DType::f32, rates);
  profile.fp32 = rates;
}

}  // namespace mw
