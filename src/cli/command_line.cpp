#include "cli/command_line.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "config/run_spec.h"

namespace mw {
namespace {

constexpr const char* kNumber = "N";  // a number as the help calls it

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

bool takes_overrides(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options())
    if (option->get_positional() && option->get_name(true) == "OVERRIDES") return true;
  return false;
}

// For "--steps 5" and "--steps=5": the overrides of keys with this last part, or "" where there is none.
std::string suggest_override(const std::vector<std::string>& extras) {
  const std::string option = extras.front().substr(std::min(extras.front().size(), size_t{2}));
  const size_t equals = option.find('=');
  const std::string name = option.substr(0, equals);
  std::string value = equals == std::string::npos ? "VALUE" : option.substr(equals + 1);
  if (equals == std::string::npos && extras.size() > 1) value = extras[1];
  std::vector<std::string> overrides;
  for (const KeyDoc& doc : run_file_reference())
    if (doc.key == name || doc.key.substr(doc.key.rfind('.') + 1) == name)
      overrides.push_back(fmt::format("{}={}", doc.key, printable(value)));
  if (overrides.empty()) return "";
  return fmt::format(", did you mean {}? Keys of the run file are set without dashes", fmt::join(overrides, " or "));
}

std::string unexpected_argument(const CLI::App& command) {
  const std::vector<std::string> extras = command.remaining();
  if (extras.empty()) return "unexpected argument";
  const std::string& first = extras.front();
  if (!first.starts_with('-')) return fmt::format("unexpected argument \"{}\"", printable(first));
  const std::string keys = takes_overrides(command) ? suggest_override(extras) : "";
  return fmt::format("unknown option \"{}\"{}", printable(first),
                     keys.empty() ? did_you_mean(first, flag_names(command)) : keys);
}

// CLI11 keeps the values of one_of as text alone: "TEXT:{a,b}".
std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t begin = type.find('{');
  if (begin == std::string::npos || type.back() != '}') return {};
  return CLI::detail::split(type.substr(begin + 1, type.size() - begin - 2), ',');
}

OptionInfo info_of(const CLI::Option& option) {
  OptionInfo info;
  info.is_argument = option.get_positional();
  info.name = info.is_argument ? option.get_name(true) : option.get_lnames().front();
  if (!option.get_snames().empty()) info.short_name = option.get_snames().front();
  info.help = option.get_description();
  info.choices = choices_of(option);
  info.is_flag = option.get_items_expected_max() == 0;
  info.is_required = option.get_required();
  info.is_repeated = option.get_expected_max() > 1;
  return info;
}

CommandInfo info_of(const CLI::App& command) {
  CommandInfo info{command.get_name(), command.get_description(), usage_of(command), command.get_footer(), {}};
  const std::string of_program = command.get_parent()->get_footer();  // CLI11 has copied it
  if (info.footer.starts_with(of_program)) info.footer.erase(0, info.footer.find_first_not_of('\n', of_program.size()));
  for (const CLI::Option* option : command.get_options()) info.options.push_back(info_of(*option));
  return info;
}

// `error` came from app.parse() and is neither a call for help nor for the version.
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

}  // namespace

Option& Option::required() {
  option_->required();
  return *this;
}

Option& Option::show_default() {
  option_->capture_default_str();
  return *this;
}

Option& Option::show_default(std::string text) {
  option_->default_str(std::move(text));
  return *this;
}

Option& Option::one_of(std::vector<std::string> values) {
  option_->check(CLI::IsMember(std::move(values)));
  return *this;
}

Option& Option::range(int least, int most) {
  option_->check(CLI::Range(least, most).description(""));
  return *this;
}

Option& Option::range(double least, double most) {
  option_->check(CLI::Range(least, most).description(""));
  return *this;
}

Option& Option::not_negative() {
  option_->check(CLI::NonNegativeNumber.description(""));
  return *this;
}

