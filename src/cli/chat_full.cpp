#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <optional>

#include "base/text.h"
#include "cli/run_commands.h"
#include "train/data/data.h"
#include "train/loop/chat.h"
#include "train/loop/signals.h"
#include "train/loop/train_step.h"

namespace mw {
namespace {

constexpr const char* kPrompt = "> ";

// Lines of standard input, which may end as on Windows. Waiting for one, it looks for a request to stop ten times a
// second.
class InputLines {
 public:
  // None at the end of the input, or when a stop was asked for.
  std::optional<std::string> next() {
    for (;;) {
      const size_t end = read_.find('\n');
      if (end != std::string::npos) return take(end, 1);
      if (stop_requested(*self_)) return std::nullopt;
      pollfd input{STDIN_FILENO, POLLIN, 0};
      if (poll(&input, 1, 100) <= 0) continue;
      std::array<char, 4096> piece{};
      const ssize_t size = read(STDIN_FILENO, piece.data(), piece.size());
      if (size < 0 && errno == EINTR) continue;
      if (size > 0) read_.append(piece.data(), static_cast<size_t>(size));
      else return read_.empty() ? std::nullopt : take(read_.size(), 0);
    }
  }

 private:
  std::optional<std::string> take(size_t size, size_t end_of_line) {
    std::string line = read_.substr(0, size);
    read_.erase(0, size + end_of_line);
    if (line.ends_with('\r')) line.pop_back();
    return line;
  }

  std::unique_ptr<Comm> self_ = make_self_comm();
  std::string read_;
};

// The next turn that can be encoded; nothing at the end of the input.
std::vector<int32_t> read_turn(InputLines& input, Chat& chat) {
  const bool asks = isatty(STDIN_FILENO) != 0;
  for (;;) {
    if (asks) std::fputs(kPrompt, stderr);
    const std::optional<std::string> line = input.next();
    if (!line) return {};
    if (line->find_first_not_of(" \t") == std::string::npos) continue;
    try {
      return chat.encode(*line);
    } catch (const Error& error) {
      std::fprintf(stderr, "not understood: %s; hint: %s\n", error.what(), error.hint().c_str());
    }
  }
}

Exit run_chat(World& world, const ModelSource& source, const ChatTemplate* form) {
  const SignalThread signals;
  watch_stop_signals("");
  RunSpec run = inference_run(source.run, world.comm().size(), 1);
  if (run.sample.tokens == 0) run.sample.tokens = 256;
  const ModelSpec model = load_model_spec(run);
  const bool leader = world.comm().rank() == 0;
  const std::unique_ptr<Tokenizer> tokenizer = leader ? open_run_tokenizer(run, model) : nullptr;
  const std::unique_ptr<Engine> engine = make_engine(world, run);
  load_model(*engine, source);
  Chat chat(*engine, tokenizer.get(), run.sample, form);
  if (const std::string mask = leader && form == nullptr ? find_loss_mask(run) : ""; !mask.empty())
    std::fprintf(
        stderr,
        "hint: the training data has a loss mask (%s), as `tokenize --chat` writes it: pass --chat TEMPLATE to "
        "talk in the template of the data\n",
        printable(mask).c_str());
  InputLines input;
  const auto show = [](std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  for (bool goes_on = true; goes_on;) {
    goes_on = chat.answer(leader ? read_turn(input, chat) : std::vector<int32_t>(), show);
    if (leader && (goes_on || isatty(STDIN_FILENO) != 0)) show("\n");
  }
  return Exit::ok;
}

}  // namespace

Command add_chat_command(CommandLine& line, const Invocation& invocation) {
  Subcommand sub = line.add_command("chat", "talk with a trained model, a line at a time");
  const ModelArguments arguments = add_model_arguments(sub, "sample.temperature=0.5 train.seq_len=2048");
  const auto chat = std::make_shared<std::string>();
  std::string names;
  for (const ChatTemplate& form : chat_templates())
    if (form.ends_answers()) names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", form.name, form.families);
  sub.add_option("--chat", *chat,
                 fmt::format("template that the model was tuned with, as of tokenize --chat: {}", names));
  sub.add_footer(
      "Reads one turn per line until the end of the input or Ctrl-C. Without --chat, the model continues the text\n"
      "\"User: TURN\\nAssistant:\" with up to sample.tokens tokens (default: 256), until it ends the document or\n"
      "begins the next \"User:\"; then the next turn is added.");
  return {sub, [=] {
            const ChatTemplate* form = chat->empty() ? nullptr : &find_chat_template(*chat, true);
            return run_in_world(invocation, [&](World& world) {
              const ModelSource source = find_model(world.comm(), arguments);
              return run_chat(world, source, form);  // without watchdog: people may think for long
            });
          }};
}

}  // namespace mw
