#include "base/warn.h"

#include <cstdio>
#include <mutex>
#include <set>

namespace mw {

void warn_once(const std::string& text) {
  static std::mutex mutex;
  static std::set<std::string> told;
  const std::lock_guard lock(mutex);
  if (!told.insert(text).second) return;
  std::fputs(("warning: " + text + "\n").c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace mw
