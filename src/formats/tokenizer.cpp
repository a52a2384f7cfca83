#include "formats/tokenizer.h"

#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"

namespace mw {
namespace {

// eos_token of the tokenizer_config.json beside `path`, "" when nothing says so.
std::string end_of_document_name(const std::string& path) {
  const std::string config = (std::filesystem::path(path).parent_path() / "tokenizer_config.json").native();
  if (!path_exists(config)) return {};
  const nlohmann::json json = parse_json(read_text_file(config), config, Exit::data);
  if (!json.is_object() || !json.contains("eos_token")) return {};
  const nlohmann::json& token = json["eos_token"];
  if (token.is_string()) return token.get<std::string>();
  if (token.is_object() && token.contains("content") && token["content"].is_string())
    return token["content"].get<std::string>();
  return {};
}

}  // namespace

std::string find_tokenizer_file(const std::string& path) {
  if (!path_exists(path)) fail(Exit::data, fmt::format("{} is not there", path), "name a tokenizer or its folder");
  std::error_code ignored;  // it is there
  if (!std::filesystem::is_directory(path, ignored)) return path;
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    const std::string file = (std::filesystem::path(path) / name).native();
    if (path_exists(file)) return file;
  }
  fail(Exit::data, fmt::format("{} holds neither tokenizer.json nor tokenizer.model", path), "name the file itself");
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path) {
  const std::string file = find_tokenizer_file(path);
  if (has_suffix(file, ".json")) return open_bpe_tokenizer(file, end_of_document_name(file));
  if (has_suffix(file, ".model")) return open_sentencepiece(file);
  fail(Exit::data, fmt::format("{}: expected a tokenizer.json or a SentencePiece .model", file),
       "the suffix tells the kind");
}

}  // namespace mw
