#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/file.h"
#include "base/text.h"
#include "cli/run_commands.h"
#include "formats/report/trace_summary.h"
#include "formats/tokens/text_stream.h"
#include "formats/tokens/token_file.h"
#include "formats/weights/safetensors.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/describe_model.h"
#include "train/checkpoint/model_path.h"

namespace mw {
namespace {

constexpr size_t kNameLimit = 400;  // longer than the name of any tensor of a model

struct InspectOptions {
  std::string path, tokenizer;
  bool tensors = false, run_file = false;
};

void inspect_checkpoint(const ModelPath& found, const InspectOptions& options) {
  const std::string& folder = require_checkpoint(found);
  const CheckpointIndex index = read_checkpoint_index(folder);
  if (options.run_file) {  // alone: it can be written to a file
    std::fputs(index.run_toml.c_str(), stdout);
    return;
  }
  if (const std::string line = describe_choice(found); !line.empty()) std::printf("%s\n", line.c_str());
  std::fputs(describe_checkpoint(folder).c_str(), stdout);
  if (!options.tensors) return;
  for (const auto& [name, shape] : index.tensors)
    std::printf("%-60s %s\n", printable(name, kNameLimit).c_str(), format_shape(shape).c_str());
  std::printf("%zu tensors in %zu slices\n", index.tensors.size(), index.slices.size());
}

void print_entry(const SafetensorsEntry& e) {
  std::printf("%-60s %-5s %s\n", printable(e.name, kNameLimit).c_str(), e.dtype.c_str(), format_shape(e.shape).c_str());
}

void inspect_hf_folder(const std::string& dir, const InspectOptions& options) {
  std::fputs(describe_hf_folder(dir).c_str(), stdout);
  if (!options.tensors) return;
  const SafetensorsSet files = open_safetensors_folder(dir);
  for (const std::string& name : files.names()) print_entry(*files.find(name).entry);
}

void inspect_folder(const InspectOptions& options) {
  const ModelPath found = find_model_path(options.path);
  if (options.run_file && found.kind == ModelPathKind::hf_folder)
    fail(Exit::usage, fmt::format("--run-file: {} is a Hugging Face model folder and stores none", options.path),
         fmt::format("`moewright init FILE --model {}` writes one", options.path));
  if (found.kind == ModelPathKind::hf_folder) inspect_hf_folder(found.path, options);
  else inspect_checkpoint(found, options);
}

void inspect_safetensors(const std::string& path) {
  const SafetensorsFile file(path);
  int64_t bytes = 0;
  for (const SafetensorsEntry& e : file.entries()) {
    print_entry(e);
    bytes += e.end - e.begin;
  }
  std::printf("%zu tensors, %s\n", file.entries().size(), format_bytes(bytes).c_str());
}

// NUL bytes too.
void print_piece(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

// The text of all tokens, as it is decoded.
void print_text(const TokenSource& source, const Tokenizer& tokenizer) {
  TextStream text(tokenizer);
  std::vector<int32_t> tokens;
  for (int64_t first = 0; first < source.size(); first += std::ssize(tokens)) {
    tokens.resize(static_cast<size_t>(std::min<int64_t>(source.size() - first, 1 << 16)));
    source.read(first, tokens);
    for (const int32_t token : tokens) print_piece(text.add(token));
  }
  print_piece(text.finish());
}

void inspect_tokens(DataKind kind, const InspectOptions& options) {
  const std::unique_ptr<TokenSource> source = open_token_source({kind, options.path, {}, 0, Split::all});
  if (!options.tokenizer.empty()) {
    print_text(*source, *open_tokenizer(options.tokenizer));
    return;
  }
  const TokenRange range = find_token_range(*source);
  std::printf("%s\ntoken ids from %d to %d\n", source->describe().c_str(), range.smallest, range.largest);
}

void inspect_trace(const std::string& path) {
  const MappedFile file(path);
  const TraceSummary summary = summarise_trace(file.text(), path);
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

void inspect(const InspectOptions& options) {
  const std::string& path = options.path;
  if (!path_exists(path) && path_exists(path + ".idx")) return inspect_tokens(DataKind::megatron, options);
  if (!path_exists(path)) fail(Exit::data, fmt::format("{} is not there", path), "check the path");
  const std::string prefix = path.substr(0, path.find_last_of('.'));
  std::error_code ignored;  // it is there
  if (std::filesystem::is_directory(path, ignored)) inspect_folder(options);
  else if (path.ends_with(".safetensors")) inspect_safetensors(path);
  else if (path.ends_with(".idx") || (path.ends_with(".bin") && path_exists(prefix + ".idx")))
    inspect_tokens(DataKind::megatron, options);
  else if (path.ends_with(".bin")) inspect_tokens(DataKind::shards, options);
  else if (path.ends_with(".json")) inspect_trace(path);
  else
    fail(Exit::usage, fmt::format("{} is nothing that inspect knows", path),
         "name a run folder, a checkpoint, a model folder, .safetensors, .idx, .bin or a trace .json");
}

}  // namespace

Command add_inspect_command(CommandLine& line) {
  Subcommand sub = line.add_command("inspect", "describe a run, a checkpoint, a model folder, a data file or a trace");
  auto options = std::make_shared<InspectOptions>();
  sub.add_option("PATH", options->path,
                 "a run folder, a checkpoint, a Hugging Face model folder, a .safetensors file, a Megatron .idx, .bin "
                 "or their prefix, an llm.c .bin, a Chrome trace .json")
      .required();
  sub.add_flag("--tensors", options->tensors, "list name and shape of every tensor of a folder");
  sub.add_flag("--run-file", options->run_file, "print the run file that a checkpoint stores, and nothing else");
  sub.add_option("--text", options->tokenizer, "print the text of a token file, decoded by this tokenizer");
  return {sub, [options] {
            inspect(*options);
            return Exit::ok;
          }};
}

}  // namespace mw
