// Event-based (SAX) parser for JSON of untrusted files: it builds nothing in memory and limits nesting.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mw {

// Handler interface; every default ignores the event. Handlers reject a document by throwing mw::Error.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual void on_begin(bool is_object) { (void)is_object; }  // '{' or '['
  virtual void on_end() {}                                    // '}' or ']'
  virtual void on_key(std::string& key) { (void)key; }
  virtual void on_string(std::string& text) { (void)text; }
  virtual void on_integer(int64_t value) { (void)value; }
  virtual void on_number(double value) {  // a fraction, an exponent, or beyond 64 bits
    (void)value;
    on_other("a number that is not a 64-bit integer");
  }
  virtual void on_other(const char* kind) { (void)kind; }  // null, a boolean...: `kind` names it, for a message
};

// Parses all of `text` (strict JSON: no NaN, comments or trailing bytes). Duplicate keys are left to the handler.
// Errors: Exit::data naming `where` and the offset, on bad syntax or more than `max_depth` open brackets.
void parse_json_events(std::string_view text, std::string_view where, int max_depth, JsonEvents& events);

}  // namespace mw
