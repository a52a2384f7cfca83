// Reading, checking, overriding and printing a run file by its table of keys.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "config/run_keys.h"
#include "config/run_spec.h"
#include "config/unknown_key.h"

// toml++ 3.3 asserts, before it reports them, what a malformed file can break ("[" at a line's end, for one).
#define TOML_ASSERT(x) static_assert(true)
#include <toml++/toml.h>

namespace mw {
namespace {

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const KeyRule& rule : key_rules()) {
    const std::string name = rule.key.substr(0, rule.key.find('.'));
    if (names.empty() || names.back() != name) names.push_back(name);
  }
  return names;
}

// Keys that are no more, with the value that had no effect: checkpoints hold them, as they hold every key.
constexpr std::pair<std::string_view, std::string_view> kFormerKeys[] = {{"verify.routing", "learned"}};

bool is_former(const std::string& key, const toml::node& node) {
  return std::any_of(std::begin(kFormerKeys), std::end(kFormerKeys), [&](const auto& former) {
    return former.first == key && node.is_string() && node.as_string()->get() == former.second;
  });
}

const KeyRule& find_rule(const std::string& key, const std::string& where) {
  for (const KeyRule& rule : key_rules())
    if (rule.key == key) return rule;
  const UnknownKey unknown = explain_unknown_key(key);
  fail(Exit::config, fmt::format("{}: unknown key \"{}\"{}", where, printable(key), unknown.suggestion), unknown.hint);
}

std::string type_of(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table: return "a table";
    case toml::node_type::array: return "an array";
    case toml::node_type::string: return "a string";
    case toml::node_type::integer: return "an integer";
    case toml::node_type::floating_point: return "a number";
    case toml::node_type::boolean: return "true/false";
    default: return "a date or time";
  }
}

// How a value of the expected type is written.
struct ExpectedType {
  const char *name, *hint;
};
constexpr ExpectedType kInteger = {"an integer", "write a whole number without quotes, for example 4"};
constexpr ExpectedType kNumber = {"a number", "write a number without quotes, for example 0.1 or 3e-4"};
constexpr ExpectedType kBoolean = {"true or false", "write true or false without quotes"};
constexpr ExpectedType kString = {"a string", "write it in double quotes"};

[[noreturn]] void fail_type(const std::string& where, const std::string& key, const ExpectedType& expected,
                            const toml::node& node) {
  std::string got = type_of(node);
  if (node.is_string()) got += fmt::format(" \"{}\"", printable(node.as_string()->get()));
  fail(Exit::config, fmt::format("{}: {} expects {}, got {}", where, key, expected.name, got), expected.hint);
}

[[noreturn]] void fail_list(const std::string& where, const KeyRule& rule, const toml::node& node) {
  const std::string hint = fmt::format(
      "write [\"...\", \"...\"], each item in double quotes; on a command line put single quotes around it all: "
      "'{}=[\"...\"]' ({})",
      rule.key, rule.meaning);
  fail_type(where, rule.key, {"a list of strings", hint.c_str()}, node);
}

// What no file name may hold, and what the run file written from it could not hold either.
void check_text(const std::string& value, const std::string& key, const std::string& where) {
  if (value.find('\0') != std::string::npos)
    fail(Exit::config, fmt::format("{}: {} contains a NUL byte", where, key), "remove the NUL byte");
  if (!is_utf8(value))
    fail(Exit::config, fmt::format("{}: {} = \"{}\" is not UTF-8", where, key, printable(value)),
         "write the value in UTF-8; rename the file if its name is not UTF-8");
}

template <class Number>
void check_range(const KeyRule& rule, Number value, Number low, Number high, const std::string& where) {
  if (value >= low && value <= high) return;
  fail(Exit::config, fmt::format("{}: {} = {} is out of range, expected {} to {}", where, rule.key, value, low, high),
       fmt::format("set {} to at {} {} ({})", rule.key, value > high ? "most" : "least", value > high ? high : low,
                   rule.meaning));
}

