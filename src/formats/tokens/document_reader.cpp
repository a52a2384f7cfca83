#include "formats/tokens/document_reader.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "formats/io/decoder.h"
#include "formats/io/json_events.h"
#include "formats/tokens/text_corpus.h"
#include "formats/tokens/text_stream.h"

namespace mw {
namespace {

constexpr size_t kPiece = 1 << 20;
constexpr size_t kLargestDocument = size_t{1} << 30;

std::string_view without_compression(std::string_view path) {
  if (const Compression* compression = find_compression(path)) path.remove_suffix(compression->suffix.size());
  return path;
}

bool is_json_lines(std::string_view path) {
  path = without_compression(path);
  return path.ends_with(".jsonl") || path.ends_with(".ndjson");
}

// A name that says JSON, but not JSON lines: its syntax would be text of a document.
bool is_other_json(std::string_view path) {
  std::string name(without_compression(path));
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name.ends_with(".json") || (is_json_lines(name) && !is_json_lines(path));
}

// The text of one field at the top level of an object.
class FieldReader final : public JsonEvents {
 public:
  explicit FieldReader(const std::string& key) : key_(key) {}

  void on_begin(bool is_object) override {
    if (depth_++ == 0) is_object_ = is_object;
    else other("a list or an object");
  }
  void on_end() override { --depth_; }
  void on_key(std::string& key) override { at_key_ = depth_ == 1 && key == key_; }
  void on_string(std::string& text) override {
    if (here()) text_ = std::move(text);
    at_key_ = false;
  }
  void on_integer(int64_t) override { other("a number"); }
  void on_number(double) override { other("a number"); }
  void on_other(const char* kind) override { other(kind); }

  bool is_object() const { return is_object_; }
  const std::optional<std::string>& text() const { return text_; }
  const char* instead() const { return instead_; }  // what stood at the key and is no text; null: nothing

 private:
  bool here() const { return at_key_ && depth_ == 1; }
  void other(const char* kind) {
    if (at_key_) instead_ = kind;
    at_key_ = false;
  }

  const std::string& key_;
  int depth_ = 0;
  bool is_object_ = false, at_key_ = false;
  std::optional<std::string> text_;
  const char* instead_ = nullptr;
};

std::string read_field(std::string_view line, const std::string& key, const std::string& where) {
  FieldReader reader(key);
  parse_json_events(line, where, 64, reader);
  if (!reader.is_object())
    fail(Exit::data, fmt::format("{}: expected a JSON object", where), "write one JSON object per line");
  if (!reader.text())
    fail(Exit::data,
         fmt::format("{}: expected a string in \"{}\", got {}", where, key,
                     reader.instead() == nullptr ? "no such field" : reader.instead()),
         "pass the name of the field with the text as --key NAME, or --chat TEMPLATE for conversations");
  return *reader.text();
}

}  // namespace

std::vector<std::string> list_documents(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths)
    for (const TextFile& file : find_text_files(path, {})) {
      for (const char* suffix : {".xz", ".bz2", ".zip", ".parquet", ".arrow"})
        if (file.path.ends_with(suffix))
          fail(Exit::unsupported, fmt::format("{}: reading {} files is not supported yet", file.path, suffix),
               "convert it to text or JSON lines, plain or compressed with zstd (.zst) or gzip (.gz)");
      if (file.path == path && is_other_json(path))  // in a folder it may be a document like others
        fail(
            Exit::data, fmt::format("{}: the name says JSON, not JSON lines", file.path),
            "name files with one JSON object a line *.jsonl or *.ndjson, and text *.txt; a list of objects must become "
            "such lines first");
      files.push_back(file.path);
    }
  return files;
}

DocumentReader::DocumentReader(std::vector<std::string> files, const DocumentPlace& start)
    : files_(std::move(files)), place_(start) {
  MW_CHECK(start.input >= 0 && start.input <= std::ssize(files_) && start.offset >= 0, "place {}", start.input);
  for (int64_t i = 0; i < start.input; ++i)
    before_ += static_cast<int64_t>(std::filesystem::file_size(files_[static_cast<size_t>(i)]));
  if (start.offset == 0) return;
  open(start.input);
  for (int64_t skipped = 0; skipped < start.offset;) {
    if (!fill())
      fail(Exit::data,
           fmt::format("{}: the interrupted run had read {} bytes, but the file is shorter now",
                       files_[static_cast<size_t>(start.input)], start.offset),
           "start over with --restart, or restore the file");
    const size_t drop = std::min(buffer_.size(), static_cast<size_t>(start.offset - skipped));
    buffer_.erase(0, drop);
    skipped += static_cast<int64_t>(drop);
  }
}

