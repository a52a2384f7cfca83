// Any bytes as a run file, and their first line as an override: accepted or mw::Error, nothing else. What is accepted
// is printed as a run file that reads back the same.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "config/learning_rate.h"
#include "config/param_groups.h"
#include "config/run_spec.h"

namespace {

void parse(const std::string& text, const std::vector<std::string>& overrides) {
  std::string printed;
  mw::RunSpec run;
  const auto is_accepted = [&](const auto& read) {
    try {
      read();
      return true;
    } catch (const mw::Error& e) {
      const bool config = e.code() == mw::Exit::config || (e.code() == mw::Exit::usage && !overrides.empty());
      if (!config || e.hint().empty()) std::abort();
      return false;
    }
  };
  if (!is_accepted([&] { printed = mw::to_toml(run = mw::parse_run_text(text, "fuzz", overrides)); })) return;
  is_accepted([&] { mw::check_learning_rate(run.train); });
  is_accepted([&] { mw::check_param_groups({}, run.train); });
  // What was printed must be accepted.
  if (mw::to_toml(mw::parse_run_text(printed, "printed", {})) != printed) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  parse(text, {});
  const size_t line = text.find('\n');
  parse(line == std::string::npos ? "" : text.substr(line), {text.substr(0, line)});
  return 0;
}
