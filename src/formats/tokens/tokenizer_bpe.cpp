// Byte-level BPE of a tokenizer.json: added tokens, normalization, cuts into words, merges of bytes.
#include <array>
#include <functional>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "formats/tokens/bpe.h"
#include "formats/tokens/byte_level.h"
#include "formats/tokens/regex.h"
#include "formats/tokens/tokenizer.h"
#include "formats/tokens/tokenizer_json.h"

namespace mw {
namespace {

struct Split {
  Regex regex;
  SplitBehavior behavior;
  bool invert;
};

// What all clones share; never changed after it is made.
struct Tables {
  std::string name;
  AddedTokenFinder raw_added{{}}, normalized_added{{}};  // looked for before and after normalization
  std::vector<Normalization> normalizers;
  std::vector<Split> splits;
  bool prefix_space = false;
  std::vector<Split> word_split;  // GPT-2's, or none
  bool ignore_merges = false;
  std::array<int32_t, 256> byte_ids{};
  BpeMerges merges{0};
  std::unordered_map<std::string, int32_t> ids;    // by the name in the file
  std::unordered_map<std::string, int32_t> words;  // by bytes: what a word can become in one step
  std::vector<std::string> texts;                  // by id
  std::vector<bool> known;                         // by id: ids may have gaps
  std::vector<bool> special;                       // by id
  std::optional<int32_t> end_of_document;
};

std::string normalize_all(std::string_view text, const std::vector<Normalization>& forms) {
  std::string out(text);
  for (const Normalization form : forms) out = normalize(out, form);
  return out;
}

int32_t require_id(const Tables& tables, const std::string& name, size_t merge) {
  const auto found = tables.ids.find(name);
  if (found == tables.ids.end())
    fail(Exit::data,
         fmt::format("{}: model.merges[{}]: \"{}\" is not in the vocabulary", tables.name, merge, printable(name)),
         "the file is damaged");
  return found->second;
}

void fill_vocabulary(Tables& tables, const TokenizerJson& file) {
  const auto add = [&](const std::string& name, int32_t id, std::string text) {
    const auto index = static_cast<size_t>(id);
    if (index >= tables.texts.size()) {
      tables.texts.resize(index + 1);
      tables.known.resize(index + 1);
      tables.special.resize(index + 1);
    }
    tables.texts[index] = std::move(text);
    tables.known[index] = true;
    tables.ids[name] = id;
  };
  for (const auto& [name, id] : file.vocab) {
    const std::optional<std::string> bytes = byte_level_bytes(name);
    if (bytes) tables.words[*bytes] = id;
    add(name, id, bytes.value_or(name));
  }
  for (const AddedToken& token : file.added) {
    add(token.content, token.id, token.content);
    tables.special[static_cast<size_t>(token.id)] = token.special;
  }
  for (int b = 0; b < 256; ++b) {
    const auto found = tables.words.find(std::string(1, static_cast<char>(b)));
    if (found == tables.words.end())
      fail(Exit::unsupported,
           fmt::format("{}: a vocabulary without a token for byte 0x{:02x} is not supported yet", tables.name, b),
           "a byte-level tokenizer is trained with the alphabet of all bytes");
    tables.byte_ids[static_cast<size_t>(b)] = found->second;
  }
}

void fill_merges(Tables& tables, const TokenizerJson& file) {
  tables.merges = BpeMerges(file.merges.size());
  for (size_t i = 0; i < file.merges.size(); ++i) {
    const auto& [left, right] = file.merges[i];
    tables.merges.set(require_id(tables, left, i), require_id(tables, right, i),
                      {static_cast<uint32_t>(i), require_id(tables, left + right, i)});
  }
}

std::shared_ptr<const Tables> make_tables(const TokenizerJson& file, const std::string& where,
                                          const std::string& end_of_document) {
  auto tables = std::make_shared<Tables>();
  tables->name = where;
  tables->normalizers = file.normalizers;
  std::vector<AddedToken> raw, normalized;
  for (AddedToken token : file.added) {
    if (token.normalized) token.content = normalize_all(token.content, file.normalizers);
    (token.normalized ? normalized : raw).push_back(std::move(token));
  }
  tables->raw_added = AddedTokenFinder(std::move(raw));
  tables->normalized_added = AddedTokenFinder(std::move(normalized));
  for (const SplitRule& rule : file.splits)
    tables->splits.push_back({Regex(rule.pattern, rule.literal, where), rule.behavior, rule.invert});
  tables->prefix_space = file.prefix_space;
  if (file.byte_level_split)
    tables->word_split.push_back({Regex(kByteLevelPattern, false, where), SplitBehavior::isolated, false});
  tables->ignore_merges = file.ignore_merges;
  fill_vocabulary(*tables, file);
  fill_merges(*tables, file);
  if (!end_of_document.empty()) {
    const auto found = tables->ids.find(end_of_document);
    if (found != tables->ids.end()) tables->end_of_document = found->second;
  }
  return tables;
}

// Words seen lately and their tokens. A word has one place, which the next word of that place takes.
class WordCache {
 public:
  struct Entry {
    std::string word;  // empty: free
    std::vector<int32_t> ids;
  };
  static constexpr size_t kLongestWord = 64;

