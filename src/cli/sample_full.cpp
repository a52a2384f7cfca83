#include <algorithm>
#include <cstdio>
#include <sstream>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "cli/run_commands.h"
#include "train/data/data.h"
#include "train/loop/sample.h"
#include "train/loop/train_step.h"

namespace mw {
namespace {

// One prompt per line; the file may begin and its lines may end as on Windows; empty lines are empty prompts. As rank 0
// reads them.
std::vector<std::string> read_prompts(Comm& comm, const std::string& path) {
  std::string text = broadcast_text(comm, comm.rank() == 0 ? read_text_file(path) : "", 0);
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  std::vector<std::string> prompts;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with('\r')) line.pop_back();
    prompts.push_back(line);
  }
  if (prompts.empty())
    fail(Exit::data, fmt::format("{} holds no prompts: it is empty", path), "write one prompt on each line");
  return prompts;
}

// Each data-parallel rank generates all texts.
RunSpec sampling_run(const RunSpec& base, int64_t ranks, int64_t prompts) {
  RunSpec run = inference_run(base, ranks, prompts);
  run.sample.sequences = prompts;
  if (run.sample.tokens == 0) run.sample.tokens = 256;
  if (prompts > 1) run.data.document_mask = true;  // shorter prompts are padded
  return run;
}

bool has_mark(Tokenizer& tokenizer, const std::string& prompt) {
  std::vector<int32_t> ids;
  try {
    tokenizer.encode(prompt, ids);
  } catch (const Error&) {  // which generation reports
    return true;
  }
  return std::any_of(ids.begin(), ids.end(), [&](int32_t id) { return tokenizer.is_special(id); });
}

// A model that learned conversations hardly continues a text without the marks of its template.
void hint_at_chat(const RunSpec& run, Tokenizer& tokenizer, const std::vector<std::string>& prompts) {
  const std::string mask = find_loss_mask(run);
  if (mask.empty()) return;
  if (std::any_of(prompts.begin(), prompts.end(), [&](const std::string& p) { return has_mark(tokenizer, p); })) return;
  std::fprintf(stderr,
               "hint: the training data has a loss mask (%s), as `tokenize --chat` writes it, and the prompt has no "
               "special token: pass --chat TEMPLATE to put the template of the data around it\n",
               printable(mask).c_str());
}

void show_text(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// Prints the prompt and what the model goes on with, as it comes, or by a chat template its answer alone; of the
// prompts of a file, one JSON object per line.
Exit run_sample(World& world, const ModelSource& source, const std::string& prompts_file, const ChatTemplate* form) {
  std::vector<std::string> prompts = {source.run.sample.prompt};
  if (!prompts_file.empty()) prompts = read_prompts(world.comm(), prompts_file);
  const RunSpec run = sampling_run(source.run, world.comm().size(), std::ssize(prompts));
  const ModelSpec model = load_model_spec(run);
  const bool leader = world.comm().rank() == 0;
  const std::unique_ptr<Tokenizer> tokenizer = leader ? open_run_tokenizer(run, model) : nullptr;
  const std::unique_ptr<Engine> owner = make_engine(world, run);
  Engine& engine = *owner;
  load_model(engine, source);
  if (leader && form == nullptr) hint_at_chat(run, *tokenizer, prompts);
  if (prompts_file.empty()) {
    if (leader && form == nullptr) show_text(prompts.front());
    generate(
        engine, tokenizer.get(), run.sample, prompts, [](size_t, std::string_view piece) { show_text(piece); }, form);
    if (leader) show_text("\n");
    return Exit::ok;
  }
  std::vector<std::string> texts(prompts.size());
  const std::vector<GeneratedText> generated = generate(
      engine, tokenizer.get(), run.sample, prompts,
      [&](size_t prompt, std::string_view piece) { texts[prompt] += piece; }, form);
  for (size_t b = 0; leader && b < prompts.size(); ++b) {
    const nlohmann::ordered_json line = {
        {"prompt", prompts[b]}, {"text", texts[b]}, {"tokens", generated[b].tokens}, {"ended", generated[b].ended}};
    show_text(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  }
  return Exit::ok;
}

}  // namespace

Command add_sample_command(CommandLine& line, const Invocation& invocation) {
  Subcommand sub = line.add_command("sample", "continue a prompt with a trained model");
  const ModelArguments arguments = add_model_arguments(sub, "sample.prompt=\"int main(\" sample.tokens=200");
  auto prompts = std::make_shared<std::string>();
  sub.add_option(
      "--prompts", *prompts,
      "file with one prompt per line, which are continued together, in place of sample.prompt; prints one JSON "
      "object per line");
  const auto chat = std::make_shared<std::string>();
  sub.add_option("--chat", *chat,
                 "answer each prompt as the first turn of a conversation, by a template of `chat --help`");
  return {sub, [=] {
            const ChatTemplate* form = chat->empty() ? nullptr : &find_chat_template(*chat, true);
            return run_in_world(invocation, [&](World& world) {
              const ModelSource source = find_model(world.comm(), arguments);
              return run_watched(world, source.run.watchdog.seconds,
                                 [&] { return run_sample(world, source, *prompts, form); });
            });
          }};
}

}  // namespace mw
