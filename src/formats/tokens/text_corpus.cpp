#include "formats/tokens/text_corpus.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "formats/io/checksum.h"

namespace mw {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kCopyLimit = int64_t{1} << 30;  // bytes
constexpr size_t kMapLimit = 60000;               // the kernel's default is 65530 maps per process
constexpr uint64_t kBuckets = 10000;

[[noreturn]] void fail_read(const std::string& path, const std::string& reason) {
  fail(Exit::data, fmt::format("cannot read {}: {}", path, reason), "check the path and its permissions");
}

// The part of a name from its last dot, "" without one.
std::string suffix_of(const std::string& name) {
  const size_t dot = name.find_last_of('.');
  return dot == std::string::npos ? std::string() : name.substr(dot);
}

std::string quoted_list(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += fmt::format("{}\"{}\"", text.empty() ? "" : ", ", printable(word));
  return text;
}

// All files below `root` that match, sorted by name.
std::vector<TextFile> search_tree(const std::string& root, const std::vector<std::string>& suffixes) {
  std::vector<TextFile> found;
  std::set<std::string> seen;
  int64_t seen_count = 0;
  std::error_code error;
  fs::recursive_directory_iterator at(root, error);
  if (error) fail_read(root, error.message());
  while (at != fs::recursive_directory_iterator()) {
    const fs::directory_entry entry = *at;
    const std::string name = entry.path().filename().native();
    const bool hidden = name.front() == '.';
    if (hidden && entry.is_directory(error)) at.disable_recursion_pending();
    if (!hidden && entry.is_regular_file(error)) {
      ++seen_count;
      if (seen.size() < 5) seen.insert(suffix_of(name));
      if (selects_name(suffixes, name)) {
        const auto size = static_cast<int64_t>(entry.file_size(error));
        if (error) fail_read(entry.path().native(), error.message());
        if (size > 0) {
          const std::string& path = entry.path().native();
          found.push_back({entry.path().lexically_relative(root).native(), path, size});
        }
      }
    }
    const std::string current = entry.path().native();
    at.increment(error);
    if (error) fail_read(current, error.message());
  }
  if (found.empty()) {
    fail(Exit::data,
         fmt::format("{}: expected a text file{}, got none among {}{}", root,
                     suffixes.empty() ? "" : " with a suffix of " + quoted_list(suffixes), counted(seen_count, "file"),
                     seen.empty() ? "" : " with the suffixes " + quoted_list({seen.begin(), seen.end()})),
         suffixes.empty() ? "name a folder with text files"
                          : "set data.path to a folder with text, and data.suffixes to suffixes that it contains "
                            "(\"\" means no suffix; [] means all files)");
  }
  std::sort(found.begin(), found.end(), [](const TextFile& a, const TextFile& b) { return a.name < b.name; });
  return found;
}

// Reads what is there of at most `limit` bytes: a file may shrink between listing and reading.
size_t read_file(const std::string& path, std::byte* to, int64_t limit) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_read(path, std::strerror(errno));
  file.read(reinterpret_cast<char*>(to), limit);
  if (file.bad()) fail_read(path, std::strerror(errno));
  return static_cast<size_t>(file.gcount());
}

}  // namespace

bool selects_name(const std::vector<std::string>& suffixes, const std::string& name) {
  if (suffixes.empty()) return true;
  return std::any_of(suffixes.begin(), suffixes.end(), [&](const std::string& suffix) {
    return suffix.empty() ? name.find('.') == std::string::npos : name.ends_with(suffix);
  });
}

std::vector<TextFile> find_text_files(const std::string& path, const std::vector<std::string>& suffixes) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) return search_tree(path, suffixes);
  if (!fs::exists(status)) fail_read(path, error ? error.message() : "no such file or directory");
  if (!fs::is_regular_file(status)) fail_read(path, "neither a file nor a folder");
  const auto size = static_cast<int64_t>(fs::file_size(path, error));
  if (error) fail_read(path, error.message());
  if (size == 0) fail(Exit::data, fmt::format("cannot read {}: the file is empty", path), "name a file with text");
  return {{fs::path(path).filename().native(), path, size}};
}

std::vector<bool> choose_held_out(const std::vector<std::string>& names, double validation_fraction) {
  MW_CHECK(validation_fraction >= 0 && validation_fraction < 1, "validation fraction {}", validation_fraction);
  const double threshold = validation_fraction * static_cast<double>(kBuckets);
  std::vector<bool> held_out(names.size());
  std::vector<uint64_t> buckets(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    buckets[i] = xxh3(names[i]) % kBuckets;
    held_out[i] = static_cast<double>(buckets[i]) < threshold;
  }
  if (names.size() >= 2 && validation_fraction > 0) {
    const auto [low, high] = std::minmax_element(buckets.begin(), buckets.end());
    held_out[static_cast<size_t>(low - buckets.begin())] = true;
    held_out[static_cast<size_t>(high - buckets.begin())] = false;
  }
  return held_out;
}