void DocumentReader::open(int64_t input) {
  input_ = open_byte_input(files_[static_cast<size_t>(input)]);
  buffer_.clear();
}

bool DocumentReader::fill() {
  const size_t size = buffer_.size();
  if (size > kLargestDocument)
    fail(Exit::data,
         fmt::format("{}: a document is larger than the limit of {}", files_[static_cast<size_t>(place_.input)],
                     format_bytes(static_cast<int64_t>(kLargestDocument))),
         "split the document");
  buffer_.resize(size + kPiece);
  const size_t got = input_->read(std::span(buffer_).subspan(size));
  buffer_.resize(size + got);
  return got > 0;
}

std::optional<DocumentBlock> DocumentReader::next() {
  while (place_.input < std::ssize(files_)) {
    if (input_ == nullptr) open(place_.input);
    DocumentBlock block;
    block.path = files_[static_cast<size_t>(place_.input)];
    block.json_lines = is_json_lines(block.path);
    block.first_line = place_.line + 1;
    size_t whole = std::string::npos;  // the end of the last whole line
    bool more = true;
    while (more && (!block.json_lines || buffer_.size() < kPiece || whole == std::string::npos)) {
      const size_t size = buffer_.size();
      more = fill();
      const size_t newline = block.json_lines ? std::string_view(buffer_).substr(size).rfind('\n') : std::string::npos;
      if (newline != std::string::npos) whole = size + newline + 1;
    }
    if (more) {
      block.bytes = buffer_.substr(0, whole);
      buffer_.erase(0, whole);
      place_.offset += static_cast<int64_t>(whole);
      place_.line += std::count(block.bytes.begin(), block.bytes.end(), '\n');
    } else {
      block.bytes = std::move(buffer_);
      before_ += input_->consumed();
      input_ = nullptr;
      buffer_.clear();
      place_ = {place_.input + 1, 0, 0};
    }
    block.end = place_;
    if (!block.bytes.empty()) return block;
  }
  return std::nullopt;
}

int64_t DocumentReader::consumed() const { return before_ + (input_ == nullptr ? 0 : input_->consumed()); }

void for_each_line(const DocumentBlock& block,
                   const std::function<void(std::string_view line, const std::string& where)>& work) {
  if (!block.json_lines)
    fail(Exit::data, fmt::format("{}: expected a file of JSON lines", block.path), "name it *.jsonl or *.ndjson");
  int64_t line_number = block.first_line;
  const std::string_view bytes = block.bytes;
  for (size_t begin = 0; begin < bytes.size(); ++line_number) {
    const size_t end = std::min(bytes.find('\n', begin), bytes.size());
    const std::string_view line = bytes.substr(begin, end - begin);
    begin = end + 1;
    if (line.find_first_not_of(" \t\r") != std::string_view::npos)
      work(line, fmt::format("{}:{}", block.path, line_number));
  }
}

std::string describe_passed_over(const std::vector<std::string>& files) {
  constexpr size_t kNamed = 5;
  std::string text;
  for (size_t i = 0; i < std::min(files.size(), kNamed); ++i) {
    int64_t lines = 0, with_words = 0;
    DocumentReader reader({files[i]}, {});
    while (const std::optional<DocumentBlock> block = reader.next()) {
      if (!block->json_lines) continue;
      lines += std::count(block->bytes.begin(), block->bytes.end(), '\n') + (block->bytes.back() == '\n' ? 0 : 1);
      for_each_line(*block, [&](std::string_view, const std::string&) { ++with_words; });
    }
    std::string found = "no text";
    if (lines > 0)
      found = fmt::format("{} without text and {} passed over", counted(with_words, "line"),
                          counted(lines - with_words, "blank line"));
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", files[i], found);
  }
  if (files.size() > kNamed) text += fmt::format("; and {} more files", files.size() - kNamed);
  return text;
}

int64_t for_each_document(const DocumentBlock& block, const std::string& key,
                          const std::function<void(std::string_view)>& work) {
  if (!block.json_lines) {
    if (is_utf8(block.bytes)) {
      work(block.bytes);
      return 0;
    }
    std::string repaired;
    const int64_t replaced = repair_utf8(block.bytes, repaired);
    work(repaired);
    return replaced;
  }
  for_each_line(block, [&](std::string_view line, const std::string& where) {
    const std::string text = read_field(line, key, where);
    if (!text.empty()) work(text);  // JSON is UTF-8: the parser has refused anything else
  });
  return 0;
}

}  // namespace mw
