#include "moe/exchange_transport.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "ops/index.h"

namespace mw {
namespace {

// Rows by (peer, slot): on the source side the peer is the destination, on the expert side the source.
struct PeerSlots {
  std::vector<std::vector<int64_t>> counts;  // [peer][slot]
};

class ExchangeTransport : public Transport {
 public:
  ExchangeTransport(Comm& ep, const ExpertPlacement& placement, ResidentExperts experts, ExpertScratch scratch,
                    ExchangeSaved saved, ExchangeOptions options)
      : ep_(ep),
        rank_offsets_(placement.rank_offsets()),
        position_(placement.position_of_expert()),
        experts_(std::move(experts)),
        scratch_(std::move(scratch)),
        saved_(std::move(saved)),
        padded_(options.padded) {
    local_slots_ = slots_of(ep_.rank());
    // Every rank walks the same number of chunks, whatever its own number of slots.
    int64_t most = 0;
    for (int r = 0; r < ep_.size(); ++r) most = std::max(most, slots_of(r));
    chunks_ = std::min(options.row_chunks, most);
    pending_.resize(static_cast<size_t>(chunks_));
  }

  void prepare(Stream& stream, const TokenLayout& layout, TensorView x_TD, bool with_weights) override {
    layout_ = layout;
    with_weights_ = with_weights;
    counts_.read(stream, layout.rows_per_expert_E);
    if (padded_) return;  // which takes the counts
    const TraceScope scope(stream.trace(), Work::exchange, "dispatch");
    send_total_ = layout.rows;
    place_send(stream);
    pack(stream, x_TD);
    packed_ = true;
  }
  int64_t begin(Stream& stream) override {
    const TraceScope scope(stream.trace(), Work::exchange, "exchange_counts");
    plan_send(stream);
    exchange_counts();
    plan_receive(stream);
    return rows_;
  }
  bool travels() const override { return true; }
  int64_t chunks() const override { return chunks_; }
  ExpertWeights weights(int64_t chunk) override {
    const auto [begin, end] = slot_range(ep_.rank(), chunk);
    return experts_.slice(begin, end - begin);
  }

  void dispatch_begin(Stream& stream, int64_t chunk, TensorView x_TD) override {
    const TraceScope scope(stream.trace(), Work::exchange, "dispatch");
    if (chunk == 0 && !std::exchange(packed_, false)) pack(stream, x_TD);
    post(stream, chunk, send_rows_, saved_.received.take(rows_), Direction::to_experts);
    if (with_weights_) post(stream, chunk, send_weights_, saved_.received_weights.take(rows_), Direction::to_experts);
  }
  ExpertBatch dispatch_finish(Stream& stream, int64_t chunk) override {
    wait(stream, chunk);
    return batch(chunk);
  }
  void combine_begin(Stream& stream, int64_t chunk) override {
    const TraceScope scope(stream.trace(), Work::exchange, "combine");
    post(stream, chunk, scratch_.y.take(rows_), send_rows_, Direction::to_tokens);
  }
  void combine_finish(Stream& stream, int64_t chunk) override { wait(stream, chunk); }
  void combine(Stream& stream, TensorView weights_TK, TensorView base_TD, TensorView out_TD) override {
    combine_rows(stream, send_rows_, row_of_, weights_TK, base_TD, out_TD);
  }

  void begin_again(Stream& stream) override {
    with_weights_ = true;
    place_send(stream);
    place_receive(stream);
  }
  ExpertBatch dispatched(int64_t chunk, TensorView) override { return batch(chunk); }

