#include "train/loop/choices.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/tokens/token_file.h"
#include "ops/cross_entropy.h"
#include "train/loop/signals.h"
#include "train/loop/token_choice.h"
#include "train/loop/validation.h"

namespace mw {
namespace {

Question read_question(const std::string& line, const std::string& where) {
  constexpr const char* kExample =
      "each line is an object such as {\"context\": \"2 + 2 =\", \"choices\": [\" 3\", \" 4\"], \"answer\": 1}";
  nlohmann::json json;
  try {
    json = parse_json(line, where, Exit::data);
  } catch (const Error& error) {
    fail(error.code(), error.what(), kExample);
  }
  const auto refuse = [&](const std::string& what) { fail(Exit::data, fmt::format("{}: {}", where, what), kExample); };
  const auto field = [&](const char* name, auto is_right, const char* kind) {
    const auto found = json.is_object() ? json.find(name) : json.end();
    if (found == json.end()) refuse(fmt::format("the field \"{}\" is missing", name));
    if (!is_right(*found)) refuse(fmt::format("\"{}\" must be {}, got {}", name, kind, printable(found->dump(), 60)));
    return *found;
  };
  const auto is_text = [](const nlohmann::json& value) { return value.is_string(); };
  const auto is_choice = [](const nlohmann::json& value) {
    return value.is_string() && !value.get<std::string>().empty();
  };
  const auto are_choices = [&](const nlohmann::json& value) {
    return value.is_array() && value.size() > 1 && std::all_of(value.begin(), value.end(), is_choice);
  };
  Question question;
  question.context = field("context", is_text, "a text");
  question.choices = field("choices", are_choices, "a list of two or more texts that are not empty");
  const auto is_index = [&](const nlohmann::json& value) {
    return value.is_number_integer() && value >= 0 && value < question.choices.size();
  };
  question.answer = field("answer", is_index, "the index of a choice, from 0");
  return question;
}

// What is computed for a choice: all tokens, and how many of them come before the choice.
struct Row {
  std::vector<int32_t> tokens;
  size_t before = 0;
};

Row make_row(Tokenizer& tokenizer, const Question& question, const std::string& choice, int64_t seq_len, int64_t vocab,
             const std::string& where) {
  Row row;
  std::vector<int32_t> context;
  tokenizer.encode(question.context, context);
  tokenizer.encode(question.context + choice, row.tokens);
  row.before = context.size();
  if (row.tokens.size() <= row.before)
    fail(Exit::data, fmt::format("{}: the choice \"{}\" has no tokens after the context", where, printable(choice, 60)),
         "write the space between both at the beginning of the choice");
  if (context.empty()) {
    row.tokens.insert(row.tokens.begin(), std::max(tokenizer.end_of_document().value_or(0), 0));
    row.before = 1;
  }
  const auto most = static_cast<size_t>(seq_len) + 1;
  if (row.tokens.size() - row.before > most - 1)
    fail(Exit::data,
         fmt::format("{}: a choice has {} tokens, more than train.seq_len = {}", where, row.tokens.size() - row.before,
                     seq_len),
         "set a larger train.seq_len");
  if (row.tokens.size() > most) {
    const size_t cut = row.tokens.size() - most;
    row.tokens.erase(row.tokens.begin(), row.tokens.begin() + static_cast<std::ptrdiff_t>(cut));
    row.before -= cut;
  }
  check_tokens(row.tokens, vocab, where);
  return row;
}

// This rank's part of the rows, one sequence each, as long as the longest. Missing rows have no labels.
MicroBatch make_batch(const Plan& plan, std::span<const Row> rows) {
  MicroBatch batch;
  batch.sequences = plan.batch.sequences;
  for (const Row& row : rows) batch.seq_len = std::max(batch.seq_len, std::ssize(row.tokens) - 1);
  const auto size = static_cast<size_t>(batch.sequences * batch.seq_len);
  batch.ids.assign(size, 0);
  batch.labels.assign(size, kIgnoreLabel);
  if (plan.run.data.document_mask) batch.document_starts.assign(size, 0);
  for (int64_t b = 0; b < batch.sequences && plan.batch.first + b < std::ssize(rows); ++b) {
    const Row& row = rows[static_cast<size_t>(plan.batch.first + b)];
    const auto begin = static_cast<size_t>(b * batch.seq_len);
    for (size_t t = 0; t + 1 < row.tokens.size(); ++t) {
      batch.ids[begin + t] = row.tokens[t];
      if (t + 1 >= row.before) batch.labels[begin + t] = row.tokens[t + 1];
    }
  }
  return batch;
}

// Index of the smallest loss, each divided by its weight.
int64_t best_of(std::span<const double> losses, std::span<const double> weights) {
  size_t best = 0;
  for (size_t c = 1; c < losses.size(); ++c)
    if (losses[c] / weights[c] < losses[best] / weights[best]) best = c;
  return static_cast<int64_t>(best);
}

}  // namespace

std::vector<Question> read_questions(const std::string& path) {
  std::vector<Question> questions;
  std::istringstream lines(read_text_file(path));
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    questions.push_back(read_question(line, fmt::format("{}, line {}", path, number)));
  }
  if (questions.empty())
    fail(Exit::data, fmt::format("{} holds no questions", path), "write one JSON object on each line");
  return questions;
}

