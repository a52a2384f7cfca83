// Any bytes as a Hugging Face config.json: accepted or mw::Error, nothing else. What is accepted is consistent, and is
// written as a config that reads back the same.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "config/hf_config.h"
#include "config/param_table.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  mw::ModelSpec model;
  try {
    model = mw::parse_hf_config(std::string(reinterpret_cast<const char*>(data), size), "fuzz");
  } catch (const mw::Error& e) {
    if ((e.code() != mw::Exit::config && e.code() != mw::Exit::unsupported) || e.hint().empty()) std::abort();
    return 0;
  }
  if (mw::parameter_count(model) < mw::active_parameter_count(model) || mw::active_parameter_count(model) < 1)
    std::abort();
  if (model.moe_layer_count() == 0) return 0;  // no family to export to
  // Outside a try block: what was written must be accepted, also with all that the source says beyond it.
  model.mtp_layers = 0;  // none are written
  const std::string written = mw::write_hf_config(model, "float32");
  if (mw::parse_hf_config(written, "written") != model) std::abort();
  const std::string source(reinterpret_cast<const char*>(data), size);
  if (mw::parse_hf_config(mw::extend_hf_config(written, source, "fuzz"), "extended") != model) std::abort();
  return 0;
}