  void gradient_begin(Stream& stream, int64_t chunk, TensorView d_out_TD) override {
    const TraceScope scope(stream.trace(), Work::exchange, "gradient_dispatch");
    if (chunk == 0) {
      send_rows_ = scratch_.exchange_rows.take(send_total_);
      send_weights_ = scratch_.exchange_weights.take(send_total_);
      gather_rows(stream, d_out_TD, send_tokens_, send_total_, send_rows_);
    }
    post(stream, chunk, send_rows_, scratch_.y.take(rows_), Direction::to_experts);
  }
  GradientBatch gradient_finish(Stream& stream, int64_t chunk, TensorView) override {
    wait(stream, chunk);
    GradientBatch gradient;
    gradient.rows = batch(chunk);
    gradient.rows.weights_R = scratch_.row_weights.take(rows_);
    gradient.rows.d_weights_R = scratch_.d_row_weights.take(rows_);
    gradient.d_y = gradient.d_x = gradient.rows.y;
    const auto [begin, count] = chunk_rows(chunk);
    gather_values(stream, saved_.received_weights.take(rows_), saved_.received_index.take(rows_).slice(begin, count),
                  gradient.rows.weights_R.slice(begin, count));
    return gradient;
  }
  void gradient_return_begin(Stream& stream, int64_t chunk) override {
    const TraceScope scope(stream.trace(), Work::exchange, "gradient_combine");
    // The saved weights have been read: their place takes the gradients in arrival order.
    const auto [begin, count] = chunk_rows(chunk);
    const TensorView arrived = saved_.received_weights.take(rows_);
    scatter_values(stream, scratch_.d_row_weights.take(rows_).slice(begin, count),
                   saved_.received_index.take(rows_).slice(begin, count), arrived);
    post(stream, chunk, scratch_.y.take(rows_), send_rows_, Direction::to_tokens);
    post(stream, chunk, arrived, send_weights_, Direction::to_tokens);
  }
  void gradient_return_finish(Stream& stream, int64_t chunk) override { wait(stream, chunk); }
  void combine_gradient(Stream& stream, TensorView base_TD, TensorView d_x_TD, TensorView d_weights_TK) override {
    combine_rows(stream, send_rows_, row_of_, {}, base_TD, d_x_TD);
    gather_values(stream, send_weights_, row_of_, d_weights_TK);
  }

 private:
  enum class Direction : uint8_t { to_experts, to_tokens };

  int64_t slots_of(int rank) const {
    return rank_offsets_[static_cast<size_t>(rank) + 1] - rank_offsets_[static_cast<size_t>(rank)];
  }
  std::pair<int64_t, int64_t> slot_range(int rank, int64_t chunk) const {
    const int64_t slots = slots_of(rank);
    return {slots * chunk / chunks_, slots * (chunk + 1) / chunks_};
  }

  // What this rank sends: token, weight and count of every (destination, slot).
  void plan_send(Stream& stream) {
    const std::vector<int64_t>& rows_per_expert = counts_.wait(stream);
    std::vector<int64_t> by_position(position_.size());
    for (size_t e = 0; e < position_.size(); ++e) by_position[static_cast<size_t>(position_[e])] = rows_per_expert[e];
    if (padded_) pad(by_position);
    send_.counts.assign(static_cast<size_t>(ep_.size()), {});
    for (int r = 0; r < ep_.size(); ++r)
      for (int64_t s = 0; s < slots_of(r); ++s)
        send_.counts[static_cast<size_t>(r)].push_back(
            by_position[static_cast<size_t>(rank_offsets_[static_cast<size_t>(r)] + s)]);
    if (padded_) place_send(stream);
  }

  // Fills every expert up to the largest count anywhere.
  void pad(std::vector<int64_t>& by_position) {
    int64_t capacity = by_position.empty() ? 0 : *std::max_element(by_position.begin(), by_position.end());
    ep_.all_reduce_max(std::span(&capacity, 1));
    send_total_ = capacity * static_cast<int64_t>(by_position.size());
    to_padded_.clear();
    to_sorted_.clear();
    int64_t padded = 0, sorted = 0;
    for (const int64_t rows : by_position) {
      to_padded_.push_back({sorted, padded, rows});
      to_sorted_.push_back({padded, sorted, rows});
      padded += capacity;
      sorted += rows;
    }
    std::fill(by_position.begin(), by_position.end(), capacity);
  }