TextCorpus::TextCorpus(const std::string& path, const std::vector<std::string>& suffixes, double validation_fraction,
                       Split split, const OpeningRanks& ranks)
    : path_(path) {
  std::vector<TextFile> files = find_text_files(path, suffixes);
  const bool split_bytes = files.size() == 1 && split != Split::all;
  if (split != Split::all && !split_bytes) {
    std::vector<std::string> names;
    for (const TextFile& file : files) names.push_back(file.name);
    const std::vector<bool> held_out = choose_held_out(names, validation_fraction);
    std::vector<TextFile> kept;
    for (size_t i = 0; i < files.size(); ++i) {
      if (held_out[i] == (split == Split::validation)) kept.push_back(std::move(files[i]));
    }
    files = std::move(kept);
  }

  int64_t total = 0;
  for (const TextFile& file : files) {
    if (__builtin_add_overflow(total, file.size, &total)) fail_read(path, "the files together exceed 2^63 bytes");
  }
  const bool copy = total <= kCopyLimit;
  if (copy) {
    owned_.resize(static_cast<size_t>(total));
  } else if (files.size() > kMapLimit) {
    fail(Exit::data,
         fmt::format("{}: expected at most {} files in a corpus of {}, got {}", path, kMapLimit, format_bytes(total),
                     files.size()),
         "concatenate the files, or convert them with `moewright tokenize` and set data.kind = \"megatron\"");
  }
  size_t used = 0;
  for (TextFile& file : files) {
    ranks.note_progress();
    Part part{.name = std::move(file.name), .start = size_, .bytes = {}};
    if (copy) {
      std::byte* to = owned_.data() + used;
      part.bytes = {to, read_file(file.path, to, file.size)};
      used += part.bytes.size();
    } else {
      part.bytes = maps_.emplace_back(file.path).bytes();
    }
    if (split_bytes) {
      const auto size = static_cast<double>(part.bytes.size());
      const size_t held_out = static_cast<size_t>(std::floor(size * validation_fraction));
      part.bytes = split == Split::train ? part.bytes.first(part.bytes.size() - held_out) : part.bytes.last(held_out);
    }
    size_ += static_cast<int64_t>(part.bytes.size()) + 1;
    parts_.push_back(std::move(part));
  }
  if (size_ == std::ssize(parts_)) {  // separators alone
    fail(Exit::data,
         fmt::format("{}: the {} split is empty with a validation fraction of {}", path,
                     split == Split::validation ? "validation" : "train", validation_fraction),
         split == Split::validation ? "raise data.val_fraction, or set data.val_path to validation text"
                                    : "lower data.val_fraction, or use more files");
  }
}

void TextCorpus::read(int64_t first, std::span<int32_t> out) const {
  check_range(first, out.size());
  if (out.empty()) return;
  auto part = std::upper_bound(parts_.begin(), parts_.end(), first,
                               [](int64_t token, const Part& p) { return token < p.start; }) -
              1;
  size_t within = static_cast<size_t>(first - part->start);
  for (size_t i = 0; i < out.size(); ++part, within = 0) {
    const size_t count = std::min(part->bytes.size() - within, out.size() - i);
    for (size_t j = 0; j < count; ++j) out[i + j] = std::to_integer<int32_t>(part->bytes[within + j]);
    i += count;
    if (i < out.size()) out[i++] = 0;
  }
}

std::vector<int64_t> TextCorpus::document_begins(int64_t first, int64_t count) const {
  check_range(first, static_cast<size_t>(count));
  std::vector<int64_t> begins;
  auto part = std::lower_bound(parts_.begin(), parts_.end(), first,
                               [](const Part& p, int64_t token) { return p.start < token; });
  for (; part != parts_.end() && part->start < first + count; ++part) begins.push_back(part->start);
  return begins;
}

std::string TextCorpus::describe() const {
  return fmt::format("text {}: {}, {} byte tokens", path_, counted(std::ssize(parts_), "file"),
                     format_count(static_cast<double>(size_)));
}

std::vector<std::string> TextCorpus::files() const {
  std::vector<std::string> names;
  for (const Part& part : parts_) names.push_back(part.name);
  return names;
}

}  // namespace mw
