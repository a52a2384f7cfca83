#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"
#include "base/text.h"
#include "formats/tokens/regex.h"

namespace mw {
namespace {

constexpr uint32_t kMatchLimit = 50'000'000, kHeapLimitKib = 1 << 20;
// White_Space of Unicode. PCRE2's own \s holds U+180E too, which Unicode has taken out.
constexpr std::string_view kSpaces =
    "\\t-\\r\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};

bool is_script(std::string_view name) {
  const std::string pattern = fmt::format("\\p{{sc:{}}}", name);
  int error = 0;
  size_t at = 0;
  const std::unique_ptr<pcre2_code, FreeCode> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF, &error, &at, nullptr));
  return code != nullptr;
}

// "{Name}" or "{^Name}" at the start of `text`, "" where there is none. By the name of a script alone PCRE2 also means
// characters that other scripts use with it.
std::string property_at(std::string_view text, size_t& size) {
  const size_t close = text.find('}');
  size = text.empty() || text.front() != '{' || close == std::string_view::npos ? 0 : close + 1;
  if (size == 0) return "";
  std::string_view name = text.substr(1, close - 1);
  const bool is_negated = !name.empty() && name.front() == '^';
  if (is_negated) name.remove_prefix(1);
  return fmt::format("{{{}{}{}}}", is_negated ? "^" : "", is_script(name) ? "sc:" : "", name);
}

// The pattern as PCRE2 has to see it to mean the same. Escapes that mean other things to other libraries (\w, \b,
// \h) are refused.
std::string translate(std::string_view pattern, const std::string& where) {
  std::string out;
  bool in_set = false, set_is_empty = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const bool first_in_set = std::exchange(set_is_empty, false);
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      if (next == 's') out += in_set ? std::string(kSpaces) : fmt::format("[{}]", kSpaces);
      else if (next == 'S' && !in_set) out += fmt::format("[^{}]", kSpaces);
      else if (is_letter(next) && std::string_view("dDpPrntfvxu").find(next) == std::string_view::npos)
        fail(Exit::unsupported,
             fmt::format("{}: \\{} in the pattern \"{}\" is not supported yet", where, next, printable(pattern, 200)),
             "replace it by an explicit set of characters: regex libraries disagree about its meaning");
      else out += {c, next};
      if (next == 'p' || next == 'P') {
        size_t size = 0;
        out += property_at(pattern.substr(i + 1), size);
        i += size;
      }
      continue;
    }
    if (in_set && (c == '[' || pattern.substr(i, 2) == "&&"))
      fail(Exit::unsupported,
           fmt::format("{}: a nested set in the pattern \"{}\" is not supported yet", where, printable(pattern, 200)),
           "write the set without nested brackets or &&");
    if (!in_set && c == '[') in_set = set_is_empty = true;
    else if (in_set && c == '^' && first_in_set) set_is_empty = true;
    else if (in_set && c == ']' && !first_in_set) in_set = false;
    out += c;
  }
  return out;
}

std::string message_of(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

}  // namespace

struct Regex::Program {
  std::string where;
  pcre2_code* code = nullptr;
  pcre2_match_context* limits = nullptr;

  Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    pcre2_match_context_free(limits);
    pcre2_code_free(code);
  }
};

Regex::Regex(std::string_view pattern, bool literal, const std::string& where) {
  const std::string text = literal ? std::string(pattern) : translate(pattern, where);
  // As Oniguruma reads Ruby's dialect: ^ and $ stand at lines.
  const uint32_t options = PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE);
  auto program = std::make_shared<Program>();
  program->where = where;
  int error = 0;
  size_t at = 0;
  program->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), options, &error, &at, nullptr);
  if (program->code == nullptr)
    fail(Exit::data,
         fmt::format("{}: cannot compile the pattern \"{}\": {} at byte {}", where, printable(text, 200),
                     message_of(error), at),
         "write the pattern in the syntax of PCRE2, or download the file again if it is damaged");
  program->limits = pcre2_match_context_create(nullptr);
  if (program->limits == nullptr) throw std::bad_alloc();
  pcre2_set_match_limit(program->limits, kMatchLimit);
  pcre2_set_heap_limit(program->limits, kHeapLimitKib);
  pcre2_jit_compile(program->code, PCRE2_JIT_COMPLETE);  // where the CPU has none, the interpreter runs
  program_ = std::move(program);
}

void Regex::find_all(std::string_view text, std::vector<TextSpan>& spans) const {
  spans.clear();
  const std::unique_ptr<pcre2_match_data, FreeMatchData> data(pcre2_match_data_create(1, nullptr));
  if (data == nullptr) throw std::bad_alloc();
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const auto match = [&](size_t from, uint32_t options) {
    return pcre2_match(program_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | options, data.get(),
                       program_->limits);
  };
  for (size_t from = 0; from <= text.size();) {
    int found = match(from, 0);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = match(from, PCRE2_NO_JIT);
    if (found == PCRE2_ERROR_NOMATCH) return;
    if (found < 0)
      fail(Exit::data,
           fmt::format("{}: matching the pattern failed on a text of {} bytes: {}", program_->where, text.size(),
                       message_of(found)),
           "split the text into smaller documents");
    const size_t* span = pcre2_get_ovector_pointer(data.get());
    if (span[0] > span[1])  // \K in a look-ahead can do this
      fail(Exit::data, fmt::format("{}: the pattern matched a range that ends before it begins", program_->where),
           "remove \\K from look-around assertions of the pattern");
    // An empty match where the last one ended is none: the next one begins a character later.
    if (span[0] == span[1] && !spans.empty() && spans.back().end == span[0]) {
      if (from < text.size()) next_code_point(text, from);
      else ++from;
      continue;
    }
    spans.push_back({span[0], span[1]});
    from = span[1];
  }
}

}  // namespace mw
