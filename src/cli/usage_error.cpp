#include "cli/usage_error.h"

#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "base/text.h"

namespace mw {
namespace {

const CLI::App& called_command(const CLI::App& app) {
  const std::vector<CLI::App*> parsed = app.get_subcommands();
  return parsed.empty() ? app : *parsed.front();
}

std::string full_name(const CLI::App& command) {
  return command.get_parent() == nullptr ? command.get_name() : "moewright " + command.get_name();
}

// "moewright train RUN [OVERRIDES...]".
std::string usage_of(const CLI::App& command) {
  std::string text = full_name(command);
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name(true) + (option->get_expected_max() > 1 ? "..." : "");
    const bool positional = option->get_positional();
    if (option->get_required()) text += positional ? " " + name : fmt::format(" {} VALUE", option->get_name());
    else if (positional) text += fmt::format(" [{}]", name);
  }
  return text;
}

std::vector<std::string> flag_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

std::string missing_arguments(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    if (option->get_required() && option->count() == 0)
      names.push_back(option->get_positional() ? option->get_name(true) : option->get_name());
  if (names.empty()) return "an argument is missing";
  return fmt::format("{} {} missing", fmt::join(names, ", "), names.size() == 1 ? "is" : "are");
}

std::string unexpected_argument(const CLI::App& command) {
  const std::vector<std::string> extras = command.remaining();
  if (extras.empty()) return "unexpected argument";
  const std::string& first = extras.front();
  if (first.rfind("-", 0) != 0) return fmt::format("unexpected argument \"{}\"", printable(first));
  return fmt::format("unknown option \"{}\"{}", printable(first), did_you_mean(first, flag_names(command)));
}

}  // namespace

Error usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = called_command(app);
  const std::string help = fmt::format("`{} --help` explains every option", full_name(command));
  if (&command == &app) return {Exit::usage, printable(error.what(), 400), help};
  std::string what = printable(error.what(), 400);
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) what = missing_arguments(command);
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) what = unexpected_argument(command);
  return {Exit::usage, fmt::format("{}: {}", command.get_name(), what),
          fmt::format("usage: {}; {}", usage_of(command), help)};
}

}  // namespace mw
