#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "base/text.h"
#include "cli/completion.h"

namespace mw {
namespace {

bool takes_keys(const CommandInfo& command) {
  return std::any_of(command.options.begin(), command.options.end(),
                     [](const OptionInfo& option) { return option.name == "OVERRIDES"; });
}

std::string escape(std::string_view text, std::string_view escaped, std::string_view prefix) {
  std::string out;
  for (const char c : text) {
    if (escaped.find(c) != std::string_view::npos) out += prefix;
    out += c;
  }
  return out;
}

// For a shell's single quotes.
std::string shell_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

std::string fish_quoted(std::string_view text) { return "'" + escape(text, "\\'", "\\") + "'"; }

std::vector<std::string> names_of(const std::vector<CommandInfo>& commands) {
  std::vector<std::string> names;
  for (const CommandInfo& command : commands) names.push_back(command.name);
  return names;
}

std::vector<std::string> assignments(const std::vector<CompletedKey>& keys) {
  std::vector<std::string> words;
  for (const CompletedKey& key : keys) words.push_back(key.key + "=");
  return words;
}

constexpr std::string_view kBashStart = R"(# Completion of moewright for bash, written by `moewright completion bash`.
_moewright() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]} words= keys= key=
  # bash parts words at "=".
  if [[ $word == "=" ]]; then key=$before word=
  elif [[ $before == "=" ]]; then key=${COMP_WORDS[COMP_CWORD-2]}
  fi
)";

constexpr std::string_view kBashEnd = R"(  COMPREPLY=($(compgen -W "$words" -- "$word"))
  if [[ -n $keys && $word != -* ]]; then
    COMPREPLY+=($(compgen -S = -W "$keys" -- "$word"))
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]]; then compopt -o nospace; fi
    COMPREPLY+=($(compgen -f -- "$word"))
  fi
}
complete -o default -F _moewright moewright
)";

// Choices of the options and of the arguments of a command, after the word before them.
std::string bash_choices(const CommandInfo& command) {
  std::string cases;
  for (const OptionInfo& option : command.options) {
    if (option.is_flag || option.is_argument) continue;
    const std::string pattern = option.short_name.empty() ? fmt::format("--{}", option.name)
                                                          : fmt::format("--{}|-{}", option.name, option.short_name);
    cases += fmt::format("        {}) {} return ;;\n", pattern,
                         option.choices.empty() ? ""
                                                : fmt::format("COMPREPLY=($(compgen -W \"{}\" -- \"$word\"));",
                                                              fmt::join(option.choices, " ")));
  }
  return cases.empty() ? "" : "      case $before in\n" + cases + "      esac\n";
}

}  // namespace

std::string bash_completion(const std::vector<CommandInfo>& commands, const std::vector<CompletedKey>& keys) {
  std::string text(kBashStart);
  text += "  case $key in\n    '') ;;\n";
  for (const CompletedKey& key : keys)
    if (!key.choices.empty()) text += fmt::format("    {}) words=\"{}\" ;;\n", key.key, fmt::join(key.choices, " "));
  text += "    *) return ;;\n  esac\n";
  text += fmt::format(
      "  if [[ -n $key ]]; then command=\n  elif ((COMP_CWORD == 1)); then command= words=\"{} help "
      "--help --version\"\n  fi\n",
      fmt::join(names_of(commands), " "));
  text += fmt::format("  case $command in\n    help) words=\"{}\" ;;\n", fmt::join(names_of(commands), " "));
  for (const CommandInfo& command : commands) {
    std::vector<std::string> words;
    for (const OptionInfo& option : command.options) {
      if (!option.is_argument) words.push_back("--" + option.name);
      else words.insert(words.end(), option.choices.begin(), option.choices.end());
    }
    text += fmt::format("    {})\n{}      words=\"{}\"{} ;;\n", command.name, bash_choices(command),
                        fmt::join(words, " "), takes_keys(command) ? " keys=$_moewright_keys" : "");
  }
  text += "  esac\n";
  text += kBashEnd;
  std::vector<std::string> names;
  for (const CompletedKey& key : keys) names.push_back(key.key);
  return text + fmt::format("_moewright_keys=\"{}\"\n", fmt::join(names, " "));
}

std::string zsh_completion(const std::vector<CommandInfo>& commands, const std::vector<CompletedKey>& keys) {
  std::string text = "#compdef moewright\n# Completion of moewright for zsh, written by `moewright completion zsh`.\n";
  text += fmt::format(
      "_moewright_keys() {{\n  local -a keys\n  keys=({})\n  _alternative 'keys:key of the run "
      "file:compadd -S \"\" -a keys' 'files:file:_files'\n}}\n",
      fmt::join(assignments(keys), " "));
  text += "_moewright() {\n  local -a commands\n  commands=(\n";
  for (const CommandInfo& command : commands)
    text += fmt::format("    {}\n", shell_quoted(escape(command.name, ":", "\\") + ":" + command.help));
  text +=
      "  )\n  if ((CURRENT == 2)); then\n    _describe command commands\n    return\n  fi\n  shift words\n  "
      "((CURRENT--))\n  case $words[1] in\n";
  for (const CommandInfo& command : commands) {
    text += fmt::format("    {}) _arguments", command.name);
    for (const OptionInfo& option : command.options) {
      if (option.is_argument) continue;
      std::string spec = fmt::format("--{}[{}]", option.name, escape(option.help, "[]\\", "\\"));
      if (!option.is_flag)
        spec += option.choices.empty() ? ":value:_files" : fmt::format(":value:({})", fmt::join(option.choices, " "));
      text += " " + shell_quoted(spec);
    }
    std::string rest = takes_keys(command) ? "*:argument:_moewright_keys" : "*:argument:_files";
    for (const OptionInfo& option : command.options)
      if (option.is_argument && !option.choices.empty())
        rest = fmt::format("*:argument:({})", fmt::join(option.choices, " "));
    text += " " + shell_quoted(rest) + " ;;\n";
  }
  return text + "    help) _describe command commands ;;\n  esac\n}\n_moewright \"$@\"\n";
}

std::string fish_completion(const std::vector<CommandInfo>& commands, const std::vector<CompletedKey>& keys) {
  std::string text = "# Completion of moewright for fish, written by `moewright completion fish`.\n";
  std::vector<std::string> with_keys;
  for (const CommandInfo& command : commands) {
    text += fmt::format("complete -c moewright -f -n __fish_use_subcommand -a {} -d {}\n", command.name,
                        fish_quoted(command.help));
    if (takes_keys(command)) with_keys.push_back(command.name);
    for (const OptionInfo& option : command.options) {
      text += fmt::format("complete -c moewright -n '__fish_seen_subcommand_from {}'", command.name);
      if (!option.is_argument) text += fmt::format(" -l {}", option.name);
      if (!option.short_name.empty()) text += fmt::format(" -s {}", option.short_name);
      if (!option.choices.empty()) text += fmt::format(" -x -a '{}'", fmt::join(option.choices, " "));
      else if (!option.is_argument && !option.is_flag) text += " -r";
      text += fmt::format(" -d {}\n", fish_quoted(option.help));
    }
  }
  if (with_keys.empty()) return text;
  return text + fmt::format("complete -c moewright -n '__fish_seen_subcommand_from {}' -a '{}'\n",
                            fmt::join(with_keys, " "), fmt::join(assignments(keys), " "));
}

}  // namespace mw