// On a command line a number that is too large for its type is text.
template <class Number>
bool is_too_large(const toml::node& node) {
  if (!node.is_string()) return false;
  const std::string& text = node.as_string()->get();
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc::result_out_of_range && end == text.data() + text.size();
}

double rounded_value(const toml::node& text) { return std::strtod(text.as_string()->get().c_str(), nullptr); }

void assign(RunSpec& run, const KeyRule& rule, const toml::node& node, const std::string& where) {
  const std::string& key = rule.key;
  if (const auto* integer = std::get_if<IntegerKey>(&rule.kind)) {
    if (is_too_large<int64_t>(node))
      check_range(rule, rounded_value(node), static_cast<double>(integer->low), static_cast<double>(integer->high),
                  where);
    if (!node.is_integer()) fail_type(where, key, kInteger, node);
    const int64_t value = node.as_integer()->get();
    check_range(rule, value, integer->low, integer->high, where);
    integer->field(run) = value;
  } else if (const auto* real = std::get_if<RealKey>(&rule.kind)) {
    if (is_too_large<double>(node)) check_range(rule, rounded_value(node), real->low, real->high, where);
    if (!node.is_number()) fail_type(where, key, kNumber, node);
    const double value =
        node.is_integer() ? static_cast<double>(node.as_integer()->get()) : node.as_floating_point()->get();
    check_range(rule, value, real->low, real->high, where);
    real->field(run) = value;
  } else if (const auto* text = std::get_if<TextKey>(&rule.kind)) {
    if (!node.is_string()) fail_type(where, key, kString, node);
    const std::string& value = node.as_string()->get();
    check_text(value, key, where);
    text->field(run) = value;
  } else if (const auto* choice = std::get_if<ChoiceKey>(&rule.kind)) {
    if (!node.is_string()) fail_type(where, key, kString, node);
    const std::string& value = node.as_string()->get();
    if (std::find(choice->words.begin(), choice->words.end(), value) == choice->words.end()) {
      std::vector<std::string> shown = choice->words;
      const std::string meant = key == "train.device" && lower_case(value) == "gpu" ? "cuda" : value;
      std::replace(shown.begin(), shown.end(), std::string(), std::string("\"\""));
      fail(Exit::config,
           fmt::format("{}: {} = \"{}\" is not known{}", where, key, printable(value),
                       did_you_mean(meant, choice->words)),
           fmt::format("use one of: {}", fmt::join(shown, ", ")));
    }
    choice->set(run, value);
  } else if (const auto* flag = std::get_if<BoolKey>(&rule.kind)) {
    if (!node.is_boolean()) fail_type(where, key, kBoolean, node);
    flag->field(run) = node.as_boolean()->get();
  } else {
    const toml::array* array = node.as_array();
    if (array == nullptr) fail_list(where, rule, node);
    std::vector<std::string> values;
    for (const toml::node& item : *array) {
      if (!item.is_string()) fail_list(where, rule, item);
      check_text(item.as_string()->get(), key, where);
      values.push_back(item.as_string()->get());
    }
    std::get<ListKey>(rule.kind).field(run) = std::move(values);
  }
}

void assign_model_text(RunSpec& run, const toml::node& node, const std::string& where) {
  const std::string& value = node.as_string()->get();
  if (!value.starts_with("hf:") || value.size() == 3)
    fail(Exit::config,
         fmt::format("{}: model = \"{}\", expected a [model] table or \"hf:DIR\"", where, printable(value)),
         "write \"hf:/path/to/folder\" for a Hugging Face model folder with a config.json");
  check_text(value, "model", where);
  run.hf_dir = value.substr(3);
}

