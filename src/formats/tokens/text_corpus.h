// Byte-level token source: all text files of a directory tree, concatenated; token ids are the bytes 0 to 255.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "formats/tokens/token_file.h"

namespace mw {

struct TextFile {
  std::string name;  // relative to the searched folder
  std::string path;
  int64_t size = 0;  // bytes
};

// The file `path`, or the files of the folder `path` in bytewise order of names (TextCorpus says which). Errors:
// Exit::data naming the path when it cannot be read, is empty or nothing matches.
std::vector<TextFile> find_text_files(const std::string& path, const std::vector<std::string>& suffixes);

// Whether `suffixes` (as of TextCorpus) select a file of this name.
bool selects_name(const std::vector<std::string>& suffixes, const std::string& name);

// The bytes of the files in bytewise order of their relative paths, each file followed by one zero byte.
//
// `path` is a file (taken as it is) or a folder (searched in depth; hidden entries, empty files and everything but
// regular files are skipped; links to files are followed, links to folders are not). `suffixes` selects files by the
// end of their name; "" selects names without a dot; an empty list selects all.
//
// Split by whole files: a file is held out for validation when xxh3(relative path) mod 10000 < validation_fraction *
// 10000, independent of the location of the tree. With two files or more and 0 < fraction < 1, each side gets at least
// one. A single file is split in two instead: its last floor(fraction * size) bytes are held out.
//
// Each file, including its zero byte, is a document.
//
// Up to 1 GiB is copied into memory, so that editing the tree during training does no harm; larger trees are
// memory-mapped.
class TextCorpus final : public TokenSource {
 public:
  // Errors: Exit::data naming the path when it cannot be read, nothing matches (with suffixes seen), the split is
  // empty, or more than 60000 files would have to be mapped. Each of `ranks` reads all files.
  TextCorpus(const std::string& path, const std::vector<std::string>& suffixes, double validation_fraction = 0,
             Split split = Split::all, const OpeningRanks& ranks = {});

  int64_t size() const override { return size_; }
  void read(int64_t first, std::span<int32_t> out) const override;
  std::vector<int64_t> document_begins(int64_t first, int64_t count) const override;
  std::string describe() const override;
  // Relative paths of this split, in stream order.
  std::vector<std::string> files() const;

 private:
  struct Part {
    std::string name;
    int64_t start = 0;  // in the stream
    std::span<const std::byte> bytes;
  };

  std::string path_;
  std::vector<Part> parts_;
  std::vector<std::byte> owned_;
  std::vector<MappedFile> maps_;
  int64_t size_ = 0;
};

// Whether each file is held out for validation; `names` are relative paths. TextCorpus describes the rule.
std::vector<bool> choose_held_out(const std::vector<std::string>& names, double validation_fraction);

}  // namespace mw
