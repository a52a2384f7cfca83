// Strict JSON: nlohmann-json, but duplicate keys and deep nesting are errors.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"

namespace mw {

// Errors: `code` with the position; duplicate keys, nesting deeper than 64 and trailing text are refused. `where` names
// the file.
nlohmann::json parse_json(std::string_view text, const std::string& where, Exit code);

}  // namespace mw
