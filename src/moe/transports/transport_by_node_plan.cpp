#include "moe/transports/transport_by_node.h"

#include <array>
#include <numeric>

#include "moe/transports/count_exchange.h"
#include "ops/index.h"

// Before rows travel: which copy of an expert takes each choice, how many rows go where, and the plan of the exchange.
namespace mw {
namespace {

ExchangeLeg without_own(ExchangeLeg leg, int member) {
  const auto is_own = [&](const RowMessage& message) { return message.peer == member; };
  std::erase_if(leg.send, is_own);
  std::erase_if(leg.receive, is_own);
  return leg;
}

}  // namespace

void ByNodeTransport::find_parts(const ExpertPlacement& placement) {
  const int own = ep_.rank(), island = islands_.island_of[static_cast<size_t>(own)];
  homes_ = std::ssize(placement.experts_of(own));
  slots_ = std::ssize(placement.copies_of(own));
  island_size_ = std::ssize(islands_.members[static_cast<size_t>(island)]);
  rank_offsets_ = {0};
  for (int rank = 0; rank < ep_.size(); ++rank)
    rank_offsets_.push_back(rank_offsets_.back() + std::ssize(placement.copies_of(rank)));
  if (kinds_ == 1) {
    for (const std::vector<ExpertHome>& homes : placement.homes) find_part(homes.front());
  } else {
    for (const ExpertHome& copy : splitter_.copies()) find_part(copy);
  }
}

void ByNodeTransport::find_part(const ExpertHome& copy) {
  const int own = ep_.rank();
  const auto rank = static_cast<size_t>(copy.ep_rank);
  const bool near = islands_.is_near(own, copy.ep_rank);
  parts_.receiver.push_back(near ? copy.ep_rank : islands_.gateway(own, islands_.island_of[rank]));
  parts_.member.push_back(copy.ep_rank);
  parts_.place.push_back(near ? islands_.place_of[rank] : -1);
  parts_.slot.push_back(copy.ep_rank == own ? copy.slot : -1);
  parts_.position.push_back(static_cast<int32_t>(rank_offsets_[rank]) + copy.slot);
}

// With replicas, where the layout has the expert of a row its copy takes that place.
void ByNodeTransport::choose_copies(Stream& stream) {
  const TraceScope scope(stream.trace(), Work::exchange, "choose_copies");
  const CopySplit split = splitter_.split(ep_, counts_.wait(stream));
  std::vector<IndexRun> runs;
  for (const CopySplit::Part& part : split.sent) runs.push_back({part.first, std::ssize(runs), part.rows, 0});
  fill_index(stream, runs, layout_.expert_ids_R.slice(0, layout_.rows));
  sort_and_count(stream);
}

void ByNodeTransport::sort_and_count(Stream& stream) {
  gather_values(stream, layout_.expert_ids_R, layout_.row_of_TK, by_choice(t_.choices));
  for (const Chunk& chunk : chunks_) sort_sent(stream, chunk);
  count(stream);
}

void ByNodeTransport::sort_sent(Stream& stream, const Chunk& chunk) {
  sort_units(stream, choices_of(chunk), {}, parts_.receiver, ep_.size(), options_.merge,
             {of_choices(t_.sent_tokens, chunk), of_choices(t_.sent_leads, chunk), of_choices(t_.sent_units, chunk)});
}

// By chunk: units by the member that takes them, units by the rank that they reach, choices by position.
void ByNodeTransport::count(Stream& stream) {
  const int64_t members = ep_.size(), copies = std::ssize(parts_.position), each = 2 * members + copies;
  WorkspaceFrame frame(stream.workspace());
  const int64_t all = each * std::ssize(chunks_);
  const TensorView counts(frame.take<int64_t>(static_cast<size_t>(all)), DType::i64, {all});
  const std::array<UnitParts, 3> divisions = {{{parts_.receiver, members, options_.merge},
                                               {parts_.member, members, options_.merge},
                                               {parts_.position, copies, false}}};
  for (size_t c = 0; c < chunks_.size(); ++c)
    count_units(stream, choices_of(chunks_[c]), divisions, counts.slice(static_cast<int64_t>(c) * each, each));
  counts_.read(stream, counts);
}

std::vector<SourceCounts> ByNodeTransport::take_counts(Stream& stream) {
  const TraceScope scope(stream.trace(), Work::router, "row_counts");
  auto next = counts_.wait(stream).begin();
  const auto take = [&](int64_t count) {
    next += count;
    return std::vector<int64_t>(next - count, next);
  };
  std::vector<SourceCounts> own;
  for (Chunk& chunk : chunks_) {
    SourceCounts counts;
    counts.sent = take(ep_.size());
    counts.units = take(ep_.size());
    counts.rows = take(std::ssize(parts_.position));
    const auto own_count = counts.sent.begin() + ep_.rank();
    RowRange& own_sent = chunk.home_leg.own_sent;
    own_sent = {std::accumulate(counts.sent.begin(), own_count, int64_t{0}), *own_count};
    chunk.sent_rows = std::accumulate(own_count, counts.sent.end(), own_sent.first);
    own.push_back(std::move(counts));
  }
  return own;
}

ByNodeTransport::Leg ByNodeTransport::leg_of(const ExchangeLeg& leg) const {
  const auto own = [&](const std::vector<RowMessage>& messages) {
    for (const RowMessage& message : messages)
      if (message.peer == ep_.rank()) return RowRange{message.first, message.rows};
    return RowRange{};
  };
  return {without_own(leg, ep_.rank()), own(leg.send), own(leg.receive)};
}

void ByNodeTransport::plan(Stream& stream, const std::vector<SourceCounts>& own) {
  const TraceScope scope(stream.trace(), Work::exchange, "exchange_counts");
  std::vector<ExchangePlan> plans = exchange_counts(ep_, islands_, rank_offsets_, own);
  end_ = {};
  for (size_t c = 0; c < chunks_.size(); ++c) {
    Chunk& chunk = chunks_[c];
    chunk.plan = std::move(plans[c]);
    MW_CHECK(chunk.plan.home.send_rows == chunk.sent_rows, "{} rows packed, {} to send", chunk.sent_rows,
             chunk.plan.home.send_rows);
    chunk.home_leg = leg_of(chunk.plan.home);
    chunk.spread_leg = leg_of(chunk.plan.spread);
    chunk.first = end_;
    chunk.offsets.assign(1, end_.row);
    for (const int64_t rows : chunk.plan.slot_rows) chunk.offsets.push_back(chunk.offsets.back() + rows);
    end_.sent += chunk.sent_rows;
    end_.pilot += chunk.plan.far.receive_rows;
    end_.spread += chunk.plan.spread.send_rows;
    end_.unit += chunk.plan.units;
    end_.row = chunk.offsets.back();
  }
}

}  // namespace mw