std::string describe(const ChoiceResult& result) {
  return fmt::format("accuracy {:.4f}, per byte {:.4f}, of {}", result.accuracy, result.accuracy_per_byte,
                     counted(result.questions, "question"));
}

ChoiceResult answer_questions(Engine& engine, Tokenizer& tokenizer, std::span<const Question> questions) {
  const Plan& plan = engine.plan;
  std::vector<Row> rows;
  for (size_t q = 0; q < questions.size(); ++q)
    for (const std::string& choice : questions[q].choices)
      rows.push_back(make_row(tokenizer, questions[q], choice, plan.run.train.seq_len, plan.model.vocab,
                              fmt::format("question {}", q + 1)));
  const auto together = static_cast<size_t>(plan.batch.all);
  std::vector<double> losses(rows.size());
  ChoiceResult result;
  for (size_t begin = 0; begin < rows.size() && !result.stopped; begin += together) {
    const MicroBatch batch = make_batch(plan, std::span(rows).subspan(begin, std::min(together, rows.size() - begin)));
    const std::vector<double> own = sequence_losses(engine, stage(engine, std::span(&batch, 1)).front());
    const size_t first = begin + static_cast<size_t>(plan.batch.first);
    for (size_t b = 0; b < own.size() && first + b < rows.size(); ++b) losses[first + b] += own[b];
    result.stopped = stop_requested(engine.world);
  }
  engine.world.all_reduce_sum(std::span(losses));
  size_t at = 0;
  // Every comparison with NaN is false: the first choice would win.
  if (!std::all_of(losses.begin(), losses.end(), [](double loss) { return std::isfinite(loss); }))
    fail(Exit::numeric, "the loss of a choice is not finite", kNotFiniteHint);
  int64_t right = 0, right_per_byte = 0;
  for (const Question& question : questions) {
    const size_t count = question.choices.size();
    std::vector<double> bytes;
    for (const std::string& choice : question.choices) bytes.push_back(static_cast<double>(choice.size()));
    const std::span<const double> of_choices = std::span<const double>(losses).subspan(at, count);
    right += best_of(of_choices, std::vector<double>(count, 1.0)) == question.answer ? 1 : 0;
    right_per_byte += best_of(of_choices, bytes) == question.answer ? 1 : 0;
    at += count;
  }
  result.questions = std::ssize(questions);
  const auto all = static_cast<double>(std::max<int64_t>(result.questions, 1));
  result.accuracy = static_cast<double>(right) / all;
  result.accuracy_per_byte = static_cast<double>(right_per_byte) / all;
  return result;
}

}  // namespace mw
