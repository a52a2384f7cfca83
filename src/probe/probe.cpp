#include "probe/probe.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/file.h"
#include "base/host.h"
#include "base/json.h"
#include "base/text.h"
#include "core/tensor_store.h"
#include "layout/logit_chunks.h"
#include "ops/device.h"
#include "ops/matmul.h"
#include "probe/links.h"
#include "probe/operators.h"

namespace mw {
namespace {

// Measurements of the meter, about; and those of each shape of groups.
constexpr int kTimings = 114, kTimingsOnCpu = 173, kTimingsOfAShape = 15;
constexpr const char* kTaken = "libraries in use";
constexpr const char* kFp32 = "fp32";
constexpr const char* kGroups = "smaller groups";

struct Part {
  std::string name;
  std::function<void()> measure;
  std::function<std::string()> result;
};

std::string rate(double per_second) {
  return per_second < 1e12 ? fmt::format("{:.1f} GFLOP/s", per_second * 1e-9)
                           : fmt::format("{:.1f} TFLOP/s", per_second * 1e-12);
}
std::string speed(double bytes_per_s) { return format_bytes(static_cast<int64_t>(bytes_per_s)) + "/s"; }

std::string ends_of(const RateTable& table) {
  return fmt::format("{} to {}", rate(table.front().per_second), rate(table.back().per_second));
}

std::string width_ends_of(const RateTable& shares) {
  return fmt::format("heads of {:g} at {:.0f} %, of {:g} at {:.0f} %", shares.front().size,
                     100 * shares.front().per_second, shares.back().size, 100 * shares.back().per_second);
}

std::string describe(const std::vector<LinkLevel>& levels) {
  if (levels.back().ranks == 1) return "one rank has none; run `probe` under mpirun for layouts of several";
  std::string text;
  for (const LinkLevel& level : levels)
    text +=
        fmt::format("{}{} ranks over {}: all-to-all {}, sums {}, of owners {}, messages {}", text.empty() ? "" : "; ",
                    level.ranks, level.name, speed(level.all_to_all.bytes_per_s), speed(level.ring.bytes_per_s),
                    speed(level.owner.value().bytes_per_s), speed(level.message.bytes_per_s));
  return text;
}

std::string describe_groups(const std::vector<LinkLevel>& levels) {
  std::string text;
  for (const LinkLevel& level : levels)
    for (const GroupCosts& group : level.groups.value_or(std::vector<GroupCosts>()))
      text += fmt::format("{}{} ranks{}: all-to-all {}, sums {}", text.empty() ? "" : "; ", group.ranks,
                          group.stride == 1 ? "" : fmt::format(" at distances of {}", group.stride),
                          speed(group.all_to_all.bytes_per_s), speed(group.ring.bytes_per_s));
  return text;
}

// What is known before anything is measured. Tables are there, so that a profile that is not complete can be kept.
PlatformProfile begin_profile(const World& world, const Stream& stream, const ProbeOptions& options) {
  PlatformProfile p;
  const bool on_gpu = stream.device().kind != DeviceKind::cpu;
  p.name = options.machine;
  p.ranks_per_node = std::max(1, world.local_size());
  p.memory_bytes = options.memory_bytes;
  p.peak_flops_per_s = p.elementwise_bytes_per_s = p.stream_bytes_per_s = 1e9;
  p.operator_latency_s = p.routing_latency_s = p.micro_batch_latency_s = 1e-6;
  p.native_bf16 = on_gpu || cpu::matmul_traits().native_bf16;
  p.one_packed_form = on_gpu;
  p.scratch_bytes = run_workspace_bytes(stream.device().kind);
  if (!on_gpu) p.threads = stream.threads();
  if (on_gpu) {
    p.attention_library = has_attention_library(stream.device().kind);
    p.logit_elements = kGpuLogitElements;
    p.logit_gradient_rows = kGpuLogitGradientRows;
  }
  p.bf16.row_tile = 128;  // of GPU kernels; CPUs measure theirs
  if (!on_gpu) p.pack_bytes_per_s = 1e9;
  for (RateTable* table : rate_tables(p)) *table = {{1, 1e9}};
  p.row_chunks = on_gpu ? 2 : 1;
  p.overlaps_gradient_sums = on_gpu;
  p.levels = {{"one rank", 1, {1e-6, 1e9}, {1e-6, 1e9}, {1e-6, 1e9}}};
  p.libraries = {{on_gpu ? "kernels" : "message and matrix libraries", options.library_bytes, false}};
  if (options.resident) p.libraries.push_back({kTaken, 0, false});
  p.sources = {
      "measured by `moewright probe`, all ranks at once: products, attention, memory, latencies, links, libraries",
      options.peak_flops_per_s > 0 ? options.peak_source : "peak: the fastest measured product",
      fmt::format("assumed: {}row_chunks, micro_batch_latency_s as 75 operators{}", on_gpu ? "row_tile, " : "",
                  options.resident ? ", libraries in use a quarter beyond what was measured" : "")};
  return p;
}

// Four digits: more are noise.
void shorten(PlatformProfile& p) {
  const auto round = [](double& value) { value = std::strtod(fmt::format("{:.4g}", value).c_str(), nullptr); };
  const auto round_all = [&](RateTable& table) {
    for (RatePoint& point : table) round(point.per_second);
  };
  const auto round_shares = [&](OperatorRates& rates) {
    for (std::optional<RateTable>* shares : {&rates.attention_forward_widths, &rates.attention_backward_widths,
                                             &rates.expert_widths, &rates.expert_weight_widths})
      if (*shares) round_all(**shares);
  };
  for (RateTable* table : rate_tables(p)) round_all(*table);
  round_shares(p.bf16);
  for (std::optional<double>* share :
       {&p.bf16.attention_any_order, &p.bf16.attention_forward_documents, &p.bf16.attention_backward_documents})
    if (*share) round(**share);
  if (p.fp32) round_shares(*p.fp32);
  for (LinkLevel& level : p.levels)
    for (LinkCost* cost : link_costs(level)) {
      round(cost->latency_s), round(cost->bytes_per_s);
      round_all(cost->rates);
    }
  for (double* value : {&p.peak_flops_per_s, &p.fp32_share, &p.elementwise_bytes_per_s, &p.stream_bytes_per_s,
                        &p.operator_latency_s, &p.routing_latency_s, &p.micro_batch_latency_s, &p.overlap_slowdown})
    round(*value);
  for (std::optional<double>* value :
       {&p.host_bytes_per_s, &p.to_host_bytes_per_s, &p.from_host_bytes_per_s, &p.pack_bytes_per_s})
    if (*value) round(**value);
}

// What libraries keep once the tensors of a part are gone, of the rank that has the most, and a quarter more: a run has
// more shapes and groups.
void note_taken(PlatformProfile& profile, Comm& comm, int64_t bytes) {
  comm.all_reduce_max(std::span(&bytes, 1));
  bytes += bytes / 4;
  for (LibraryBytes& library : profile.libraries)
    if (library.name == kTaken) library.bytes = std::max(library.bytes, bytes);
}

// The parts that an earlier probe of this machine measured, with their numbers.
struct Partial {
  PlatformProfile profile;
  std::vector<std::string> done;
};

std::optional<Partial> read_partial(const std::string& path, const std::string& machine) {
  if (!path_exists(path)) return std::nullopt;
  const nlohmann::json json = parse_json(read_text_file(path), path, Exit::data);
  if (!json.is_object() || !json.contains("done") || !json["done"].is_array() || !json.contains("profile"))
    fail(Exit::data, fmt::format("{}: expected the partial result of an interrupted probe", path),
         "remove this file and start again");
  Partial partial{parse_platform_profile(json["profile"].dump(), path), {}};
  if (partial.profile.name != machine) return std::nullopt;
  for (const nlohmann::json& name : json["done"])
    if (name.is_string()) partial.done.push_back(name.get<std::string>());
  return partial;
}

void write_partial(const std::string& path, const PlatformProfile& profile, const std::vector<std::string>& done) {
  nlohmann::ordered_json json;
  json["done"] = done;
  json["profile"] = nlohmann::ordered_json::parse(to_json(profile));
  write_text_file_atomically(path, json.dump(2) + "\n");
}

// What rank 0 finds is what all go on from.
std::optional<Partial> resume(Comm& world, const std::string& path, const std::string& machine) {
  std::optional<Partial> partial;
  std::string text;
  if (world.rank() == 0 && (partial = read_partial(path, machine))) {
    nlohmann::ordered_json json = {{"done", partial->done}, {"profile", to_json(partial->profile)}};
    text = json.dump();
  }
  text = broadcast_text(world, text, 0);
  if (text.empty()) return std::nullopt;
  const nlohmann::json json = nlohmann::json::parse(text);
  return Partial{parse_platform_profile(json["profile"].get<std::string>(), path),
                 json["done"].get<std::vector<std::string>>()};
}

}  // namespace

PlatformProfile probe(World& world, Stream& stream, const ProbeOptions& options,
                      const std::function<void(const std::string&)>& say) {
  Comm& comm = world.comm();
  const bool leader = comm.rank() == 0;
  const std::string partial_path = options.output + ".partial";
  if (leader) create_folder_of(options.output);
  PlatformProfile profile = begin_profile(world, stream, options);
  std::vector<std::string> done;
  if (std::optional<Partial> partial = resume(comm, partial_path, options.machine)) {
    partial->profile.scratch_bytes = profile.scratch_bytes;
    partial->profile.attention_library = profile.attention_library;
    partial->profile.threads = profile.threads;
    partial->profile.memory_bytes = profile.memory_bytes;
    partial->profile.sources = profile.sources;
    profile = std::move(partial->profile);
    done = std::move(partial->done);
  }
  const int64_t work_bytes = probe_workspace_bytes(stream.threads(), stream.device().kind);
  TensorStore scratch({{"work", DType::u8, {work_bytes}, 0}}, arenas_of(stream.device()));
  stream.workspace().attach(scratch.fixed("work").data, static_cast<size_t>(work_bytes));
  const bool on_cpu = stream.device().kind == DeviceKind::cpu;
  const int shapes = count_group_shapes(world);
  Meter meter(comm, stream, options.budget_s / ((on_cpu ? kTimingsOnCpu : kTimings) + kTimingsOfAShape * shapes));
  const int64_t resident_before = options.resident ? options.resident() : 0;

  std::vector<Part> parts = {
      {"memory and latency", [&] { measure_memory_operators(meter, stream, profile); },
       [&] {
         return fmt::format("{} by operators, {} by the optimizer, {:.1f} us an operator",
                            speed(profile.elementwise_bytes_per_s), speed(profile.stream_bytes_per_s),
                            profile.operator_latency_s * 1e6);
       }},
      {"dense products", [&] { measure_dense_products(meter, stream, profile); },
       [&] { return ends_of(profile.bf16.dense_products); }},
      {"expert products", [&] { measure_expert_products(meter, stream, profile); },
       [&] {
         return fmt::format("{}, of weights {}", ends_of(profile.bf16.expert_products),
                            ends_of(profile.bf16.expert_weight_products));
       }},
      {"attention", [&] { measure_attention(meter, stream, profile); },
       [&] {
         return fmt::format("{} forward, {} backward; {}", ends_of(profile.bf16.attention_forward),
                            ends_of(profile.bf16.attention_backward),
                            width_ends_of(profile.bf16.attention_forward_widths.value()));
       }},
      {"links", [&] { measure_links(world, meter, stream, profile); }, [&] { return describe(profile.levels); }},
  };
  if (comm.size() > 1)
    parts.push_back({"kinds of ranks", [&] { measure_rank_kinds(meter, stream, profile); },
                     [&] { return describe_rank_kinds(profile); }});
  if (shapes > 0)
    parts.push_back({kGroups, [&] { measure_groups(world, meter, stream, profile); },
                     [&] { return describe_groups(profile.levels); }});
  if (on_cpu)  // on GPUs fp32 is for tests
    parts.push_back({kFp32, [&] { measure_fp32(meter, stream, profile); },
                     [&] {
                       return fmt::format("dense products {}, experts' {}", ends_of(profile.fp32->dense_products),
                                          ends_of(profile.fp32->expert_products));
                     }});
  else
    parts.push_back({"the host's memory", [&] { measure_host_memory(meter, stream, profile); },
                     [&] {
                       return fmt::format(
                           "{} by the optimizer, copies {} there and {} back", speed(profile.host_bytes_per_s.value()),
                           speed(profile.to_host_bytes_per_s.value()), speed(profile.from_host_bytes_per_s.value()));
                     }});
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    const std::string label = fmt::format("[{}/{}] {}", i + 1, parts.size(), part.name);
    if (std::find(done.begin(), done.end(), part.name) != done.end()) {
      if (leader) say(fmt::format("{}: known from {}", label, partial_path));
      continue;
    }
    const double begin = now_seconds();
    part.measure();
    done.push_back(part.name);
    profile.micro_batch_latency_s = 75 * profile.operator_latency_s;
    // A run has either type and one set of groups, and takes what those need.
    if (options.resident && part.name != kFp32 && part.name != kGroups)
      note_taken(profile, comm, options.resident() - resident_before);
    shorten(profile);
    if (!leader) continue;
    write_partial(partial_path, profile, done);
    say(fmt::format("{}: {} ({:.1f} s)", label, part.result(), now_seconds() - begin));
  }
  if (options.peak_flops_per_s > 0) profile.peak_flops_per_s = options.peak_flops_per_s;
  if (leader) {
    write_output_text(options.output, to_json(profile));
    std::error_code ignored;  // the profile is complete: what is left is harmless
    std::filesystem::remove(partial_path, ignored);
  }
  comm.barrier();
  return profile;
}

}  // namespace mw