bool is_section(const std::string& name) {
  const std::vector<std::string> names = section_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

void assign_table(RunSpec& run, const toml::table& table, const std::string& prefix, const std::string& where) {
  for (const auto& [name, node] : table) {
    const std::string key = prefix.empty() ? std::string(name.str()) : prefix + "." + std::string(name.str());
    const std::string at = fmt::format("{}:{}", where, node.source().begin.line);
    const bool section = prefix.empty() && is_section(key);
    if (key == "model" && node.is_string()) assign_model_text(run, node, at);
    else if (node.is_table() && (section || (prefix.empty() && !node.as_table()->empty())))
      assign_table(run, *node.as_table(), key, where);
    else if (section)
      fail_type(at, key, {"a section of keys", "put its keys under a line with the section's name in [brackets]"},
                node);
    else if (!is_former(key, node)) assign(run, find_rule(key, at), node, at);
  }
}

// The text as toml++ 3.3 survives it. Non-ASCII characters are undefined behaviour there wherever it does not see a
// string, and a hostile file makes it see other strings than we do: so it gets ASCII alone, with \u escapes for the
// rest. Refused: non-ASCII where no escape can stand, strings over several lines (this scan would have to follow them)
// and keys of many parts (they become tables nested as deep, which are destroyed recursively).
std::string ascii_toml(const std::string& text, const std::string& where) {
  constexpr int kMaxDots = 16;
  std::string out;
  int line = 1, dots = 0;
  char quote = 0;
  bool comment = false, escaped = false;
  const auto refuse = [&](const std::string& what, const char* hint) {
    fail(Exit::config, fmt::format("{}:{}: {}", where, line, what), hint);
  };
  for (size_t i = 0; i < text.size();) {
    const size_t start = i;
    const std::optional<uint32_t> code = next_code_point(text, i);
    if (!code) refuse("not UTF-8", "save the file in UTF-8");
    const bool after_backslash = std::exchange(escaped, false);
    if (*code >= 0x80) {
      if (!comment && quote == 0)
        refuse("a non-ASCII character outside quotes and comments", "put the text in double quotes");
      if (quote == '\'' || after_backslash)
        refuse(fmt::format("a non-ASCII character {}", quote == '\'' ? "in single quotes" : "after a backslash"),
               "use double quotes, and \\\\ for a backslash");
      out += comment ? "?" : fmt::format("\\U{:08x}", *code);
      continue;
    }
    const char c = text[start];
    out += c;
    if (c == '\n') {
      ++line;
      dots = 0;
      comment = false;
      quote = 0;
    } else if (*code < 0x20 && c != '\t' && c != '\r') {
      refuse(fmt::format("control byte 0x{:02x}", *code), "remove it: a run file is plain text");
    } else if (quote != 0) {
      if (c == '\\') escaped = quote == '"' && !after_backslash;
      else if (c == quote && !after_backslash) quote = 0;
    } else if (!comment && (c == '"' || c == '\'')) {
      if (text.compare(start, 3, std::string(3, c)) == 0)
        refuse("strings over several lines are not supported", "write a string on one line, with \\n for a line break");
      quote = c;
    } else if (c == '#') {
      comment = true;
    } else if (c == '.' && !comment && ++dots > kMaxDots) {
      refuse("a key has too many dots", "write keys as section.name");
    }
  }
  return out;
}

bool takes_text(const KeyRule& rule) {
  return std::holds_alternative<TextKey>(rule.kind) || std::holds_alternative<ChoiceKey>(rule.kind);
}

void apply_override(RunSpec& run, const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    fail(Exit::usage, fmt::format("\"{}\" is not an override of the form key=value", printable(text)),
         "write, for example, train.lr=3e-4");
  const std::string key = text.substr(0, equals), value = text.substr(equals + 1), where = "command line";
  // A value that is not TOML is meant as text: data.path=/usr/include needs no quotes. A text key takes what stands
  // there as text.
  const bool model_text = key == "model";
  if (!model_text) find_rule(key, where);
  const bool text_key = model_text || takes_text(find_rule(key, where));
  toml::table table;
  bool parsed = false;
  if (!text_key || (!value.empty() && (value.front() == '"' || value.front() == '\''))) {
    try {
      table = toml::parse(ascii_toml("value = " + value, where));
      parsed = table.size() == 1;
    } catch (const std::runtime_error&) {  // of either
      parsed = false;
    }
  }
  if (!parsed) {
    table.clear();
    table.insert("value", value);
  }
  const toml::node& node = *table.get("value");
  if (model_text) {
    if (!node.is_string())
      fail_type(where, key, {"\"hf:DIR\"", "write model=hf:DIR for a Hugging Face model folder with a config.json"},
                node);
    assign_model_text(run, node, where);
  } else {
    if (key.starts_with("model.") && !run.hf_dir.empty())
      fail(Exit::config, fmt::format("{}: {} cannot change the model of {}", where, key, run.hf_dir),
           fmt::format("remove {}; {}/config.json defines the model", key, run.hf_dir));
    assign(run, find_rule(key, where), node, where);
  }
}

// Text without quotes, as in `path = text`, on the line of this number.
bool has_bare_text(const std::string& text, size_t line) {
  std::istringstream lines(text);
  std::string found;
  for (size_t i = 0; i < line && std::getline(lines, found); ++i) {
  }
  const size_t equals = found.find('=');
  const size_t value = equals == std::string::npos ? equals : found.find_first_not_of(" \t", equals + 1);
  if (value == std::string::npos) return false;
  const char first = found[value];
  return std::isalpha(static_cast<unsigned char>(first)) != 0 || first == '/' || first == '.' || first == '~';
}

// A folder in place of the run file: a run's checkpoints store one, and one can be made for a Hugging Face model.
[[noreturn]] void fail_folder(const std::string& path) {
  std::error_code error;
  const bool is_hf = std::filesystem::exists(path + "/config.json", error);
  bool is_run = std::filesystem::exists(path + "/index.json", error);
  for (std::filesystem::directory_iterator it(path, error), end; !error && it != end && !is_run; it.increment(error))
    is_run = it->path().filename().native().starts_with("step-");
  std::string hint = "name a run file (TOML); `moewright init` writes one";
  if (is_hf) hint = fmt::format("`moewright init run.toml --model {}` writes a run file for its model", path);
  if (is_run) hint = fmt::format("`moewright inspect {} --run-file` prints the run file that it stores", path);
  fail(Exit::config,
       fmt::format("{} is a {}, not a run file", printable(path),
                   is_run  ? "run or checkpoint folder"
                   : is_hf ? "Hugging Face model folder"
                           : "folder"),
       hint);
}

std::string toml_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') out += fmt::format("\\{}", c);
    else if (byte < 0x20 || byte == 0x7f) out += fmt::format("\\u{:04x}", byte);
    else out += c;
  }
  return out + "\"";
}

