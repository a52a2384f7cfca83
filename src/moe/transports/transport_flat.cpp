#include "moe/transports/transport_flat.h"

#include <algorithm>
#include <numeric>

namespace mw {

FlatTransport::FlatTransport(Comm& ep, const ExpertPlacement& placement, ResidentExperts experts, ExpertScratch scratch,
                             FlatSaved saved, FlatOptions options)
    : ep_(ep),
      scratch_(std::move(scratch)),
      rank_offsets_(without_replicas(placement).rank_offsets()),
      position_(placement.position_of_expert()),
      experts_(std::move(experts)),
      saved_(std::move(saved)),
      options_(std::move(options)) {
  local_slots_ = slots_of(ep_.rank());
  // Every rank walks the same number of chunks, whatever its own number of slots.
  int64_t most = 0;
  for (int r = 0; r < ep_.size(); ++r) most = std::max(most, slots_of(r));
  chunks_ = std::min(options_.row_chunks, most);
  pending_.resize(static_cast<size_t>(chunks_));
}

void FlatTransport::prepare(Stream& stream, const TokenLayout& layout, TensorView gate_weights_TK, bool trains) {
  layout_ = layout;
  gate_weights_ = gate_weights_TK;
  sends_weights_ = trains && !options_.dispatches_again;
  counts_.read(stream, layout.rows_per_expert_E);
}

void FlatTransport::dispatch_begin(Stream& stream, Pass pass, int64_t chunk, TensorView source_TD) {
  if (chunk == 0) start(stream, pass, source_TD);
  if (pass == Pass::backward) {
    const TraceScope scope(stream.trace(), Work::exchange, "gradient_dispatch");
    post(stream, chunk, send_rows_, scratch_.y.take(rows_), Direction::to_experts);
    return;
  }
  const TraceScope scope(stream.trace(), Work::exchange, "dispatch");
  post(stream, chunk, send_rows_, saved_.received.take(rows_), Direction::to_experts);
  if (sends_weights_) post(stream, chunk, send_weights_, saved_.received_weights.take(rows_), Direction::to_experts);
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
    if (!places_by_counts()) pack_rows();
    plan(stream);
    if (places_by_counts()) pack_rows();
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
  std::vector<int64_t> by_position(position_.size());
  for (size_t e = 0; e < position_.size(); ++e) by_position[static_cast<size_t>(position_[e])] = rows_per_expert[e];
  set_send_counts(by_position);
  sent_.assign(static_cast<size_t>(ep_.size()), {});
  for (int r = 0; r < ep_.size(); ++r) {
    const auto begin = by_position.begin() + rank_offsets_[static_cast<size_t>(r)];
    sent_[static_cast<size_t>(r)].assign(begin, begin + slots_of(r));
  }
  exchange_counts();
  plan_receive();
}

FlatTransport::SendRows FlatTransport::place_send(Stream&) {
  return {layout_.rows, layout_.token_ids_R.as<int32_t>(), layout_.weights_R.slice(0, layout_.rows), layout_.row_of_TK};
}

void FlatTransport::pack(Stream& stream, TensorView source_TD) {
  send_rows_ = scratch_.exchange_rows.take(send_.count);
  gather_rows(stream, source_TD, send_.tokens, send_.count, send_rows_);
}

void FlatTransport::exchange_counts() {
  const auto peers = static_cast<size_t>(ep_.size());
  RowExchange x;
  x.row_bytes = sizeof(int64_t);
  std::vector<int64_t> out, in(peers * static_cast<size_t>(local_slots_));
  for (size_t r = 0; r < peers; ++r) {
    x.send_offsets.push_back(static_cast<int64_t>(out.size()));
    x.send_counts.push_back(static_cast<int64_t>(sent_[r].size()));
    out.insert(out.end(), sent_[r].begin(), sent_[r].end());
    x.receive_offsets.push_back(static_cast<int64_t>(r) * local_slots_);
    x.receive_counts.push_back(local_slots_);
  }
  x.send = out.data();
  x.receive = in.data();
  ep_.all_to_all(x)->wait();
  received_.assign(peers, {});
  for (size_t r = 0; r < peers; ++r)
    received_[r].assign(in.begin() + static_cast<std::ptrdiff_t>(r) * local_slots_,
                        in.begin() + static_cast<std::ptrdiff_t>(r + 1) * local_slots_);
}

// Arrival order is (chunk, source, slot), sorted order (slot, source): the index leads from one to the other.
void FlatTransport::plan_receive() {
  const auto peers = received_.size(), slots = static_cast<size_t>(local_slots_);
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
  if (!backward) {
    post(stream, chunk, scratch_.y.take(rows_), send_rows_, Direction::to_tokens);
    return;
  }
  // The saved weights have been read: their memory takes the gradients in arrival order.
  const auto [begin, count] = chunk_rows(chunk);
  const TensorView arrived = saved_.received_weights.take(rows_);
  scatter_values(stream, scratch_.d_row_weights.take(rows_).slice(begin, count),
                 saved_.received_index.take(rows_).slice(begin, count), arrived);
  post(stream, chunk, scratch_.y.take(rows_), send_rows_, Direction::to_tokens);
  post(stream, chunk, arrived, send_weights_, Direction::to_tokens);
}

void FlatTransport::combine_finish(Stream& stream, Pass pass, int64_t chunk, const CombineTarget& target) {
  wait(stream, chunk);
  if (chunk + 1 == chunks_)
    sum_returned_rows(stream, pass, send_rows_, send_weights_, send_.row_of_TK, gate_weights_, target);
}

ExpertWeights FlatTransport::weights(Stream&, Pass, int64_t chunk) {
  const auto [begin, end] = slot_range(ep_.rank(), chunk);
  return experts_.slice(begin, end - begin);
}

GradientTarget FlatTransport::gradient(Stream&, ExpertMatrix matrix, int64_t chunk, Store store) {
  const auto [begin, end] = slot_range(ep_.rank(), chunk);
  return {experts_.gradient(matrix, begin, end - begin), store};
}

int64_t FlatTransport::slots_of(int rank) const {
  return rank_offsets_[static_cast<size_t>(rank) + 1] - rank_offsets_[static_cast<size_t>(rank)];
}

std::pair<int64_t, int64_t> FlatTransport::slot_range(int rank, int64_t chunk) const {
  const int64_t slots = slots_of(rank);
  return {slots * chunk / chunks_, slots * (chunk + 1) / chunks_};
}

// Starts the exchange of one chunk: rows by (destination, slot) at their tokens' ranks, in arrival order at the
// experts.
void FlatTransport::post(Stream& stream, int64_t chunk, TensorView from, TensorView to, Direction direction) {
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
  stream.trace().count_sent(sent_bytes(x, options_.islands, ep_.rank()));
  pending_[static_cast<size_t>(chunk)].push_back(ep_.all_to_all(stream, x));
}

void FlatTransport::wait(Stream& stream, int64_t chunk) {
  const TraceScope scope(stream.trace(), Work::exchange, "exchange_wait");
  for (auto& pending : pending_[static_cast<size_t>(chunk)]) pending->wait();
  pending_[static_cast<size_t>(chunk)].clear();
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
