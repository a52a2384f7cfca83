#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <span>
#include <tuple>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/io/checksum.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/placement_record.h"

namespace mw {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kFormat = "moewright-checkpoint";
constexpr int64_t kVersion = 2;  // version 1: slices of axis 0, boxes as a whole

[[noreturn]] void refuse_index(const std::string& where, const std::string& what) {
  fail(Exit::checkpoint, fmt::format("{}: {}", where, what), kDamagedCheckpoint);
}

const json& field(const json& object, const char* key, const std::string& where) {
  if (!object.is_object() || !object.contains(key)) refuse_index(where, fmt::format("\"{}\" is missing", key));
  return object.at(key);
}

int64_t integer(const json& object, const char* key, int64_t low, const std::string& where) {
  const json& value = field(object, key, where);
  const bool fits =
      value.is_number_integer() && !(value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{1} << 62);
  if (!fits || value.get<int64_t>() < low)
    refuse_index(where,
                 fmt::format("\"{}\" expects an integer of at least {}, got {}", key, low, printable(value.dump())));
  return value.get<int64_t>();
}

std::string text(const json& object, const char* key, const std::string& where) {
  const json& value = field(object, key, where);
  if (!value.is_string())
    refuse_index(where, fmt::format("\"{}\" expects a string, got {}", key, printable(value.dump())));
  return value.get<std::string>();
}

// None where the field is missing.
std::optional<double> optional_number(const json& object, const char* key, const std::string& where) {
  if (!object.contains(key)) return std::nullopt;
  const json& value = object.at(key);
  if (!value.is_number())
    refuse_index(where, fmt::format("\"{}\" expects a number, got {}", key, printable(value.dump())));
  return value.get<double>();
}

std::vector<double> numbers(const json& object, const char* key, const std::string& where) {
  const json& list = field(object, key, where);
  if (!list.is_array() || !std::all_of(list.begin(), list.end(), [](const json& item) { return item.is_number(); }))
    refuse_index(where, fmt::format("\"{}\" expects a list of numbers, got {}", key, printable(list.dump())));
  return list.get<std::vector<double>>();
}

std::vector<int64_t> parse_data_tokens(const json& root, const std::string& where) {
  const json& list = root["data_tokens"];
  const auto is_count = [](const json& item) { return item.is_number_integer() && item.get<int64_t>() >= 0; };
  if (!list.is_array() || !std::all_of(list.begin(), list.end(), is_count))
    refuse_index(where,
                 fmt::format("\"data_tokens\" expects a list of numbers of tokens, got {}", printable(list.dump())));
  return list.get<std::vector<int64_t>>();
}

StepHistory parse_history(const json& object, const std::string& where) {
  StepHistory history{numbers(object, "losses", where), numbers(object, "norms", where)};
  if (history.losses.size() != history.norms.size())
    refuse_index(where,
                 fmt::format("\"history\" has {} losses and {} norms", history.losses.size(), history.norms.size()));
  return history;
}

// Slices of one box, by their first element: they must cover it exactly.
void check_box(std::span<const TensorSlice> slices, int64_t elements, const std::string& where) {
  const std::string box = fmt::format("entries {} to {}", slices[0].begin, slices[0].begin + slices[0].count);
  int64_t at = 0;
  for (const TensorSlice& s : slices) {
    if (s.first > at) refuse_index(where, fmt::format("elements {} to {} of {} are in no slice", at, s.first, box));
    if (s.first < at) refuse_index(where, fmt::format("element {} of {} is in two slices", s.first, box));
    at = s.first + s.size;
  }
  if (at != elements) refuse_index(where, fmt::format("slices of {} end at {} of {} elements", box, at, elements));
}

// Boxes cover the axis exactly, and slices their box.
void check_tensor(std::vector<TensorSlice> slices, const std::vector<int64_t>& shape, const std::string& where) {
  const auto place = [](const TensorSlice& s) { return std::tuple(s.begin, s.count, s.first); };
  std::sort(slices.begin(), slices.end(),
            [&](const TensorSlice& a, const TensorSlice& b) { return place(a) < place(b); });
  const int axis = slices.empty() ? 0 : slices[0].axis;
  int64_t at = 0;
  for (size_t i = 0, end = 0; i < slices.size(); i = end) {
    const TensorSlice& s = slices[i];
    while (end < slices.size() && slices[end].begin == s.begin && slices[end].count == s.count) ++end;
    for (size_t j = i; j < end; ++j)
      if (slices[j].axis != axis)
        refuse_index(where, fmt::format("slices along axis {} and axis {}", axis, slices[j].axis));
    if (s.begin > at) refuse_index(where, fmt::format("entries {} to {} are in no slice", at, s.begin));
    if (s.begin < at) refuse_index(where, fmt::format("entry {} is in two slices", s.begin));
    check_box(std::span(slices).subspan(i, end - i), box_elements(shape, s), where);
    at = s.begin + s.count;
  }
  if (const int64_t extent = shape[static_cast<size_t>(axis)]; at != extent)
    refuse_index(where, fmt::format("slices end at {} of {} entries", at, extent));
}

void check_coverage(const CheckpointIndex& index, const std::string& where) {
  std::map<std::string, std::vector<TensorSlice>> slices;
  for (const CheckpointSlice& s : index.slices) slices[s.tensor].push_back(s.part);
  for (const auto& [name, shape] : index.tensors)
    check_tensor(std::move(slices[name]), shape, fmt::format("{}: tensor {}", where, printable(name)));
}

TensorSlice parse_part(const json& item, const std::vector<int64_t>& shape, int64_t version, const std::string& at) {
  const int64_t axis = version == 1 ? 0 : integer(item, "axis", 0, at);
  if (axis >= static_cast<int64_t>(shape.size())) refuse_index(at, fmt::format("axis {} of {}", axis, shape.size()));
  const int64_t begin = integer(item, "begin", 0, at), count = integer(item, "count", 1, at);
  const int64_t extent = shape[static_cast<size_t>(axis)];
  if (begin > extent || count > extent - begin)
    refuse_index(at, fmt::format("entries {} + {} of {}", begin, count, extent));
  TensorSlice part = whole_box(shape, static_cast<int>(axis), begin, count);
  if (version == 1) return part;
  const int64_t box = part.size;
  part.first = integer(item, "first", 0, at);
  part.size = integer(item, "size", 1, at);
  if (part.first > box || part.size > box - part.first)
    refuse_index(at, fmt::format("elements {} + {} of {}", part.first, part.size, box));
  return part;
}

}  // namespace

