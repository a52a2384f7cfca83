#include "moe/transports/transport_gather_weights.h"

#include <numeric>
#include <utility>

#include "ops/elementwise.h"

namespace mw {
namespace {

std::vector<int64_t> piece_begins(const WeightGather& gather) {
  std::vector<int64_t> begins = {0};
  for (int64_t piece = 0; piece < gather.pieces(); ++piece) begins.push_back(begins.back() + gather.experts_in(piece));
  return begins;
}

}  // namespace

GatherWeightsTransport::GatherWeightsTransport(Comm& ep, const ExpertPlacement& placement, const WeightGather& gather,
                                               Islands islands, ResidentExperts experts, ExpertScratch scratch,
                                               GatherShared shared)
    : InPlaceTransport((without_replicas(placement), gather.experts), piece_begins(gather), std::move(experts),
                       std::move(scratch)),
      ep_(ep),
      gather_(gather),
      islands_(std::move(islands)),
      shared_(std::move(shared)) {
  MW_CHECK(
      shared_.cache->slots().bytes >= gather_.slot_bytes() && shared_.gradients.numel() >= gather_.gradient_elements(),
      "pieces of {} experts in slots of {} bytes and {}", gather_.largest(), shared_.cache->slots().bytes,
      shared_.gradients.describe());
  Own own;
  for (const std::vector<int64_t>& counts : gather_.counts) {
    own.slot += own.count;
    own.place = std::accumulate(counts.begin(), counts.begin() + ep_.rank(), int64_t{0});
    own.count = counts[static_cast<size_t>(ep_.rank())];
    own_.push_back(own);
  }
}

void GatherWeightsTransport::weights_begin(Stream& stream, Pass pass) {
  MW_CHECK(started_ == 0, "weights of two passes at a time");
  pass_ = pass;
  start(stream, 0);
}

ExpertWeights GatherWeightsTransport::weights(Stream& stream, Pass pass, int64_t piece) {
  if (started_ == 0) weights_begin(stream, pass);
  MW_CHECK(pass == pass_ && piece == asked_, "weights of piece {} after {} of another pass", piece, asked_);
  if (started_ == piece) start(stream, piece);  // with one slot
  if (gathering_ != nullptr) {
    const TraceScope scope(stream.trace(), Work::exchange, "weights_wait");
    std::exchange(gathering_, nullptr)->wait();
  }
  up_.clear();
  down_.clear();
  for (int64_t i = 0; i < gather_.experts_in(piece); ++i) {
    std::byte* expert = slot_ + i * bytes_of_expert();
    up_.push_back(matrix(ExpertMatrix::up, expert));
    down_.push_back(matrix(ExpertMatrix::down, expert));
  }
  if (piece + 1 < gather_.pieces() && shared_.cache->slots().count() > 1) start(stream, piece + 1);
  if (++asked_ == gather_.pieces()) started_ = asked_ = 0;
  return {up_, down_};
}

// Products of the piece before may still follow: the slot is not theirs, unless it is the only one. All products that
// read what is in it precede this in stream order.
void GatherWeightsTransport::start(Stream& stream, int64_t piece) {
  const WeightUse& use = shared_.cache->next(shared_.layer, pass_ == Pass::backward, piece);
  slot_ = shared_.cache->slot(use.slot);
  if (use.gathers) gather(stream, piece);
  started_ = piece + 1;
}

void GatherWeightsTransport::gather(Stream& stream, int64_t piece) {
  const TraceScope scope(stream.trace(), Work::exchange, "gather_weights");
  const Own& own = own_[static_cast<size_t>(piece)];
  const int64_t bytes = bytes_of_expert();
  for (int64_t i = 0; i < own.count; ++i) {
    std::byte* to = slot_ + (own.place + i) * bytes;
    for (const TensorView& form : forms_of(own.slot + i)) {
      stream.queue().copy(to, form.data, static_cast<size_t>(form.bytes()));
      to += form.bytes();
    }
  }
  std::vector<int64_t> parts = gather_.counts[static_cast<size_t>(piece)];
  for (int64_t& part : parts) part *= bytes;
  // Every other member gets this rank's part.
  const int64_t own_part = own.count * bytes;
  count_sent(stream, std::vector<int64_t>(parts.size(), own_part));
  gathering_ = ep_.all_gather(stream, std::span(slot_, static_cast<size_t>(gather_.experts_in(piece) * bytes)), parts);
}

std::vector<TensorView> GatherWeightsTransport::forms_of(int64_t slot) const {
  const Weight &up = experts_.up[static_cast<size_t>(slot)], &down = experts_.down[static_cast<size_t>(slot)];
  if (!gather_.forms.packed) return {up.values, down.values};
  if (pass_ == Pass::forward) return {up.packed_forward, down.packed_forward};
  if (!gather_.forms.up_twice) return {up.packed_backward, down.packed_backward};
  return {up.packed_backward, down.packed_backward, up.packed_forward};
}

Weight GatherWeightsTransport::matrix(ExpertMatrix matrix, std::byte* expert) const {
  const ExpertForms& f = gather_.forms;
  const bool is_up = matrix == ExpertMatrix::up;
  Weight w;
  w.n = is_up ? f.up_n : f.down_n;
  w.k = is_up ? f.up_k : f.down_k;
  std::byte* at = is_up ? expert : expert + f.up_bytes;
  if (!f.packed) {
    w.values = TensorView(at, DType::f32, {w.n, w.k});
    return w;
  }
  const int64_t bytes = is_up ? f.up_bytes : f.down_bytes;
  const TensorView form(at, DType::u8, {bytes});
  if (f.one_form || pass_ == Pass::forward) w.packed_forward = form;
  if (f.one_form || pass_ == Pass::backward) w.packed_backward = form;
  if (is_up && f.up_twice && pass_ == Pass::backward)
    w.packed_forward = TensorView(expert + f.up_bytes + f.down_bytes, DType::u8, {bytes});
  return w;
}

GradientTarget GatherWeightsTransport::gradient(Stream& stream, ExpertMatrix matrix, int64_t piece, GradientStore) {
  finish(stream, sum_of(matrix));
  return {piece_gradients(matrix, piece), Store::overwrite};
}

void GatherWeightsTransport::gradient_done(Stream& stream, ExpertMatrix matrix, int64_t piece, Store store) {
  const TraceScope scope(stream.trace(), Work::exchange, "sum_weight_gradients");
  const TensorView gradients = piece_gradients(matrix, piece);
  const int64_t size = gradients.dim(1) * gradients.dim(2);
  std::vector<int64_t> counts = gather_.counts[static_cast<size_t>(piece)], bytes;
  for (int64_t& count : counts) {
    count *= size;
    bytes.push_back(count * size_of(DType::f32));
  }
  count_sent(stream, bytes);
  const Own& own = own_[static_cast<size_t>(piece)];
  Sum& sum = sum_of(matrix);
  sum.own = gradients.slice(own.place, own.count);
  sum.target = experts_.gradient(matrix, own.slot, own.count);
  sum.store = store;
  if (shared_.fault == Fault::late_reduce) take(stream, sum);
  sum.pending =
      ep_.reduce_scatter_sum(stream, std::span(gradients.as<float>(), static_cast<size_t>(gradients.numel())), counts);
}

void GatherWeightsTransport::gradients_finish(Stream& stream) {
  for (Sum& sum : sums_) finish(stream, sum);
}

void GatherWeightsTransport::finish(Stream& stream, Sum& sum) {
  if (sum.pending == nullptr) return;
  const TraceScope scope(stream.trace(), Work::exchange, "sum_weight_gradients_wait");
  std::exchange(sum.pending, nullptr)->wait();
  take(stream, sum);
}

void GatherWeightsTransport::take(Stream& stream, Sum& sum) {
  const TensorView own = std::exchange(sum.own, {});
  if (own.data == nullptr || own.numel() == 0) return;
  if (sum.store == Store::accumulate) add(stream, sum.target, own, sum.target);
  else convert(stream, own, sum.target);
}

TensorView GatherWeightsTransport::piece_gradients(ExpertMatrix matrix, int64_t piece) const {
  const ExpertForms& f = gather_.forms;
  float* at = shared_.gradients.as<float>();
  if (matrix == ExpertMatrix::up) return {at, DType::f32, {gather_.experts_in(piece), f.up_n, f.up_k}};
  return {at + gather_.down_gradients_begin(), DType::f32, {gather_.experts_in(piece), f.down_n, f.down_k}};
}

// parts: bytes for each member.
void GatherWeightsTransport::count_sent(Stream& stream, const std::vector<int64_t>& parts) const {
  RowExchange sent;
  sent.send_counts = parts;
  sent.row_bytes = 1;
  stream.trace().count_sent(sent_bytes(sent, islands_, ep_.rank()));
}

}  // namespace mw
