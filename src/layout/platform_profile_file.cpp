#include "layout/platform_profile.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <type_traits>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "layout/transport.h"

namespace mw {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "moewright-platform";
constexpr int64_t kVersion = 1;
constexpr size_t kMostEntries = 4096;
constexpr double kMostRate = 1e21, kMostSeconds = 1e6, kLeastShare = 1e-6, kMostShare = 1e6;
constexpr double kLeastSize = 1e-3, kNextSize = 1 + 1e-9;  // apart enough for the logarithm between two

template <class T, class Object>
concept Is = std::is_same_v<std::remove_const_t<T>, Object>;

// Each visits the fields of one object, in the order that files have them.
template <Is<OperatorRates> Rates, class Visit>
void visit_fields(Rates& rates, Visit&& visit) {
  visit("dense_products", rates.dense_products);
  visit("expert_products", rates.expert_products);
  visit("expert_weight_products", rates.expert_weight_products);
  visit("expert_counts", rates.expert_counts);
  visit("expert_widths", rates.expert_widths);
  visit("expert_weight_widths", rates.expert_weight_widths);
  visit("row_tile", rates.row_tile);
  visit("attention_forward", rates.attention_forward);
  visit("attention_backward", rates.attention_backward);
  visit("attention_forward_widths", rates.attention_forward_widths);
  visit("attention_backward_widths", rates.attention_backward_widths);
  visit("attention_any_order", rates.attention_any_order);
  visit("attention_forward_documents", rates.attention_forward_documents);
  visit("attention_backward_documents", rates.attention_backward_documents);
}

template <Is<PlatformProfile> Profile, class Visit>
void visit_fields(Profile& p, Visit&& visit) {
  visit("name", p.name);
  visit("sources", p.sources);
  visit("ranks_per_node", p.ranks_per_node);
  visit("memory_bytes", p.memory_bytes);
  visit("peak_flops_per_s", p.peak_flops_per_s);
  visit("fp32_share", p.fp32_share);
  visit("native_bf16", p.native_bf16);
  visit("one_packed_form", p.one_packed_form);
  visit("split_masters", p.split_masters);
  visit("squares_when_stored", p.squares_when_stored);
  visit("scratch_bytes", p.scratch_bytes);
  visit("attention_library", p.attention_library);
  visit("threads", p.threads);
  visit("logit_elements", p.logit_elements);
  visit("logit_gradient_rows", p.logit_gradient_rows);
  visit_fields(p.bf16, visit);
  visit("fp32", p.fp32);
  visit("elementwise_bytes_per_s", p.elementwise_bytes_per_s);
  visit("stream_bytes_per_s", p.stream_bytes_per_s);
  visit("host_bytes_per_s", p.host_bytes_per_s);
  visit("to_host_bytes_per_s", p.to_host_bytes_per_s);
  visit("from_host_bytes_per_s", p.from_host_bytes_per_s);
  visit("pack_bytes_per_s", p.pack_bytes_per_s);
  visit("operator_latency_s", p.operator_latency_s);
  visit("routing_latency_s", p.routing_latency_s);
  visit("micro_batch_latency_s", p.micro_batch_latency_s);
  visit("row_chunks", p.row_chunks);
  visit("overlaps_gradient_sums", p.overlaps_gradient_sums);
  visit("overlap_slowdown", p.overlap_slowdown);
  visit("levels", p.levels);
  visit("libraries", p.libraries);
  visit("transport_times", p.transport_times);
  visit("rank_kinds", p.rank_kinds);
}

template <Is<LinkLevel> Level, class Visit>
void visit_fields(Level& level, Visit&& visit) {
  visit("name", level.name);
  visit("ranks", level.ranks);
  visit("all_to_all", level.all_to_all);
  visit("ring", level.ring);
  visit("message", level.message);
  visit("owner", level.owner);
  visit("ranks_per_link", level.ranks_per_link);
  visit("groups", level.groups);
}

template <Is<GroupCosts> Group, class Visit>
void visit_fields(Group& group, Visit&& visit) {
  visit("ranks", group.ranks);
  visit("stride", group.stride);
  visit("all_to_all", group.all_to_all);
  visit("ring", group.ring);
  visit("owner", group.owner);
}

template <Is<ExpertRates> Rates, class Visit>
void visit_fields(Rates& rates, Visit&& visit) {
  visit("experts", rates.experts);
  visit("products", rates.products);
  visit("weight_products", rates.weight_products);
}

template <Is<LibraryBytes> Library, class Visit>
void visit_fields(Library& library, Visit&& visit) {
  visit("name", library.name);
  visit("bytes", library.bytes);
  visit("per_group", library.per_group);
}

template <Is<TransportTime> Time, class Visit>
void visit_fields(Time& time, Visit&& visit) {
  visit("transport", time.transport);
  visit("over_predicted", time.over_predicted);
}

template <Is<RankKind> Kind, class Visit>
void visit_fields(Kind& kind, Visit&& visit) {
  visit("ranks", kind.ranks);
  visit("speed", kind.speed);
}

// Reads the fields of one object; finish() refuses those that nobody asked for.
class ObjectReader {
 public:
  ObjectReader(const nlohmann::json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json.is_object()) refuse(where_, fmt::format("must be an object, got {}", json.type_name()));
  }

