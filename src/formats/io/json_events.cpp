#include "formats/io/json_events.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"

namespace mw {
namespace {

constexpr const char* kJsonHint = "the file is damaged or has another format: check the path, or write the file again";

class Adapter final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Adapter(std::string_view where, int max_depth, JsonEvents& events)
      : where_(where), max_depth_(max_depth), events_(events) {}

  bool null() override { return events_.on_other("null"), true; }
  bool boolean(bool) override { return events_.on_other("a boolean"), true; }
  bool number_integer(number_integer_t value) override { return events_.on_integer(value), true; }
  bool number_unsigned(number_unsigned_t value) override {
    if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      events_.on_integer(static_cast<int64_t>(value));
    } else {
      events_.on_number(static_cast<double>(value));
    }
    return true;
  }
  bool number_float(number_float_t value, const string_t&) override { return events_.on_number(value), true; }
  bool string(string_t& text) override { return events_.on_string(text), true; }
  bool binary(binary_t&) override { return false; }  // never sent for JSON text
  bool start_object(std::size_t) override { return begin(true); }
  bool key(string_t& name) override { return events_.on_key(name), true; }
  bool end_object() override { return end(); }
  bool start_array(std::size_t) override { return begin(false); }
  bool end_array() override { return end(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    fail(Exit::data, fmt::format("{}: bad JSON near byte {}: {}", where_, position, printable(e.what(), 200)),
         kJsonHint);
  }

 private:
  bool begin(bool is_object) {
    if (++depth_ > max_depth_) {
      fail(Exit::data, fmt::format("{}: the JSON is nested more than {} levels deep", where_, max_depth_), kJsonHint);
    }
    return events_.on_begin(is_object), true;
  }
  bool end() {
    --depth_;
    return events_.on_end(), true;
  }

  std::string_view where_;
  int max_depth_;
  int depth_ = 0;
  JsonEvents& events_;
};

}  // namespace

void parse_json_events(std::string_view text, std::string_view where, int max_depth, JsonEvents& events) {
  // The lexer takes a zero byte for the end of its input, which would hide whatever follows it.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {
    fail(Exit::data, fmt::format("{}: bad JSON: a zero byte at offset {}", where, zero), kJsonHint);
  }
  Adapter adapter(where, max_depth, events);
  nlohmann::json::sax_parse(text.begin(), text.end(), &adapter);
}

}  // namespace mw