Option& Option::byte_count(uint64_t least, uint64_t most) {
  const auto parse = [least, most](std::string& text) -> std::string {
    uint64_t bytes = 0;
    std::string number = text;
    try {
      const bool is_size = CLI::AsSizeValue(true)(number).empty() && CLI::detail::lexical_cast(number, bytes);
      if (!is_size || bytes < least || bytes > most) throw CLI::ValidationError("");
    } catch (const CLI::ValidationError&) {
      return fmt::format("expected {} to {} bytes, for example 5GB or 500MiB, got \"{}\"", least, most,
                         printable(text));
    }
    text = number;
    return "";
  };
  option_->transform(CLI::Validator(parse, ""));
  option_->type_name("SIZE");
  return *this;
}

Option& Option::values(const std::string& names) {
  const auto commas = static_cast<int>(std::count(names.begin(), names.end(), ','));
  option_->delimiter(',')->expected(commas + 1)->option_text(names);
  return *this;
}

Option& Option::needs(const Option& other) {
  option_->needs(other.option_);
  return *this;
}

Option& Option::excludes(const char* other) {
  option_->excludes(other);
  return *this;
}

Option Subcommand::add_option(const char* name, std::string& value, std::string help) {
  return Option(app_->add_option(name, value, std::move(help)));
}

Option Subcommand::add_option(const char* name, std::optional<std::string>& value, std::string help) {
  return Option(app_->add_option(name, value, std::move(help)));
}

Option Subcommand::add_option(const char* name, std::vector<std::string>& values, std::string help) {
  return Option(app_->add_option(name, values, std::move(help)));
}

Option Subcommand::add_option(const char* name, int& value, std::string help) {
  return Option(app_->add_option(name, value, std::move(help))->type_name(kNumber));
}

Option Subcommand::add_option(const char* name, int64_t& value, std::string help) {
  return Option(app_->add_option(name, value, std::move(help))->type_name(kNumber));
}

Option Subcommand::add_option(const char* name, uint64_t& value, std::string help) {
  return Option(app_->add_option(name, value, std::move(help))->type_name(kNumber));
}

Option Subcommand::add_option(const char* name, double& value, std::string help) {
  return Option(app_->add_option(name, value, std::move(help))->type_name(kNumber));
}

Option Subcommand::add_option(const char* name, std::vector<double>& values, std::string help) {
  return Option(app_->add_option(name, values, std::move(help)));
}

Option Subcommand::add_flag(const char* name, bool& value, std::string help) {
  return Option(app_->add_flag(name, value, std::move(help)));
}

void Subcommand::set_footer(const std::string& text) { app_->footer(text); }

void Subcommand::add_footer(const std::string& text) {
  const std::string before = app_->get_footer();
  app_->footer((before.empty() ? "" : before + "\n\n") + text);
}

const std::string& Subcommand::name() const { return app_->get_name(); }

bool Subcommand::called() const { return app_->parsed(); }

CommandLine::CommandLine(const char* program, std::string description, const std::string& version, std::string footer)
    : app_(std::make_unique<CLI::App>(std::move(description))) {
  app_->name(program);
  app_->set_version_flag("--version", version);
  app_->require_subcommand(1);
  app_->footer(std::move(footer));
}

CommandLine::~CommandLine() = default;

Subcommand CommandLine::add_command(const char* name, std::string help) {
  return Subcommand(app_->add_subcommand(name, std::move(help)));
}

bool CommandLine::parse(const std::vector<std::string>& arguments) {
  try {
    app_->parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // CLI11 takes them from the end
    return true;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) throw usage_error(*app_, error);
    app_->exit(error);  // prints the help or the version
    return false;
  }
}

std::vector<CommandInfo> CommandLine::commands() const {
  std::vector<CommandInfo> commands;
  for (const CLI::App* command : std::as_const(*app_).get_subcommands([](const CLI::App*) { return true; }))
    commands.push_back(info_of(*command));
  return commands;
}

}  // namespace mw
