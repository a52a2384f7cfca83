#include "formats/tokens/text_stream.h"

#include <algorithm>

#include "base/text.h"

namespace mw {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";
constexpr size_t kMostIds = 64;

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

// Bytes that the UTF-8 character with this first byte has.
size_t character_length(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte >= 0xf8 ? 1 : byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
}

// The end of the part of `text` that later tokens cannot change. A character that is cut stands there as its first
// bytes or, from SentencePiece, as one U+FFFD for each of them.
size_t settled_length(std::string_view text) {
  size_t end = text.size();
  for (int i = 0; i < 3 && text.substr(0, end).ends_with(kReplacement); ++i) end -= kReplacement.size();
  if (end < text.size()) return end;
  for (size_t back = 1; back <= std::min<size_t>(3, end); ++back) {
    const char c = text[end - back];
    if (!is_continuation(c)) return character_length(c) > back ? end - back : end;
  }
  return end;
}

}  // namespace

int64_t repair_utf8(std::string_view text, std::string& out) {
  int64_t replaced = 0;
  for (size_t at = 0; at < text.size();) {
    size_t next = at;
    if (next_code_point(text, next)) {
      out.append(text, at, next - at);
      at = next;
    } else {
      out += kReplacement;
      ++replaced;
      ++at;
    }
  }
  return replaced;
}

TextStream::TextStream(const Tokenizer& tokenizer, std::span<const int32_t> context) : tokenizer_(tokenizer) {
  std::copy_if(context.begin(), context.end(), std::back_inserter(ids_), [&](int32_t id) { return tokenizer.has(id); });
  shown_ = tokenizer_.decode(ids_).size();
}

std::string TextStream::add(int32_t id) {
  if (!tokenizer_.has(id)) return finish() + std::string(kReplacement);
  ids_.push_back(id);
  const std::string text = tokenizer_.decode(ids_);
  const std::string piece = take(text, settled_length(text));
  if (ids_.size() < kMostIds || shown_ < text.size()) return piece;
  // decode() may drop a space at the start of all text: only ids that still give the same text may stand first.
  const std::span<const int32_t> last = std::span(ids_).last(kMostIds / 2);
  if (const std::string tail = tokenizer_.decode(last); !tail.empty() && text.ends_with(tail)) {
    ids_.assign(last.begin(), last.end());
    shown_ = tail.size();
  }
  return piece;
}

std::string TextStream::finish() {
  const std::string text = tokenizer_.decode(ids_);
  return take(text, text.size());
}

std::string TextStream::take(const std::string& text, size_t end) {
  std::string piece;
  if (end <= shown_) return piece;
  repair_utf8(std::string_view(text).substr(shown_, end - shown_), piece);
  shown_ = end;
  return piece;
}

}  // namespace mw
