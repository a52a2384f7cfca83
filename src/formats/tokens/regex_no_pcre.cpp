#include "base/error.h"
#include "formats/tokens/regex.h"

namespace mw {

struct Regex::Program {};

Regex::Regex(std::string_view, bool, const std::string& where) {
  fail(Exit::unsupported, fmt::format("{}: tokenizer.json files need PCRE2, but this build has none", where),
       "install libpcre2-dev and build again");
}

void Regex::find_all(std::string_view, std::vector<TextSpan>&) const {}

}  // namespace mw
