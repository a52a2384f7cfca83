#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/file.h"
#include "base/text.h"
#include "cli/run_commands.h"
#include "formats/safetensors.h"
#include "formats/token_file.h"
#include "formats/trace_summary.h"
#include "train/checkpoint.h"

namespace mw {
namespace {

constexpr size_t kNameLimit = 400;  // longer than the name of any tensor of a model

void inspect_checkpoint(const std::string& folder) {
  const CheckpointIndex index = read_checkpoint_index(folder);
  int64_t elements = 0;
  for (const auto& [name, shape] : index.tensors) {
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    if (name.rfind("param.", 0) == 0) elements += n;
    std::printf("%-60s %s\n", printable(name, kNameLimit).c_str(), format_shape(shape).c_str());
  }
  std::printf("checkpoint after step %lld, %lld samples consumed; %zu tensors in %zu slices, %s parameters\n",
              static_cast<long long>(index.state.step), static_cast<long long>(index.state.samples),
              index.tensors.size(), index.slices.size(), format_count(static_cast<double>(elements)).c_str());
}

void inspect_safetensors(const std::string& path) {
  const SafetensorsFile file(path);
  int64_t bytes = 0;
  for (const SafetensorsEntry& e : file.entries()) {
    std::printf("%-60s %-5s %s\n", printable(e.name, kNameLimit).c_str(), e.dtype.c_str(),
                format_shape(e.shape).c_str());
    bytes += e.end - e.begin;
  }
  std::printf("%zu tensors, %s\n", file.entries().size(), format_bytes(bytes).c_str());
}

void inspect_tokens(const std::string& kind, const std::string& path) {
  const std::unique_ptr<TokenSource> source = open_token_source({kind, path, {}, 0, Split::all});
  const TokenRange range = find_token_range(*source);
  std::printf("%s\ntoken ids from %d to %d\n", source->describe().c_str(), range.smallest, range.largest);
}

void inspect_trace(const std::string& path) {
  const MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  const TraceSummary summary = summarise_trace(text, path);
  std::vector<std::pair<std::pair<int64_t, std::string>, TraceTotals>> rows(summary.totals.begin(),
                                                                            summary.totals.end());
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.second.milliseconds > b.second.milliseconds; });
  int64_t events = 0;
  for (const auto& [place, totals] : rows) {
    const auto lane = summary.lanes.find(place.first);
    std::printf("%-16s %-32s %8lld times %12.3f ms\n",
                lane == summary.lanes.end() ? "" : printable(lane->second, kNameLimit).c_str(),
                printable(place.second, kNameLimit).c_str(), static_cast<long long>(totals.events),
                totals.milliseconds);
    events += totals.events;
  }
  std::printf("%lld events in %.3f ms; times of events inside others count in both\n", static_cast<long long>(events),
              summary.end_ms - summary.begin_ms);
}

}  // namespace

Command add_inspect_command(CLI::App& app) {
  auto* sub = app.add_subcommand("inspect", "look into a checkpoint, a safetensors file, a token file or a trace");
  auto path = std::make_shared<std::string>();
  sub->add_option("PATH", *path,
                  "a checkpoint folder, a .safetensors file, a Megatron .idx or .bin, an llm.c .bin, a "
                  "Chrome trace .json")
      ->required();
  return {sub, [path] {
            if (!path_exists(*path)) fail(Exit::data, fmt::format("{} is not there", *path), "check the path");
            const std::string prefix = path->substr(0, path->find_last_of('.'));
            std::error_code ignored;  // it is there
            if (std::filesystem::is_directory(*path, ignored)) inspect_checkpoint(*path);
            else if (has_suffix(*path, ".safetensors")) inspect_safetensors(*path);
            else if (has_suffix(*path, ".idx") || (has_suffix(*path, ".bin") && path_exists(prefix + ".idx")))
              inspect_tokens("megatron", *path);
            else if (has_suffix(*path, ".bin")) inspect_tokens("shards", *path);
            else if (has_suffix(*path, ".json")) inspect_trace(*path);
            else
              fail(Exit::usage, fmt::format("{} is nothing that inspect knows", *path),
                   "a checkpoint folder, .safetensors, .idx, .bin or a trace .json");
            return Exit::ok;
          }};
}

}  // namespace mw