  // Where the rows to send, their weights and every choice's row lie. Of padded ones: where each choice and its weight
  // lie in the padded buffer, and the token of each of its rows.
  void place_send(Stream& stream) {
    if (!padded_) {
      send_weights_ = layout_.weights_R.slice(0, send_total_);
      send_tokens_ = layout_.token_ids_R.as<int32_t>();
      row_of_ = layout_.row_of_TK;
      return;
    }
    send_weights_ = scratch_.exchange_weights.take(send_total_);
    const TensorView tokens = saved_.padded_token_ids.take(send_total_);
    row_of_ = TensorView(saved_.padded_row_of_TK.data, DType::i32, {layout_.tokens, layout_.top_k});
    // The weights' place holds the way from sorted to padded rows first, the tokens' place the way back.
    const TensorView padded_row_R(send_weights_.data, DType::i32, {layout_.rows});
    fill_index(stream, to_padded_, padded_row_R);
    gather_values(stream, padded_row_R, layout_.row_of_TK, row_of_);
    fill_index(stream, to_sorted_, tokens);
    gather_values(stream, layout_.weights_R, tokens, send_weights_);
    gather_values(stream, layout_.token_ids_R, tokens, tokens);
    send_tokens_ = tokens.as<int32_t>();
  }

  void exchange_counts() {
    const auto peers = static_cast<size_t>(ep_.size());
    RowExchange x;
    x.row_bytes = sizeof(int64_t);
    std::vector<int64_t> out, in(peers * static_cast<size_t>(local_slots_));
    for (size_t r = 0; r < peers; ++r) {
      x.send_offsets.push_back(static_cast<int64_t>(out.size()));
      x.send_counts.push_back(static_cast<int64_t>(send_.counts[r].size()));
      out.insert(out.end(), send_.counts[r].begin(), send_.counts[r].end());
      x.receive_offsets.push_back(static_cast<int64_t>(r) * local_slots_);
      x.receive_counts.push_back(local_slots_);
    }
    x.send = out.data();
    x.receive = in.data();
    ep_.all_to_all(x)->wait();
    receive_.counts.assign(peers, {});
    for (size_t r = 0; r < peers; ++r)
      receive_.counts[r].assign(in.begin() + static_cast<std::ptrdiff_t>(r) * local_slots_,
                                in.begin() + static_cast<std::ptrdiff_t>(r + 1) * local_slots_);
  }