std::string value_text(const KeyRule& rule, RunSpec& run) {
  if (const auto* integer = std::get_if<IntegerKey>(&rule.kind)) return fmt::format("{}", integer->field(run));
  if (const auto* real = std::get_if<RealKey>(&rule.kind)) {
    std::string text = fmt::format("{}", real->field(run));
    if (text.find_first_of(".en") == std::string::npos) text += ".0";
    return text;
  }
  if (const auto* text = std::get_if<TextKey>(&rule.kind)) return toml_string(text->field(run));
  if (const auto* choice = std::get_if<ChoiceKey>(&rule.kind)) return toml_string(choice->word(run));
  if (const auto* flag = std::get_if<BoolKey>(&rule.kind)) return flag->field(run) ? "true" : "false";
  std::vector<std::string> quoted;
  for (const std::string& item : std::get<ListKey>(rule.kind).field(run)) quoted.push_back(toml_string(item));
  return fmt::format("[{}]", fmt::join(quoted, ", "));
}

// Errors: config, where a preset is named and another key of the model has a value of its own.
void check_preset_alone(const RunSpec& run, const toml::table& file, const std::string& where) {
  if (run.native.preset.empty()) return;
  RunSpec plain = run, given = run;
  plain.native = NativeModel();
  plain.native.preset = run.native.preset;
  for (const KeyRule& rule : key_rules()) {
    if (!rule.key.starts_with("model.")) continue;
    const std::string value = value_text(rule, given);
    if (value == value_text(rule, plain)) continue;
    const toml::node* node = file.at_path(rule.key).node();
    fail(Exit::config,
         fmt::format("{}: {} = {}, but model.preset = \"{}\" sets the whole architecture",
                     node == nullptr ? "command line" : fmt::format("{}:{}", where, node->source().begin.line),
                     rule.key, value, printable(run.native.preset)),
         fmt::format("remove {} (and every other key of [model]), or model.preset", rule.key));
  }
}