  template <class T>
  void operator()(const char* name, T& field) {
    names_.emplace_back(name);
    const auto found = json_.find(name);
    if (found == json_.end()) refuse(where_, fmt::format("lacks the field \"{}\"", name));
    read(*found, fmt::format("{}: \"{}\"", where_, name), field);
  }

  // A field that may be missing.
  template <class T>
  void operator()(const char* name, std::optional<T>& field) {
    if (json_.contains(name)) (*this)(name, field.emplace());
    else names_.emplace_back(name);
  }

  void finish() const {
    for (const auto& [key, value] : json_.items())
      if (std::find(names_.begin(), names_.end(), key) == names_.end())
        refuse(where_, fmt::format("has an unknown field \"{}\"{}", printable(key), did_you_mean(key, names_)));
  }

 private:
  [[noreturn]] static void refuse(const std::string& where, const std::string& why) {
    fail(Exit::config, fmt::format("{} {}", where, why),
         "correct it as docs/formats.md describes, or write a new profile with `moewright probe`");
  }

  static void read(const nlohmann::json& json, const std::string& where, std::string& field) {
    if (!json.is_string()) refuse(where, fmt::format("must be a string, got {}", json.type_name()));
    field = json.get<std::string>();
    if (field.size() > kMostEntries || printable(field, kMostEntries) != field)
      refuse(where, fmt::format("must be printable ASCII of at most {} characters", kMostEntries));
  }
  static void read(const nlohmann::json& json, const std::string& where, bool& field) {
    if (!json.is_boolean()) refuse(where, fmt::format("must be true or false, got {}", printable(json.dump())));
    field = json.get<bool>();
  }
  static void read(const nlohmann::json& json, const std::string& where, int64_t& field) {
    if (!json.is_number_integer() || (json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{1} << 60))
      refuse(where, fmt::format("must be an integer below 2^60, got {}", printable(json.dump())));
    field = json.get<int64_t>();
  }
  static void read(const nlohmann::json& json, const std::string& where, double& field) {
    if (!json.is_number()) refuse(where, fmt::format("must be a number, got {}", printable(json.dump())));
    field = json.get<double>();
  }
  static void read(const nlohmann::json& json, const std::string& where, RatePoint& field) {
    if (!json.is_array() || json.size() != 2) refuse(where, "must be a pair [size, rate]");
    read(json[0], where, field.size);
    read(json[1], where, field.per_second);
  }
  static void read(const nlohmann::json& json, const std::string& where, LinkCost& field) {
    if (!json.is_array() || json.size() != 2)
      refuse(where, "must be a pair [latency, rate] or [latency, [[size, rate], ...]]");
    read(json[0], where, field.latency_s);
    field.rates.clear();
    if (!json[1].is_array()) return read(json[1], where, field.bytes_per_s);
    read(json[1], where, field.rates);
    if (field.rates.empty()) refuse(where, "must have at least one [size, rate]");
    field.bytes_per_s = field.rates.back().per_second;
  }
  template <class Object>
  static void read(const nlohmann::json& json, const std::string& where, Object& field) {
    ObjectReader reader(json, where);
    visit_fields(field, reader);
    reader.finish();
  }
  template <class T>
  static void read(const nlohmann::json& json, const std::string& where, std::vector<T>& field) {
    if (!json.is_array() || json.size() > kMostEntries)
      refuse(where, fmt::format("must be a list of at most {} entries", kMostEntries));
    field.clear();
    for (size_t i = 0; i < json.size(); ++i) read(json[i], fmt::format("{}[{}]", where, i), field.emplace_back());
  }

