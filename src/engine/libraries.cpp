#include "engine/libraries.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/tensor_store.h"
#include "engine/memory_meter.h"
#include "model/attention_block.h"
#include "ops/device.h"
#include "ops/matmul.h"

namespace mw {
namespace {

void start_gather(Comm& group, Stream& stream, const TensorView& memory) {
  const auto members = static_cast<size_t>(group.size());
  const std::vector<int64_t> equal(members, 1);
  group.all_gather(stream, std::span(static_cast<std::byte*>(memory.data), members), equal)->wait();
}

// Sums to their owners and what they have made of them back: of equal parts, and of others, which libraries move in
// another way.
void start_cuts(Comm& group, Stream& stream, const TensorView& memory) {
  const auto members = static_cast<size_t>(group.size());
  std::vector<int64_t> equal(members, 1), single(members, 0);
  single.front() = 1;
  for (const std::vector<int64_t>& counts : {equal, single}) {
    const auto total = static_cast<size_t>(std::count(counts.begin(), counts.end(), 1));
    group.reduce_scatter_sum(stream, std::span(memory.as<float>(), total), counts)->wait();
    group.all_gather(stream, std::span(static_cast<std::byte*>(memory.data), total), counts)->wait();
  }
}

bool gathers_weights(const Plan& plan) {
  return std::any_of(plan.gathers.begin(), plan.gathers.end(), [](const WeightGather& g) { return g.pieces() > 0; });
}

// One element to every member and back, as gradients, rows and gathered weights go.
void start_groups(const Plan& plan, MeshComms& comms, Stream& stream, const Reserve& reserve) {
  const int64_t members = comms.stage->size();
  TensorStore memory({{"send", DType::f32, {members}, 0}, {"receive", DType::f32, {members}, 0}}, reserve);
  const TensorView send = memory.fixed("send"), receive = memory.fixed("receive");
  std::vector<Comm*> summing = {comms.dp.get(), comms.edp.get()};
  if (comms.tp->size() > 1) summing.push_back(comms.stage.get());
  for (Comm* group : summing) {
    if (group->size() == 1) continue;
    group->all_reduce_sum(stream, std::span(send.as<float>(), 1))->wait();
    if (plan.run.mesh.zero > 0) start_cuts(*group, stream, send);
  }
  if (plan.run.mesh.zero == 0 && comms.dp->size() > 1) start_gather(*comms.dp, stream, send);  // of embedding rows
  if (gathers_weights(plan) && comms.ep->size() > 1) start_cuts(*comms.ep, stream, send);
  for (Comm* group : {comms.ep.get(), comms.tp.get()}) {
    if (group->size() == 1) continue;
    RowExchange x;
    x.row_bytes = sizeof(float);
    x.send = send.data;
    x.receive = receive.data;
    for (int64_t peer = 0; peer < group->size(); ++peer) {
      x.send_offsets.push_back(peer);
      x.send_counts.push_back(1);
    }
    x.receive_offsets = x.send_offsets;
    x.receive_counts = x.send_counts;
    group->all_to_all(stream, x)->wait();
  }
  stream.wait();
}

// One element from each stage to the next, and back.
void start_links(PipelineComms& pipeline, Stream& stream, const Reserve& reserve) {
  TensorStore memory({{"send", DType::u8, {1}, 0}, {"receive", DType::u8, {1}, 0}, {"sum", DType::f32, {1}, 0}},
                     reserve);
  const auto bytes = [&](const char* name) { return std::span(static_cast<std::byte*>(memory.fixed(name).data), 1); };
  std::vector<std::unique_ptr<Pending>> started;
  const auto start = [&](Comm& link, int from) {
    if (link.rank() == from) started.push_back(link.send(stream, bytes("send"), 1 - from));
    else started.push_back(link.receive(stream, bytes("receive"), from));
  };
  for (StageLink& link : pipeline.after) {
    if (link.activations == nullptr) continue;
    start(*link.activations, 0);
    start(*link.gradients, 1);
  }
  for (const auto& message : started) message->wait();
  if (pipeline.ends->size() > 1) {
    const TensorView sum = memory.fixed("sum");
    pipeline.ends->all_reduce_sum(stream, std::span(sum.as<float>(), 1))->wait();
    started.clear();
    start(*pipeline.ends, 0);
    started.back()->wait();
  }
  stream.wait();
}

std::vector<std::string> attention_kernels(const Plan& plan, Stream& stream) {
  std::vector<std::string> found;
  const int64_t seq_len = plan.batch.seq_len;
  for (const LayerSpec& layer : plan.model.layers) {
    const bool masked = plan.run.data.document_mask || layer.attention.has_window(seq_len);
    found.push_back(describe_attention(stream,
                                       attention_shape(local_attention(layer.attention, plan.mesh, plan.coords),
                                                       plan.batch.tokens(), {seq_len, {}}, masked),
                                       plan.run.train.dtype));
  }
  return found;
}

// Kernels of both expert projections, for operands without data: these are aligned as arena rows are.
std::vector<std::string> expert_kernels(const Plan& plan, ParamStore& params, Stream& stream) {
  std::vector<std::string> found;
  for (int64_t i = 0; i < plan.model.layer_count(); ++i) {
    const MoeSpec& m = plan.model.layers[static_cast<size_t>(i)].moe;
    const double average = static_cast<double>(plan.batch.tokens() * plan.mesh.ep * m.top_k) /
                           static_cast<double>(std::max<int64_t>(m.experts, 1));
    for (const char* name : {"w_up", "w_down"}) {
      const std::string parameter = fmt::format("layers.{}.moe.{}", i, name);
      if (!params.has(parameter)) continue;
      const std::vector<Weight>& weights = params.find(parameter).weights;
      const auto rows = [&](int64_t width) {
        return SortedRows{TensorView(nullptr, plan.run.train.dtype, {0, width})};
      };
      if (!weights.empty())
        found.push_back(describe_esmm(stream, rows(weights[0].k), weights, rows(weights[0].n), average,
                                      plan.run.moe.expert_products));
    }
  }
  return found;
}

// The sizes [n, k] of the matrices that products of this rank read, each once.
std::set<std::pair<int64_t, int64_t>> matrix_sizes(const Plan& plan) {
  std::set<std::pair<int64_t, int64_t>> sizes;
  for (const ParamRow& row : own_params(plan)) {
    if (row.role != ParamRole::matrix && row.role != ParamRole::embedding) continue;
    const LocalParam local = local_param(row, plan.model, plan.placements->layers, plan.mesh, plan.coords);
    if (local.numel() > 0) sizes.insert({local.n, local.k});
  }
  return sizes;
}

// The three products of a weight [n, k] with 16 to `most_rows` rows, as a step of `dtype` computes them. Returns the
// bytes that the library gave back after them.
int64_t start_matrix(Stream& stream, DType dtype, int64_t most_rows, int64_t n, int64_t k) {
  const bool packed = dtype == DType::bf16;
  const int64_t scratch = matmul_workspace_bytes(n, k),
                form = packed ? packed_weight_bytes(n, k, cpu::matmul_traits().native_bf16) : 0;
  TensorStore memory({{"scratch", DType::u8, {scratch}, 0},
                      {"x", dtype, {most_rows, k}, 0},
                      {"y", dtype, {most_rows, n}, 0},
                      {"weight", DType::f32, {n, k}, 0},
                      {"packed", DType::u8, {form}, 0}});
  stream.workspace().attach(memory.fixed("scratch").data, static_cast<size_t>(scratch));
  Weight weight{n, k, memory.fixed("weight"), {}, {}};
  if (packed) {
    weight.packed_forward = weight.packed_backward = memory.fixed("packed");
    pack_weight(stream, weight);
  }
  const MemoryMeter meter(stream.device());
  for (int64_t rows = 16; rows <= most_rows; rows *= 2) {
    const TensorView x = memory.fixed("x").slice(0, rows), y = memory.fixed("y").slice(0, rows);
    matmul(stream, x, weight, y);
    matmul_d_input(stream, y, weight, x);
    matmul_d_weight(stream, y, x, memory.fixed("weight"));
  }
  stream.workspace().attach(nullptr, 0);
  return std::max<int64_t>(0, meter.taken() - meter.taken_now());
}

// The matrix library of a CPU generates code with the first products of a size, and takes buffers for each product.
// Returns the bytes of the largest ones.
int64_t start_matrices(const Plan& plan, Stream& stream) {
  constexpr int64_t kMostElements = int64_t{4} << 20;  // of operands: what a panel of more rows takes is the same
  int64_t most = 0;
  for (const auto& [n, k] : matrix_sizes(plan))
    most = std::max(most, start_matrix(stream, plan.run.train.dtype,
                                       std::clamp<int64_t>(kMostElements / std::max(n, k), 16, 1024), n, k));
  return most;
}

// A number that depends on every byte of both packed forms of an [n, k] matrix; not negative.
int64_t packed_mark(Stream& stream, int64_t n, int64_t k) {
  const int64_t form = packed_weight_bytes(n, k, cpu::matmul_traits().native_bf16);
  TensorStore memory(
      {{"values", DType::f32, {n, k}, 0}, {"forward", DType::u8, {form}, 0}, {"backward", DType::u8, {form}, 0}});
  const Weight weight{n, k, memory.fixed("values"), memory.fixed("forward"), memory.fixed("backward")};
  for (int64_t i = 0; i < n * k; ++i) weight.values.as<float>()[i] = static_cast<float>(i % 65521);
  pack_weight(stream, weight);
  uint64_t mark = static_cast<uint64_t>(form);
  for (const TensorView* packed : {&weight.packed_forward, &weight.packed_backward})
    for (const std::byte byte : bytes_of(*packed)) mark = (mark ^ static_cast<uint64_t>(byte)) * 0x100000001b3u;
  return static_cast<int64_t>(mark >> 1);
}

// Each text once.
std::string join(std::vector<std::string> texts) {
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  return fmt::format("{}", fmt::join(texts, " and "));
}

}  // namespace

void start_products(Stream& stream, DType dtype, const Reserve& reserve) {
  constexpr int64_t kSize = 64;
  const int64_t scratch = matmul_workspace_bytes(kSize, kSize, stream.device().kind);
  TensorStore memory({{"scratch", DType::u8, {scratch}, 0},
                      {"x", dtype, {kSize, kSize}, 0},
                      {"y", dtype, {kSize, kSize}, 0},
                      {"weight", DType::f32, {kSize, kSize}, 0},
                      {"packed", DType::u8, {packed_weight_bytes(kSize, kSize, true)}, 0}},
                     reserve);
  stream.workspace().attach(memory.fixed("scratch").data, static_cast<size_t>(scratch));
  Weight weight;
  weight.n = weight.k = kSize;
  weight.values = memory.fixed("weight");
  weight.packed_forward = weight.packed_backward = memory.fixed("packed");
  matmul(stream, memory.fixed("x"), weight, memory.fixed("y"));
  stream.wait();
  stream.workspace().attach(nullptr, 0);
}

bool packs_alike(const Plan& plan, Comm& ep, Stream& stream) {
  std::set<std::pair<int64_t, int64_t>> sizes;
  for (const WeightGather& gather : plan.gathers) {
    if (gather.pieces() == 0 || !gather.forms.packed) continue;
    sizes.insert({gather.forms.up_n, gather.forms.up_k});
    sizes.insert({gather.forms.down_n, gather.forms.down_k});
  }
  const bool packs_replicas = plan.run.train.dtype == DType::bf16 && replica_slots(plan.run.moe, plan.mesh.ep) > 0;
  for (const ParamRow& row : own_params(plan)) {
    if (!packs_replicas || !row.expert) continue;
    const LocalParam local = local_param(row, plan.model, plan.placements->layers, plan.mesh, plan.coords);
    sizes.insert({local.n, local.k});
  }
  if (ep.size() == 1 || sizes.empty()) return true;
  std::vector<int64_t> marks;
  for (const auto& [n, k] : sizes)
    for (const int64_t mark = packed_mark(stream, n, k); const int64_t sign : {1, -1}) marks.push_back(sign * mark);
  ep.all_reduce_max(std::span(marks));
  for (size_t i = 0; i < marks.size(); i += 2)
    if (marks[i] != -marks[i + 1]) return false;
  return true;
}

int64_t start_libraries(const Plan& plan, MeshComms& comms, PipelineComms& pipeline, Stream& stream,
                        const Reserve& reserve) {
  if (stream.device().kind == DeviceKind::cpu) {
    if (!packs_alike(plan, *comms.ep, stream))
      fail(Exit::config,
           fmt::format(
               "moe.transport = \"gather_weights\" or moe.replica_slots: the ranks of an EP group pack bf16 weights in "
               "different ways; this one by {}, {}",
               cpu::matmul_traits().library, cpu::matmul_traits().native_bf16 ? "in bf16" : "in fp32"),
           "use equal CPUs and libraries, set ONEDNN_MAX_CPU_ISA to what all of them have, or moe.transport = "
           "\"flat\" and moe.replica_slots = 0");
    return start_matrices(plan, stream);
  }
  start_products(stream, plan.run.train.dtype, reserve);
  attention_kernels(plan, stream);
  if (comms.gpu_library.empty()) return 0;
  start_groups(plan, comms, stream, reserve);
  start_links(pipeline, stream, reserve);
  return 0;
}

std::string describe_products(DType dtype, Device device, const std::string& near_cores) {
  if (device.kind != DeviceKind::cpu)
    return fmt::format("computing in {} on {}{}", word_of(dtype), describe(device),
                       near_cores.empty() ? "" : ", beside its cores " + near_cores);
  const cpu::MatmulTraits traits = cpu::matmul_traits();
  const bool bf16 = dtype == DType::bf16;
  return fmt::format("products by {}, {}{}", bf16 && traits.amx ? "our AMX kernels" : traits.library, word_of(dtype),
                     bf16 && !traits.native_bf16 ? " (computed in fp32, the faster way on this CPU)" : "");
}

std::string describe_kernels(const Plan& plan, ParamStore& params, Stream& stream) {
  const std::vector<std::string> experts = expert_kernels(plan, params, stream);
  const std::string attention = "attention by " + join(attention_kernels(plan, stream));
  return experts.empty() ? attention : fmt::format("expert products by {}, {}", join(experts), attention);
}

}  // namespace mw
