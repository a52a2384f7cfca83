// Typed access to one object of a Hugging Face `config.json`.
#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

namespace mw {

// Every message names the file and the field. Errors: config; null counts as absent.
class HfFields {
 public:
  HfFields(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {}

  bool has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }

  // There, and null.
  bool is_null(const char* key) const { return object_.contains(key) && object_.at(key).is_null(); }

  int64_t integer(const char* key) const {
    const nlohmann::json& value = get(key, "an integer");
    if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{1} << 62)
      wrong(key, "an integer below 2^62", value);
    if (!value.is_number_integer()) wrong(key, "an integer", value);
    return value.get<int64_t>();
  }
  int64_t integer_or(const char* key, int64_t fallback) const { return has(key) ? integer(key) : fallback; }
  // What stands under any of its names; the first is named where there is none.
  int64_t integer_of(std::initializer_list<const char*> names) const {
    std::optional<int64_t> found;
    for (const char* key : names) {
      if (!has(key)) continue;
      const int64_t value = integer(key);
      if (found && *found != value) wrong(key, fmt::format("the value of its other name, {}", *found), raw(key));
      found = value;
    }
    return found ? *found : integer(*names.begin());
  }
  double real(const char* key) const {
    const nlohmann::json& value = get(key, "a number");
    if (!value.is_number()) wrong(key, "a number", value);
    return value.get<double>();
  }
  double real_or(const char* key, double fallback) const { return has(key) ? real(key) : fallback; }
  bool flag_or(const char* key, bool fallback) const {
    if (!has(key)) return fallback;
    if (!object_.at(key).is_boolean()) wrong(key, "true or false", object_.at(key));
    return object_.at(key).get<bool>();
  }
  bool flag(const char* key) const {
    get(key, "true or false");
    return flag_or(key, false);
  }
  std::string text(const char* key) const {
    const nlohmann::json& value = get(key, "a string");
    if (!value.is_string()) wrong(key, "a string", value);
    return value.get<std::string>();
  }
  const nlohmann::json& raw(const char* key) const { return object_.at(key); }
  const std::string& where() const { return where_; }

  [[noreturn]] void wrong(const char* key, const std::string& expected, const nlohmann::json& got) const {
    fail(Exit::config, fmt::format("{}: \"{}\" expects {}, got {}", where_, key, expected, printable(got.dump())),
         fmt::format("correct \"{}\" in this file, or download the model's config.json again", key));
  }
  [[noreturn]] void unsupported(const std::string& what) const {
    fail(Exit::unsupported, fmt::format("{}: {} is not supported yet", where_, what),
         "use a model without it; docs/limits.md lists what is missing");
  }

 private:
  const nlohmann::json& get(const char* key, const char* expected) const {
    if (!has(key))
      fail(Exit::config, fmt::format("{}: \"{}\" is missing, expected {}", where_, key, expected),
           fmt::format("add \"{}\" to this file, or download the model's config.json again", key));
    return object_.at(key);
  }
  const nlohmann::json& object_;
  std::string where_;
};

}  // namespace mw
