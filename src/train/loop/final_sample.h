// The text sample that a training run prints at its end, if sample.tokens is set.
#pragma once

#include <memory>
#include <string>

#include "engine/engine.h"
#include "formats/tokens/tokenizer.h"

namespace mw {

class FinalSample {
 public:
  // Opens the tokenizer before training, so that errors show early. Collective over `world`. Errors: those of a
  // tokenizer that sample.tokenizer names; other problems are reported by why_none().
  FinalSample(Comm& world, const RunSpec& run, const ModelSpec& model);

  // The reason why there will be no sample, on every rank; "" where there will be one, or none is requested.
  const std::string& why_none() const { return why_none_; }

  // The prompt and its continuation, framed for the log, on rank 0; "" on other ranks and where there is no sample.
  // Collective.
  std::string draw(Engine& engine) const;

 private:
  SampleSpec spec_;
  std::unique_ptr<Tokenizer> tokenizer_;  // null on other ranks
  std::string why_none_;
};

}  // namespace mw
