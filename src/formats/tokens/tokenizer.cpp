#include "formats/tokens/tokenizer.h"

#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace mw {
namespace {

// eos_token of the tokenizer_config.json beside `path`, "" when nothing says so.
std::string end_of_document_name(const std::string& path) {
  const std::string config = (std::filesystem::path(path).parent_path() / "tokenizer_config.json").native();
  if (!path_exists(config)) return {};
  const nlohmann::json fields = parse_json(read_text_file(config), config, Exit::data);
  if (!fields.is_object() || !fields.contains("eos_token")) return {};
  const nlohmann::json& token = fields["eos_token"];
  if (token.is_string()) return token.get<std::string>();
  if (token.is_object() && token.contains("content") && token["content"].is_string())
    return token["content"].get<std::string>();
  return {};
}

// "" where the folder has none.
std::string tokenizer_of_folder(const std::string& dir) {
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    const std::string file = (std::filesystem::path(dir) / name).native();
    if (path_exists(file)) return file;
  }
  return {};
}

class ByteTokenizer final : public Tokenizer {
 public:
  std::unique_ptr<Tokenizer> clone() const override { return make_byte_tokenizer(); }
  int64_t vocab_size() const override { return 256; }
  bool has(int32_t id) const override { return id >= 0 && id < vocab_size(); }
  bool is_special(int32_t) const override { return false; }
  void encode(std::string_view text, std::vector<int32_t>& ids) override {
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (!has(id)) fail(Exit::data, fmt::format("{} is not a byte", id), "the ids come from another tokenizer");
      text += static_cast<char>(id);
    }
    return text;
  }
  std::optional<int32_t> id_of(std::string_view token) const override {
    return token.size() == 1 ? std::optional<int32_t>(static_cast<unsigned char>(token[0])) : std::nullopt;
  }
  std::optional<int32_t> end_of_document() const override { return 0; }
  std::string describe() const override { return "bytes"; }
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

bool has_tokenizer_file(const std::string& dir) { return !tokenizer_of_folder(dir).empty(); }

std::string find_tokenizer_file(const std::string& path) {
  if (!path_exists(path)) fail(Exit::data, fmt::format("{} is not there", path), "name a tokenizer or its folder");
  std::error_code ignored;  // it is there
  if (!std::filesystem::is_directory(path, ignored)) return path;
  if (const std::string file = tokenizer_of_folder(path); !file.empty()) return file;
  fail(Exit::data, fmt::format("{} holds neither tokenizer.json nor tokenizer.model", path), "name the file itself");
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path) {
  const std::string file = find_tokenizer_file(path);
  if (file.ends_with(".json")) return open_bpe_tokenizer(file, end_of_document_name(file));
  if (file.ends_with(".model")) return open_sentencepiece(file);
  fail(Exit::data, fmt::format("{}: expected a tokenizer.json or a SentencePiece .model", file),
       "the suffix tells the kind");
}

}  // namespace mw
