#include "train/loop/final_sample.h"

#include "train/loop/sample.h"

namespace mw {

// The reason why the layout of a training run cannot generate, or "".
static std::string why_no_sample(const RunSpec& run) {
  // The one sequence is cut over TP, and a rank would count its part for a whole one.
  if (run.mesh.tp > 1 && run.moe.tp_mode != MoeTpMode::ted && run.moe.capacity_factor > 0 &&
      run.moe.capacity_domain == CapacityDomain::sequence)
    return "a capacity per sequence needs mesh.tp = 1 there";
  return "";
}

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
      generate(engine, tokenizer_.get(), spec_, {spec_.prompt}, [&](size_t, std::string_view piece) {
        text += piece;
      }).front();
  if (generated.ended) text += "\n[end of document]";
  return fmt::format("---- sample, {} tokens after the prompt ----\n{}\n----", generated.tokens, text);
}

}  // namespace mw
