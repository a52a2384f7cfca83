#include "train/loop/console.h"

#include <cstdio>

#include "base/text.h"

namespace mw {

void Console::print(const std::string& text, size_t columns) {
  std::fputs(((columns > 0 ? wrap_text(text, columns, 4) : text) + "\n").c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace mw