CheckpointIndex parse_checkpoint_index(std::string_view source, const std::string& where) {
  const json root = parse_json(source, where, Exit::checkpoint);
  if (text(root, "format", where) != kFormat) refuse_index(where, fmt::format("not a {}", kFormat));
  const int64_t version = integer(root, "version", 0, where);
  if (version < 1 || version > kVersion)
    refuse_index(where, fmt::format("version {}, expected 1 to {}", version, kVersion));
  CheckpointIndex index;
  index.state.step = integer(root, "step", 0, where);
  index.state.samples = integer(root, "samples", 0, where);
  index.state.loss = optional_number(root, "loss", where);
  if (root.contains("skipped")) index.state.skipped = integer(root, "skipped", 0, where);
  if (index.state.skipped > index.state.step)
    refuse_index(where, fmt::format("{} of {} steps were skipped", index.state.skipped, index.state.step));
  if (root.contains("history")) index.state.history = parse_history(root["history"], where);
  if (root.contains("data_tokens")) index.state.data_tokens = parse_data_tokens(root, where);
  index.run_toml = text(root, "run", where);
  if (root.contains("hf_config")) index.hf_config = text(root, "hf_config", where);
  if (root.contains("placement")) index.placements = parse_placement_record(root["placement"], where);
  std::map<std::string, std::vector<int64_t>> shapes;
  const json& tensors = field(root, "tensors", where);
  if (!tensors.is_object()) refuse_index(where, "\"tensors\" expects an object");
  for (const auto& [name, shape] : tensors.items()) {
    std::vector<int64_t> dims;
    if (!shape.is_array() || shape.empty() || shape.size() > TensorView::kMaxRank)
      refuse_index(where, fmt::format("tensor {}: the shape expects 1 to 4 sizes", printable(name)));
    int64_t elements = 1;
    for (const json& d : shape) {
      if (!d.is_number_integer() || d.get<int64_t>() < 1 ||
          (d.is_number_unsigned() && d.get<uint64_t>() > uint64_t{1} << 48) ||
          elements > (int64_t{1} << 48) / d.get<int64_t>())
        refuse_index(where, fmt::format("tensor {}: bad shape {}", printable(name), printable(shape.dump())));
      dims.push_back(d.get<int64_t>());
      elements *= dims.back();
    }
    shapes[name] = dims;
    index.tensors.emplace_back(name, std::move(dims));
  }
  const json& slices = field(root, "slices", where);
  if (!slices.is_array()) refuse_index(where, "\"slices\" expects a list");
  for (const json& item : slices) {
    CheckpointSlice s;
    s.tensor = text(item, "tensor", where);
    const auto it = shapes.find(s.tensor);
    if (it == shapes.end())
      refuse_index(where, fmt::format("a slice of tensor \"{}\", which is not listed", printable(s.tensor)));
    const std::string at = fmt::format("{}: slice of {}", where, printable(s.tensor));
    s.part = parse_part(item, it->second, version, at);
    s.file = text(item, "file", at);
    s.key = text(item, "key", at);
    s.checksum = text(item, "xxh3", at);
    if (!is_plain_file_name(s.file)) refuse_index(at, fmt::format("file name \"{}\"", printable(s.file)));
    index.slices.push_back(std::move(s));
  }
  check_coverage(index, where);
  return index;
}

