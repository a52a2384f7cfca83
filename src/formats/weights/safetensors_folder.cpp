// A model folder: one file, or an index and its shards.
#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/weights/safetensors.h"

namespace mw {
namespace {

constexpr size_t kIndexLimit = size_t{512} << 20;  // bytes: five million tensors; the largest public model needs 9 MB
constexpr const char* kFolderHint = "the folder is incomplete or mixes two models: download it again";

}  // namespace

std::map<std::string, std::string> parse_safetensors_index(std::string_view text, std::string_view path_for_messages) {
  const std::string path(path_for_messages);
  const nlohmann::json index = parse_json(text, path, Exit::data);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (map == index.end() || !map->is_object()) {
    fail(Exit::data, fmt::format("{}: expected an object with a key \"weight_map\" that is an object", path),
         kFolderHint);
  }
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !is_plain_file_name(file.get_ref<const std::string&>())) {
      fail(Exit::data,
           fmt::format("{}: weight_map, tensor \"{}\": expected a file name within the folder, got {}", path,
                       printable(tensor), file.is_string() ? printable(file.get<std::string>()) : file.type_name()),
           kFolderHint);
    }
    files.emplace(tensor, file.get<std::string>());
  }
  return files;
}

void SafetensorsSet::add_tensors() {
  for (const SafetensorsFile& file : files_) {
    for (const SafetensorsEntry& entry : file.entries()) {
      const auto [at, is_new] = tensors_.emplace(entry.name, SafetensorsLocation{&file, &entry});
      if (!is_new) {
        fail(Exit::data,
             fmt::format("tensor \"{}\" is in two files: {} and {}", printable(entry.name), at->second.file->path(),
                         file.path()),
             kFolderHint);
      }
    }
  }
}

SafetensorsLocation SafetensorsSet::find(std::string_view name) const {
  const auto at = tensors_.find(name);
  return at == tensors_.end() ? SafetensorsLocation{} : at->second;
}

SafetensorsLocation SafetensorsSet::require(std::string_view name) const {
  const SafetensorsLocation location = find(name);
  if (!location) {
    fail(Exit::data, fmt::format("{}: tensor \"{}\" is missing{}", path_, printable(name), did_you_mean(name, names())),
         kOtherWeights);
  }
  return location;
}

std::vector<std::string> SafetensorsSet::names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& item : tensors_) names.emplace_back(item.first);
  std::sort(names.begin(), names.end());
  return names;
}

SafetensorsSet open_safetensors_folder(const std::string& dir) {
  const std::string single = dir + "/model.safetensors";
  const std::string index = dir + "/model.safetensors.index.json";
  std::error_code ignored;
  SafetensorsSet set;
  set.path_ = dir;
  if (std::filesystem::exists(single, ignored)) {
    set.files_.emplace_back(single);
    set.add_tensors();
    return set;
  }
  if (!std::filesystem::exists(index, ignored)) {
    fail(Exit::data, fmt::format("{}: expected model.safetensors or model.safetensors.index.json, got neither", dir),
         "name a Hugging Face model folder with safetensors weights");
  }
  const auto file_of = parse_safetensors_index(read_text_file(index, kIndexLimit), index);
  std::set<std::string> shards;
  for (const auto& item : file_of) shards.insert(item.second);
  for (const std::string& shard : shards) {
    const std::string path = dir + "/" + shard;
    if (!std::filesystem::exists(path, ignored)) {
      fail(Exit::data, fmt::format("{}: the index lists {}, but the file does not exist", index, printable(shard)),
           kFolderHint);
    }
    set.files_.emplace_back(path);
  }
  set.add_tensors();
  for (const auto& [tensor, shard] : file_of) {
    const SafetensorsLocation at = set.find(tensor);
    if (!at || at.file->path() != dir + "/" + shard) {
      fail(Exit::data, fmt::format("{}: tensor \"{}\" is not in {}", index, printable(tensor), printable(shard)),
           kFolderHint);
    }
  }
  return set;
}

}  // namespace mw
