#include <cmath>

#include "base/json.h"
#include "cli/run_commands.h"
#include "train/data/comm_ranks.h"
#include "train/loop/choices.h"
#include "train/loop/sample.h"
#include "train/loop/train_step.h"
#include "train/loop/validation.h"

namespace mw {
namespace {

struct EvaluateOptions {
  std::string questions;
  int64_t batch = 8;
  bool all = false, json = false;
};

nlohmann::ordered_json json_of(const SourceLoss& source) {
  nlohmann::ordered_json json = {{"loss", nullptr}, {"perplexity", nullptr}};
  if (source.loss) json = {{"loss", *source.loss}, {"perplexity", std::exp(*source.loss)}};
  if (source.bits_per_byte > 0) json["bits_per_byte"] = source.bits_per_byte;
  json["labels"] = source.labels;
  return json;
}

std::string describe(const SourceLoss& source) {
  if (!source.loss) return "loss -, perplexity -, 0 labels";
  std::string text = fmt::format("loss {:.6f}, perplexity {:.4f}", *source.loss, std::exp(*source.loss));
  if (source.bits_per_byte > 0) text += fmt::format(", {:.4f} bits per byte", source.bits_per_byte);
  return text + fmt::format(", {} labels", source.labels);
}

// What is evaluated: the validation data of the run, or all of its data where none is held out.
struct EvaluatedData {
  std::unique_ptr<SampleOrder> order;  // null: there are questions alone
  bool held_out = true;
};

EvaluatedData open_data(Comm& world, const RunSpec& run, int64_t vocab) {
  const CommRanks ranks(world);
  EvaluatedData data{open_samples(run, vocab, true, ranks)};
  if (data.order != nullptr) return data;
  const char* const key = run.data.blend.empty() ? "data.path" : "data.blend";
  if (world.rank() == 0)
    std::fprintf(stderr,
                 "warning: there is no data to validate on: data.val_fraction = 0 and data.val_path is empty; all of "
                 "%s is evaluated, which a run that trains on it has seen; name other data in data.val_path\n",
                 key);
  return {open_samples(run, vocab, false, ranks), false};
}

// Of the data, or null: then nobody knows the bytes of its tokens.
std::unique_ptr<Tokenizer> tokenizer_for_bytes(const RunSpec& run, const ModelSpec& model, bool leader) {
  try {
    return find_run_tokenizer(run, model);
  } catch (const Error& error) {
    if (!run.sample.tokenizer.empty()) throw;
    if (leader) std::fprintf(stderr, "no bits per byte: %s\n", error.what());
    return nullptr;
  }
}

void print_losses(const ValidationResult& result, const SampleOrder& data, bool held_out) {
  const char* const note = held_out ? "" : ", none of it held out";
  for (size_t k = 0; k < result.sources.size(); ++k)
    std::printf("%s\n  %s\n", data.source(k).describe().c_str(), describe(result.sources[k]).c_str());
  std::printf("%s%s: %s\n", result.sources.empty() ? data.source().describe().c_str() : "all sources", note,
              describe(result.all).c_str());
}

Exit run_evaluate(World& world, const ModelSource& source, const EvaluateOptions& options) {
  RunSpec run = inference_run(source.run, world.comm().size(), options.batch);
  run.sample.tokens = 0;  // generates nothing
  const ModelSpec model = load_model_spec(run);
  const bool leader = world.comm().rank() == 0;
  // Everything that can be wrong with files is found before the model is loaded.
  const bool takes_data = options.all || source.run.train.val_batches > 0;
  if (!takes_data && options.questions.empty())
    fail(Exit::config, "there is nothing to evaluate: train.val_batches = 0",
         "pass --all for every window of the data, --questions FILE, or set train.val_batches above 0");
  const bool has_data = takes_data && (!run.data.path.empty() || !run.data.blend.empty() || !run.data.val_path.empty());
  if (!has_data && options.questions.empty())
    fail(Exit::config, "nothing says what to evaluate: data.val_path, data.path and data.blend are empty",
         "name data, for example data.val_path=FILE, or multiple-choice questions with --questions FILE");
  const EvaluatedData evaluated = has_data ? open_data(world.comm(), run, model.vocab) : EvaluatedData{};
  const SampleOrder* const data = evaluated.order.get();
  if (data != nullptr) check_vocabulary(*data, run, model.vocab);
  std::vector<Question> questions;
  if (!options.questions.empty()) questions = read_questions(options.questions);
  const std::unique_ptr<Tokenizer> tokenizer =
      questions.empty() ? tokenizer_for_bytes(run, model, leader) : open_run_tokenizer(run, model);
  const std::unique_ptr<Engine> engine = make_engine(world, run);
  load_model(*engine, source);

  nlohmann::ordered_json json;
  if (data != nullptr) {
    const int64_t windows = options.all ? 0 : validation_windows(source.run.train);
    const ValidationResult result = validate_model(*engine, *data, {windows, nullptr, tokenizer.get()});
    if (leader && !options.json) print_losses(result, *data, evaluated.held_out);
    json = json_of(result.all);
    json["held_out"] = evaluated.held_out;
    for (size_t k = 0; k < result.sources.size(); ++k) {
      json["sources"].push_back(json_of(result.sources[k]));
      json["sources"].back()["data"] = data->source(k).describe();
    }
  }
  if (!questions.empty()) {
    const ChoiceResult result = answer_questions(*engine, *tokenizer, questions);
    if (leader && !options.json) std::printf("%s: %s\n", options.questions.c_str(), describe(result).c_str());
    json["questions"] = result.questions;
    json["accuracy"] = result.accuracy;
    json["accuracy_per_byte"] = result.accuracy_per_byte;
  }
  if (leader && options.json)
    std::printf("%s\n", json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
  return Exit::ok;
}

}  // namespace

Command add_evaluate_command(CommandLine& line, const Invocation& invocation) {
  Subcommand sub = line.add_command("evaluate", "loss of a trained model on data, and its answers to questions");
  const ModelArguments arguments = add_model_arguments(sub, "data.val_path=FILE or data.blend=[...]");
  auto options = std::make_shared<EvaluateOptions>();
  sub.add_flag("--all", options->all,
               "every window of data.val_path, or of what data.val_fraction holds out of data.path or data.blend, "
               "once; default: as many as train.val_batches says, spread over the data; with "
               "train.val_batches = 0 only questions are answered");
  sub.add_option(
      "--questions", options->questions,
      "multiple-choice questions: JSON lines {\"context\": TEXT, \"choices\": [TEXT, ...], \"answer\": INDEX}");
  sub.add_option("--batch", options->batch, "sequences that a data-parallel rank computes at a time")
      .range(1, 1 << 20)
      .show_default();
  sub.add_flag("--json", options->json, "print one JSON object");
  return {sub, [=] {
            return run_in_world(invocation, [&](World& world) {
              const ModelSource source = find_model(world.comm(), arguments);
              return run_watched(world, source.run.watchdog.seconds,
                                 [&] { return run_evaluate(world, source, *options); });
            });
          }};
}

}  // namespace mw
