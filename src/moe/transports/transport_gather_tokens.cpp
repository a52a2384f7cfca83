#include "moe/transports/transport_gather_tokens.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "ops/index.h"
#include "ops/units.h"

namespace mw {
namespace {

RowExchange exchange_of(TensorView from, TensorView to) {
  RowExchange x;
  x.row_bytes = from.cols() * size_of(from.dtype);
  x.send = from.data;
  x.receive = to.data;
  return x;
}

}  // namespace

GatherTokensTensors gather_tokens_tensors(const std::function<GrowingTensor(const char*)>& kept,
                                          const std::function<GrowingTensor(const char*)>& scratch) {
  return {.gathered = kept("gathered"),
          .gathered_tokens = kept("gathered_tokens"),
          .gathered_rows = kept("gathered_rows"),
          .gathered_weights = kept("gathered_weights"),
          .choices = scratch("choices"),
          .token_choices = scratch("token_choices"),
          .token_weights = scratch("token_weights"),
          .leads = scratch("leads"),
          .sums = scratch("sums"),
          .parts = scratch("parts"),
          .part_weights = scratch("part_weights"),
          .part_order = scratch("part_order")};
}

GatherTokensTransport::GatherTokensTransport(Comm& ep, Islands islands, ResidentExperts experts, ExpertScratch scratch,
                                             GatherTokensTensors tensors, int64_t chunks)
    : ep_(ep),
      islands_(std::move(islands)),
      experts_(std::move(experts)),
      scratch_(std::move(scratch)),
      t_(std::move(tensors)),
      position_(experts_.up.size()),
      chunks_(static_cast<size_t>(std::min<int64_t>(chunks, ep.size()))) {
  std::iota(position_.begin(), position_.end(), 0);
}

void GatherTokensTransport::prepare(Stream&, const RoutedTokens& routed, TensorView gate_weights_TK, bool) {
  layout_ = routed.layout;
  gate_weights_ = gate_weights_TK;
}

void GatherTokensTransport::dispatch_begin(Stream& stream, Pass pass, int64_t chunk, TensorView source_TD) {
  const bool backward = pass == Pass::backward;
  const int64_t k = layout_.top_k, tokens = layout_.tokens;
  if (chunk == 0 && pass == Pass::forward) share_counts();
  const TraceScope scope(stream.trace(), Work::exchange, backward ? "gradient_dispatch" : "dispatch");
  if (chunk == 0 && pass != Pass::again) order_parts(stream);
  if (backward) return start(stream, chunk, std::array{gather_exchange(chunk, source_TD, t_.sums.take(all_tokens()))});
  const TensorView choices = by_choice(t_.choices, 0, tokens);
  if (chunk == 0) gather_values(stream, layout_.expert_ids_R, layout_.row_of_TK, choices);
  start(stream, chunk,
        std::array{gather_exchange(chunk, source_TD, t_.gathered.take(all_tokens())),
                   gather_exchange(chunk, choices, by_choice(t_.token_choices, 0, all_tokens())),
                   gather_exchange(chunk, take_front(gate_weights_, {tokens, k}),
                                   by_choice(t_.token_weights, 0, all_tokens()))});
}

// How many tokens each rank has, and where they lie in gathered order.
void GatherTokensTransport::share_counts() {
  const auto members = static_cast<size_t>(ep_.size());
  tokens_.resize(members);
  RowExchange x;
  x.row_bytes = sizeof(int64_t);
  x.send = &layout_.tokens;
  x.receive = tokens_.data();
  x.send_counts.assign(members, 1);
  x.send_offsets.assign(members, 0);
  x.receive_counts.assign(members, 1);
  x.receive_offsets.resize(members);
  std::iota(x.receive_offsets.begin(), x.receive_offsets.end(), 0);
  ep_.all_to_all(x)->wait();
  first_token_.assign(1, 0);
  for (Chunk& chunk : chunks_) chunk.first_token = chunk.tokens = 0;
  for (int place = 0; place < ep_.size(); ++place) {
    const int source = (ep_.rank() + place) % ep_.size();
    Chunk& chunk = chunks_[static_cast<size_t>(chunk_of(source, ep_.rank()))];
    if (chunk.tokens == 0) chunk.first_token = first_token_.back();
    chunk.tokens += tokens_[static_cast<size_t>(source)];
    first_token_.push_back(first_token_.back() + tokens_[static_cast<size_t>(source)]);
  }
}

void GatherTokensTransport::order_parts(Stream& stream) {
  if (std::ssize(part_order_) != all_parts()) {
    part_order_.clear();
    for (int64_t t = 0; t < layout_.tokens; ++t)
      for (int64_t member = 0; member < ep_.size(); ++member)
        part_order_.push_back(static_cast<int32_t>(member * layout_.tokens + t));
  }
  write_values<int32_t>(stream, part_order_, t_.part_order.take(all_parts()));
}

ExpertBatch GatherTokensTransport::dispatch_finish(Stream& stream, Pass pass, int64_t chunk, TensorView source_TD) {
  wait(stream, chunk);
  if (pass != Pass::backward) sort(stream, pass, chunk);
  const Chunk& own = chunks_[static_cast<size_t>(chunk)];
  ExpertBatch batch = forward_rows(chunk, source_TD);
  batch.out = {scratch_.y.take(own.rows()), nullptr};
  if (own.first_row() > 0) {  // the memory of leads says where in y a row is
    fill_index(stream, {{IndexRun{0, 0, own.rows()}}}, t_.leads.take(own.first_row(), own.rows()));
    batch.out.index = t_.leads.take(rows_).as<int32_t>();
  }
  if (pass != Pass::backward) return batch;
  batch.in.data = t_.sums.take(own.first_token, own.tokens);
  batch.weights_R = t_.gathered_weights.take(rows_);
  batch.d_weights_R = scratch_.d_row_weights.take(rows_);
  return batch;
}

void GatherTokensTransport::sort(Stream& stream, Pass pass, int64_t chunk) {
  Chunk& own = chunks_[static_cast<size_t>(chunk)];
  const int64_t first_row = chunk == 0 ? 0 : chunks_[static_cast<size_t>(chunk) - 1].offsets.back();
  const int64_t choices = own.tokens * layout_.top_k;
  const TensorView leads = t_.leads.take(choices);
  sort_units(stream, choices_of(t_.token_choices, own), {}, position_, experts(), false,
             {t_.gathered_tokens.take(first_row, choices), leads, choices_of(t_.gathered_rows, own)});
  if (pass == Pass::forward) count(stream, own, first_row);
  gather_values(stream, choices_of(t_.token_weights, own).flat(), leads.slice(0, own.rows()),
                t_.gathered_weights.take(first_row, own.rows()));
}

void GatherTokensTransport::count(Stream& stream, Chunk& chunk, int64_t first_row) {
  const TraceScope scope(stream.trace(), Work::router, "row_counts");
  WorkspaceFrame frame(stream.workspace());
  const TensorView counts(frame.take<int64_t>(position_.size()), DType::i64, {experts()});
  const UnitParts by_position{position_, experts()};
  count_units(stream, choices_of(t_.token_choices, chunk), std::span(&by_position, 1), counts);
  counts_.read(stream, counts);
  chunk.offsets.assign(1, first_row);
  for (const int64_t rows : counts_.wait(stream)) chunk.offsets.push_back(chunk.offsets.back() + rows);
  rows_ = chunk.offsets.back();
}

ExpertBatch GatherTokensTransport::forward_rows(int64_t chunk, TensorView) {
  const Chunk& own = chunks_[static_cast<size_t>(chunk)];
  ExpertBatch batch;
  batch.slot_count = experts();
  batch.offsets = own.offsets;
  batch.in = {t_.gathered.take(own.first_token, own.tokens), t_.gathered_tokens.take(rows_).as<int32_t>()};
  return batch;
}

void GatherTokensTransport::combine_begin(Stream& stream, Pass pass, int64_t chunk) {
  const bool backward = pass == Pass::backward;
  const TraceScope scope(stream.trace(), Work::exchange, backward ? "gradient_combine" : "combine");
  const Chunk& own = chunks_[static_cast<size_t>(chunk)];
  const TensorView table = choices_of(t_.gathered_rows, own), weights = choices_of(t_.token_weights, own);
  combine_rows(stream, scratch_.y.take(own.rows()), table, backward ? TensorView{} : weights, {},
               t_.sums.take(own.first_token, own.tokens));
  const RowExchange sums = return_exchange(chunk, t_.sums.take(all_tokens()), t_.parts.take(all_parts()));
  if (!backward) return start(stream, chunk, std::array{sums});
  gather_values(stream, scratch_.d_row_weights.take(own.first_row(), own.rows()), table.flat(), weights.flat());
  start(stream, chunk,
        std::array{sums, return_exchange(chunk, by_choice(t_.token_weights, 0, all_tokens()),
                                         by_choice(t_.part_weights, 0, all_parts()))});
}

void GatherTokensTransport::combine_finish(Stream& stream, Pass pass, int64_t chunk, const CombineTarget& target) {
  wait(stream, chunk);
  if (chunk + 1 < chunks()) return;
  const TraceScope part(stream.trace(), pass == Pass::forward ? "combine_tokens" : "combine_gradient");
  const TensorView order = t_.part_order.take(all_parts()).reshape({layout_.tokens, ep_.size()});
  combine_rows(stream, t_.parts.take(all_parts()), order, {}, target.base_TD, target.out_TD);
  if (pass == Pass::backward)
    combine_rows(stream, by_choice(t_.part_weights, 0, all_parts()), order, {}, {}, target.d_weights_TK);
}

ExpertWeights GatherTokensTransport::weights(Stream&, Pass, int64_t) { return experts_.slice(0, experts()); }

// Every chunk may have rows of every expert.
GradientTarget GatherTokensTransport::gradient(Stream&, ExpertMatrix matrix, int64_t chunk, GradientStore store) {
  return {experts_.gradient(matrix, 0, experts()), store_in_turn(store, chunk, chunks())};
}

RowExchange GatherTokensTransport::gather_exchange(int64_t chunk, TensorView own, TensorView gathered) const {
  RowExchange x = exchange_of(own, gathered);
  for (int member = 0; member < ep_.size(); ++member) {
    const auto place = static_cast<size_t>(place_of(member, ep_.rank()));
    x.send_counts.push_back(chunk_of(ep_.rank(), member) == chunk ? layout_.tokens : 0);
    x.send_offsets.push_back(0);
    x.receive_counts.push_back(chunk_of(member, ep_.rank()) == chunk ? tokens_[static_cast<size_t>(member)] : 0);
    x.receive_offsets.push_back(first_token_[place]);
  }
  return x;
}

RowExchange GatherTokensTransport::return_exchange(int64_t chunk, TensorView gathered, TensorView parts) const {
  RowExchange x = exchange_of(gathered, parts);
  for (int member = 0; member < ep_.size(); ++member) {
    const auto place = static_cast<size_t>(place_of(member, ep_.rank()));
    x.send_counts.push_back(chunk_of(member, ep_.rank()) == chunk ? tokens_[static_cast<size_t>(member)] : 0);
    x.send_offsets.push_back(first_token_[place]);
    x.receive_counts.push_back(chunk_of(ep_.rank(), member) == chunk ? layout_.tokens : 0);
    x.receive_offsets.push_back(member * layout_.tokens);
  }
  return x;
}

void GatherTokensTransport::start(Stream& stream, int64_t chunk, std::span<const RowExchange> exchanges) {
  chunks_[static_cast<size_t>(chunk)].pending = start_exchanges(stream, ep_, islands_, exchanges);
}

void GatherTokensTransport::wait(Stream& stream, int64_t chunk) {
  const TraceScope scope(stream.trace(), Work::exchange, "exchange_wait");
  const std::unique_ptr<Pending> pending = std::move(chunks_[static_cast<size_t>(chunk)].pending);
  pending->wait();
}

int GatherTokensTransport::place_of(int source, int reader) const {
  return (source - reader + ep_.size()) % ep_.size();
}

// Chunk c of q has the places from G c / q to G (c + 1) / q, of G.
int64_t GatherTokensTransport::chunk_of(int source, int reader) const {
  return ((place_of(source, reader) + 1) * chunks() - 1) / ep_.size();
}

// Layers with more choices may share a tensor.
TensorView GatherTokensTransport::by_choice(GrowingTensor& tensor, int64_t first, int64_t rows) const {
  const TensorView all = tensor.take(first + rows);
  return TensorView(all.data, all.dtype, {first + rows, layout_.top_k}).slice(first, rows);
}

TensorView GatherTokensTransport::choices_of(GrowingTensor& tensor, const Chunk& chunk) const {
  return by_choice(tensor, chunk.first_token, chunk.tokens);
}

}  // namespace mw
