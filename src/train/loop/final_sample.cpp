#include "train/loop/final_sample.h"

#include "train/loop/sample.h"

namespace mw {

FinalSample::FinalSample(Comm& world, const RunSpec& run, const ModelSpec& model) : spec_(run.sample) {
  if (spec_.tokens == 0) return;
  why_none_ = why_no_sample(run);
  if (world.rank() == 0 && why_none_.empty()) {
    try {
      tokenizer_ = open_run_tokenizer(run, model);
    } catch (const Error& error) {
      if (!spec_.tokenizer.empty()) throw;
      why_none_ = fmt::format("{}; {}", error.what(), error.hint());
    }
  }
  why_none_ = broadcast_text(world, why_none_, 0);
}

std::string FinalSample::draw(Engine& engine) const {
  if (spec_.tokens == 0 || !why_none_.empty()) return "";
  std::string text = spec_.prompt;
  const GeneratedText generated =
      generate(engine, tokenizer_.get(), spec_, [&](std::string_view piece) { text += piece; });
  if (generated.ended) text += "\n[end of document]";
  return fmt::format("---- sample, {} tokens after the prompt ----\n{}\n----", generated.tokens, text);
}

}  // namespace mw
