#include "formats/tokens/tokenizer.h"

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "formats/helpers.h"
#include "formats/tokens/added_tokens.h"
#include "formats/tokens/bpe.h"
#include "formats/tokens/byte_level.h"
#include "formats/tokens/normalize.h"
#include "formats/tokens/regex.h"

namespace mw::test {
namespace {

// GPT-2's cut, all bytes in order, then `words`, each of which the last merge of `merges` makes.
nlohmann::json small_tokenizer(const std::vector<std::array<std::string, 2>>& merges) {
  nlohmann::json vocab = nlohmann::json::object(), list = nlohmann::json::array();
  for (int b = 0; b < 256; ++b) vocab[utf8(byte_level_character(static_cast<uint8_t>(b)))] = b;
  for (const auto& [left, right] : merges) {
    vocab[left + right] = vocab.size();
    list.push_back({left, right});
  }
  return {{"added_tokens", {{{"id", 1000}, {"content", "<end>"}, {"special", true}, {"normalized", false}}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", list}}}};
}

std::vector<int32_t> encode(const nlohmann::json& tokenizer, const std::string& text) {
  std::vector<int32_t> ids;
  parse_bpe_tokenizer(tokenizer.dump(), "test", "<end>")->encode(text, ids);
  return ids;
}

TEST(ByteLevel, RoundTripsEveryByteAndRefusesOtherText) {
  for (int b = 0; b < 256; ++b) {
    const auto byte = static_cast<uint8_t>(b);
    EXPECT_EQ(byte_level_bytes(utf8(byte_level_character(byte))), std::string(1, static_cast<char>(byte)));
  }
  EXPECT_EQ(byte_level_bytes("Ġa"), " a");
  EXPECT_EQ(byte_level_bytes("a b"), std::nullopt);
  EXPECT_EQ(byte_level_bytes("\xc4"), std::nullopt);
}

TEST(Bpe, MergesTheLowestRankFirstAndTheLeftmostOfEqualOnes) {
  BpeMerges merges(3);
  merges.set('a', 'b', {1, 256});
  merges.set('b', 'c', {0, 257});
  merges.set('a', 'a', {2, 258});
  std::array<int32_t, 256> bytes;
  for (int b = 0; b < 256; ++b) bytes[static_cast<size_t>(b)] = b;
  const auto word = [&](std::string_view text) {
    std::vector<int32_t> ids;
    encode_word(merges, bytes, text, ids);
    return ids;
  };
  EXPECT_EQ(word("abc"), (std::vector<int32_t>{'a', 257}));
  EXPECT_EQ(word("abab"), (std::vector<int32_t>{256, 256}));
  EXPECT_EQ(word("aaa"), (std::vector<int32_t>{258, 'a'}));
  EXPECT_EQ(word("aab"), (std::vector<int32_t>{'a', 256}));
  EXPECT_EQ(word(""), std::vector<int32_t>{});
  EXPECT_EQ(merges.find('c', 'a'), nullptr);
}

TEST(AddedTokens, CutsAtTheLongestAndTakesWhiteSpaceAlong) {
  const AddedTokenFinder finder(
      {{1, "<a>", false, false, false}, {2, "<a>b", false, false, false}, {3, "<m>", true, true, false}});
  const auto cut = [&](std::string_view text) {
    std::string out;
    for (const TextPart& part : finder.cut(text))
      out += part.id < 0 ? std::string(part.text) : fmt::format("({}:{})", part.id, part.text);
    return out;
  };
  EXPECT_EQ(cut("x<a>y<a>b"), "x(1:<a>)y(2:<a>b)");
  EXPECT_EQ(cut("x  <m>\u00a0y"), "x(3:  <m>\u00a0)y");
  EXPECT_EQ(cut("<m> <m>"), "(3:<m> )(3:<m>)");
  EXPECT_EQ(cut("<a"), "<a");
  EXPECT_EQ(cut(""), "");
}

// As Hugging Face's tokenizers find them.
TEST(AddedTokens, FindsThoseInWhiteSpaceThatOthersTake) {
  const auto cut = [](std::vector<AddedToken> tokens, std::string_view text) {
    std::vector<int32_t> ids;  // -1: text
    for (const TextPart& part : AddedTokenFinder(std::move(tokens)).cut(text)) ids.push_back(part.id);
    return ids;
  };
  using Ids = std::vector<int32_t>;
  const AddedToken mask{1, "<m>", false, true, false}, lines{2, "\n\n", false, false, false};
  EXPECT_EQ(cut({mask, lines}, "<m>\n\nx"), (Ids{1, 2, -1}));
  EXPECT_EQ(cut({mask, lines}, "<m>\n\n"), (Ids{1, 2}));
  EXPECT_EQ(cut({mask, lines}, "<m>\n\n  x"), (Ids{1, 2, -1}));
  EXPECT_EQ(cut({{1, " <a>", false, true, false}, {2, "<a>", false, false, false}}, " <a> <a>"), (Ids{1, 1}));
  EXPECT_EQ(cut({{1, "  ", true, true, false}}, "      x"), (Ids{1, -1}));  // nothing is left for the others
}

TEST(BpeTokenizer, EncodesWordsAndSpecialTokensAndDecodesThem) {
  const nlohmann::json file = small_tokenizer({{"a", "b"}, {"Ġ", "ab"}, {"ab", "c"}});
  EXPECT_EQ(encode(file, "ab abc<end>"), (std::vector<int32_t>{256, 257, 'c', 1000}));
  EXPECT_EQ(encode(file, ""), std::vector<int32_t>{});
  const std::unique_ptr<Tokenizer> tokenizer = parse_bpe_tokenizer(file.dump(), "test", "<end>");
  EXPECT_EQ(tokenizer->vocab_size(), 1001);
  EXPECT_EQ(tokenizer->end_of_document(), 1000);
  EXPECT_EQ(tokenizer->id_of("Ġab"), 257);
  EXPECT_EQ(tokenizer->id_of("zz"), std::nullopt);
  EXPECT_TRUE(tokenizer->is_special(1000));
  for (const int32_t text_or_none : {-1, 0, 257, 700, 1001}) EXPECT_FALSE(tokenizer->is_special(text_or_none));
  const std::string text = "ab é\n\t漢字😀 <end> 12";
  std::vector<int32_t> ids, again;
  tokenizer->encode(text, ids);
  EXPECT_EQ(tokenizer->decode(ids), text);
  tokenizer->clone()->encode(text, again);
  EXPECT_EQ(again, ids);
  EXPECT_TRUE(contains(error_of([&] { tokenizer->encode("a\xff", ids); }), "not UTF-8: \"a\\xff\""));
  EXPECT_TRUE(contains(error_of([&] { tokenizer->decode(std::vector<int32_t>{700}); }), "no token 700"));
  EXPECT_TRUE(contains(error_of([&] { tokenizer->decode(std::vector<int32_t>{-1}); }), "no token -1"));
}

// Hugging Face's tokenizers pass over an empty match where another one ends: the text after "b" joins "b".
TEST(BpeTokenizer, AnEmptyMatchBehindAnotherIsNone) {
  nlohmann::json file = small_tokenizer({{"b", "a"}, {"a", "b"}});
  file["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "b*"}}}, {"behavior", "MergedWithNext"}, {"invert", false}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  EXPECT_EQ(encode(file, "abac"), (std::vector<int32_t>{'a', 256, 'c'}));
  EXPECT_EQ(encode(file, "ébé"), (std::vector<int32_t>{0xc3, 0xa9, 'b', 0xc3, 0xa9}));
}

// A circled ideograph is no letter of the script Han, though only texts in Han use it.
TEST(BpeTokenizer, AScriptHasItsOwnCharactersAlone) {
  for (const char* han : {R"(\p{Han})", R"([\p{Han}])", R"(\P{^Han})", R"([^\P{Han}])"}) {
    nlohmann::json file = small_tokenizer({});
    file["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"}, {"pattern", {{"Regex", han}}}, {"behavior", "Removed"}, {"invert", false}},
          {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
    EXPECT_EQ(encode(file, "a\u4e00\u32aa"), (std::vector<int32_t>{'a', 0xe3, 0x8a, 0xaa})) << han;
  }
}

TEST(BpeTokenizer, AWordThatIsATokenIsNotMergedWhereTheFileSaysSo) {
  nlohmann::json file = small_tokenizer({{"b", "c"}, {"a", "b"}});
  file["model"]["vocab"]["abc"] = 300;
  EXPECT_EQ(encode(file, "abc"), (std::vector<int32_t>{'a', 256}));
  file["model"]["ignore_merges"] = true;
  EXPECT_EQ(encode(file, "abc"), std::vector<int32_t>{300});
}

TEST(BpeTokenizer, RefusesWhatIsMissing) {
  nlohmann::json file = small_tokenizer({});
  file["model"]["vocab"].erase("a");
  EXPECT_TRUE(contains(error_of([&] { encode(file, "x"); }, Exit::unsupported), "byte 0x61"));
  file = small_tokenizer({});
  file.erase("model");
  EXPECT_TRUE(contains(error_of([&] { encode(file, "x"); }), "no field \"model\""));
}

TEST(Regex, SpacesAreThoseOfUnicodeAndLinesEndAsInRuby) {
  std::vector<TextSpan> spans;
  const auto count = [&](const char* pattern, std::string_view text) {
    Regex(pattern, false, "test").find_all(text, spans);
    return spans.size();
  };
  EXPECT_EQ(count("\\s", " \u00a0\u0085\u180e\u3000"), 4u);
  EXPECT_EQ(count("[^\\s]", " \u00a0\u0085\u180e\u3000"), 1u);
  EXPECT_EQ(count("\\S", " \u00a0\u0085\u180e\u3000"), 1u);
  EXPECT_EQ(count("a+$", "aa\naa"), 2u);
  EXPECT_EQ(count("", "aé"), 3u);
  Regex(".", true, "test").find_all("a.b", spans);
  EXPECT_EQ(spans.size(), 1u);
  const std::string text(300, 'a');
  EXPECT_TRUE(contains(error_of([&] { count("((a|aa)+)+[bc]", text); }), "test: matching the pattern failed"));
}

TEST(Normalize, MakesEachForm) {
  EXPECT_EQ(normalize("e\u0301\ufb01", Normalization::nfc), "é\ufb01");
  EXPECT_EQ(normalize("é\ufb01", Normalization::nfd), "e\u0301\ufb01");
  EXPECT_EQ(normalize("e\u0301\ufb01", Normalization::nfkc), "éfi");
  EXPECT_EQ(normalize("é\ufb01", Normalization::nfkd), "e\u0301fi");
}

TEST(OpenTokenizer, FindsTheFileAndItsEndOfDocument) {
  const ScratchDir folder;
  EXPECT_TRUE(contains(error_of([&] { open_tokenizer(folder.path()); }), "neither tokenizer.json"));
  write_raw(folder / "tokenizer.json", small_tokenizer({}).dump());
  EXPECT_EQ(open_tokenizer(folder.path())->end_of_document(), std::nullopt);
  write_raw(folder / "tokenizer_config.json", R"({"eos_token": "<end>"})");
  EXPECT_EQ(open_tokenizer(folder.path())->end_of_document(), 1000);
  EXPECT_TRUE(contains(error_of([&] { open_tokenizer(folder / "absent"); }), "is not there"));
}

}  // namespace
}  // namespace mw::test
