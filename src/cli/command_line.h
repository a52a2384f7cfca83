// The command line: commands, their options, and the help. Only command_line.cpp includes CLI11, whose header takes
// longer to compile than a command.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace mw {

// An option of a command, or an argument without a name.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option& required();
  Option& show_default();                  // in the help: the value that the variable has now
  Option& show_default(std::string text);  // in the help: `text`
  Option& one_of(std::vector<std::string> values);
  Option& range(int least, int most);
  Option& range(double least, double most);
  Option& not_negative();
  Option& byte_count(uint64_t least, uint64_t most);  // a whole number, perhaps with a unit: 500MB, 2GiB
  // As many values as `names` has, such as "F,I,W"; a comma or a space parts two of them.
  Option& values(const std::string& names);
  Option& needs(const Option& other);
  Option& excludes(const char* other);

 private:
  CLI::Option* option_;
};

// A command under registration. Copies stand for the same command. Variables must live until the command has run.
// `name`: "NAME" for an argument without a name, "--name" or "-n,--name" for an option.
class Subcommand {
 public:
  explicit Subcommand(CLI::App* app) : app_(app) {}

  Option add_option(const char* name, std::string& value, std::string help);
  Option add_option(const char* name, std::optional<std::string>& value, std::string help);
  Option add_option(const char* name, std::vector<std::string>& values, std::string help);
  Option add_option(const char* name, int& value, std::string help);
  Option add_option(const char* name, int64_t& value, std::string help);
  Option add_option(const char* name, uint64_t& value, std::string help);
  Option add_option(const char* name, double& value, std::string help);
  Option add_option(const char* name, std::vector<double>& values, std::string help);
  Option add_flag(const char* name, bool& value, std::string help);
  void set_footer(const std::string& text);  // what the help ends with, in place of the program's
  void add_footer(const std::string& text);  // one more paragraph

  const std::string& name() const;
  bool called() const;

 private:
  CLI::App* app_;
};

// What completion scripts and the manual say of an option, or of an argument without a name.
struct OptionInfo {
  std::string name;        // "output" of --output; "RUN" of an argument
  std::string short_name;  // "o" of -o; "" without
  std::string help;
  std::vector<std::string> choices;  // empty: any value
  bool is_argument = false, is_flag = false, is_required = false, is_repeated = false;
};

struct CommandInfo {
  std::string name, help, usage;
  std::string footer;               // what its help ends with, without that of the program
  std::vector<OptionInfo> options;  // in the order of the help
};

class CommandLine {
 public:
  CommandLine(const char* program, std::string description, const std::string& version, std::string footer);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  Subcommand add_command(const char* name, std::string help);

  // false: the help or the version was asked for, and is printed. Errors: usage, with what is wrong, the usage of the
  // command that was called, and what a mistyped option may have meant.
  bool parse(const std::vector<std::string>& arguments);

  // All commands, in the order of the help.
  std::vector<CommandInfo> commands() const;

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace mw
