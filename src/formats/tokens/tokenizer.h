// The tokenizer interface: text to token ids and back, independent of the tokenizer's file format.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mw {

// Not thread-safe; clone() returns another one that shares the tables.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::unique_ptr<Tokenizer> clone() const = 0;
  virtual int64_t vocab_size() const = 0;  // largest id + 1
  virtual bool has(int32_t id) const = 0;  // ids below vocab_size() may have gaps
  // Whether the id is that of a mark, such as the end of a document, not of text.
  virtual bool is_special(int32_t id) const = 0;
  // Appends the ids of `text`, which must be UTF-8. Special tokens that occur in the text become their ids, as in
  // Hugging Face; none is added at the ends. Errors: Exit::data when the text is not UTF-8 or a pattern takes too many
  // steps.
  virtual void encode(std::string_view text, std::vector<int32_t>& ids) = 0;
  // The text of the ids, including special tokens. It may not be valid UTF-8 where a character is split. Errors:
  // Exit::data on an id without a token.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  virtual std::optional<int32_t> id_of(std::string_view token) const = 0;
  // The token that ends a document, as named by the files beside the tokenizer or by the tokenizer itself.
  virtual std::optional<int32_t> end_of_document() const = 0;
  virtual std::string describe() const = 0;  // one line: "byte-level BPE tokenizer.json, 128256 tokens"
};

// Whether the folder `dir` contains a file that open_tokenizer can read.
bool has_tokenizer_file(const std::string& dir);

// The file that open_tokenizer reads: `path` itself, or tokenizer.json or tokenizer.model in the folder `path`. Errors:
// Exit::data when it does not exist.
std::string find_tokenizer_file(const std::string& path);

// Opens a Hugging Face tokenizer.json, a SentencePiece *.model, or a folder that contains one. Errors: Exit::data
// naming the file and the field when it is damaged; Exit::unsupported naming a feature that is not implemented.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path);

// Byte tokenizer: ids 0 to 255, for any text, UTF-8 or not. Byte 0 ends a document.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

// The file formats one by one. `end_of_document` is the name of a token, or empty.
std::unique_ptr<Tokenizer> open_bpe_tokenizer(const std::string& path, const std::string& end_of_document);
std::unique_ptr<Tokenizer> parse_bpe_tokenizer(std::string_view json, const std::string& where,
                                               const std::string& end_of_document);
std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& path);

}  // namespace mw
