// Validation of a training run: the loss on its validation data, and its answers to questions.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/loop/byte_model.h"
#include "train/loop/choices.h"
#include "train/loop/metrics.h"
#include "train/loop/validation.h"

namespace mw {

class RunValidation {
 public:
  // Opens what the run validates on, if anything. training: its training data. Collective over the world. Errors: data;
  // config, without data for train.val_every or train.val_questions, or with train.byte_baseline but without text; also
  // as open_run_tokenizer, with train.val_questions.
  RunValidation(Comm& world, const RunSpec& run, const ModelSpec& model, const SampleOrder& training);

  const SampleOrder* data() const { return data_.get(); }  // null: the run does not validate

  // Requires data. Adds to `lines` what the log says, "validation after step 3: ...". None when a stop was asked for.
  // Collective over the world.
  std::optional<ValidationReport> run(Engine& engine, int64_t step, std::vector<std::string>& lines) const;

 private:
  std::unique_ptr<SampleOrder> data_;
  std::unique_ptr<ByteCountModel> baseline_;
  std::vector<Question> questions_;
  std::unique_ptr<Tokenizer> tokenizer_;  // of the data and the questions; null: unknown
};

}  // namespace mw
