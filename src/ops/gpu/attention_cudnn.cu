// Causal attention through cuDNN's graphs. There is no single operation for it: cuDNN recognises attention in a graph
// of matrix products, pointwise operations and reductions, and runs the whole as one kernel (backward: a few), without
// an S x S tensor in forward. It knows such graphs by their shape, so theirs here must stay as they are.
//
// Documents are one more mask: graphs know no tiles that it hides as a whole, and compute them.
//
// For a deterministic backward pass cuDNN keeps the gradients of the scores, S x S per head, in scratch; else fp32
// gradients of the queries, to which its blocks add as they come. The pass runs over a part of the sequences and heads
// at a time (Part) that bounds either.
#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/library_attention.h"
#include "ops/gpu/attention_library.h"
#include "ops/gpu/graph_cudnn.h"
#include "ops/gpu/launch.h"

namespace mw::gpu {
namespace {

using namespace cudnn;
namespace rule = library_attention;

constexpr size_t kOldest = 91400;
constexpr size_t kAnyLength = 91501;  // earlier cuDNNs give wrong gradients unless S is a multiple of kScoreRows
constexpr int kHopper = 9;            // other GPUs need other graphs for a deterministic backward pass
using rule::kScoreRows, rule::Part;
static_assert(rule::kBorder == kAlignment);

// --- Attention as a graph -------------------------------------------------------------------------------------------

// `heads` heads of [B * S, all_heads, width], on which a tensor of `sequences` x `heads` begins at any token and head.
Layout rows_of(int64_t sequences, int64_t heads, int64_t all_heads, int64_t seq_len, int64_t width) {
  return {{sequences, heads, seq_len, width}, {seq_len * all_heads * width, width, all_heads * width, 1}};
}

struct Layouts {
  Layouts(const AttentionShape& s, const Part& part)
      : sequences(part.sequences),
        heads(part.kv_heads * (s.heads / s.kv_heads)),
        kv_heads(part.kv_heads),
        seq_len(s.seq_len),
        q(rows_of(part.sequences, heads, s.heads, s.seq_len, s.head_dim)),
        k(rows_of(part.sequences, part.kv_heads, s.kv_heads, s.seq_len, s.head_dim)),
        v(rows_of(part.sequences, part.kv_heads, s.kv_heads, s.seq_len, s.value_dim)),
        o(rows_of(part.sequences, heads, s.heads, s.seq_len, s.value_dim)),
        scores(packed(part.sequences, heads, s.seq_len, s.seq_len)),
        statistics(packed(part.sequences, heads, s.seq_len, 1)),
        first(packed(part.sequences, 1, s.seq_len, 1)) {}
  int64_t sequences, heads, kv_heads, seq_len;
  Layout q, k, v, o, scores, statistics, first;
};

// The operand with the first key of each query; null without documents.
Tensor first_keys(Graph& g, const AttentionShape& shape, const Layouts& at) {
  return shape.documents ? g.operand(at.first, CUDNN_DATA_INT32, sizeof(int32_t)) : nullptr;
}

// Minus infinity for keys after the query; for those before its first, of which whole tiles may be hidden, a number.
Tensor hide(Graph& g, const Layout& layout, Tensor scores, Tensor first) {
  const Tensor query = g.index(2, scores, g.computed(layout, CUDNN_DATA_INT32)),
               key = g.index(3, scores, g.computed(layout, CUDNN_DATA_INT32)),
               seen = g.is_greater_or_equal(query, key, g.computed(layout, CUDNN_DATA_BOOLEAN)),
               past = g.select(seen, scores, g.number(-std::numeric_limits<float>::infinity()), g.computed(layout));
  if (first == nullptr) return past;
  const Tensor own = g.is_greater_or_equal(key, first, g.computed(layout, CUDNN_DATA_BOOLEAN));
  return g.select(own, past, g.number(kLowestScore), g.computed(layout));
}

// Operands: q, k, v, o, lse, first.
Graph plan_forward(cudnnHandle_t handle, const AttentionShape& shape) {
  const Layouts at(shape, {shape.sequences, shape.kv_heads});
  Graph g(handle);
  const Tensor q = g.operand(at.q), k = g.operand(transposed(at.k)), v = g.operand(at.v), o = g.operand(at.o),
               lse = g.operand(at.statistics, CUDNN_DATA_FLOAT), first = first_keys(g, shape, at);
  const Tensor products = g.multiply(q, k, g.computed(at.scores)),
               scaled = g.apply(CUDNN_POINTWISE_MUL, products, g.number(shape.scale), g.computed(at.scores)),
               scores = hide(g, at.scores, scaled, first);
  const Tensor largest = g.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, g.computed(at.statistics)),
               shifted = g.apply(CUDNN_POINTWISE_SUB, scores, largest, g.computed(at.scores)),
               weights = g.apply(CUDNN_POINTWISE_EXP, shifted, g.computed(at.scores)),
               sum = g.reduce(CUDNN_REDUCE_TENSOR_ADD, weights, g.computed(at.statistics));
  g.apply(CUDNN_POINTWISE_ADD, largest, g.apply(CUDNN_POINTWISE_LOG, sum, g.computed(at.statistics)), lse);
  const Tensor p = g.apply(CUDNN_POINTWISE_DIV, weights, sum, g.computed(at.scores, CUDNN_DATA_BFLOAT16));
  g.multiply(p, v, o);
  g.plan();
  return g;
}

// d = transpose(scores) * rows: the gradient of keys or values, summed over the query heads that share them.
void multiply_by_key(Graph& g, const Layouts& at, Tensor scores, Tensor rows, int64_t width, Tensor d) {
  const Tensor by_key = g.reshape(scores, g.computed(transposed(at.scores), CUDNN_DATA_BFLOAT16));
  if (at.heads == at.kv_heads) {
    g.multiply(by_key, rows, d);
    return;
  }
  const Layout of_each_head = packed(at.sequences, at.heads, at.seq_len, width);
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, g.multiply(by_key, rows, g.computed(of_each_head, CUDNN_DATA_BFLOAT16)), d);
}

