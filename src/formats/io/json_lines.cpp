#include "formats/io/json_lines.h"

#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "formats/io/json_events.h"

namespace mw {
namespace {

constexpr const char* kAppendHint = "check that the folder exists, can be written to and has free space";

// Looks for "step" at the top level of an object.
class StepReader final : public JsonEvents {
 public:
  void on_begin(bool is_object) override {
    if (depth_++ == 0) is_object_ = is_object;
  }
  void on_end() override { --depth_; }
  void on_key(std::string& key) override { at_step_ = depth_ == 1 && key == "step"; }
  void on_integer(int64_t value) override { on_number(static_cast<double>(value)); }
  void on_number(double value) override {
    if (at_step_ && depth_ == 1) step_ = value;
  }

  bool is_object() const { return is_object_; }
  std::optional<double> step() const { return step_; }

 private:
  int depth_ = 0;
  bool is_object_ = false, at_step_ = false;
  std::optional<double> step_;
};

enum class Verdict { reached, no_step, beyond, broken };

Verdict judge(std::string_view line, int64_t step) {
  StepReader reader;
  try {
    parse_json_events(line, "metrics", 64, reader);
  } catch (const Error&) {
    return Verdict::broken;
  }
  if (!reader.is_object()) return Verdict::broken;
  if (!reader.step()) return Verdict::no_step;
  return *reader.step() > static_cast<double>(step) ? Verdict::beyond : Verdict::reached;
}

// A first line that a crash cut is none of something else.
void check_first_line(std::string_view text) {
  const size_t newline = text.find('\n');
  const std::string_view line = text.substr(0, newline);
  const bool may_be_cut = newline == std::string_view::npos && (line.empty() || line.starts_with('{'));
  if (!may_be_cut && judge(line, 0) == Verdict::broken)
    fail(Exit::data, fmt::format("line 1 is no JSON object: {}", printable(line, 40)),
         "metrics have one object on each line; name another file, or move this one away");
}

[[noreturn]] void fail_written(const std::string& path) {
  fail(Exit::data, fmt::format("another run writes {}", printable(path)), "wait until it ends, or name another file");
}

// Such as /dev/stdout, whose file a shell may have opened for more than metrics.
bool names_open_file(const std::string& path) {
  const auto is_of_system = [](const std::string& name) {
    return name.starts_with("/dev/") || name.starts_with("/proc/");
  };
  std::error_code none;
  return is_of_system(path) || is_of_system(std::filesystem::read_symlink(path, none).native());
}

// Renames or copies a file with lines.
template <class Move>
std::string move_aside(const std::string& named, const char* what, const Move& move) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(named, error) || std::filesystem::file_size(named, error) == 0) return "";
  if (names_open_file(named)) return "";
  wait_for_writer(named, {});
  check_lines(named);
  const std::string path = target_of_link(named);
  std::string aside;
  for (int n = 1; aside.empty() || path_exists(aside); ++n) aside = fmt::format("{}.{}", path, n);
  move(path, aside, error);
  if (error)
    fail(Exit::data, fmt::format("cannot {} {} to {}: {}", what, printable(path), printable(aside), error.message()),
         "move the metrics of the earlier run away, or write those of this run to another file");
  return aside;
}

}  // namespace

JsonLinesWriter::JsonLinesWriter(const std::string& path) : file_(path, AppendFile::Open::append, kAppendHint) {
  if (!file_.lock()) fail_written(path);
}

void JsonLinesWriter::write(const nlohmann::ordered_json& object) {
  file_.append(object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

void wait_for_writer(const std::string& path, std::chrono::milliseconds patience) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored) || ::access(path.c_str(), W_OK) != 0) return;
  const auto end = std::chrono::steady_clock::now() + patience;
  while (!AppendFile(path, AppendFile::Open::append, "").lock()) {
    if (std::chrono::steady_clock::now() >= end) fail_written(path);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

void check_lines(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) check_first_line(MappedFile(path).text());
}

TruncatedLines truncate_after_step(const std::string& path, int64_t step) {
  TruncatedLines result;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error) || names_open_file(path)) return result;
  wait_for_writer(path, {});
  size_t size = 0, cut = 0;
  bool is_whole = true;
  {
    const MappedFile file(path);
    const std::string_view text = file.text();
    check_first_line(text);
    size = cut = text.size();
    is_whole = text.empty() || text.back() == '\n';
    for (size_t end = size; end > 0;) {
      const std::string_view rest = text.substr(0, end - (text[end - 1] == '\n' ? 1 : 0));
      const size_t newline = rest.rfind('\n');  // of the line before
      const size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
      const Verdict verdict = judge(rest.substr(begin), step);
      if (verdict == Verdict::reached) break;
      if (verdict == Verdict::beyond) ++result.beyond;
      if (verdict == Verdict::broken) ++result.broken;
      if (verdict != Verdict::no_step) cut = begin;
      end = begin;
    }
  }
  if (cut < size) {
    std::filesystem::resize_file(path, cut, error);
    if (error)
      fail(Exit::data, fmt::format("cannot shorten {}: {}", printable(path), error.message()),
           "check that the file can be written to, or name another one");
  } else if (!is_whole) {
    AppendFile(path, AppendFile::Open::append, kAppendHint).append("\n");
  }
  return result;
}

std::string set_lines_aside(const std::string& path) {
  return move_aside(path, "rename", [](const auto& from, const auto& to, std::error_code& error) {
    std::filesystem::rename(from, to, error);
  });
}

std::string copy_lines_aside(const std::string& path) {
  return move_aside(path, "copy", [](const auto& from, const auto& to, std::error_code& error) {
    std::filesystem::copy_file(from, to, error);
  });
}

}  // namespace mw
