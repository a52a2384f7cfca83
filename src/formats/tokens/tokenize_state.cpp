#include "formats/tokens/tokenize_state.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"

namespace mw {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kFormat = "moewright-tokenize";
constexpr int kVersion = 2;
constexpr int64_t kLargestCount = int64_t{1} << 60;  // no file or count comes near
constexpr const char* kRestart = "start over with --restart";

ordered_json settings_json(const TokenizeSettings& settings) {
  ordered_json inputs = ordered_json::array();
  for (const TokenizeSettings::Input& input : settings.inputs)
    inputs.push_back({{"path", input.path}, {"size", input.size}, {"modified_ns", input.modified_ns}});
  return {{"tokenizer_xxh3", settings.tokenizer_xxh3},
          {"key", settings.key},
          {"chat", settings.chat},
          {"end_of_document", settings.end_of_document},
          {"token_type", settings.token_type},
          {"inputs", inputs}};
}

const json& field(const json& object, const char* name, const std::string& path) {
  if (!object.is_object() || !object.contains(name))
    fail(Exit::data, fmt::format("{}: the field \"{}\" is missing", path, name), kRestart);
  return object[name];
}

int64_t count(const json& object, const char* name, const std::string& path) {
  const json& value = field(object, name, path);
  if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() > kLargestCount)
    fail(Exit::data,
         fmt::format("{}: \"{}\" must be an integer of at least 0, got {}", path, name, printable(value.dump())),
         kRestart);
  return value.get<int64_t>();
}

std::string text(const json& object, const char* name, const std::string& path) {
  const json& value = field(object, name, path);
  if (!value.is_string())
    fail(Exit::data, fmt::format("{}: \"{}\" must be a string, got {}", path, name, printable(value.dump())), kRestart);
  return value.get<std::string>();
}

}  // namespace

std::vector<TokenizeSettings::Input> describe_inputs(const std::vector<std::string>& files) {
  std::vector<TokenizeSettings::Input> inputs;
  for (const std::string& path : files) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0)
      fail(Exit::data, fmt::format("cannot access {}: {}", path, std::strerror(errno)),
           "check the path and its permissions");
    inputs.push_back({path, info.st_size, info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec});
  }
  return inputs;
}

void write_tokenize_state(const std::string& path, const TokenizeSettings& settings, const TokenizeState& state) {
  ordered_json file = {{"format", kFormat},
                       {"version", kVersion},
                       {"settings", settings_json(settings)},
                       {"input", state.place.input},
                       {"offset", state.place.offset},
                       {"line", state.place.line},
                       {"consumed", state.consumed},
                       {"replaced_bytes", state.replaced_bytes},
                       {"documents", state.mark.documents},
                       {"bin_bytes", state.mark.bytes},
                       {"bin_xxh3", state.mark.bin_xxh3},
                       {"lengths_xxh3", state.mark.lengths_xxh3},
                       {"mask_xxh3", state.mark.mask_xxh3}};
  if (state.in_loss >= 0) file["in_loss"] = state.in_loss;
  write_text_file_atomically(path, file.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n");
}

TokenizeState read_tokenize_state(const std::string& path, const TokenizeSettings& settings) {
  const json file = parse_json(read_text_file(path), path, Exit::data);
  const std::string format = text(file, "format", path);
  const int64_t version = count(file, "version", path);
  if (format != kFormat || version != kVersion)
    fail(Exit::data,
         fmt::format("{}: expected the format {} of version {}, got {} of version {}", path, kFormat, kVersion,
                     printable(format), version),
         kRestart);
  const json& before = field(file, "settings", path);
  const json now = json::parse(settings_json(settings).dump(-1, ' ', false, json::error_handler_t::replace));
  for (const auto& [name, value] : now.items())
    if (const json& was = field(before, name.c_str(), path); was != value)
      fail(Exit::data,
           fmt::format("{}: \"{}\" differs from that of the interrupted run: it is {}, and was {}", path, name,
                       printable(value.dump()), printable(was.dump())),
           fmt::format("use the tokenizer, options and inputs of that run, or choose another --output; {}", kRestart));
  TokenizeState state;
  state.place = {count(file, "input", path), count(file, "offset", path), count(file, "line", path)};
  state.consumed = count(file, "consumed", path);
  if (file.contains("replaced_bytes")) state.replaced_bytes = count(file, "replaced_bytes", path);  // older runs: none
  state.in_loss = file.contains("in_loss") ? count(file, "in_loss", path) : -1;
  state.mark = {count(file, "documents", path), count(file, "bin_bytes", path), text(file, "bin_xxh3", path),
                text(file, "lengths_xxh3", path), text(file, "mask_xxh3", path)};
  const bool last = state.place.input == std::ssize(settings.inputs);
  if (state.place.input > std::ssize(settings.inputs) || (last && state.place.offset > 0) ||
      state.mark.documents > (int64_t{1} << 40) || state.mark.mask_xxh3.empty() != settings.chat.empty())
    fail(Exit::data, fmt::format("{}: the recorded position is beyond the inputs", path), kRestart);
  return state;
}

}  // namespace mw
