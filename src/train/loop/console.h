// Console output of a run, with line wrapping.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>

namespace mw {

// The console of one rank: only the leader prints.
class Console {
 public:
  // columns: width for wrapping; 0: no wrapping.
  Console(bool prints, size_t columns) : prints_(prints), columns_(columns) {}

  size_t columns() const { return columns_; }

  template <class... T>
  void say(fmt::format_string<T...> format, T&&... arguments) const {
    if (prints_) print(fmt::format(format, std::forward<T>(arguments)...), columns_);
  }

 private:
  static void print(const std::string& text, size_t columns);

  bool prints_;
  size_t columns_;
};

}  // namespace mw