// Operands: q, k, v, o, lse, d_o, d_q, d_k, d_v, delta, first.
Graph plan_backward(cudnnHandle_t handle, const AttentionShape& shape, const Part& part, bool deterministic) {
  const Layouts at(shape, part);
  Graph g(handle);
  const Tensor q = g.operand(at.q), k = g.operand(transposed(at.k)), v = g.operand(transposed(at.v)),
               o = g.operand(at.o), lse = g.operand(at.statistics, CUDNN_DATA_FLOAT), d_o = g.operand(at.o),
               d_q = g.operand(at.q), d_k = g.operand(at.k), d_v = g.operand(at.v),
               delta = g.operand(at.statistics, CUDNN_DATA_FLOAT), first = first_keys(g, shape, at);
  const Tensor scale = g.number(shape.scale);
  // delta = sum of o * d_o; cuDNN wants it in memory, and the factor 1 where dropout would have its own.
  const Tensor o_d_o = g.apply(CUDNN_POINTWISE_MUL, d_o, o,
                               g.computed(packed(at.sequences, at.heads, at.seq_len, shape.value_dim))),
               sum = g.reduce(CUDNN_REDUCE_TENSOR_ADD, o_d_o, g.computed(at.statistics));
  g.apply(CUDNN_POINTWISE_MUL, sum, g.number(1.0f), delta);

  const Tensor products = g.multiply(q, k, g.computed(at.scores)),
               scores = g.apply(CUDNN_POINTWISE_MUL, products, scale, g.computed(at.scores)),
               shifted = g.apply(CUDNN_POINTWISE_SUB, scores, lse, g.computed(at.scores)),
               p = g.apply(CUDNN_POINTWISE_EXP, hide(g, at.scores, shifted, first), g.computed(at.scores));
  multiply_by_key(g, at, p, d_o, shape.value_dim, d_v);

  const Tensor d_p = g.multiply(d_o, v, g.computed(at.scores)),
               centred = g.apply(CUDNN_POINTWISE_SUB, d_p, delta, g.computed(at.scores)),
               d_scores = g.apply(CUDNN_POINTWISE_MUL, centred, p, g.computed(at.scores)),
               d_products = g.apply(CUDNN_POINTWISE_MUL, d_scores, scale, g.computed(at.scores));
  multiply_by_key(g, at, d_products, q, shape.head_dim, d_k);
  const Tensor keys = g.reshape(k, g.computed(at.k));
  if (deterministic) {
    g.multiply(d_products, keys, d_q);
  } else {
    const Tensor sums = g.scratch(packed(at.sequences, at.heads, at.seq_len, shape.head_dim));
    g.apply(CUDNN_POINTWISE_IDENTITY, g.multiply(d_products, keys, sums), d_q);
  }
  g.plan();
  return g;
}

