#include "layout/transport.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/text.h"

namespace mw {
namespace {

using Type = TransportTensor::Type;
using Width = TransportTensor::Width;

// The last two where rows are not sent in their sorted order.
std::vector<TransportTensor> kept_by_flat(bool padded) {
  return {{"received", RowSet::expert, Type::run, Width::hidden},
          {"received_index", RowSet::expert, Type::i32},
          {"received_weights", RowSet::expert, Type::f32},
          {"sent_token_ids", RowSet::send, Type::i32, Width::one, !padded},
          {"sent_row_of", RowSet::choice, Type::i32, Width::one, !padded}};
}

std::vector<TransportTensor> scratch_of_flat() {
  return {{"rows", RowSet::send, Type::run, Width::hidden}, {"weights", RowSet::send, Type::f32}};
}

std::vector<TransportTensor> kept_by_node() {
  return {{"sent_tokens", RowSet::choice, Type::i32},
          {"sent_leads", RowSet::choice, Type::i32},
          {"sent_units", RowSet::choice, Type::i32},
          {"spread_pilots", RowSet::spread, Type::i32},
          {"spread_leads", RowSet::spread, Type::i32},
          {"spread_units", RowSet::pilot, Type::i32, Width::choices},
          {"units", RowSet::unit, Type::run, Width::hidden},
          {"unit_weights", RowSet::unit, Type::f32, Width::choices},
          {"unit_rows", RowSet::unit, Type::i32, Width::choices},
          {"unit_index", RowSet::expert, Type::i32}};
}

std::vector<TransportTensor> scratch_by_node() {
  return {{"choices", RowSet::choice, Type::i32},
          {"rows", RowSet::send, Type::run, Width::hidden},
          {"row_choices", RowSet::send, Type::i32, Width::choices},
          {"row_weights", RowSet::send, Type::f32, Width::choices},
          {"pilots", RowSet::pilot, Type::run, Width::hidden},
          {"pilot_choices", RowSet::pilot, Type::i32, Width::choices},
          {"pilot_weights", RowSet::pilot, Type::f32, Width::choices},
          {"spread", RowSet::spread, Type::run, Width::hidden},
          {"spread_choices", RowSet::spread, Type::i32, Width::choices},
          {"spread_weights", RowSet::spread, Type::f32, Width::choices},
          {"units", RowSet::unit, Type::run, Width::hidden},
          {"unit_choices", RowSet::unit, Type::i32, Width::choices},
          {"unit_order", RowSet::unit, Type::i32},
          {"unit_leads", RowSet::expert, Type::i32}};
}

std::vector<TransportTensor> kept_by_gather_tokens() {
  return {{"gathered", RowSet::token, Type::run, Width::hidden},
          {"gathered_tokens", RowSet::expert, Type::i32},
          {"gathered_rows", RowSet::token, Type::i32, Width::choices},
          {"gathered_weights", RowSet::expert, Type::f32}};
}

std::vector<TransportTensor> scratch_of_gather_tokens() {
  return {{"choices", RowSet::choice, Type::i32},
          {"token_choices", RowSet::token, Type::i32, Width::choices},
          {"token_weights", RowSet::token, Type::f32, Width::choices},
          {"leads", RowSet::expert, Type::i32},
          {"sums", RowSet::token, Type::run, Width::hidden},
          {"parts", RowSet::part, Type::run, Width::hidden},
          {"part_weights", RowSet::part, Type::f32, Width::choices},
          {"part_order", RowSet::part, Type::i32}};
}

const std::vector<TransportTraits>& table() {
  static const std::vector<TransportTraits> all = {
      {.kind = TransportKind::in_place,
       .name = "in_place",
       .needs_all_experts = true,
       .expert_rows = own_rows,
       .kept = {},
       .scratch = {}},
      {.kind = TransportKind::flat,
       .name = "flat",
       .expert_rows = rows_of_experts,
       .send_rows = own_rows,
       .kept = kept_by_flat(false),
       .scratch = scratch_of_flat(),
       .splits_rows = true},
      {.kind = TransportKind::padded,
       .name = "padded",
       .equal_rows = true,
       .expert_rows = padded_rows_of_experts,
       .send_rows = padded_send_rows,
       .kept = kept_by_flat(true),
       .scratch = scratch_of_flat()},
      {.kind = TransportKind::halo,
       .name = "halo",
       .by_node = true,
       .expert_rows = rows_of_experts,
       .send_rows = own_rows,
       .kept = kept_by_node(),
       .scratch = scratch_by_node(),
       .splits_rows = true},
      {.kind = TransportKind::bypass,
       .name = "bypass",
       .by_node = true,
       .merges = true,
       .expert_rows = rows_of_experts,
       .send_rows = merged_send_rows,
       .kept = kept_by_node(),
       .scratch = scratch_by_node(),
       .splits_rows = true},
      {.kind = TransportKind::gather_weights,
       .name = "gather_weights",
       .expert_rows = own_rows,
       .kept = {},
       .scratch = {},
       .gathers_weights = true},
      {.kind = TransportKind::gather_tokens,
       .name = "gather_tokens",
       .merges = true,
       .slices_experts = true,
       .expert_rows = rows_of_group,
       .output_rows = rows_of_source_chunk,
       .send_rows = own_tokens,
       .kept = kept_by_gather_tokens(),
       .scratch = scratch_of_gather_tokens()},
  };
  return all;
}

std::vector<std::string> all_names() {
  std::vector<std::string> names = {"auto"};
  for (const TransportTraits& t : table()) names.emplace_back(t.name);
  return names;
}

void check_name(std::string_view name) {
  if (name == "auto") return;
  for (const TransportTraits& t : table())
    if (t.name == name) return;
  const std::string hint = fmt::format(
      "set moe.transport to one of {}, or to a list of them such as \"flat*4,padded*2\"", fmt::join(all_names(), ", "));
  fail(Exit::config,
       fmt::format("moe.transport: unknown transport \"{}\"{}", printable(name), did_you_mean(name, all_names())),
       hint);
}

// "flat*4": name and count; "flat": once.
std::pair<std::string, int64_t> parse_item(std::string_view item) {
  const size_t star = item.find('*');
  int64_t count = 1;
  if (star != std::string_view::npos) {
    const std::string_view digits = item.substr(star + 1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
    if (error != std::errc() || end != digits.data() + digits.size() || count < 1 || count > (int64_t{1} << 20))
      fail(Exit::config,
           fmt::format("moe.transport: expected NAME*COUNT with a positive count, got \"{}\"", printable(item)),
           "write for example moe.transport = \"flat*4,padded*2\"");
  }
  const std::string name(item.substr(0, star));
  check_name(name);
  return {name, count};
}

std::vector<std::string> parse_list(std::string_view setting) {
  std::vector<std::string> names;
  for (size_t begin = 0; begin <= setting.size();) {
    const size_t end = std::min(setting.find(',', begin), setting.size());
    const auto [name, count] = parse_item(setting.substr(begin, end - begin));
    names.insert(names.end(), static_cast<size_t>(count), name);
    begin = end + 1;
  }
  return names;
}

}  // namespace

std::span<const TransportTraits> transport_table() { return table(); }

const TransportTraits& traits_of(TransportKind kind) {
  for (const TransportTraits& t : table())
    if (t.kind == kind) return t;
  MW_CHECK(false, "no traits of transport {}", static_cast<int>(kind));
}

RoutedRows rows_of(RowSet rows, const TransportTraits& traits, const RoutedShape& shape) {
  switch (rows) {
    case RowSet::choice: return own_rows(shape);
    case RowSet::expert: return traits.expert_rows(shape);
    case RowSet::send: return traits.send_rows(shape);
    case RowSet::token: return group_tokens(shape);
    case RowSet::part: return part_rows(shape);
    case RowSet::unit: return unit_rows(shape, traits.merges);
    case RowSet::pilot: return pilot_rows(shape, traits.merges);
    case RowSet::spread: return spread_rows(shape, traits.merges);
  }
  MW_CHECK(false, "rows {} of transport {}", static_cast<int>(rows), traits.name);
}

std::vector<std::string> transport_names(const std::string& setting, const ModelSpec& model) {
  const bool is_list = setting.find_first_of(",*") != std::string::npos;
  std::vector<std::string> of_moe;
  if (is_list) of_moe = parse_list(setting);
  else check_name(setting);
  const int64_t moe_layers = model.moe_layer_count();
  if (is_list && std::ssize(of_moe) != moe_layers)
    fail(Exit::config,
         fmt::format("moe.transport = \"{}\" names {} transports, but the model has {} MoE layers", setting,
                     of_moe.size(), moe_layers),
         "name one transport per MoE layer, or a single one for all");
  std::vector<std::string> names;
  size_t next = 0;
  for (const LayerSpec& layer : model.layers) {
    if (layer.feed_forward != FeedForwardKind::moe) names.emplace_back();
    else names.push_back(is_list ? of_moe[next++] : setting);
  }
  return names;
}

std::string transport_setting(const std::vector<std::string>& names) {
  std::vector<std::pair<std::string, int64_t>> items;  // name and count
  for (const std::string& name : names) {
    if (name.empty()) continue;
    if (items.empty() || items.back().first != name) items.emplace_back(name, 0);
    ++items.back().second;
  }
  if (items.size() == 1) return items.front().first;
  std::vector<std::string> texts;
  for (const auto& [name, count] : items) texts.push_back(count == 1 ? name : fmt::format("{}*{}", name, count));
  return fmt::format("{}", fmt::join(texts, ","));
}

TransportKind choose_transport(const std::string& name, int64_t ep) {
  if (name.empty()) return TransportKind::in_place;
  check_name(name);
  if (name == "auto") return ep == 1 ? TransportKind::in_place : TransportKind::flat;
  const auto traits = std::find_if(table().begin(), table().end(), [&](const auto& t) { return t.name == name; });
  if (traits->needs_all_experts && ep > 1)
    fail(Exit::config,
         fmt::format("moe.transport = \"{}\" needs every expert on every rank, but mesh.ep = {} shards them", name, ep),
         "set moe.transport = \"auto\", or mesh.ep = 1");
  return traits->kind;
}

std::vector<TransportKind> choose_transports(const std::vector<std::string>& names, int64_t ep) {
  std::vector<TransportKind> kinds;
  for (const std::string& name : names) kinds.push_back(choose_transport(name, ep));
  return kinds;
}

int64_t automatic_chunks(const TransportTraits& traits, int64_t ranks, bool on_one_node, int64_t usual) {
  constexpr int64_t kFewRanks = 4;
  return traits.by_node && on_one_node && ranks <= kFewRanks ? 1 : usual;
}

bool is_kept_by_transport(std::string_view name) {
  for (const TransportTraits& t : table())
    for (const TransportTensor& tensor : t.kept)
      if (tensor.name == name) return true;
  return false;
}

bool allows_sharded_experts(const std::string& setting) {
  for (const std::string& name : parse_list(setting))
    for (const TransportTraits& t : table())
      if (t.name == name && t.needs_all_experts) return false;
  return true;
}

}  // namespace mw
