// What a run prints on stdout.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace mw {

constexpr size_t kColumns = 120;  // of log.format = "short"

// Breaks every line that is longer than `columns` at spaces. What follows a break is indented by four more spaces than
// the line. A word that fits into no line stays whole.
std::string wrap_text(std::string_view text, size_t columns);

// Of one rank: the leader's prints, the others' do nothing.
class Console {
 public:
  // columns: where longer lines are broken; 0: nowhere.
  Console(bool prints, size_t columns) : prints_(prints), columns_(columns) {}

  template <class... T>
  void say(fmt::format_string<T...> format, T&&... arguments) const {
    if (prints_) print(fmt::format(format, std::forward<T>(arguments)...), columns_);
  }
  // As it is, however long.
  void say_unbroken(const std::string& text) const {
    if (prints_) print(text, 0);
  }

 private:
  static void print(const std::string& text, size_t columns);

  bool prints_;
  size_t columns_;
};

}  // namespace mw
