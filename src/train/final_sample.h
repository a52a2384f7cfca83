// The sample that a training prints at its end, where sample.tokens asks for one.
#pragma once

#include <memory>
#include <string>

#include "formats/tokenizer.h"
#include "train/engine.h"

namespace mw {

class FinalSample {
 public:
  // Opens the tokenizer before the training, so that what is wrong with it shows then. Collective over `world`. Errors:
  // those of a tokenizer that sample.tokenizer names; any other reason goes into why_none().
  FinalSample(Comm& world, const RunSpec& run, const ModelSpec& model);

  // Why there will be no sample, on every rank; "" where there will be one, or none is asked for.
  const std::string& why_none() const { return why_none_; }

  // The prompt and what follows, framed for the log, on rank 0; "" where there is none. Collective.
  std::string draw(Engine& engine) const;

 private:
  SampleSpec spec_;
  std::unique_ptr<Tokenizer> tokenizer_;  // of rank 0
  std::string why_none_;
};

}  // namespace mw
