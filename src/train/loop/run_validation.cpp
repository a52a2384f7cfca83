#include "train/loop/run_validation.h"

#include "train/data/comm_ranks.h"
#include "train/loop/sample.h"

namespace mw {

RunValidation::RunValidation(Comm& world, const RunSpec& run, const ModelSpec& model, const SampleOrder& training) {
  const TrainSpec& train = run.train;
  if (train.val_batches > 0) data_ = open_samples(run, model.vocab, true, CommRanks(world));
  if (train.val_batches > 0 && train.val_every > 0 && data_ == nullptr)
    fail(Exit::config, fmt::format("train.val_every = {}, but there is no data to validate on", train.val_every),
         "name some in data.val_path, hold some out by data.val_fraction, or set train.val_every = 0");
  const bool is_text = run.data.kind == DataKind::text;
  if (train.byte_baseline && data_ != nullptr) {
    if (!is_text || !run.data.blend.empty())
      fail(Exit::config, "train.byte_baseline counts the bytes of data.path, with data.kind = \"text\"",
           "set train.byte_baseline = false");
    baseline_ = std::make_unique<ByteCountModel>(training.source());
  }
  if (!train.val_questions.empty()) {
    if (data_ == nullptr)
      fail(Exit::config, "train.val_questions are answered at validations, but there is no data to validate on",
           "name some in data.val_path or hold some out by data.val_fraction, with train.val_batches above 0");
    questions_ = read_questions(train.val_questions);
    tokenizer_ = open_run_tokenizer(run, model);
  } else if (is_text) {
    tokenizer_ = make_byte_tokenizer();
  }
}

std::optional<ValidationReport> RunValidation::run(Engine& engine, int64_t step,
                                                   std::vector<std::string>& lines) const {
  const ValidationResult result =
      validate_model(engine, *data_, {validation_windows(engine.plan.run.train), baseline_.get(), tokenizer_.get()});
  if (result.stopped) return std::nullopt;
  ValidationReport report;
  report.loss = result.all.loss;
  for (const SourceLoss& source : result.sources) report.by_source.push_back(source.loss);
  lines.push_back(fmt::format("validation after step {}: {}", step, describe(result)));
  if (questions_.empty()) return report;
  const ChoiceResult answers = answer_questions(engine, *tokenizer_, questions_);
  if (answers.stopped) return std::nullopt;
  report.accuracy = answers.accuracy;
  lines.push_back(fmt::format("questions after step {}: {}", step, describe(answers)));
  return report;
}

}  // namespace mw
