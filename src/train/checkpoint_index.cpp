#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <set>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/checksum.h"
#include "train/checkpoint.h"

namespace mw {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kFormat = "moewright-checkpoint";
constexpr int64_t kVersion = 1;

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  fail(Exit::checkpoint, fmt::format("{}: {}", where, what), "the checkpoint is damaged; load an older one");
}

const json& field(const json& object, const char* key, const std::string& where) {
  if (!object.is_object() || !object.contains(key)) refuse(where, fmt::format("\"{}\" is missing", key));
  return object.at(key);
}

int64_t integer(const json& object, const char* key, int64_t low, const std::string& where) {
  const json& value = field(object, key, where);
  const bool fits =
      value.is_number_integer() && !(value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{1} << 62);
  if (!fits || value.get<int64_t>() < low)
    refuse(where, fmt::format("\"{}\" expects an integer of at least {}, got {}", key, low, printable(value.dump())));
  return value.get<int64_t>();
}

std::string text(const json& object, const char* key, const std::string& where) {
  const json& value = field(object, key, where);
  if (!value.is_string()) refuse(where, fmt::format("\"{}\" expects a string, got {}", key, printable(value.dump())));
  return value.get<std::string>();
}

void check_coverage(const CheckpointIndex& index, const std::string& where) {
  std::map<std::string, std::vector<std::pair<int64_t, int64_t>>> ranges;
  for (const CheckpointSlice& s : index.slices) ranges[s.tensor].emplace_back(s.begin, s.count);
  for (const auto& [name, shape] : index.tensors) {
    auto& list = ranges[name];
    std::sort(list.begin(), list.end());
    int64_t at = 0;
    for (const auto& [begin, count] : list) {
      if (begin > at) refuse(where, fmt::format("tensor {}: entries {} to {} are in no slice", name, at, begin));
      if (begin < at) refuse(where, fmt::format("tensor {}: entry {} is in two slices", name, begin));
      at = begin + count;
    }
    if (at != shape.front())
      refuse(where, fmt::format("tensor {}: slices end at {} of {} entries", name, at, shape.front()));
  }
}

}  // namespace

CheckpointIndex parse_checkpoint_index(std::string_view source, const std::string& where) {
  const json root = parse_json(source, where, Exit::checkpoint);
  if (text(root, "format", where) != kFormat) refuse(where, fmt::format("not a {}", kFormat));
  if (const int64_t version = integer(root, "version", 0, where); version != kVersion)
    refuse(where, fmt::format("version {}, expected {}", version, kVersion));
  CheckpointIndex index;
  index.state.step = integer(root, "step", 0, where);
  index.state.samples = integer(root, "samples", 0, where);
  index.run_toml = text(root, "run", where);
  std::map<std::string, int64_t> entries;  // axis 0 of each tensor
  const json& tensors = field(root, "tensors", where);
  if (!tensors.is_object()) refuse(where, "\"tensors\" expects an object");
  for (const auto& [name, shape] : tensors.items()) {
    std::vector<int64_t> dims;
    if (!shape.is_array() || shape.empty() || shape.size() > TensorView::kMaxRank)
      refuse(where, fmt::format("tensor {}: the shape expects 1 to 4 sizes", printable(name)));
    int64_t elements = 1;
    for (const json& d : shape) {
      if (!d.is_number_integer() || d.get<int64_t>() < 1 ||
          (d.is_number_unsigned() && d.get<uint64_t>() > uint64_t{1} << 48) ||
          elements > (int64_t{1} << 48) / d.get<int64_t>())
        refuse(where, fmt::format("tensor {}: bad shape {}", printable(name), printable(shape.dump())));
      dims.push_back(d.get<int64_t>());
      elements *= dims.back();
    }
    entries[name] = dims.front();
    index.tensors.emplace_back(name, std::move(dims));
  }
  const json& slices = field(root, "slices", where);
  if (!slices.is_array()) refuse(where, "\"slices\" expects a list");
  for (const json& item : slices) {
    CheckpointSlice s;
    s.tensor = text(item, "tensor", where);
    const auto it = entries.find(s.tensor);
    if (it == entries.end())
      refuse(where, fmt::format("a slice of tensor \"{}\", which is not listed", printable(s.tensor)));
    const std::string at = fmt::format("{}: slice of {}", where, printable(s.tensor));
    s.begin = integer(item, "begin", 0, at);
    s.count = integer(item, "count", 1, at);
    if (s.begin > it->second || s.count > it->second - s.begin)
      refuse(at, fmt::format("entries {} + {} of {}", s.begin, s.count, it->second));
    s.file = text(item, "file", at);
    s.key = text(item, "key", at);
    s.checksum = text(item, "xxh3", at);
    if (!is_plain_file_name(s.file)) refuse(at, fmt::format("file name \"{}\"", printable(s.file)));
    index.slices.push_back(std::move(s));
  }
  check_coverage(index, where);
  return index;
}

int64_t step_of_folder(const std::string& name) {
  constexpr std::string_view kPrefix = "step-";
  if (name.compare(0, kPrefix.size(), kPrefix) != 0) return -1;
  int64_t step = -1;
  const char *begin = name.data() + kPrefix.size(), *end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(begin, end, step);
  return error == std::errc() && rest == end && *begin != '-' ? step : -1;
}

std::vector<std::string> list_checkpoints(const std::string& dir) {
  std::vector<std::pair<int64_t, std::string>> found;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    const int64_t step = step_of_folder(it->path().filename().string());
    std::error_code unreadable;  // one folder's trouble does not hide the others
    if (step >= 0 && fs::exists(it->path() / "DONE", unreadable)) found.emplace_back(step, it->path().string());
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> folders;
  for (auto& [step, folder] : found) folders.push_back(std::move(folder));
  return folders;
}

std::string newest_checkpoint(const std::string& dir) {
  const std::vector<std::string> all = list_checkpoints(dir);
  return all.empty() ? std::string() : all.back();
}

CheckpointIndex read_checkpoint_index(const std::string& folder) {
  const std::string where = folder + "/index.json";
  if (!path_exists(folder, Exit::checkpoint))
    fail(Exit::checkpoint, fmt::format("there is no checkpoint {}", folder),
         "checkpoint.resume takes \"auto\", \"none\" or a folder such as DIR/step-00000100");
  if (!path_exists(folder + "/DONE", Exit::checkpoint))
    fail(Exit::checkpoint, fmt::format("{} is incomplete: it has no DONE", folder),
         "the run that wrote it did not finish; load an older one");
  std::string source, done;
  try {
    done = read_text_file(folder + "/DONE", 4096);
    source = read_text_file(where, size_t{1} << 30);
  } catch (const Error& error) {
    fail(Exit::checkpoint, error.what(), "the checkpoint is damaged; load an older one");
  }
  const std::string checksum = xxh3_hex(std::as_bytes(std::span(source)));
  if (done != checksum + "\n")
    refuse(where, fmt::format("its checksum is {}, DONE says {}", checksum, printable(done)));
  return parse_checkpoint_index(source, where);
}

}  // namespace mw
