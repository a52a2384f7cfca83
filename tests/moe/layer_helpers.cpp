#include "moe/layer_helpers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/rng.h"
#include "layout/byte_table.h"
#include "layout/shares.h"
#include "layout/transport.h"
#include "moe/replica_exchange.h"
#include "moe/transports/transport_by_node.h"
#include "moe/transports/transport_gather_tokens.h"
#include "moe/transports/transport_gather_weights.h"
#include "moe/transports/transport_in_place.h"
#include "moe/transports/transport_padded.h"

namespace mw::test {
namespace {

// Of a layer alone. AddressSanitizer marks all of it each time.
constexpr size_t kWorkspaceBytes = size_t{16} << 20, kExchangeWorkspaceBytes = size_t{1} << 20;

bool is_by_node(const LayerOptions& o) { return o.transport == "halo" || o.transport == "bypass"; }
bool has_slices(const LayerOptions& o) { return o.transport == "gather_tokens"; }
// Whether its tensors are those of the transport's record, by name.
bool is_by_traits(const LayerOptions& o) { return is_by_node(o) || has_slices(o); }

// A layer alone has all experts, wherever those of a group are.
ExpertPlacement placement_of(const LayerOptions& o, int ranks) {
  if (o.placement.ep == ranks && !o.placement.homes.empty()) return o.placement;
  return has_slices(o) ? make_sliced_placement(o.experts, expert_widths({}, TestLayer::kExpertWidth, ranks))
                       : make_block_placement(o.experts, ranks);
}

}  // namespace

LayerInput LayerInput::slice(int64_t begin, int64_t count) const {
  const auto rows = [&](const CaseTensor& whole) {
    CaseTensor part{{count, whole.shape[1]}, {}, whole.dtype};
    const auto first = whole.values.begin() + static_cast<std::ptrdiff_t>(begin * whole.shape[1]);
    part.values.assign(first, first + static_cast<std::ptrdiff_t>(count * whole.shape[1]));
    return part;
  };
  LayerInput part{rows(x), rows(base), rows(d_out), {}, aux};
  if (ids.empty()) return part;
  const int64_t k = static_cast<int64_t>(ids.size()) / tokens();
  part.ids.assign(ids.begin() + static_cast<std::ptrdiff_t>(begin * k),
                  ids.begin() + static_cast<std::ptrdiff_t>((begin + count) * k));
  return part;
}

TestLayer::TestLayer(const LayerOptions& options)
    : o_(options),
      alone_(make_self_comm()),
      own_stream_(std::make_unique<TestStream>(1, kWorkspaceBytes)),
      comm_(*alone_),
      delayed_(comm_, sums_),
      stream_(own_stream_->stream),
      placement_(placement_of(o_, 1)),
      gather_(make_gather()),
      store_(slots()),
      layer_(make_layer()) {}

TestLayer::TestLayer(const LayerOptions& options, Comm& ep, Stream& stream)
    : o_(options),
      comm_(ep),
      delayed_(comm_, sums_),
      stream_(stream),
      placement_(placement_of(o_, ep.size())),
      gather_(make_gather()),
      store_(slots()),
      layer_(make_layer()) {
  if (!o_.exchange_stream) return;
  exchange_stream_ = std::make_unique<TestStream>(1, kExchangeWorkspaceBytes);
  comm_.set_exchange_stream(exchange_stream_->stream);
}

int64_t TestLayer::width() const {
  return placement_.is_sliced() ? placement_.widths[static_cast<size_t>(comm_.rank())] : kExpertWidth;
}

LayerSpec TestLayer::spec() const {
  LayerSpec spec;
  spec.feed_forward = FeedForwardKind::moe;
  spec.activation = o_.activation;
  spec.moe.experts = o_.experts;
  spec.moe.top_k = o_.top_k;
  spec.moe.width = width();
  spec.moe.shared_width = o_.shared_width;
  spec.moe.renormalise = true;
  return spec;
}

// As weight_gather_of has it.
WeightGather TestLayer::make_gather() const {
  if (o_.transport != "gather_weights") return {};
  Platform platform;
  platform.native_bf16 = cpu::matmul_traits().native_bf16;
  return make_weight_gather(placement_, o_.row_chunks,
                            expert_forms(spec(), kWidth, o_.dtype, o_.moe.recompute.hidden, platform));
}

WeightSlots TestLayer::weight_slots() const {
  WeightSlots slots{o_.weight_slots};
  slots.add(pieces_of(gather_));
  return slots;
}

MoeWeights TestLayer::token_weights() {
  const int64_t c = halves_of(o_.activation);
  MoeWeights weights;
  weights.router = weight("router", o_.experts, kWidth, DType::f32);
  weights.d_router = gradient("router", {o_.experts, kWidth});
  if (o_.shared_width > 0)
    weights.shared = {weight("shared_up", c * o_.shared_width, kWidth, o_.dtype),
                      weight("shared_down", kWidth, o_.shared_width, o_.dtype),
                      gradient("shared_up", {c * o_.shared_width, kWidth}),
                      gradient("shared_down", {kWidth, o_.shared_width})};
  return weights;
}

ResidentExperts TestLayer::resident_experts(const std::vector<int>& own, const std::string& up,
                                            const std::string& down) {
  const int64_t c = halves_of(o_.activation);
  const auto count = static_cast<int64_t>(own.size());
  const int64_t f = width();
  int64_t begin = 0;
  if (placement_.is_sliced())
    begin = std::accumulate(placement_.widths.begin(), placement_.widths.begin() + comm_.rank(), int64_t{0});
  ResidentExperts experts;
  for (const int e : own) {
    experts.up.push_back(weight(fmt::format("up.{}", e), c * f, kWidth, o_.dtype, {kExpertWidth, begin, f, kWidth}));
    experts.down.push_back(weight(fmt::format("down.{}", e), kWidth, f, o_.dtype, {kExpertWidth, begin, f, 1}));
  }
  experts.d_up = gradient(up, {count, c * f, kWidth});
  experts.d_down = gradient(down, {count, kWidth, f});
  return experts;
}

ExpertScratch TestLayer::expert_scratch() {
  return {store_.rows("a"),
          store_.rows("y"),
          store_.rows("sorted_weights"),
          store_.rows("d_sorted_weights"),
          store_.rows("exchange_rows"),
          store_.rows("exchange_weights")};
}

std::unique_ptr<Transport> TestLayer::make_transport() {
  if (o_.transport == "in_place") return std::make_unique<InPlaceTransport>(placement_, experts_, expert_scratch());
  if (o_.transport == "gather_weights") {
    const WeightSlots slots = weight_slots();
    std::vector<LayerPass> passes;
    for (int i = 0; i < o_.micro_batches; ++i) passes.insert(passes.end(), {{0, false}, {0, true}});
    weight_uses_ = plan_weight_uses(passes, {pieces_of(gather_)}, slots.count());
    weight_cache_ = std::make_unique<WeightCache>(store_.fixed(kWeightSlots), slots);
    weight_cache_->follow(weight_uses_);
    return std::make_unique<GatherWeightsTransport>(
        delayed_, placement_, gather_, islands(), experts_, expert_scratch(),
        GatherShared{weight_cache_.get(), 0, store_.fixed("cache.gradients")});
  }
  if (o_.transport == "token_chunks")
    return make_token_chunks_transport(experts_, expert_scratch(), o_.row_chunks, o_.moe.recompute.dispatched, calls_);
  if (is_by_node(o_)) return make_by_node();
  if (has_slices(o_)) return make_gather_tokens();
  const FlatSaved saved{store_.rows("received"), store_.rows("received_index"), store_.rows("received_weights")};
  const PlacedSaved placed{store_.rows("sent_token_ids"), store_.fixed("sent_row_of")};
  const FlatOptions options{o_.row_chunks, o_.moe.recompute.dispatched, islands()};
  if (o_.transport == "flat")
    return std::make_unique<FlatTransport>(comm_, placement_, experts_, expert_scratch(), saved, options, replicas_,
                                           placed);
  return std::make_unique<PaddedTransport>(comm_, placement_, experts_, expert_scratch(), saved, placed, options);
}

Islands TestLayer::islands() const {
  std::vector<int> ranks(static_cast<size_t>(comm_.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return make_islands(ranks, o_.nodes);
}

std::unique_ptr<Transport> TestLayer::make_by_node() {
  const auto kept = [&](const char* name) { return store_.rows(name); };
  const auto scratch = [&](const char* name) { return store_.rows(fmt::format("exchange.{}", name)); };
  return std::make_unique<ByNodeTransport>(
      comm_, islands(), placement_, experts_, expert_scratch(), by_node_tensors(kept, scratch),
      ByNodeOptions{o_.transport == "bypass", o_.row_chunks, o_.moe.recompute.dispatched}, replicas_);
}

std::unique_ptr<Transport> TestLayer::make_gather_tokens() {
  const auto kept = [&](const char* name) { return store_.rows(name); };
  const auto scratch = [&](const char* name) { return store_.rows(fmt::format("exchange.{}", name)); };
  return std::make_unique<GatherTokensTransport>(comm_, islands(), experts_, expert_scratch(),
                                                 gather_tokens_tensors(kept, scratch), o_.row_chunks);
}

std::unique_ptr<MoeLayer> TestLayer::make_layer() {
  const MoeSaved saved{store_.fixed("logits"),    store_.fixed("expert_choice"),   store_.fixed("gate_weights"),
                       store_.fixed("token_ids"), store_.fixed("expert_ids"),      store_.fixed("row_weights"),
                       store_.fixed("row_of"),    store_.fixed("rows_per_expert"), store_.fixed("shared_h"),
                       store_.rows("h")};
  const MoeScratch scratch{expert_scratch(), store_.fixed("d_gate"), store_.fixed("d_logits"), store_.fixed("shared_a"),
                           store_.fixed("branch")};
  MoeWeights weights = token_weights();
  experts_ = resident_experts(placement_.experts_of(comm_.rank()), "up", "down");
  if (placement_.has_replicas()) {
    replicas_ = resident_experts(placement_.replicas_of(comm_.rank()), "replicas up", "replicas down");
    for (const std::vector<Weight>* all : {&replicas_.up, &replicas_.down})
      for (const Weight& w : *all)
        for (const TensorView& form : {w.values, w.packed_forward, w.packed_backward})
          if (form.data != nullptr) std::memset(form.data, 0xff, static_cast<size_t>(form.bytes()));
    exchange_with_replicas(false);
  }
  std::vector<int32_t> position = gather_.pieces() > 0 ? gather_.position_of_expert() : placement_.position_of_expert();
  return std::make_unique<MoeLayer>(spec(), std::move(position), std::move(weights), saved, scratch, make_transport(),
                                    o_.moe);
}

void TestLayer::exchange_with_replicas(bool gradients) {
  const auto exchange = [&](const std::vector<Weight>& homes, const std::vector<Weight>& replicas, TensorView d_homes,
                            TensorView d_replicas) {
    if (!gradients) {
      copy_to_replicas(stream_, comm_, placement_, homes, replicas);
      return;
    }
    std::vector<float> received(static_cast<size_t>(homes.empty() ? 0 : homes.front().n * homes.front().k));
    add_replica_gradients(stream_, comm_, placement_, d_homes, d_replicas,
                          TensorView(received.data(), DType::f32, {std::ssize(received)}));
  };
  exchange(experts_.up, replicas_.up, experts_.d_up, replicas_.d_up);
  exchange(experts_.down, replicas_.down, experts_.d_down, replicas_.d_down);
}

LayerInput TestLayer::random_input(int64_t tokens, DType dtype) {
  const auto tensor = [&](const char* name) { return random_tensor(name, {tokens, kWidth}, dtype); };
  return {tensor("x"), tensor("base"), tensor("d_out"), {}, {}};
}

TestLayer::Outcome TestLayer::run(int64_t tokens, const std::vector<int32_t>& ids, const AuxGradient& aux) {
  LayerInput input = random_input(tokens, o_.dtype);
  input.ids = ids;
  input.aux = aux;
  return run(input);
}

TestLayer::Outcome TestLayer::run(const LayerInput& input) {
  clear_gradients();
  const Owned x = to_operand(input.x), base = to_operand(input.base), d_out = to_operand(input.d_out);
  Owned out = make_output(o_.dtype, input.x.shape), d_x = make_output(o_.dtype, input.x.shape);
  const RoutingTap tap{.replay_ids = input.ids.data()};
  if (weight_cache_ != nullptr) spoil({kWeightSlots});  // a step begins with empty slots
  for (int i = 0; i < o_.micro_batches; ++i) {
    const Store store = i == 0 ? Store::overwrite : Store::accumulate;
    if (o_.prefetch) layer_->weights_begin(stream_, Pass::forward);
    layer_->forward(stream_, x.view, base.view, out.view, o_.seq_len, true, input.ids.empty() ? nullptr : &tap);
    forget();
    if (o_.prefetch) layer_->weights_begin(stream_, Pass::backward);
    layer_->backward(stream_, x.view, d_out.view, d_x.view, input.aux, store);
    if (o_.moe.defer_up) layer_->backward_up(stream_, x.view, store);
  }
  if (placement_.has_replicas()) exchange_with_replicas(true);
  Outcome result;
  result.statistics = layer_->statistics();
  result.rows = layer_->expert_rows();
  result.out = to_case_tensor(out).values;
  result.d_x = to_case_tensor(d_x).values;
  result.gradients = gradients_;
  return result;
}

// Those of the experts are overwritten.
void TestLayer::clear_gradients() {
  for (auto& [name, values] : gradients_) {
    const bool expert = name == "up" || name == "down" || name.starts_with("replicas");
    std::fill(values.begin(), values.end(), expert ? std::numeric_limits<float>::quiet_NaN() : 0.0f);
  }
}

void TestLayer::spoil(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    GrowingTensor rows = store_.rows(name);
    const TensorView all = rows.take(rows.committed_rows());
    std::memset(all.data, 0xff, static_cast<size_t>(all.bytes()));
  }
}

// Spoils what the layer says that it does not keep.
void TestLayer::forget() {
  if (o_.moe.recompute.hidden) spoil({"h", "shared_h"});
  if (o_.moe.recompute.logits) spoil({"logits"});
  if (gather_.pieces() > 0) spoil({"cache.gradients"});
  if (is_by_traits(o_))  // scratch serves other layers meanwhile
    for (const TransportTensor& tensor : traits_of(choose_transport(o_.transport, comm_.size())).scratch)
      spoil({fmt::format("exchange.{}", tensor.name).c_str()});
  if (!o_.moe.recompute.dispatched) return;
  if (is_by_traits(o_)) {
    for (const TransportTensor& tensor : traits_of(choose_transport(o_.transport, comm_.size())).kept)
      spoil({tensor.name});
  } else {
    spoil({"received", "received_index", "received_weights", "sent_token_ids", "sent_row_of", "exchange_rows",
           "exchange_weights"});
  }
}

std::vector<TensorSlot> TestLayer::slots() const {
  const int64_t t = o_.tokens, k = o_.top_k, c = halves_of(o_.activation);
  const int64_t rows = comm_.size() * t * (o_.transport == "padded" ? o_.experts : k);  // at most
  std::vector<TensorSlot> list = {{"logits", DType::f32, {t, o_.experts}},
                                  {"expert_choice", DType::i32, {t, k}},
                                  {"gate_weights", DType::f32, {t, k}},
                                  {"token_ids", DType::i32, {t * k}},
                                  {"expert_ids", DType::i32, {t * k}},
                                  {"row_weights", DType::f32, {t * k}},
                                  {"row_of", DType::i32, {t, k}},
                                  {"rows_per_expert", DType::i64, {o_.experts}},
                                  {"shared_h", o_.dtype, {t, c, o_.shared_width}},
                                  {"sent_row_of", DType::i32, {t, k}},
                                  {"d_gate", DType::f32, {t, k}},
                                  {"d_logits", DType::f32, {t, o_.experts}},
                                  {"shared_a", o_.dtype, {t, o_.shared_width}},
                                  {"branch", o_.dtype, {t, kWidth}}};
  const auto growing = [&](const char* name, DType dtype, std::vector<int64_t> tail) {
    tail.insert(tail.begin(), 1);  // one row at start: the rest must grow
    list.push_back({name, dtype, std::move(tail), rows});
  };
  growing("h", o_.dtype, {c, width()});
  growing("a", o_.dtype, {width()});
  growing("y", o_.dtype, {kWidth});
  growing("exchange_rows", o_.dtype, {kWidth});
  growing("received", o_.dtype, {kWidth});
  for (const char* name : {"sorted_weights", "d_sorted_weights", "exchange_weights", "received_weights"})
    growing(name, DType::f32, {});
  for (const char* name : {"received_index", "sent_token_ids"}) growing(name, DType::i32, {});
  if (is_by_traits(o_)) add_by_traits(list);
  if (gather_.pieces() > 0) {
    list.push_back({kWeightSlots, DType::u8, {weight_slots().all_bytes()}});
    list.push_back({"cache.gradients", DType::f32, {gather_.gradient_elements()}});
  }
  return list;
}

void TestLayer::add_by_traits(std::vector<TensorSlot>& list) const {
  const TransportTraits& traits = traits_of(choose_transport(o_.transport, comm_.size()));
  const int64_t most = comm_.size() * comm_.size() * o_.tokens * o_.top_k;
  const auto add = [&](const std::string& name, const TransportTensor& tensor) {
    using Type = TransportTensor::Type;
    using Width = TransportTensor::Width;
    const DType dtype = tensor.type == Type::run ? o_.dtype : tensor.type == Type::f32 ? DType::f32 : DType::i32;
    if (tensor.rows == RowSet::choice) {
      list.push_back({name, dtype, {o_.tokens, o_.top_k}});
      return;
    }
    std::vector<int64_t> shape = {1};  // one row at start: the rest must grow
    if (tensor.width == Width::hidden) shape.push_back(kWidth);
    if (tensor.width == Width::choices) shape.push_back(traits.merges ? o_.top_k : 1);
    list.push_back({name, dtype, std::move(shape), most});
  };
  for (const TransportTensor& tensor : traits.kept) add(tensor.name, tensor);
  for (const TransportTensor& tensor : traits.scratch) add(fmt::format("exchange.{}", tensor.name), tensor);
}

Weight TestLayer::weight(const std::string& name, int64_t n, int64_t k, DType dtype, const Part& part) {
  std::vector<float>& values = weights_[name];
  const RngKey key = make_rng_key(1, name);
  for (int64_t i = 0; i < n * k; ++i) {
    const int64_t outer = i / (part.count * part.inner), within = i % (part.count * part.inner);
    const int64_t at = (outer * part.width + part.begin) * part.inner + within;
    const float value = 0.3f * normal_at(key, static_cast<uint64_t>(at));
    values.push_back(o_.exact ? std::round(value * 8) / 8 : value);
  }
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
  pack_weight(stream_, w);
  return w;
}

TensorView TestLayer::gradient(const std::string& name, std::initializer_list<int64_t> shape) {
  std::vector<float>& values = gradients_[name];
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  values.resize(static_cast<size_t>(n));
  return TensorView(values.data(), DType::f32, shape);
}

}  // namespace mw::test