  // Arrival order is (chunk, source, slot), sorted order (slot, source): the index leads from one to the other.
  void plan_receive(Stream& stream) {
    const auto peers = receive_.counts.size(), slots = static_cast<size_t>(local_slots_);
    received_runs_.assign(slots * peers, {});
    offsets_.assign(1, 0);
    for (size_t s = 0; s < slots; ++s) {
      int64_t row = offsets_.back();
      for (size_t r = 0; r < peers; ++r) {
        const int64_t rows = receive_.counts[r][s];
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
    place_receive(stream);
  }
  void place_receive(Stream& stream) { fill_index(stream, received_runs_, saved_.received_index.take(rows_)); }

  void pack(Stream& stream, TensorView x_TD) {
    send_rows_ = scratch_.exchange_rows.take(send_total_);
    gather_rows(stream, x_TD, send_tokens_, send_total_, send_rows_);
  }

  // Starts the exchange of one chunk: token side rows by (destination, slot), expert side rows as they arrive.
  void post(Stream& stream, int64_t chunk, TensorView from, TensorView to, Direction direction) {
    std::vector<int64_t> token_counts, token_offsets, expert_counts;
    int64_t base = 0;
    for (int r = 0; r < ep_.size(); ++r) {
      const auto& sent = send_.counts[static_cast<size_t>(r)];
      const auto& got = receive_.counts[static_cast<size_t>(r)];
      const auto [first, last] = slot_range(r, chunk);
      const auto [begin, end] = slot_range(ep_.rank(), chunk);
      token_offsets.push_back(base + sum(sent, 0, first));
      token_counts.push_back(sum(sent, first, last));
      expert_counts.push_back(sum(got, begin, end));
      base += sum(sent, 0, static_cast<int64_t>(sent.size()));
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
    const int64_t to_others = std::accumulate(x.send_counts.begin(), x.send_counts.end(), int64_t{0}) -
                              x.send_counts[static_cast<size_t>(ep_.rank())];
    stream.trace().count_sent(to_others * x.row_bytes);
    pending_[static_cast<size_t>(chunk)].push_back(ep_.all_to_all(stream, x));
  }
  static int64_t sum(const std::vector<int64_t>& v, int64_t begin, int64_t end) {
    int64_t total = 0;
    for (int64_t i = begin; i < end; ++i) total += v[static_cast<size_t>(i)];
    return total;
  }
  void wait(Stream& stream, int64_t chunk) {
    const TraceScope scope(stream.trace(), Work::exchange, "exchange_wait");
    for (auto& pending : pending_[static_cast<size_t>(chunk)]) pending->wait();
    pending_[static_cast<size_t>(chunk)].clear();
  }

  std::span<const int64_t> chunk_offsets(int64_t chunk) const {
    const auto [begin, end] = slot_range(ep_.rank(), chunk);
    return std::span(offsets_).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin + 1));
  }
  // First sorted row of a chunk, and how many it has.
  std::pair<int64_t, int64_t> chunk_rows(int64_t chunk) const {
    const auto offsets = chunk_offsets(chunk);
    return {offsets.front(), offsets.back() - offsets.front()};
  }
  ExpertBatch batch(int64_t chunk) {
    const auto [begin, end] = slot_range(ep_.rank(), chunk);
    const int32_t* index = saved_.received_index.take(rows_).as<int32_t>();
    ExpertBatch b;
    b.slot_begin = begin;
    b.slot_count = end - begin;
    b.offsets = chunk_offsets(chunk);
    b.x = {saved_.received.take(rows_), index};
    b.y = {scratch_.y.take(rows_), index};
    return b;
  }

  Comm& ep_;
  std::vector<int64_t> rank_offsets_;
  std::vector<int32_t> position_;
  ResidentExperts experts_;
  ExpertScratch scratch_;
  ExchangeSaved saved_;
  bool padded_, with_weights_ = false;
  bool packed_ = false;  // before dispatch_begin
  int64_t local_slots_ = 0, chunks_ = 1;

  TokenLayout layout_;
  RowCounts counts_;
  PeerSlots send_, receive_;
  int64_t send_total_ = 0, rows_ = 0;
  const int32_t* send_tokens_ = nullptr;
  TensorView row_of_, send_rows_, send_weights_;
  std::vector<IndexRun> to_padded_, to_sorted_, received_runs_;
  std::vector<int64_t> offsets_;
  std::vector<std::vector<int64_t>> arrival_;  // [chunk][source]: first arrived row
  std::vector<std::vector<std::unique_ptr<Pending>>> pending_;
};

}  // namespace

std::unique_ptr<Transport> make_exchange_transport(Comm& ep, const ExpertPlacement& placement, ResidentExperts experts,
                                                   ExpertScratch scratch, ExchangeSaved saved,
                                                   ExchangeOptions options) {
  if (placement.has_replicas())
    fail(Exit::unsupported, "several replicas of an expert in one expert-parallel group are not supported yet",
         "place each expert on one rank; docs/limits.md lists what is missing");
  return std::make_unique<ExchangeTransport>(ep, placement, std::move(experts), std::move(scratch), std::move(saved),
                                             options);
}

}  // namespace mw
