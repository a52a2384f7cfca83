// The manual page, from the table of commands.
#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "cli/commands.h"

namespace mw {
namespace {

// Text for troff: no character of it is a request or an escape. A hyphen is one that can be copied.
std::string plain(std::string_view text) {
  std::string out;
  bool begins_line = true;
  for (const char c : text) {
    if (begins_line && (c == '.' || c == '\'')) out += "\\&";
    begins_line = c == '\n';
    if (c == '\\') out += "\\e";
    else if (c == '-') out += "\\-";
    else out += c;
  }
  return out;
}

std::string name_of(const OptionInfo& option) {
  if (option.is_argument) return fmt::format("\\fI{}\\fR{}", plain(option.name), option.is_repeated ? "..." : "");
  std::string text = option.short_name.empty() ? "" : fmt::format("\\fB\\-{}\\fR, ", option.short_name);
  text += fmt::format("\\fB\\-\\-{}\\fR", plain(option.name));
  return option.is_flag ? text : text + " \\fIVALUE\\fR";
}

std::string section_of(const CommandInfo& command) {
  std::string text =
      fmt::format(".SS {}\n{}.\n.PP\n.B {}\n", plain(command.name), plain(command.help), plain(command.usage));
  for (const OptionInfo& option : command.options)
    if (option.name != "help") text += fmt::format(".TP\n{}\n{}\n", name_of(option), plain(option.help));
  if (!command.footer.empty()) text += fmt::format(".PP\n.nf\n{}\n.fi\n", plain(command.footer));
  return text;
}

std::string manual_page(const std::vector<CommandInfo>& commands) {
  std::string text =
      ".\\\" Written by `moewright manual`.\n"
      ".TH MOEWRIGHT 1 \"\" \"" +
      plain(version_text()) +
      "\" \"User Commands\"\n"
      ".SH NAME\nmoewright \\- train Mixture\\-of\\-Experts transformers\n"
      ".SH SYNOPSIS\n.B moewright\n\\fICOMMAND\\fR [\\fIARGUMENTS\\fR...]\n.br\n.B moewright help\n\\fICOMMAND\\fR\n"
      ".SH DESCRIPTION\nMoewright trains Mixture\\-of\\-Experts transformers with data, expert, tensor and pipeline "
      "parallelism, on CPUs and GPUs, from one process to many ranks under mpirun or Slurm.\n"
      ".SH COMMANDS\n";
  for (const CommandInfo& command : commands) text += section_of(command);
  return text + ".SH EXIT STATUS\n0 on success; docs/troubleshooting.md of the source lists the other codes.\n";
}

}  // namespace

Command add_manual_command(CommandLine& line) {
  Subcommand sub = line.add_command("manual", "print the manual page (roff)");
  return {sub, [&line] {
            std::fputs(manual_page(line.commands()).c_str(), stdout);
            return Exit::ok;
          }};
}

}  // namespace mw
