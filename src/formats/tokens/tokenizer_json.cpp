#include "formats/tokens/tokenizer_json.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

namespace mw {
namespace {

using nlohmann::json;

constexpr int64_t kIdLimit = 1 << 24;
constexpr const char* kTokenizerHint = "the file is damaged, or is no tokenizer.json";

// A value of the file and its place in it, for messages.
struct Node {
  const json& value;
  std::string place;  // "tokenizer.json: model.vocab"
};

[[noreturn]] void fail_type(const Node& node, const char* expected) {
  fail(Exit::data, fmt::format("{}: expected {}, got {}", node.place, expected, node.value.type_name()),
       kTokenizerHint);
}

[[noreturn]] void fail_unsupported(const Node& node, const std::string& what) {
  fail(Exit::unsupported, fmt::format("{}: {} is not supported yet", node.place, what),
       "byte-level BPE as GPT-2, Llama 3, Qwen and DeepSeek use it is; SentencePiece .model files are");
}

bool has(const Node& object, const char* key) {
  if (!object.value.is_object()) fail_type(object, "an object");
  return object.value.contains(key) && !object.value[key].is_null();
}

Node get(const Node& object, const char* key) {
  if (!has(object, key)) fail(Exit::data, fmt::format("{}: no field \"{}\"", object.place, key), kTokenizerHint);
  return {object.value[key], fmt::format("{}.{}", object.place, key)};
}

std::string text_of(const Node& node) {
  if (!node.value.is_string()) fail_type(node, "a text");
  return node.value.get<std::string>();
}

std::string text_or(const Node& object, const char* key, const char* otherwise) {
  return has(object, key) ? text_of(get(object, key)) : otherwise;
}

bool flag_or(const Node& object, const char* key, bool otherwise) {
  if (!has(object, key)) return otherwise;
  const Node node = get(object, key);
  if (!node.value.is_boolean()) fail_type(node, "true or false");
  return node.value.get<bool>();
}

int32_t id_of(const Node& node) {
  if (!node.value.is_number_integer()) fail_type(node, "an id");
  const auto id = node.value.get<int64_t>();
  if (id < 0 || id >= kIdLimit)
    fail(Exit::data, fmt::format("{}: expected an id in [0, {}), got {}", node.place, kIdLimit, id), kTokenizerHint);
  return static_cast<int32_t>(id);
}

// What a field that changes the tokens may not be: it would be passed over in silence.
void expect_fields(const Node& object, const std::vector<std::string>& known) {
  if (!object.value.is_object()) fail_type(object, "an object");
  for (const auto& [key, value] : object.value.items())
    if (std::find(known.begin(), known.end(), key) == known.end() && !value.is_null())
      fail_unsupported(object, fmt::format("the field \"{}\"", printable(key)));
}

template <class Read>
void each(const Node& list, Read read) {
  if (!list.value.is_array()) fail_type(list, "a list");
  for (size_t i = 0; i < list.value.size(); ++i) read(Node{list.value[i], fmt::format("{}[{}]", list.place, i)});
}

void read_normalizer(const Node& node, TokenizerJson& file) {
  const std::string type = text_of(get(node, "type"));
  expect_fields(node, {"type", "normalizers"});
  if (type == "Sequence") each(get(node, "normalizers"), [&](const Node& item) { read_normalizer(item, file); });
  else if (type == "NFC") file.normalizers.push_back(Normalization::nfc);
  else if (type == "NFD") file.normalizers.push_back(Normalization::nfd);
  else if (type == "NFKC") file.normalizers.push_back(Normalization::nfkc);
  else if (type == "NFKD") file.normalizers.push_back(Normalization::nfkd);
  else fail_unsupported(node, fmt::format("the normalizer \"{}\"", printable(type)));
}

SplitBehavior behavior_of(const Node& node) {
  const std::string name = text_of(node);
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  fail_unsupported(node, fmt::format("the behavior \"{}\"", printable(name)));
}

SplitRule read_split(const Node& node) {
  expect_fields(node, {"type", "pattern", "behavior", "invert"});
  const Node pattern = get(node, "pattern");
  expect_fields(pattern, {"Regex", "String"});
  SplitRule rule;
  rule.literal = !has(pattern, "Regex");
  rule.pattern = text_of(get(pattern, rule.literal ? "String" : "Regex"));
  rule.behavior = behavior_of(get(node, "behavior"));
  rule.invert = flag_or(node, "invert", false);
  return rule;
}

// Returns whether the step turns text into the byte alphabet: nothing can follow it.
bool read_pre_tokenizer(const Node& node, TokenizerJson& file) {
  const std::string type = text_of(get(node, "type"));
  if (type == "Sequence") {
    expect_fields(node, {"type", "pretokenizers"});
    bool bytes = false;
    each(get(node, "pretokenizers"), [&](const Node& item) {
      if (bytes) fail_unsupported(item, "a step after ByteLevel");
      bytes = read_pre_tokenizer(item, file);
    });
    return bytes;
  }
  if (type == "ByteLevel") {
    expect_fields(node, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
    file.prefix_space = flag_or(node, "add_prefix_space", true);
    file.byte_level_split = flag_or(node, "use_regex", true);
    return true;
  }
  if (type == "Split") {
    file.splits.push_back(read_split(node));
  } else if (type == "Digits") {
    expect_fields(node, {"type", "individual_digits"});
    const bool single = flag_or(node, "individual_digits", false);
    file.splits.push_back({"\\p{N}", false, single ? SplitBehavior::isolated : SplitBehavior::contiguous, false});
  } else {
    fail_unsupported(node, fmt::format("the pre-tokenizer \"{}\"", printable(type)));
  }
  return false;
}

void read_added_token(const Node& node, TokenizerJson& file) {
  expect_fields(node, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  AddedToken token;
  token.id = id_of(get(node, "id"));
  token.content = text_of(get(node, "content"));
  if (token.content.empty())
    fail(Exit::data, fmt::format("{}: an added token without text", node.place), kTokenizerHint);
  if (flag_or(node, "single_word", false)) fail_unsupported(node, "an added token with \"single_word\"");
  token.strip_left = flag_or(node, "lstrip", false);
  token.strip_right = flag_or(node, "rstrip", false);
  token.special = flag_or(node, "special", false);
  token.normalized = flag_or(node, "normalized", !token.special);
  file.added.push_back(std::move(token));
}

void read_model(const Node& node, TokenizerJson& file) {
  if (const std::string type = text_or(node, "type", "BPE"); type != "BPE")
    fail_unsupported(node, fmt::format("the model \"{}\"", printable(type)));
  expect_fields(node, {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                       "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (has(node, "dropout")) {
    const Node dropout = get(node, "dropout");
    if (!dropout.value.is_number() || dropout.value.get<double>() != 0) fail_unsupported(node, "\"dropout\"");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!text_or(node, key, "").empty()) fail_unsupported(node, fmt::format("\"{}\"", key));
  if (flag_or(node, "byte_fallback", false)) fail_unsupported(node, "\"byte_fallback\"");
  file.ignore_merges = flag_or(node, "ignore_merges", false);
  const Node vocab = get(node, "vocab");
  if (!vocab.value.is_object()) fail_type(vocab, "an object");
  for (const auto& [name, id] : vocab.value.items())
    file.vocab.emplace_back(name, id_of({id, fmt::format("{} \"{}\"", vocab.place, printable(name))}));
  each(get(node, "merges"), [&](const Node& item) {
    if (item.value.is_array() && item.value.size() == 2) {
      file.merges.emplace_back(text_of({item.value[0], item.place}), text_of({item.value[1], item.place}));
      return;
    }
    const std::string pair = text_of(item);
    const size_t space = pair.find(' ');
    if (space == std::string::npos || pair.find(' ', space + 1) != std::string::npos)
      fail(Exit::data, fmt::format("{}: expected two tokens, got \"{}\"", item.place, printable(pair)), kTokenizerHint);
    file.merges.emplace_back(pair.substr(0, space), pair.substr(space + 1));
  });
}

// An id has one name; an added token may stand in the vocabulary too.
void check_ids(const TokenizerJson& file, const std::string& where) {
  std::unordered_map<int32_t, std::string> names;
  std::unordered_map<std::string, int32_t> ids;
  const auto add = [&](const std::string& name, int32_t id) {
    const std::string& known = names.try_emplace(id, name).first->second;
    const int32_t known_id = ids.try_emplace(name, id).first->second;
    if (known != name || known_id != id)
      fail(Exit::data,
           fmt::format("{}: token \"{}\" has id {}, but \"{}\" has id {}", where, printable(name), id, printable(known),
                       known_id),
           kTokenizerHint);
  };
  for (const auto& [name, id] : file.vocab) add(name, id);
  for (const AddedToken& token : file.added) add(token.content, token.id);
}

}  // namespace

TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where) {
  const json document = parse_json(text, where, Exit::data);
  const Node root{document, where};
  expect_fields(root, {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                       "post_processor", "decoder", "model"});
  for (const char* key : {"truncation", "padding"})
    if (has(root, key)) fail_unsupported(root, fmt::format("\"{}\"", key));
  TokenizerJson file;
  if (has(root, "added_tokens"))
    each(get(root, "added_tokens"), [&](const Node& item) { read_added_token(item, file); });
  if (has(root, "normalizer")) read_normalizer(get(root, "normalizer"), file);
  read_model(get(root, "model"), file);
  if (!has(root, "pre_tokenizer") || !read_pre_tokenizer(get(root, "pre_tokenizer"), file))
    fail_unsupported(root, "a pre_tokenizer that does not end with ByteLevel");
  if (has(root, "decoder"))
    if (const Node decoder = get(root, "decoder"); text_of(get(decoder, "type")) != "ByteLevel")
      fail_unsupported(decoder, fmt::format("the decoder \"{}\"", printable(text_of(get(decoder, "type")))));
  check_ids(file, where);
  return file;
}

}  // namespace mw