  // The place of `word`, which holds it or another one.
  Entry& at(std::string_view word) { return entries_[std::hash<std::string_view>()(word) % entries_.size()]; }

 private:
  std::vector<Entry> entries_ = std::vector<Entry>(1 << 15);
};

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(std::shared_ptr<const Tables> tables) : tables_(std::move(tables)) {}

  std::unique_ptr<Tokenizer> clone() const override { return std::make_unique<BpeTokenizer>(tables_); }
  int64_t vocab_size() const override { return std::ssize(tables_->texts); }
  bool has(int32_t id) const override {
    return id >= 0 && id < vocab_size() && tables_->known[static_cast<size_t>(id)];
  }
  bool is_special(int32_t id) const override { return has(id) && tables_->special[static_cast<size_t>(id)]; }

  void encode(std::string_view text, std::vector<int32_t>& ids) override {
    if (!is_utf8(text))
      fail(Exit::data, fmt::format("a text to tokenize is not UTF-8: \"{}\"", printable(text, 60)),
           "convert it to UTF-8 first");
    for (const TextPart& part : tables_->raw_added.cut(text)) {
      if (part.id >= 0) {
        ids.push_back(part.id);
        continue;
      }
      const bool as_it_is = tables_->normalizers.empty();
      const std::string normalized = as_it_is ? std::string() : normalize_all(part.text, tables_->normalizers);
      for (const TextPart& inner : tables_->normalized_added.cut(as_it_is ? part.text : normalized)) {
        if (inner.id >= 0) ids.push_back(inner.id);
        else encode_pieces(inner.text, ids);
      }
    }
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (!has(id))
        fail(Exit::data, fmt::format("{} has no token {}", tables_->name, id), "the ids come from another tokenizer");
      text += tables_->texts[static_cast<size_t>(id)];
    }
    return text;
  }

  std::optional<int32_t> id_of(std::string_view token) const override {
    const auto found = tables_->ids.find(std::string(token));
    return found == tables_->ids.end() ? std::nullopt : std::optional(found->second);
  }
  std::optional<int32_t> end_of_document() const override { return tables_->end_of_document; }
  std::string describe() const override {
    return fmt::format("byte-level BPE {}, {} tokens", tables_->name, vocab_size());
  }

 private:
  struct Flagged {
    std::string_view text;
    bool match;
  };

  // Replaces each of `pieces` by what the split makes of it.
  void apply(const Split& split, std::vector<std::string_view>& pieces) {
    std::vector<std::string_view> out;
    out.reserve(pieces.size());
    for (const std::string_view piece : pieces) {
      cut_at_matches(split, piece);
      merge_neighbours(split.behavior);
      for (const Flagged& part : parts_)
        if (!part.text.empty() && !(part.match && split.behavior == SplitBehavior::removed)) out.push_back(part.text);
    }
    pieces = std::move(out);
  }