  const nlohmann::json& json_;
  std::string where_;
  std::vector<std::string> names_;
};

// The way back.
struct ObjectWriter {
  Json json = Json::object();

  template <class T>
  void operator()(const char* name, const T& field) {
    json[name] = write(field);
  }
  template <class T>
  void operator()(const char* name, const std::optional<T>& field) {
    if (field) (*this)(name, *field);
  }

  template <class T>
  requires std::is_arithmetic_v<T>
  static Json write(const T& field) { return field; }
  static Json write(const std::string& field) { return field; }
  static Json write(const RatePoint& point) { return Json::array({point.size, point.per_second}); }
  static Json write(const LinkCost& cost) {
    return Json::array({cost.latency_s, cost.rates.empty() ? Json(cost.bytes_per_s) : write(cost.rates)});
  }
  template <class Object>
  static Json write(const Object& field) {
    ObjectWriter writer;
    visit_fields(field, writer);
    return writer.json;
  }
  template <class T>
  static Json write(const std::vector<T>& fields) {
    Json list = Json::array();
    for (const T& field : fields) list.push_back(write(field));
    return list;
  }
};

// Checks that what was read can be.
class Validation {
 public:
  explicit Validation(const std::string& where) : where_(where) {}

  void range(const std::string& name, double value, double low, double high) const {
    if (!(value >= low && value <= high))
      fail(Exit::config, fmt::format("{}: {} = {}, expected {} to {}", where_, name, value, low, high),
           value > high ? fmt::format("set it to at most {}", high) : fmt::format("set it to at least {}", low));
  }
  void rate(const std::string& name, double value) const { range(name, value, 1, kMostRate); }
  void table(const std::string& name, const RateTable& table, double low = 1, double high = kMostRate) const {
    if (table.empty())
      fail(Exit::config, fmt::format("{}: {} is empty", where_, name), "add at least one [size, rate]");
    double before = 0;
    for (const RatePoint& point : table) {
      range(name + ": size", point.size, std::max(kLeastSize, before * kNextSize), kMostRate);
      range(name + ": rate", point.per_second, low, high);
      before = point.size;
    }
  }
  void shares(const std::string& name, const std::optional<RateTable>& shares) const {
    if (shares) table(name, *shares, kLeastShare, kMostShare);
  }
  void share(const std::string& name, const std::optional<double>& value) const {
    if (value) range(name, *value, kLeastShare, kMostShare);
  }
  void rates(const std::string& prefix, const OperatorRates& r) const {
    table(prefix + "dense_products", r.dense_products);
    table(prefix + "expert_products", r.expert_products);
    table(prefix + "expert_weight_products", r.expert_weight_products);
    if (r.expert_counts) expert_counts(prefix, *r.expert_counts);
    shares(prefix + "expert_widths", r.expert_widths);
    shares(prefix + "expert_weight_widths", r.expert_weight_widths);
    range(prefix + "row_tile", static_cast<double>(r.row_tile), 1, 1 << 20);
    table(prefix + "attention_forward", r.attention_forward);
    table(prefix + "attention_backward", r.attention_backward);
    shares(prefix + "attention_forward_widths", r.attention_forward_widths);
    shares(prefix + "attention_backward_widths", r.attention_backward_widths);
    share(prefix + "attention_any_order", r.attention_any_order);
    share(prefix + "attention_forward_documents", r.attention_forward_documents);
    share(prefix + "attention_backward_documents", r.attention_backward_documents);
  }
  void link(const std::string& name, const LinkCost& cost) const {
    range(name + ": latency", cost.latency_s, 0, kMostSeconds);
    rate(name + ": rate", cost.bytes_per_s);
    if (!cost.rates.empty()) table(name, cost.rates);
  }
  void expert_counts(const std::string& prefix, const std::vector<ExpertRates>& counts) const {
    if (counts.empty())
      fail(Exit::config, fmt::format("{}: {}expert_counts is empty", where_, prefix),
           "remove the field, or add an entry");
    int64_t before = 0;
    for (const ExpertRates& count : counts) {
      const std::string name = fmt::format("{}expert_counts of {}: ", prefix, count.experts);
      range(name + "experts", static_cast<double>(count.experts), static_cast<double>(before + 1), 1 << 20);
      table(name + "products", count.products);
      table(name + "weight_products", count.weight_products);
      before = count.experts;
    }
  }
  void transport_times(const std::vector<TransportTime>& times) const {
    const auto table = transport_table();
    std::set<std::string> seen;
    for (const TransportTime& time : times) {
      const std::string& name = time.transport;
      if (std::none_of(table.begin(), table.end(), [&](const TransportTraits& traits) { return traits.name == name; }))
        fail(Exit::config, fmt::format("{}: transport_times: unknown transport \"{}\"", where_, printable(name)),
             "remove the entry, or write a new profile with `moewright probe RUN`");
      if (!seen.insert(name).second)
        fail(Exit::config, fmt::format("{}: transport_times: expected one entry of {}, got two", where_, name),
             "remove one of them");
      range("over_predicted of " + name, time.over_predicted, kLeastShare, kMostShare);
    }
  }
  void rank_kinds(const std::vector<RankKind>& kinds) const {
    double slowest = kMostShare;
    for (const RankKind& kind : kinds) {
      range("ranks of rank_kinds", static_cast<double>(kind.ranks), 1, 1 << 30);
      range("speed of rank_kinds", kind.speed, 1, kMostShare);
      slowest = std::min(slowest, kind.speed);
    }
    if (kinds.empty())
      fail(Exit::config, fmt::format("{}: rank_kinds is empty, expected an entry", where_),
           "remove the field where all ranks are alike");
    if (slowest != 1)
      fail(Exit::config,
           fmt::format("{}: rank_kinds: expected a kind of speed 1, got {} for the slowest", where_, slowest),
           "give the slowest kind speed 1: the profile has its rates");
  }
  // Groups that fit the level's ranks, and that nearer links do not join.
  void groups(const std::string& level, int64_t ranks, int64_t inside, const std::vector<GroupCosts>& groups) const {
    for (const GroupCosts& group : groups) {
      const std::string name = fmt::format("group of level {}: ", level);
      range(name + "stride", static_cast<double>(group.stride), 1, static_cast<double>(ranks));
      range(name + "ranks", static_cast<double>(group.ranks), static_cast<double>(inside / group.stride + 1),
            static_cast<double>(ranks / group.stride));
      link(name + "all_to_all", group.all_to_all);
      link(name + "ring", group.ring);
      if (group.owner) link(name + "owner", *group.owner);
    }
  }

