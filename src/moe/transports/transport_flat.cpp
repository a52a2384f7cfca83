#include "moe/transports/transport_flat.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace mw {

FlatTransport::FlatTransport(Comm& ep, const ExpertPlacement& placement, ResidentExperts experts, ExpertScratch scratch,
                             FlatSaved saved, FlatOptions options, ResidentExperts replicas, PlacedSaved placed)
    : ep_(ep),
      has_replicas_(placement.has_replicas()),
      splitter_(placement, ep.rank(), options.speeds),
      position_(placement.position_of_expert()),
      experts_(std::move(experts)),
      replicas_(std::move(replicas)),
      scratch_(std::move(scratch)),
      saved_(std::move(saved)),
      placed_(std::move(placed)),
      options_(std::move(options)) {
  for (int r = 0; r < ep_.size(); ++r) {
    homes_.push_back(std::ssize(placement.experts_of(r)));
    slots_.push_back(std::ssize(placement.copies_of(r)));
  }
  // Every rank walks the same number of chunks, whatever its own number of slots.
  home_chunks_ = std::min(options_.row_chunks, *std::max_element(homes_.begin(), homes_.end()));
  chunks_ = home_chunks_ + (has_replicas_ ? 1 : 0);
  pending_.resize(static_cast<size_t>(chunks_));
}

void FlatTransport::prepare(Stream& stream, const RoutedTokens& routed, TensorView gate_weights_TK, bool trains) {
  layout_ = routed.layout;
  gate_weights_ = gate_weights_TK;
  sends_weights_ = trains && !options_.dispatches_again;
  counts_.read(stream, routed);
}

void FlatTransport::dispatch_begin(Stream& stream, Pass pass, int64_t chunk, TensorView source_TD) {
  if (chunk == 0) start(stream, pass, source_TD);
  if (pass == Pass::backward) {
    const TraceScope scope(stream.trace(), Work::exchange, "gradient_dispatch");
    post(stream, chunk, std::array{exchange_of(chunk, send_rows_, scratch_.y.take(rows_), Direction::to_experts)});
    return;
  }
  const TraceScope scope(stream.trace(), Work::exchange, "dispatch");
  std::vector<RowExchange> exchanges = {
      exchange_of(chunk, send_rows_, saved_.received.take(rows_), Direction::to_experts)};
  if (sends_weights_)
    exchanges.push_back(exchange_of(chunk, send_weights_, saved_.received_weights.take(rows_), Direction::to_experts));
  post(stream, chunk, exchanges);
}

// What comes before a pass's first chunk leaves.
void FlatTransport::start(Stream& stream, Pass pass, TensorView source_TD) {
  const char* label = pass == Pass::backward ? "gradient_dispatch" : "dispatch";
  const auto pack_rows = [&] {
    const TraceScope scope(stream.trace(), Work::exchange, label);
    if (pass != Pass::backward) send_ = place_send(stream);
    send_weights_ = pass == Pass::backward ? scratch_.exchange_weights.take(send_.count) : send_.weights_R;
    pack(stream, source_TD);
  };
  if (pass == Pass::forward) {
    if (!has_order()) pack_rows();
    plan(stream);
    if (has_order()) pack_rows();
    index_received(stream);
    return;
  }
  pack_rows();
  if (pass == Pass::again) {
    sends_weights_ = true;
    index_received(stream);
  }
}

void FlatTransport::plan(Stream& stream) {
  const TraceScope scope(stream.trace(), Work::exchange, "exchange_counts");
  const std::vector<int64_t>& rows_per_expert = counts_.wait(stream);
  sent_.assign(static_cast<size_t>(ep_.size()), {});
  if (has_replicas_) split_rows(rows_per_expert);
  else exchange_counts(rows_per_expert);
  plan_receive();
}

FlatTransport::SendRows FlatTransport::place_send(Stream& stream) {
  if (!has_order())
    return {layout_.rows, layout_.token_ids_R.as<int32_t>(), layout_.weights_R.slice(0, layout_.rows),
            layout_.row_of_TK};
  const TensorView weights = scratch_.exchange_weights.take(order_.count),
                   tokens = placed_.token_ids.take(order_.count),
                   row_of(placed_.row_of_TK.data, DType::i32, {layout_.tokens, layout_.top_k});
  // The memory of the weights holds the map from sorted to sent rows first, that of the tokens the map back.
  const TensorView sent_row_R(weights.data, DType::i32, {layout_.rows});
  fill_index(stream, order_.to_sent, sent_row_R);
  gather_values(stream, sent_row_R, layout_.row_of_TK, row_of);
  fill_index(stream, order_.to_sorted, tokens);
  gather_values(stream, layout_.weights_R, tokens, weights);
  gather_values(stream, layout_.token_ids_R, tokens, tokens);
  return {order_.count, tokens.as<int32_t>(), weights, row_of};
}

void FlatTransport::pack(Stream& stream, TensorView source_TD) {
  send_rows_ = scratch_.exchange_rows.take(send_.count);
  gather_rows(stream, source_TD, send_.tokens, send_.count, send_rows_);
}