// --- Plans of a stream ----------------------------------------------------------------------------------------------

rule::Sizes sizes_of(const AttentionShape& s) {
  return {s.sequences, s.seq_len, s.heads, s.kv_heads, s.head_dim, s.value_dim};
}

// Why the shape is not for cuDNN; null: it may be.
const char* reason_against(const AttentionShape& s, bool deterministic) {
  if (s.past > 0) return "keys of earlier tokens";
  if (const char* reason = rule::reason_against(sizes_of(s), deterministic)) return reason;
  if (cudnnGetVersion() < kOldest) return "older than 9.14.0";
  if (s.seq_len % kScoreRows != 0 && cudnnGetVersion() < kAnyLength)
    return "older than 9.15.1, and the length is no multiple of 128";
  return nullptr;
}

size_t delta_floats(const AttentionShape& s, const Part& part) {
  return static_cast<size_t>(part.sequences * part.kv_heads * (s.heads / s.kv_heads) * s.seq_len);
}

bool is_hopper(int device) {
  DeviceProperties properties;
  return succeeded(read_properties(device, &properties)) && properties.major == kHopper;
}

// Whether any GPU of this machine is one. Asked once: properties take long to read.
bool has_hopper() {
  static const bool has = [] {
    int count = 0;
    if (!succeeded(count_devices(&count))) return false;
    for (int device = 0; device < count; ++device)
      if (is_hopper(device)) return true;
    return false;
  }();
  return has;
}

struct Plans {
  Graph forward, backward;
};

struct Attempt {
  std::optional<Plans> plans;
  std::string refusal;  // why there are none
};

struct Handle {
  Handle() { check(cudnnCreate(&handle), "starting cuDNN"); }
  ~Handle() { (void)cudnnDestroy(handle); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  cudnnHandle_t handle = nullptr;
};

using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, float, bool, bool>;

constexpr size_t kMostShapes = 16;

struct CudnnState : StreamState {
  std::optional<Handle> handle;  // from the first plan on; outlives the plans
  std::map<Key, Attempt> attempts;
  Attempt beyond{std::nullopt, fmt::format("{} other shapes have plans", kMostShapes)};
};

// Both or none: neither direction can go on from what the other kernels leave.
Attempt plan_both(Stream& stream, CudnnState& state, const AttentionShape& shape) try {
  if (!is_hopper(stream.device().index)) return {std::nullopt, "the GPU is not of compute capability 9"};
  if (!state.handle) state.handle.emplace();
  check(cudnnSetStream(state.handle->handle, native(stream)), "giving cuDNN a stream");
  const bool deterministic = stream.is_deterministic();
  const Part part = rule::part_of(sizes_of(shape), deterministic);
  Plans plans{plan_forward(state.handle->handle, shape),
              plan_backward(state.handle->handle, shape, part, deterministic)};
  const auto for_delta = static_cast<int64_t>(delta_floats(shape, part) * sizeof(float));
  const int64_t bytes = std::max(plans.forward.scratch_bytes(),
                                 plans.backward.scratch_bytes() + ceil_div(for_delta, kAlignment) * kAlignment),
                bound = rule::scratch_bound(sizes_of(shape), deterministic);
  if (bytes > bound) return {std::nullopt, fmt::format("it wants {} bytes of scratch, {} are foreseen", bytes, bound)};
  return {std::move(plans), ""};
} catch (const Refused&) {
  return {std::nullopt, "it builds no plan: " + last_reason()};
}

Attempt& attempt(Stream& stream, const AttentionShape& s) {
  auto& state = stream.state<CudnnState>();
  const Key key{s.sequences, s.seq_len,   s.heads,
                s.kv_heads,  s.head_dim,  s.value_dim,
                s.scale,     s.documents, stream.is_deterministic()};
  const auto found = state.attempts.find(key);
  if (found != state.attempts.end()) return found->second;
  // Every shape takes time to compile, and memory for good: generating text would ask for one of every length.
  if (state.attempts.size() == kMostShapes) return state.beyond;
  return state.attempts.emplace(key, plan_both(stream, state, s)).first->second;
}

// Null where the library does not take the shape.
Plans* find_plans(Stream& stream, const AttentionShape& s) {
  if (reason_against(s, stream.is_deterministic()) != nullptr) return nullptr;
  Attempt& found = attempt(stream, s);
  return found.plans ? &*found.plans : nullptr;
}

// Scratch on the border that cuDNN wants.
std::byte* take_scratch(WorkspaceFrame& frame, const Graph& graph) {
  const auto bytes = static_cast<size_t>(graph.scratch_bytes() + kAlignment);
  const auto address = reinterpret_cast<uintptr_t>(frame.take_bytes(bytes));
  return reinterpret_cast<std::byte*>((address + kAlignment - 1) / kAlignment * kAlignment);
}

}  // namespace

