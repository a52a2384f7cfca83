#include "moe/transports/transport_by_node.h"

#include <algorithm>
#include <optional>

#include "ops/index.h"

namespace mw {
namespace {

// A scope of the gateway's part, on the queue where it runs.
struct RelayScope {
  RelayScope(Stream& stream, Stream& relay, const char* label) {
    if (&relay == &stream) host.emplace(stream.trace(), Work::exchange, label);
    else beside.emplace(stream.trace(), relay.queue(), Work::exchange, label);
  }
  std::optional<TraceScope> host;
  std::optional<QueueScope> beside;
};

// A fault: blocks of senders are received in the order of descending peers.
ExchangeLeg received_backwards(ExchangeLeg leg) {
  int64_t end = leg.receive_rows;
  for (RowMessage& message : leg.receive) message.first = end -= message.rows;
  return leg;
}

}  // namespace

ByNodeTensors by_node_tensors(const TensorOf& kept, const TensorOf& scratch) {
  return {.sent_tokens = kept("sent_tokens"),
          .sent_leads = kept("sent_leads"),
          .sent_units = kept("sent_units"),
          .spread_pilots = kept("spread_pilots"),
          .spread_leads = kept("spread_leads"),
          .spread_units = kept("spread_units"),
          .units = kept("units"),
          .unit_weights = kept("unit_weights"),
          .unit_rows = kept("unit_rows"),
          .unit_index = kept("unit_index"),
          .choices = scratch("choices"),
          .rows = scratch("rows"),
          .row_choices = scratch("row_choices"),
          .row_weights = scratch("row_weights"),
          .pilots = scratch("pilots"),
          .pilot_choices = scratch("pilot_choices"),
          .pilot_weights = scratch("pilot_weights"),
          .spread = scratch("spread"),
          .spread_choices = scratch("spread_choices"),
          .spread_weights = scratch("spread_weights"),
          .arrived = scratch("units"),
          .unit_choices = scratch("unit_choices"),
          .unit_order = scratch("unit_order"),
          .unit_leads = scratch("unit_leads")};
}

ByNodeTransport::ByNodeTransport(Comm& ep, Islands islands, const ExpertPlacement& placement, ResidentExperts experts,
                                 ExpertScratch scratch, ByNodeTensors tensors, ByNodeOptions options,
                                 ResidentExperts replicas)
    : ep_(ep),
      islands_(std::move(islands)),
      experts_(std::move(experts)),
      replicas_(std::move(replicas)),
      scratch_(std::move(scratch)),
      t_(std::move(tensors)),
      options_(std::move(options)),
      splitter_(placement, ep.rank(), options_.speeds),
      kinds_(placement.has_replicas() ? 2 : 1),
      chunks_(static_cast<size_t>(options_.chunks)) {
  MW_CHECK(islands_.size() == ep_.size(), "islands of {} members in a group of {}", islands_.size(), ep_.size());
  find_parts(placement);
}

int64_t ByNodeTransport::replica_rows() const {
  int64_t rows = 0;
  for (const Chunk& chunk : chunks_) rows += chunk.offsets.back() - chunk.offsets[static_cast<size_t>(homes_)];
  return rows;
}

void ByNodeTransport::split_tokens(int64_t tokens) {
  const int64_t chunks = std::ssize(chunks_);
  for (int64_t c = 0; c < chunks; ++c) {
    Chunk& chunk = chunks_[static_cast<size_t>(c)];
    chunk.first_token = tokens * c / chunks;
    chunk.tokens = tokens * (c + 1) / chunks - chunk.first_token;
  }
}

// Layers with other numbers of choices may share a tensor.
TensorView ByNodeTransport::by_choice(GrowingTensor& tensor) const {
  const TensorView widest = tensor.take(layout_.tokens);
  return TensorView(widest.data, widest.dtype, {layout_.tokens, layout_.top_k});
}

TensorView ByNodeTransport::choices_of(const Chunk& chunk) {
  return by_choice(t_.choices).slice(chunk.first_token, chunk.tokens);
}

TensorView ByNodeTransport::of_choices(GrowingTensor& table, const Chunk& chunk) const {
  return by_choice(table).slice(chunk.first_token, chunk.tokens).flat();
}

TensorView ByNodeTransport::by_unit(GrowingTensor& tensor, int64_t first, int64_t rows) const {
  const TensorView all = tensor.take(first + rows);
  return TensorView(all.data, all.dtype, {first + rows, width_}).slice(first, rows);
}

void ByNodeTransport::prepare(Stream& stream, const RoutedTokens& routed, TensorView gate_weights_TK, bool trains) {
  layout_ = routed.layout;
  gate_weights_ = gate_weights_TK;
  trains_ = trains;
  width_ = options_.merge ? layout_.top_k : 1;
  split_tokens(layout_.tokens);
  if (kinds_ > 1) counts_.read(stream, routed);
  else sort_and_count(stream);
}

// Gate weights go to the experts where these weigh, or need them in the backward pass.
bool ByNodeTransport::carries_weights(Pass pass) const {
  return options_.merge || pass == Pass::again || (trains_ && !options_.dispatches_again);
}

void ByNodeTransport::dispatch_begin(Stream& stream, Pass pass, int64_t chunk, TensorView source_TD) {
  const bool is_first = chunk == 0 && pass == Pass::forward;
  std::vector<SourceCounts> counts;
  if (is_first) {
    if (kinds_ > 1) choose_copies(stream);
    counts = take_counts(stream);
  }
  if (chunk == 0 && pass == Pass::again) {
    gather_values(stream, layout_.expert_ids_R, layout_.row_of_TK, by_choice(t_.choices));
    for (const Chunk& each : chunks_) sort_sent(stream, each);
  }
  if (is_of_replicas(chunk)) return;  // they have left with the others
  // Rows of two chunks would share the links between nodes, and those within nodes wait meanwhile.
  if (chunk > 0) pass_on(stream, pass, tokens_of(chunk - 1));
  Chunk& own = tokens_of(chunk);
  own.passed_on = false;
  const char* label = pass == Pass::backward ? "gradient_dispatch" : "dispatch";
  {
    const TraceScope scope(stream.trace(), Work::exchange, label);
    pack(stream, pass, own, source_TD);
  }
  if (is_first) plan(stream, counts);  // while a device packs the first rows
  const TraceScope scope(stream.trace(), Work::exchange, label);
  send_units(stream, pass, own);
  const auto& [first, rows] = own.home_leg.own_received;
  pack_rows(stream, own, source_TD, own.home_leg.own_sent, units_of(pass, own).slice(first, rows));
  if (&relay_of(stream) != &stream) pass_on(stream, pass, own);
}

Stream& ByNodeTransport::relay_of(Stream& stream) const {
  Stream* const own = chunks_.size() > 1 ? ep_.exchange_stream() : nullptr;
  return own != nullptr ? *own : stream;
}

void ByNodeTransport::start_relay(Stream& stream, std::unique_ptr<Pending>& arrives) {
  if (Stream& relay = relay_of(stream); &relay != &stream) relay.queue().wait_for(stream.queue().mark());
  else wait(stream, arrives);
}

void ByNodeTransport::send_units(Stream& stream, Pass pass, Chunk& chunk) {
  const ExchangePlan& plan = chunk.plan;
  const Begins& first = chunk.first;
  const bool forward = pass != Pass::backward, several_islands = islands_.count() > 1;
  std::vector<RowExchange> far, home;
  const auto send = [&](const ExchangeLeg& to_gateways, const ExchangeLeg& to_island, TensorView sent,
                        TensorView pilots, TensorView units) {
    if (several_islands) far.push_back(exchange_of(to_gateways, Direction::to_experts, sent, pilots));
    home.push_back(exchange_of(to_island, Direction::to_experts, sent, units));
  };
  const int64_t sent = chunk.sent_rows, pilots = plan.far.receive_rows;
  const bool mixes_up = options_.fault == Fault::wrong_gateway_order && pass == Pass::forward;
  const ExchangeLeg mixed_up = mixes_up ? received_backwards(plan.far) : ExchangeLeg{};
  send(mixes_up ? mixed_up : plan.far, chunk.home_leg.others, t_.rows.take(first.sent, sent),
       t_.pilots.take(first.pilot, pilots), units_of(pass, chunk));
  if (forward)
    send(plan.far, plan.home, by_unit(t_.row_choices, first.sent, sent), by_unit(t_.pilot_choices, first.pilot, pilots),
         by_unit(t_.unit_choices, first.unit, plan.units));
  if (forward && carries_weights(pass))
    send(plan.far, plan.home, by_unit(t_.row_weights, first.sent, sent), by_unit(t_.pilot_weights, first.pilot, pilots),
         by_unit(t_.unit_weights, first.unit, plan.units));
  if (several_islands) chunk.far = start_exchanges(stream, ep_, islands_, far);
  chunk.home = start_exchanges(stream, ep_, islands_, home);
}

std::vector<ByNodeTransport::RowRange> ByNodeTransport::ranges_outside(std::initializer_list<RowRange> ranges,
                                                                       int64_t rows) {
  std::vector<RowRange> others;
  int64_t begin = 0;
  for (const RowRange& range : ranges) {
    if (range.rows == 0) continue;
    others.push_back({begin, range.first - begin});
    begin = range.end();
  }
  others.push_back({begin, rows - begin});
  return others;
}

void ByNodeTransport::pack(Stream& stream, Pass pass, const Chunk& chunk, TensorView source_TD) {
  const int64_t sent = chunk.sent_rows;
  const TensorView rows = t_.rows.take(chunk.first.sent, sent);
  for (const RowRange& others : ranges_outside({chunk.home_leg.own_sent}, sent))
    pack_rows(stream, chunk, source_TD, others, rows.slice(others.first, others.rows));
  if (pass == Pass::backward) return;
  const bool weighs = carries_weights(pass) && !(options_.fault == Fault::stale_weights && pass == Pass::again);
  const TensorView weights = gate_weights_.slice(chunk.first_token, chunk.tokens);
  unit_choices(stream, choices_of(chunk), weighs ? weights : TensorView{},
               of_choices(t_.sent_leads, chunk).slice(0, sent), parts_.receiver, options_.merge,
               by_unit(t_.row_choices, chunk.first.sent, sent),
               weighs ? by_unit(t_.row_weights, chunk.first.sent, sent) : TensorView{});
}

void ByNodeTransport::pack_rows(Stream& stream, const Chunk& chunk, TensorView source_TD, RowRange sent,
                                TensorView out) {
  gather_range(stream, source_TD.slice(chunk.first_token, chunk.tokens), of_choices(t_.sent_tokens, chunk), sent, out);
}

void ByNodeTransport::gather_range(Stream& stream, TensorView from, TensorView table, RowRange range, TensorView out) {
  if (range.rows > 0) gather_rows(stream, from, table.as<int32_t>() + range.first, range.rows, out);
}

TensorView ByNodeTransport::units_of(Pass pass, const Chunk& chunk) {
  return (pass == Pass::backward ? t_.arrived : t_.units).take(chunk.first.unit, chunk.plan.units);
}

// The gateway's part: what came from other islands goes on to the ranks of this one.
void ByNodeTransport::pass_on(Stream& stream, Pass pass, Chunk& chunk) {
  if (islands_.count() == 1 || chunk.passed_on) return;
  start_relay(stream, chunk.far);
  chunk.passed_on = true;
  Stream& relay = relay_of(stream);
  const RelayScope scope(stream, relay, "spread");
  const ExchangePlan& plan = chunk.plan;
  const Begins& first = chunk.first;
  const int64_t pilots = plan.far.receive_rows, spread = plan.spread.send_rows;
  const bool forward = pass != Pass::backward, weighs = forward && carries_weights(pass);
  const TensorView table = t_.spread_pilots.take(first.spread, spread);
  if (forward) {
    const TensorView choices = by_unit(t_.pilot_choices, first.pilot, pilots),
                     leads = t_.spread_leads.take(first.spread, spread);
    sort_units(relay, choices, {}, parts_.place, island_size_, options_.merge,
               {table, leads, by_unit(t_.spread_units, first.pilot, pilots)});
    unit_choices(relay, choices, weighs ? by_unit(t_.pilot_weights, first.pilot, pilots) : TensorView{}, leads,
                 parts_.place, options_.merge, by_unit(t_.spread_choices, first.spread, spread),
                 weighs ? by_unit(t_.spread_weights, first.spread, spread) : TensorView{});
  }
  const TensorView rows = t_.pilots.take(first.pilot, pilots), copies = t_.spread.take(first.spread, spread),
                   units = units_of(pass, chunk);
  const auto copy = [&](RowRange range, TensorView out) {
    gather_range(relay, rows, table, range, out);
    if (options_.fault != Fault::lose_replica || !forward) return;
    const RowRange next{range.first + 1, std::min(range.rows, spread - 1 - range.first)};
    gather_range(relay, rows, table, next, out.slice(0, std::max<int64_t>(next.rows, 0)));
  };
  const auto& [others, own_sent, own_received] = chunk.spread_leg;
  for (const RowRange& range : ranges_outside({own_sent}, spread)) copy(range, copies.slice(range.first, range.rows));
  std::vector<RowExchange> exchanges;
  const auto send = [&](const ExchangeLeg& leg, TensorView from, TensorView to) {
    exchanges.push_back(exchange_of(leg, Direction::to_experts, from, to));
  };
  send(others, copies, units);
  if (forward)
    send(plan.spread, by_unit(t_.spread_choices, first.spread, spread),
         by_unit(t_.unit_choices, first.unit, plan.units));
  if (weighs)
    send(plan.spread, by_unit(t_.spread_weights, first.spread, spread),
         by_unit(t_.unit_weights, first.unit, plan.units));
  chunk.spread = start_exchanges(stream, ep_, islands_, exchanges);
  copy(own_sent, units.slice(own_received.first, own_received.rows));
  if (&relay != &stream) chunk.own_copied = relay.queue().mark();
}

// The order in which the experts' part sorts units, from the plan alone.
void ByNodeTransport::order_units(Stream& stream, const Chunk& chunk) {
  std::vector<IndexRun> runs;
  int64_t to = 0;
  for (const ExchangePlan::Arrived& from : chunk.plan.by_source) {
    runs.push_back({to, chunk.first.unit + from.first, from.rows});
    to += from.rows;
  }
  fill_index(stream, runs, t_.unit_order.take(chunk.first.unit, chunk.plan.units));
}

// The experts' part: the sorted rows, in the order of flat.
void ByNodeTransport::sort_arrived(Stream& stream, const Chunk& chunk) {
  const TensorView order = t_.unit_order.take(chunk.first.unit, chunk.plan.units);
  const int64_t units = chunk.first.unit + chunk.plan.units, row = chunk.offsets.front();
  const int64_t rows = chunk.offsets.back() - row;
  sort_units(stream, by_unit(t_.unit_choices, 0, units), order, parts_.slot, slots_, false,
             {t_.unit_index.take(row, rows), t_.unit_leads.take(row, rows), by_unit(t_.unit_rows, 0, units)});
}

ExpertBatch ByNodeTransport::dispatch_finish(Stream& stream, Pass pass, int64_t chunk, TensorView source_TD) {
  Chunk& own = tokens_of(chunk);
  if (!is_of_replicas(chunk)) {
    // What needs no rows is done before they are waited for.
    if (pass == Pass::backward) place_weights(stream, own);
    else order_units(stream, own);
    pass_on(stream, pass, own);
    wait(stream, own.far);
    wait(stream, own.home);
    wait(stream, own.spread);
    if (own.own_copied != nullptr) stream.queue().wait_for(std::exchange(own.own_copied, nullptr));
    if (pass != Pass::backward) sort_arrived(stream, own);
  }
  ExpertBatch batch = forward_rows(chunk, source_TD);
  batch.out = {scratch_.y.take(end_.row), nullptr};
  if (pass != Pass::backward) return batch;
  batch.in.data = t_.arrived.take(end_.unit);
  batch.weights_R = scratch_.row_weights.take(end_.row);
  batch.d_weights_R = scratch_.d_row_weights.take(end_.row);
  return batch;
}

// The gate weights that came with the units, by sorted row.
void ByNodeTransport::place_weights(Stream& stream, const Chunk& chunk) {
  const int64_t row = chunk.offsets.front();
  scatter_values(stream, by_unit(t_.unit_weights, chunk.first.unit, chunk.plan.units).flat(),
                 by_unit(t_.unit_rows, chunk.first.unit, chunk.plan.units).flat(),
                 scratch_.row_weights.take(end_.row).slice(row, chunk.offsets.back() - row));
}

ExpertBatch ByNodeTransport::forward_rows(int64_t chunk, TensorView) {
  ExpertBatch batch;
  batch.slot_begin = is_of_replicas(chunk) ? homes_ : 0;
  batch.slot_count = is_of_replicas(chunk) ? slots_ - homes_ : homes_;
  batch.offsets = std::span(tokens_of(chunk).offsets)
                      .subspan(static_cast<size_t>(batch.slot_begin), static_cast<size_t>(batch.slot_count) + 1);
  batch.in = {t_.units.take(end_.unit), t_.unit_index.take(end_.row).as<int32_t>()};
  return batch;
}

void ByNodeTransport::merge_values(Stream& stream, TensorView from, TensorView table, TensorView out) const {
  // Each choice travels with one unit: a sum has one summand.
  if (width_ == 1) gather_values(stream, from.flat(), table.flat(), out.flat());
  else combine_rows(stream, from, table, {}, {}, out);
}

void ByNodeTransport::combine_begin(Stream& stream, Pass pass, int64_t chunk) {
  if (!is_last_of_tokens(chunk)) return;  // replicas have yet to write their rows
  if (chunk >= kinds_) send_back_pilots(stream, pass, tokens_of(chunk - kinds_));
  send_back_units(stream, pass, tokens_of(chunk));
}

void ByNodeTransport::send_back_units(Stream& stream, Pass pass, Chunk& chunk) {
  const bool backward = pass == Pass::backward;
  const TraceScope scope(stream.trace(), Work::exchange, backward ? "gradient_combine" : "combine");
  const ExchangePlan& plan = chunk.plan;
  const Begins& first = chunk.first;
  const int64_t row = chunk.offsets.front(), rows = chunk.offsets.back() - row;
  const TensorView table = by_unit(t_.unit_rows, first.unit, plan.units),
                   weights = by_unit(t_.unit_weights, first.unit, plan.units),
                   merged = t_.arrived.take(first.unit, plan.units);
  const Leg &home_leg = chunk.home_leg, &spread_leg = chunk.spread_leg;
  for (const RowRange& others : ranges_outside({home_leg.own_received, spread_leg.own_received}, plan.units))
    merge_rows(stream, pass, chunk, others, merged.slice(others.first, others.rows));
  const bool several_islands = islands_.count() > 1;
  std::vector<RowExchange> spread_back, home;
  const auto send = [&](const ExchangeLeg& from_island, const ExchangeLeg& to_island, TensorView units,
                        TensorView spread, TensorView sent) {
    if (several_islands) spread_back.push_back(exchange_of(from_island, Direction::to_tokens, spread, units));
    home.push_back(exchange_of(to_island, Direction::to_tokens, sent, units));
  };
  const int64_t sent = chunk.sent_rows;
  const TensorView returned = t_.rows.take(first.sent, sent),
                   copies = t_.spread.take(first.spread, plan.spread.send_rows);
  send(spread_leg.others, home_leg.others, merged, copies, returned);
  if (backward) {
    // The weights have been read: their memory takes the gate gradients.
    const TensorView d_weights = scratch_.d_row_weights.take(end_.row).slice(row, rows);
    gather_values(stream, d_weights, table.flat(), weights.flat());
    if (const int64_t others = table.numel() - 1; options_.fault == Fault::swap_gate_gradients && others > 0)
      gather_values(stream, d_weights, table.flat().slice(1, others), weights.flat().slice(0, others));
    send(plan.spread, plan.home, weights, by_unit(t_.spread_weights, first.spread, plan.spread.send_rows),
         by_unit(t_.row_weights, first.sent, sent));
  }
  if (several_islands) chunk.spread = start_exchanges(stream, ep_, islands_, spread_back);
  const bool forgets_home = options_.fault == Fault::forget_home && backward;
  if (!forgets_home) chunk.home = start_exchanges(stream, ep_, islands_, home);
  // While the others' rows travel.
  const auto merge_own = [&](const Leg& leg, TensorView out) {
    merge_rows(stream, pass, chunk, leg.own_received, out.slice(leg.own_sent.first, leg.own_sent.rows));
  };
  if (several_islands) merge_own(spread_leg, copies);
  if (!forgets_home) merge_own(home_leg, returned);
  chunk.merged = false;
  if (&relay_of(stream) != &stream) send_back_pilots(stream, pass, chunk);
}

// The sums of the experts' outputs for these units of the chunk, or of their input gradients.
void ByNodeTransport::merge_rows(Stream& stream, Pass pass, const Chunk& chunk, RowRange units, TensorView out) {
  if (units.rows == 0) return;
  const bool weighs =
      pass != Pass::backward && options_.merge && !(options_.fault == Fault::merge_unweighted && ep_.rank() == 0);
  const int64_t row = chunk.offsets.front(), first = chunk.first.unit + units.first;
  combine_rows(stream, scratch_.y.take(end_.row).slice(row, chunk.offsets.back() - row),
               by_unit(t_.unit_rows, first, units.rows),
               weighs ? by_unit(t_.unit_weights, first, units.rows) : TensorView{}, {}, out);
}

void ByNodeTransport::send_back_pilots(Stream& stream, Pass pass, Chunk& chunk) {
  if (islands_.count() == 1 || chunk.merged) return;
  start_relay(stream, chunk.spread);
  Stream& relay = relay_of(stream);
  const RelayScope scope(stream, relay, "merge_pilots");
  const ExchangePlan& plan = chunk.plan;
  const Begins& first = chunk.first;
  const int64_t pilots = plan.far.receive_rows, spread = plan.spread.send_rows, sent = chunk.sent_rows;
  const TensorView table = by_unit(t_.spread_units, first.pilot, pilots);
  std::vector<RowExchange> exchanges;
  const auto send = [&](TensorView from, TensorView to) {
    exchanges.push_back(exchange_of(plan.far, Direction::to_tokens, to, from));
  };
  const TensorView rows = t_.pilots.take(first.pilot, pilots);
  combine_rows(relay, t_.spread.take(first.spread, spread), table, {}, {}, rows);
  send(rows, t_.rows.take(first.sent, sent));
  if (pass == Pass::backward) {
    const TensorView values = by_unit(t_.pilot_weights, first.pilot, pilots);
    merge_values(relay, by_unit(t_.spread_weights, first.spread, spread), table, values);
    send(values, by_unit(t_.row_weights, first.sent, sent));
  }
  chunk.far = start_exchanges(stream, ep_, islands_, exchanges);
  chunk.merged = true;
}

void ByNodeTransport::combine_finish(Stream& stream, Pass pass, int64_t chunk, const CombineTarget& target) {
  if (!is_last_of_tokens(chunk)) return;
  Chunk& own = tokens_of(chunk);
  send_back_pilots(stream, pass, own);
  wait(stream, own.far);
  wait(stream, own.home);
  wait(stream, own.spread);
  const auto tokens = [&](TensorView view) {
    return view.data == nullptr ? view : view.slice(own.first_token, own.tokens);
  };
  const int64_t sent = own.sent_rows;
  const TensorView table = tokens(by_choice(t_.sent_units));
  const bool weighs = pass == Pass::forward && !options_.merge;
  const TraceScope part(stream.trace(), pass == Pass::forward ? "combine_tokens" : "combine_gradient");
  combine_rows(stream, t_.rows.take(own.first.sent, sent), table, weighs ? tokens(gate_weights_) : TensorView{},
               tokens(target.base_TD), tokens(target.out_TD));
  if (pass == Pass::backward)
    merge_values(stream, by_unit(t_.row_weights, own.first.sent, sent), table, tokens(target.d_weights_TK));
}

ExpertWeights ByNodeTransport::weights(Stream&, Pass, int64_t chunk) {
  return is_of_replicas(chunk) ? replicas_.slice(0, slots_ - homes_) : experts_.slice(0, homes_);
}

// Every chunk may have rows of every expert.
GradientTarget ByNodeTransport::gradient(Stream&, ExpertMatrix matrix, int64_t chunk, GradientStore store) {
  return {is_of_replicas(chunk) ? replicas_.gradient(matrix, 0, slots_ - homes_) : experts_.gradient(matrix, 0, homes_),
          store_in_turn(store, chunk / kinds_, chunks() / kinds_)};
}

RowExchange ByNodeTransport::exchange_of(const ExchangeLeg& leg, Direction direction, TensorView from,
                                         TensorView to) const {
  return mw::exchange_of(leg, direction, ep_.size(), from.cols() * size_of(from.dtype), from.data, to.data);
}

void ByNodeTransport::wait(Stream& stream, std::unique_ptr<Pending>& pending) {
  if (pending == nullptr) return;
  const TraceScope scope(stream.trace(), Work::exchange, "exchange_wait");
  pending->wait();
  pending.reset();
}

}  // namespace mw