 private:
  const std::string& where_;
};

void validate(const PlatformProfile& p, const std::string& where) {
  const Validation check(where);
  check.range("ranks_per_node", static_cast<double>(p.ranks_per_node), 1, 1 << 16);
  check.range("memory_bytes", static_cast<double>(p.memory_bytes), 1, 0x1p60);
  check.rate("peak_flops_per_s", p.peak_flops_per_s);
  check.range("fp32_share", p.fp32_share, kLeastShare, kMostShare);
  check.range("scratch_bytes", static_cast<double>(p.scratch_bytes), 0, 0x1p50);
  if (p.threads) check.range("threads", static_cast<double>(*p.threads), 1, 4096);
  check.range("logit_elements", static_cast<double>(p.logit_elements), 1 << 20, 0x1p40);
  if (p.logit_gradient_rows) check.range("logit_gradient_rows", static_cast<double>(*p.logit_gradient_rows), 1, 0x1p30);
  check.rates("", p.bf16);
  if (p.fp32) check.rates("fp32: ", *p.fp32);
  check.rate("elementwise_bytes_per_s", p.elementwise_bytes_per_s);
  check.rate("stream_bytes_per_s", p.stream_bytes_per_s);
  if (p.host_bytes_per_s) check.rate("host_bytes_per_s", *p.host_bytes_per_s);
  if (p.to_host_bytes_per_s) check.rate("to_host_bytes_per_s", *p.to_host_bytes_per_s);
  if (p.from_host_bytes_per_s) check.rate("from_host_bytes_per_s", *p.from_host_bytes_per_s);
  if (p.pack_bytes_per_s) check.rate("pack_bytes_per_s", *p.pack_bytes_per_s);
  check.range("operator_latency_s", p.operator_latency_s, 0, kMostSeconds);
  check.range("routing_latency_s", p.routing_latency_s, 0, kMostSeconds);
  check.range("micro_batch_latency_s", p.micro_batch_latency_s, 0, kMostSeconds);
  check.range("row_chunks", static_cast<double>(p.row_chunks), 1, 1024);
  check.range("overlap_slowdown", p.overlap_slowdown, 1, 100);
  check.range("levels", static_cast<double>(p.levels.size()), 1, 8);
  int64_t inside = 0;
  for (const LinkLevel& level : p.levels) {
    check.range("ranks of level " + level.name, static_cast<double>(level.ranks), static_cast<double>(inside + 1),
                1 << 30);
    check.link("all_to_all of level " + level.name, level.all_to_all);
    check.link("ring of level " + level.name, level.ring);
    check.link("message of level " + level.name, level.message);
    if (level.owner) check.link("owner of level " + level.name, *level.owner);
    if (level.groups) check.groups(level.name, level.ranks, inside, *level.groups);
    inside = level.ranks;
  }
  for (const LibraryBytes& library : p.libraries)
    check.range("bytes of " + library.name, static_cast<double>(library.bytes), 0, 0x1p50);
  if (p.transport_times) check.transport_times(*p.transport_times);
  if (p.rank_kinds) check.rank_kinds(*p.rank_kinds);
}

}  // namespace

