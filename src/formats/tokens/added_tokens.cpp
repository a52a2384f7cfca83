#include "formats/tokens/added_tokens.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace mw {
namespace {

unsigned char first_byte(const AddedToken& token) { return static_cast<unsigned char>(token.content.front()); }

// White_Space of Unicode.
bool is_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

size_t spaces_at_start(std::string_view text) {
  size_t end = 0;
  for (size_t at = 0; at < text.size(); end = at) {
    const std::optional<uint32_t> code = next_code_point(text, at);
    if (!code || !is_space(*code)) break;
  }
  return end;
}

size_t spaces_at_end(std::string_view text) {
  size_t begin = text.size();
  while (begin > 0) {
    size_t start = begin - 1;
    while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xc0) == 0x80) --start;
    size_t at = start;
    const std::optional<uint32_t> code = next_code_point(text, at);
    if (!code || !is_space(*code)) break;
    begin = start;
  }
  return text.size() - begin;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  for (const AddedToken& token : tokens_) MW_CHECK(!token.content.empty(), "an added token without text");
  std::sort(tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) {
    if (first_byte(a) != first_byte(b)) return first_byte(a) < first_byte(b);
    return a.content.size() > b.content.size();
  });
  for (size_t i = 0; i < tokens_.size(); ++i) {
    auto& [begin, end] = by_byte_[first_byte(tokens_[i])];
    if (begin == end) begin = i;
    end = i + 1;
  }
}

const AddedToken* AddedTokenFinder::longest_at(std::string_view rest) const {
  const auto [begin, end] = by_byte_[static_cast<unsigned char>(rest.front())];
  for (size_t i = begin; i < end; ++i)
    if (rest.starts_with(tokens_[i].content)) return &tokens_[i];
  return nullptr;
}

std::vector<TextPart> AddedTokenFinder::cut(std::string_view text) const {
  std::vector<TextPart> parts;
  size_t done = 0;        // what lies before is in parts
  size_t spaces_end = 0;  // of the last white space that a token took
  for (size_t at = 0; at < text.size();) {
    const AddedToken* token = longest_at(text.substr(at));
    if (token == nullptr) {
      ++at;
      continue;
    }
    const size_t end = at + token->content.size();
    // A token within the white space that the last one took is found all the same, and its end ends that one's.
    size_t begin = at;
    if (token->strip_left) begin = at > done ? at - spaces_at_end(text.substr(done, at - done)) : done;
    if (begin > done) parts.push_back({text.substr(done, begin - done), -1});
    if (token->strip_right && end > spaces_end) spaces_end = end + spaces_at_start(text.substr(end));
    done = token->strip_right ? spaces_end : end;
    if (done > begin) parts.push_back({text.substr(begin, done - begin), token->id});
    at = end;
  }
  if (done < text.size()) parts.push_back({text.substr(done), -1});
  return parts;
}

}  // namespace mw