std::string print_run(RunSpec run, bool comments) {
  std::string out, section;
  if (!run.hf_dir.empty()) out += fmt::format("model = {}\n", toml_string("hf:" + run.hf_dir));
  for (const KeyRule& rule : key_rules()) {
    const size_t dot = rule.key.find('.');
    const std::string group = rule.key.substr(0, dot);
    if (group == "model" && !run.hf_dir.empty()) continue;
    if (comments && group == "debug") continue;
    if (comments && group == "model" && !run.native.preset.empty() && rule.key != "model.preset") continue;
    if (group != section) out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", group);
    section = group;
    const std::string line = fmt::format("{} = {}", rule.key.substr(dot + 1), value_text(rule, run));
    if (!comments) {
      out += line + "\n";
      continue;
    }
    std::string meaning = rule.meaning;
    if (const auto* choice = std::get_if<ChoiceKey>(&rule.kind))
      meaning += fmt::format(" ({})", fmt::join(choice->words, " | "));
    out += fmt::format("{:<36} # {}\n", line, meaning);
  }
  return out;
}

}  // namespace

RunSpec parse_run_text(const std::string& text, const std::string& where, const std::vector<std::string>& overrides) {
  RunSpec run;
  const std::string ascii = ascii_toml(text, where);
  toml::table table;
  try {
    table = toml::parse(ascii, where);
  } catch (const toml::parse_error& error) {
    fail(
        Exit::config,
        fmt::format("{}:{}: not valid TOML: {}", where, error.source().begin.line, printable(error.description(), 200)),
        has_bare_text(ascii, error.source().begin.line)
            ? "put text in double quotes, as in path = \"text\""
            : "correct this line; `moewright init` prints a valid run file to compare with");
  }
  assign_table(run, table, "", where);
  for (const std::string& item : overrides) apply_override(run, item);
  check_preset_alone(run, table, where);
  return run;
}

RunSpec run_of_hf_folder(const std::string& dir, std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(), "model=hf:" + dir);
  return parse_run_text("", "command line", overrides);
}

RunSpec read_run_file(const std::string& path, const std::vector<std::string>& overrides) {
  std::error_code ignored;  // reading it tells why not
  if (std::filesystem::is_directory(path, ignored)) fail_folder(path);
  std::string text;
  try {
    text = read_text_file(path, size_t{1} << 20);
  } catch (const Error& error) {
    fail(Exit::config, error.what(),
         "check the path of the run file or run folder; `moewright init` writes a run file to start from");
  }
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  return parse_run_text(text, path, overrides);
}

std::string to_toml(const RunSpec& run) { return print_run(run, false); }

std::vector<KeyChange> changed_keys(RunSpec from, RunSpec to) {
  std::vector<KeyChange> changes;
  const bool has_folder = !from.hf_dir.empty() || !to.hf_dir.empty();
  const auto folder = [](const RunSpec& run) {
    return run.hf_dir.empty() ? "a table of its own" : toml_string("hf:" + run.hf_dir);
  };
  if (from.hf_dir != to.hf_dir) changes.push_back({"model", folder(from), folder(to)});
  for (const KeyRule& rule : key_rules()) {
    if (has_folder && rule.key.starts_with("model.")) continue;
    std::string before = value_text(rule, from), now = value_text(rule, to);
    if (before != now) changes.push_back({rule.key, std::move(before), std::move(now)});
  }
  return changes;
}

std::string commented_run_file(const RunSpec& run) {
  return "# A Moewright run file. Every key is optional; `key=value` on the command line overrides it.\n"
         "# Instead of the [model] table: model = \"hf:DIR\" takes a Hugging Face model folder.\n" +
         print_run(run, true);
}

std::vector<KeyDoc> run_file_reference() {
  std::vector<KeyDoc> docs;
  RunSpec defaults;
  for (const KeyRule& rule : key_rules()) docs.push_back({rule.key, value_text(rule, defaults), rule.meaning});
  return docs;
}

}  // namespace mw