PlatformProfile parse_platform_profile(const std::string& text, const std::string& where) {
  const nlohmann::json json = parse_json(text, where, Exit::config);
  PlatformProfile profile;
  ObjectReader reader(json, where);
  std::string format;
  int64_t version = 0;
  reader("format", format);
  reader("version", version);
  if (format != kFormat)
    fail(Exit::config, fmt::format("{}: expected \"format\": \"{}\", got \"{}\"", where, kFormat, printable(format)),
         "name a platform profile, such as one of profiles/ or one that `moewright probe` wrote");
  if (version != kVersion)
    fail(Exit::config, fmt::format("{}: expected version {} of a platform profile, got {}", where, kVersion, version),
         "write a new profile with `moewright probe`");
  visit_fields(profile, reader);
  reader.finish();
  validate(profile, where);
  return profile;
}

PlatformProfile read_platform_profile(const std::string& path) {
  return parse_platform_profile(read_text_file(path, size_t{4} << 20), path);
}

PlatformProfile read_platform_profile(const std::string& path, int ranks) {
  PlatformProfile profile = read_platform_profile(path);
  if (ranks > profile.levels.back().ranks)
    fail(Exit::config,
         fmt::format("{} describes links among {}, but {} are planned", path,
                     counted(profile.levels.back().ranks, "rank"), ranks),
         fmt::format("set --ranks or plan.ranks to at most {}, or add a level to the profile",
                     profile.levels.back().ranks));
  return profile;
}

std::string to_json(const PlatformProfile& profile) {
  ObjectWriter writer;
  writer("format", std::string(kFormat));
  writer("version", kVersion);
  visit_fields(profile, writer);
  // One line for a field, for a field of an object, or for an entry of a list of texts or objects.
  std::string text;
  for (const auto& [key, value] : writer.json.items()) {
    std::string field = value.dump();
    if (value.is_object() || (value.is_array() && !value.empty() && !value[0].is_array())) {
      std::vector<std::string> entries;
      for (const auto& [name, entry] : value.items())
        entries.push_back(
            fmt::format("\n    {}{}", value.is_object() ? fmt::format("\"{}\": ", name) : "", entry.dump()));
      const char* brackets = value.is_object() ? "{}" : "[]";
      field = fmt::format("{}{}\n  {}", brackets[0], fmt::join(entries, ","), brackets[1]);
    }
    text += fmt::format("{}\n  \"{}\": {}", text.empty() ? "{" : ",", key, field);
  }
  return text + "\n}\n";
}

}  // namespace mw