  void cut_at_matches(const Split& split, std::string_view piece) {
    split.regex.find_all(piece, spans_);
    parts_.clear();
    size_t done = 0;
    for (const TextSpan& span : spans_) {
      if (span.begin > done) parts_.push_back({piece.substr(done, span.begin - done), split.invert});
      parts_.push_back({piece.substr(span.begin, span.end - span.begin), !split.invert});
      done = span.end;
    }
    if (done < piece.size()) parts_.push_back({piece.substr(done), split.invert});
  }

  // Joins parts_ as the behavior says: a match with what stands before or after it, or equal neighbours.
  void merge_neighbours(SplitBehavior behavior) {
    if (behavior == SplitBehavior::isolated || behavior == SplitBehavior::removed) return;
    const auto joins = [&](const Flagged& left, const Flagged& right) {
      if (behavior == SplitBehavior::contiguous) return left.match == right.match;
      if (behavior == SplitBehavior::merged_with_previous) return right.match && !left.match;
      return left.match && !right.match;
    };
    std::vector<Flagged> merged;
    Flagged last{{}, false};  // the part of parts_ that stands at the end of `merged`
    for (const Flagged& part : parts_) {
      if (!merged.empty() && joins(last, part))
        merged.back().text = {merged.back().text.data(), merged.back().text.size() + part.text.size()};
      else merged.push_back(part);
      last = part;
    }
    parts_ = std::move(merged);
  }

  void encode_pieces(std::string_view text, std::vector<int32_t>& ids) {
    std::vector<std::string_view> pieces = {text};
    for (const Split& split : tables_->splits) apply(split, pieces);
    if (!tables_->prefix_space) {
      for (const Split& split : tables_->word_split) apply(split, pieces);
      forget_large();
      for (const std::string_view word : pieces) encode_one(word, ids);
      return;
    }
    forget_large();
    for (const std::string_view piece : pieces) {
      const std::string prefixed = piece.front() == ' ' ? std::string(piece) : ' ' + std::string(piece);
      std::vector<std::string_view> words = {prefixed};
      for (const Split& split : tables_->word_split) apply(split, words);
      for (const std::string_view word : words) encode_one(word, ids);
    }
  }

  // What a large document took is not kept until the next one: it is many times the text, on every thread.
  void forget_large() {
    constexpr size_t kKept = size_t{1} << 16;
    if (spans_.capacity() > kKept) std::vector<TextSpan>().swap(spans_);
    if (parts_.capacity() > kKept) std::vector<Flagged>().swap(parts_);
  }

  void encode_one(std::string_view word, std::vector<int32_t>& ids) {
    if (word.size() > WordCache::kLongestWord) {
      encode_uncached(word, ids);
      return;
    }
    WordCache::Entry& entry = cache_.at(word);
    if (entry.word != word) {
      entry.ids.clear();
      encode_uncached(word, entry.ids);
      entry.word = word;
    }
    ids.insert(ids.end(), entry.ids.begin(), entry.ids.end());
  }

  void encode_uncached(std::string_view word, std::vector<int32_t>& ids) const {
    if (tables_->ignore_merges) {
      const auto found = tables_->words.find(std::string(word));
      if (found != tables_->words.end()) {
        ids.push_back(found->second);
        return;
      }
    }
    encode_word(tables_->merges, tables_->byte_ids, word, ids);
  }

  std::shared_ptr<const Tables> tables_;
  WordCache cache_;
  std::vector<TextSpan> spans_;  // of the text at hand
  std::vector<Flagged> parts_;
};

}  // namespace

std::unique_ptr<Tokenizer> parse_bpe_tokenizer(std::string_view json, const std::string& where,
                                               const std::string& end_of_document) {
  return std::make_unique<BpeTokenizer>(make_tables(parse_tokenizer_json(json, where), where, end_of_document));
}

std::unique_ptr<Tokenizer> open_bpe_tokenizer(const std::string& path, const std::string& end_of_document) {
  return parse_bpe_tokenizer(read_text_file(path), path, end_of_document);
}

}  // namespace mw
