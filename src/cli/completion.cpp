#include "cli/completion.h"

#include <cstdio>
#include <variant>

#include "cli/commands.h"
#include "config/run_keys.h"

namespace mw {
namespace {

std::vector<CompletedKey> completed_keys() {
  std::vector<CompletedKey> keys;
  for (const KeyRule& rule : key_rules()) {
    keys.push_back({rule.key, {}});
    if (const auto* choice = std::get_if<ChoiceKey>(&rule.kind)) {
      for (const std::string& word : choice->words)
        if (!word.empty()) keys.back().choices.push_back(word);
    } else if (std::holds_alternative<BoolKey>(rule.kind)) {
      keys.back().choices = {"true", "false"};
    }
  }
  return keys;
}

}  // namespace

Command add_completion_command(CommandLine& line) {
  Subcommand sub = line.add_command("completion", "print a completion script for a shell");
  auto shell = std::make_shared<std::string>();
  sub.add_option("SHELL", *shell, "bash, zsh or fish").required().one_of({"bash", "zsh", "fish"});
  return {sub, [&line, shell] {
            const auto script =
                *shell == "bash" ? bash_completion : (*shell == "zsh" ? zsh_completion : fish_completion);
            std::fputs(script(line.commands(), completed_keys()).c_str(), stdout);
            return Exit::ok;
          }};
}

}  // namespace mw
