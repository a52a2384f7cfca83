#include <sentencepiece_processor.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "formats/tokens/tokenizer.h"

namespace mw {
namespace {

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string path, std::shared_ptr<const sentencepiece::SentencePieceProcessor> model)
      : path_(std::move(path)), model_(std::move(model)) {}

  std::unique_ptr<Tokenizer> clone() const override { return std::make_unique<SentencePieceTokenizer>(path_, model_); }
  int64_t vocab_size() const override { return model_->GetPieceSize(); }
  bool has(int32_t id) const override { return id >= 0 && id < vocab_size(); }
  bool is_special(int32_t id) const override { return has(id) && model_->IsControl(id); }

  void encode(std::string_view text, std::vector<int32_t>& ids) override {
    if (!is_utf8(text))
      fail(Exit::data, fmt::format("a text to tokenize is not UTF-8: \"{}\"", printable(text, 60)),
           "convert it to UTF-8 first");
    std::vector<int> found;
    check(model_->Encode({text.data(), text.size()}, &found));
    ids.insert(ids.end(), found.begin(), found.end());
  }

  std::string decode(std::span<const int32_t> ids) const override {
    for (const int32_t id : ids)
      if (!has(id))
        fail(Exit::data, fmt::format("{} has no token {}", path_, id), "the ids come from another tokenizer");
    std::string text;
    check(model_->Decode(std::vector<int>(ids.begin(), ids.end()), &text));
    return text;
  }

  std::optional<int32_t> id_of(std::string_view token) const override {
    const int id = model_->PieceToId({token.data(), token.size()});
    const bool known = id >= 0 && id < vocab_size() && model_->IdToPiece(id) == token;  // else the unknown token
    return known ? std::optional(id) : std::nullopt;
  }
  std::optional<int32_t> end_of_document() const override {
    const int id = model_->eos_id();
    return id >= 0 ? std::optional(id) : std::nullopt;
  }
  std::string describe() const override { return fmt::format("SentencePiece {}, {} tokens", path_, vocab_size()); }

 private:
  void check(const sentencepiece::util::Status& status) const {
    if (!status.ok())
      fail(Exit::data, fmt::format("{}: {}", path_, printable(status.ToString(), 300)),
           "the file may be damaged: download it again");
  }

  std::string path_;
  std::shared_ptr<const sentencepiece::SentencePieceProcessor> model_;
};

}  // namespace

std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& path) {
  const std::string bytes = read_text_file(path);
  auto model = std::make_shared<sentencepiece::SentencePieceProcessor>();
  const auto status = model->LoadFromSerializedProto(bytes);
  if (!status.ok())
    fail(Exit::data, fmt::format("{}: no SentencePiece model: {}", path, printable(status.ToString(), 300)),
         "the file is damaged, or has another format");
  return std::make_unique<SentencePieceTokenizer>(path, std::move(model));
}

}  // namespace mw