void attention_by_library(Stream& stream, const AttentionShape& shape, TensorView q_THh, TensorView k_TGh,
                          TensorView v_TGh, TensorView o_THh, TensorView lse_HT, TensorView first_T) {
  Plans* plans = find_plans(stream, shape);
  MW_CHECK(plans != nullptr, "attention by the library, which does not take the shape");
  WorkspaceFrame frame(stream.workspace());
  std::vector<void*> operands = {q_THh.data, k_TGh.data, v_TGh.data, o_THh.data, lse_HT.data};
  if (shape.documents) operands.push_back(first_T.data);
  plans->forward.run(std::move(operands), take_scratch(frame, plans->forward));
}

void attention_backward_by_library(Stream& stream, const AttentionShape& shape, TensorView q_THh, TensorView k_TGh,
                                   TensorView v_TGh, TensorView o_THh, TensorView lse_HT, TensorView d_o_THh,
                                   TensorView d_q_THh, TensorView d_k_TGh, TensorView d_v_TGh, TensorView first_T,
                                   TensorView delta_HT) {
  Plans* plans = find_plans(stream, shape);
  MW_CHECK(plans != nullptr, "attention by the library, which does not take the shape");
  WorkspaceFrame frame(stream.workspace());
  std::byte* scratch = take_scratch(frame, plans->backward);
  const Part part = rule::part_of(sizes_of(shape), stream.is_deterministic());
  float* unwanted = delta_HT.data == nullptr ? frame.take<float>(delta_floats(shape, part)) : nullptr;
  const int64_t H = shape.heads, G = shape.kv_heads, S = shape.seq_len;
  for (int64_t sequence = 0; sequence < shape.sequences; sequence += part.sequences)
    for (int64_t kv_head = 0; kv_head < G; kv_head += part.kv_heads) {
      const int64_t head = kv_head * (H / G);
      const auto at = [&](const TensorView& x) -> void* {  // x: [T, heads, width]
        const int64_t heads = x.dim(1), first = heads == H ? head : kv_head;
        return x.as<bf16>() + (sequence * S * heads + first) * x.dim(2);
      };
      const int64_t rows = (sequence * H + head) * S;
      float* delta = unwanted != nullptr ? unwanted : delta_HT.as<float>() + rows;
      std::vector<void*> operands = {at(q_THh),   at(k_TGh),   at(v_TGh),   at(o_THh),   lse_HT.as<float>() + rows,
                                     at(d_o_THh), at(d_q_THh), at(d_k_TGh), at(d_v_TGh), delta};
      if (shape.documents) operands.push_back(first_T.as<int32_t>() + sequence * S);
      plans->backward.run(std::move(operands), scratch);
    }
}

bool library_takes(Stream& stream, const AttentionShape& shape) { return find_plans(stream, shape) != nullptr; }

LibraryChoice choose_library(Stream& stream, const AttentionShape& shape) {
  const size_t version = cudnnGetVersion();
  const std::string name = fmt::format("cuDNN {}.{}.{}{}", version / 10000, version / 100 % 100, version % 100,
                                       stream.is_deterministic() ? "" : " (gradients in any order)");
  const char* reason = reason_against(shape, stream.is_deterministic());
  return {name, reason != nullptr ? reason : attempt(stream, shape).refusal};
}

int64_t attention_library_workspace_bytes(const AttentionShape& shape) {
  const bool takes_any = reason_against(shape, true) == nullptr || reason_against(shape, false) == nullptr;
  return takes_any && has_hopper() ? rule::scratch_bytes(sizes_of(shape)) : 0;
}

}  // namespace mw::gpu