int64_t step_of_folder(const std::string& name) {
  constexpr std::string_view kPrefix = "step-";
  if (!name.starts_with(kPrefix)) return -1;
  int64_t step = -1;
  const char *begin = name.data() + kPrefix.size(), *end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(begin, end, step);
  return error == std::errc() && rest == end && *begin != '-' ? step : -1;
}

std::vector<std::string> list_checkpoints(const std::string& dir) {
  std::vector<std::pair<int64_t, std::string>> found;
  if (!path_exists(dir, Exit::checkpoint)) return {};
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    const int64_t step = step_of_folder(it->path().filename().string());
    std::error_code unreadable;  // one folder's trouble does not hide the others
    if (step >= 0 && fs::exists(it->path() / "DONE", unreadable)) found.emplace_back(step, it->path().string());
  }
  // What cannot be read is not empty: a run would begin anew beside what it has.
  if (error)
    fail(Exit::checkpoint, fmt::format("cannot read the folder {}: {}", dir, error.message()),
         "check checkpoint.dir, its permissions and its file system");
  std::sort(found.begin(), found.end());
  std::vector<std::string> folders;
  for (auto& [step, folder] : found) folders.push_back(std::move(folder));
  return folders;
}

std::string newest_checkpoint(const std::string& dir) {
  const std::vector<std::string> all = list_checkpoints(dir);
  return all.empty() ? std::string() : all.back();
}

RunSpec read_stored_run(const std::string& folder, const std::vector<std::string>& overrides) {
  return parse_run_text(read_checkpoint_index(folder).run_toml, folder + "/index.json: run", overrides);
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
    source = read_text_file(where, kCheckpointIndexLimit);
  } catch (const Error& error) {
    fail(Exit::checkpoint, error.what(), kDamagedCheckpoint);
  }
  const std::string checksum = xxh3_hex(std::as_bytes(std::span(source)));
  if (done != checksum + "\n")
    refuse_index(where, fmt::format("its checksum is {}, DONE says \"{}\"", checksum,
                                    printable(done.substr(0, done.find('\n')))));
  return parse_checkpoint_index(source, where);
}

}  // namespace mw