void FlatTransport::exchange_counts(const std::vector<int64_t>& rows_per_expert) {
  std::vector<int64_t> by_position(position_.size());
  for (size_t e = 0; e < position_.size(); ++e) by_position[static_cast<size_t>(position_[e])] = rows_per_expert[e];
  order_ = set_send_counts(by_position);
  const auto peers = static_cast<size_t>(ep_.size());
  const int64_t own = homes_of_rank();
  RowExchange x;
  x.row_bytes = sizeof(int64_t);
  std::vector<int64_t> in(peers * static_cast<size_t>(own));
  int64_t first = 0;
  for (size_t r = 0; r < peers; ++r) {
    const auto begin = by_position.begin() + first;
    sent_[r].assign(begin, begin + homes_[r]);
    x.send_offsets.push_back(first);
    x.send_counts.push_back(homes_[r]);
    first += homes_[r];
    x.receive_offsets.push_back(static_cast<int64_t>(r) * own);
    x.receive_counts.push_back(own);
  }
  x.send = by_position.data();
  x.receive = in.data();
  ep_.all_to_all(x)->wait();
  received_.assign(peers, {});
  for (size_t r = 0; r < peers; ++r)
    received_[r].assign(in.begin() + static_cast<std::ptrdiff_t>(r) * own,
                        in.begin() + static_cast<std::ptrdiff_t>(r + 1) * own);
}

void FlatTransport::split_rows(const std::vector<int64_t>& rows_per_expert) {
  CopySplit split = splitter_.split(ep_, rows_per_expert);
  received_ = std::move(split.received);
  for (size_t r = 0; r < sent_.size(); ++r) sent_[r].resize(static_cast<size_t>(slots_[r]));
  order_ = {layout_.rows, {}, {}};
  std::vector<CopySplit::Part>& by_copy = split.sent;
  std::sort(by_copy.begin(), by_copy.end(), [](const CopySplit::Part& a, const CopySplit::Part& b) {
    return std::pair(a.copy.ep_rank, a.copy.slot) < std::pair(b.copy.ep_rank, b.copy.slot);
  });
  int64_t row = 0;
  for (const CopySplit::Part& part : by_copy) {
    sent_[static_cast<size_t>(part.copy.ep_rank)][static_cast<size_t>(part.copy.slot)] = part.rows;
    order_.to_sorted.push_back({row, part.first, part.rows});
    order_.to_sent.push_back({part.first, row, part.rows});
    row += part.rows;
  }
  std::sort(order_.to_sent.begin(), order_.to_sent.end(),
            [](const IndexRun& a, const IndexRun& b) { return std::pair(a.to, a.count) < std::pair(b.to, b.count); });
}

// Arrival order is (chunk, source, slot), sorted order (slot, source): the index leads from one to the other.
void FlatTransport::plan_receive() {
  const auto peers = received_.size(), slots = received_.front().size();
  received_runs_.assign(slots * peers, {});
  offsets_.assign(1, 0);
  for (size_t s = 0; s < slots; ++s) {
    int64_t row = offsets_.back();
    for (size_t r = 0; r < peers; ++r) {
      const int64_t rows = received_[r][s];
      received_runs_[s * peers + r] = {row, 0, rows};
      row += rows;
    }
    offsets_.push_back(row);
  }
  rows_ = offsets_.back();
  arrival_.assign(static_cast<size_t>(chunks_), {});
  int64_t arrived = 0;
  for (int64_t c = 0; c < chunks_; ++c) {
    const auto [begin, end] = slot_range(ep_.rank(), c);
    for (size_t r = 0; r < peers; ++r) {
      arrival_[static_cast<size_t>(c)].push_back(arrived);
      for (auto s = static_cast<size_t>(begin); s < static_cast<size_t>(end); ++s) {
        received_runs_[s * peers + r].from = arrived;
        arrived += received_runs_[s * peers + r].count;
      }
    }
  }
}

void FlatTransport::index_received(Stream& stream) {
  fill_index(stream, received_runs_, saved_.received_index.take(rows_));
}

ExpertBatch FlatTransport::dispatch_finish(Stream& stream, Pass pass, int64_t chunk, TensorView source_TD) {
  wait(stream, chunk);
  ExpertBatch batch = forward_rows(chunk, source_TD);
  batch.out = {scratch_.y.take(rows_), batch.in.index};
  if (pass != Pass::backward) return batch;
  batch.in = batch.out;
  batch.weights_R = scratch_.row_weights.take(rows_);
  batch.d_weights_R = scratch_.d_row_weights.take(rows_);
  const auto [begin, count] = chunk_rows(chunk);
  gather_values(stream, saved_.received_weights.take(rows_), saved_.received_index.take(rows_).slice(begin, count),
                batch.weights_R.slice(begin, count));
  return batch;
}

ExpertBatch FlatTransport::forward_rows(int64_t chunk, TensorView) {
  const auto [begin, end] = slot_range(ep_.rank(), chunk);
  ExpertBatch batch;
  batch.slot_begin = begin;
  batch.slot_count = end - begin;
  batch.offsets = chunk_offsets(chunk);
  batch.in = {saved_.received.take(rows_), saved_.received_index.take(rows_).as<int32_t>()};
  return batch;
}

