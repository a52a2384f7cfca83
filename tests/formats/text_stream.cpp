#include "formats/tokens/text_stream.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "formats/helpers.h"

namespace mw::test {
namespace {

// A token for each byte, and <end> as 1000: ids between have no token.
std::unique_ptr<Tokenizer> byte_level_tokenizer() {
  nlohmann::json vocab = nlohmann::json::object();
  for (int b = 0; b < 256; ++b) vocab[utf8(byte_level_character(static_cast<uint8_t>(b)))] = b;
  const nlohmann::json json = {
      {"added_tokens", {{{"id", 1000}, {"content", "<end>"}, {"special", true}, {"normalized", false}}}},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
  return parse_bpe_tokenizer(json.dump(), "test", "<end>");
}

std::vector<std::string> pieces_of(TextStream& stream, const std::vector<int32_t>& ids) {
  std::vector<std::string> pieces;
  for (const int32_t id : ids) pieces.push_back(stream.add(id));
  pieces.push_back(stream.finish());
  return pieces;
}

std::vector<int32_t> ids_of(std::string_view text) {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

using Pieces = std::vector<std::string>;

TEST(TextStream, HoldsACharacterBackUntilItIsComplete) {
  for (const auto& tokenizer : {make_byte_tokenizer(), byte_level_tokenizer()}) {
    TextStream stream(*tokenizer);
    EXPECT_EQ(pieces_of(stream, ids_of("a中é")), (Pieces{"a", "", "", "中", "", "é", ""}));
  }
}

TEST(TextStream, PutsTheReplacementCharacterForWhatIsNoUtf8) {
  const auto tokenizer = make_byte_tokenizer();
  TextStream cut(*tokenizer);
  EXPECT_EQ(pieces_of(cut, ids_of("x\xe4\xb8")), (Pieces{"x", "", "", "\ufffd\ufffd"}));
  TextStream broken(*tokenizer);
  EXPECT_EQ(pieces_of(broken, ids_of("\xff"
                                     "a\x80")),
            (Pieces{"\ufffd", "a", "\ufffd", ""}));
}

TEST(TextStream, ShowsAnIdWithoutATokenAsTheReplacementCharacter) {
  const auto tokenizer = byte_level_tokenizer();
  TextStream stream(*tokenizer);
  EXPECT_EQ(pieces_of(stream, {'a', 999, 'b', 1000}), (Pieces{"a", "\ufffd", "b", "<end>", ""}));
}

TEST(TextStream, LeavesOutTheContext) {
  const auto tokenizer = byte_level_tokenizer();
  TextStream stream(*tokenizer, ids_of("the prompt"));
  EXPECT_EQ(stream.add('!'), "!");
}

// Longer than what it keeps of the ids.
TEST(TextStream, GivesTheWholeTextOfManyTokens) {
  const auto tokenizer = byte_level_tokenizer();
  std::string text, got;
  for (int i = 0; i < 300; ++i) text += i % 3 == 0 ? "é" : i % 7 == 0 ? "😀" : "a b";
  TextStream stream(*tokenizer);
  for (const std::string& piece : pieces_of(stream, ids_of(text))) got += piece;
  EXPECT_EQ(got, text);
}

}  // namespace
}  // namespace mw::test
