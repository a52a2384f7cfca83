#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "base/error.h"
#include "formats/tokens/normalize.h"

namespace mw {
namespace {

utf8proc_option_t options_of(Normalization form) {
  const auto option = [](auto... parts) { return static_cast<utf8proc_option_t>((parts | ...)); };
  switch (form) {
    case Normalization::nfc: return option(UTF8PROC_STABLE, UTF8PROC_COMPOSE);
    case Normalization::nfd: return option(UTF8PROC_STABLE, UTF8PROC_DECOMPOSE);
    case Normalization::nfkc: return option(UTF8PROC_STABLE, UTF8PROC_COMPAT, UTF8PROC_COMPOSE);
    case Normalization::nfkd: return option(UTF8PROC_STABLE, UTF8PROC_COMPAT, UTF8PROC_DECOMPOSE);
  }
  MW_CHECK(false, "unknown normalization {}", static_cast<int>(form));
}

struct Free {
  void operator()(utf8proc_uint8_t* text) const { std::free(text); }
};

}  // namespace

std::string normalize(std::string_view text, Normalization form) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; }))
    return std::string(text);  // every form leaves ASCII as it is
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &mapped, options_of(form));
  const std::unique_ptr<utf8proc_uint8_t, Free> owned(mapped);
  if (size == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  if (size < 0)
    fail(Exit::data, fmt::format("cannot normalize the text: {}", utf8proc_errmsg(size)), "convert the text to UTF-8");
  return std::string(reinterpret_cast<const char*>(mapped), static_cast<size_t>(size));
}

}  // namespace mw