void FlatTransport::combine_begin(Stream& stream, Pass pass, int64_t chunk) {
  const bool backward = pass == Pass::backward;
  const TraceScope scope(stream.trace(), Work::exchange, backward ? "gradient_combine" : "combine");
  const RowExchange rows = exchange_of(chunk, scratch_.y.take(rows_), send_rows_, Direction::to_tokens);
  if (!backward) return post(stream, chunk, std::array{rows});
  // The saved weights have been read: their memory takes the gradients in arrival order.
  const auto [begin, count] = chunk_rows(chunk);
  const TensorView arrived = saved_.received_weights.take(rows_);
  scatter_values(stream, scratch_.d_row_weights.take(rows_).slice(begin, count),
                 saved_.received_index.take(rows_).slice(begin, count), arrived);
  post(stream, chunk, std::array{rows, exchange_of(chunk, arrived, send_weights_, Direction::to_tokens)});
}

void FlatTransport::combine_finish(Stream& stream, Pass pass, int64_t chunk, const CombineTarget& target) {
  wait(stream, chunk);
  if (chunk + 1 == chunks_)
    sum_returned_rows(stream, pass, send_rows_, send_weights_, send_.row_of_TK, gate_weights_, target);
}

ExpertWeights FlatTransport::weights(Stream&, Pass, int64_t chunk) {
  const auto [begin, end] = slot_range(ep_.rank(), chunk);
  return is_of_replicas(chunk) ? replicas_.slice(0, end - begin) : experts_.slice(begin, end - begin);
}

GradientTarget FlatTransport::gradient(Stream&, ExpertMatrix matrix, int64_t chunk, GradientStore store) {
  const auto [begin, end] = slot_range(ep_.rank(), chunk);
  return {is_of_replicas(chunk) ? replicas_.gradient(matrix, 0, end - begin)
                                : experts_.gradient(matrix, begin, end - begin),
          store};
}

std::pair<int64_t, int64_t> FlatTransport::slot_range(int rank, int64_t chunk) const {
  const int64_t homes = homes_[static_cast<size_t>(rank)];
  if (is_of_replicas(chunk)) return {homes, slots_[static_cast<size_t>(rank)]};
  return {homes * chunk / home_chunks_, homes * (chunk + 1) / home_chunks_};
}

// Rows of one chunk by (destination, slot) at their tokens' ranks, in arrival order at the experts.
RowExchange FlatTransport::exchange_of(int64_t chunk, TensorView from, TensorView to, Direction direction) const {
  const auto sum = [](const std::vector<int64_t>& rows, int64_t begin, int64_t end) {
    return std::accumulate(rows.begin() + begin, rows.begin() + end, int64_t{0});
  };
  std::vector<int64_t> token_counts, token_offsets, expert_counts;
  int64_t base = 0;
  for (int r = 0; r < ep_.size(); ++r) {
    const std::vector<int64_t>& sent = sent_[static_cast<size_t>(r)];
    const auto [first, last] = slot_range(r, chunk);
    const auto [begin, end] = slot_range(ep_.rank(), chunk);
    token_offsets.push_back(base + sum(sent, 0, first));
    token_counts.push_back(sum(sent, first, last));
    expert_counts.push_back(sum(received_[static_cast<size_t>(r)], begin, end));
    base += sum(sent, 0, std::ssize(sent));
  }
  const std::vector<int64_t>& expert_offsets = arrival_[static_cast<size_t>(chunk)];
  RowExchange x;
  x.row_bytes = from.rank == 1 ? size_of(from.dtype) : from.cols() * size_of(from.dtype);
  x.send = from.data;
  x.receive = to.data;
  const bool out = direction == Direction::to_experts;
  x.send_counts = out ? token_counts : expert_counts;
  x.send_offsets = out ? token_offsets : expert_offsets;
  x.receive_counts = out ? expert_counts : token_counts;
  x.receive_offsets = out ? expert_offsets : token_offsets;
  return x;
}

void FlatTransport::post(Stream& stream, int64_t chunk, std::span<const RowExchange> exchanges) {
  pending_[static_cast<size_t>(chunk)] = start_exchanges(stream, ep_, options_.islands, exchanges);
}

void FlatTransport::wait(Stream& stream, int64_t chunk) {
  const TraceScope scope(stream.trace(), Work::exchange, "exchange_wait");
  const std::unique_ptr<Pending> pending = std::move(pending_[static_cast<size_t>(chunk)]);
  pending->wait();
}

std::span<const int64_t> FlatTransport::chunk_offsets(int64_t chunk) const {
  const auto [begin, end] = slot_range(ep_.rank(), chunk);
  return std::span(offsets_).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin + 1));
}

std::pair<int64_t, int64_t> FlatTransport::chunk_rows(int64_t chunk) const {
  const auto offsets = chunk_offsets(chunk);
  return {offsets.front(), offsets.back() - offsets.front()};
}

}  // namespace mw
