// Reads documents from text files and JSON-lines files, in blocks that worker threads can split up.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/io/byte_input.h"

namespace mw {

// The files that `paths` name: a file is taken as it is; a folder is searched recursively, in bytewise order of names.
// Errors: Exit::data when a path does not exist or a folder contains no file.
std::vector<std::string> list_documents(const std::vector<std::string>& paths);

// The position of the next document.
struct DocumentPlace {
  int64_t input = 0;   // index of the file
  int64_t offset = 0;  // in the file, decompressed
  int64_t line = 0;    // lines before it
};

struct DocumentBlock {
  std::string bytes;  // whole lines of a JSON-lines file (*.jsonl, *.ndjson), or a whole file of another kind
  bool json_lines = false;
  std::string path;
  int64_t first_line = 1;  // of `bytes`
  DocumentPlace end;       // position after this block
};

// Not thread-safe.
class DocumentReader {
 public:
  // Errors (all functions): Exit::data naming the path, also for a line, or a file of plain text, above 1 GiB.
  DocumentReader(std::vector<std::string> files, const DocumentPlace& start);
  // Returns none at the end of the last file. A block of lines has about 1 MiB.
  std::optional<DocumentBlock> next();
  int64_t consumed() const;  // bytes read so far, as stored (compressed or not)

 private:
  void open(int64_t input);
  bool fill();  // reads more; false at the end of the file

  std::vector<std::string> files_;
  DocumentPlace place_;
  std::unique_ptr<ByteInput> input_;  // of place_.input; null: not opened
  std::string buffer_;                // bytes read but not yet returned
  int64_t before_ = 0;                // bytes of all earlier files
};

// Describes files that hold no document, the first five of them: "a.jsonl: 2 lines without text, 1 blank line passed
// over; b.txt: no text". Errors: those of DocumentReader.
std::string describe_passed_over(const std::vector<std::string>& files);

// Calls `work` with every line of a block of JSON lines that is not blank, and with "FILE:LINE". Errors: Exit::data
// when the block is of a file of another kind.
void for_each_line(const DocumentBlock& block,
                   const std::function<void(std::string_view line, const std::string& where)>& work);

// Calls `work` with every document of the block: the text in the field `key` of each line's object, or the whole file.
// Skips documents without text; replaces bytes that are not UTF-8 by U+FFFD. Returns the number of replaced bytes.
// Errors: Exit::data naming file and line when a line is not a JSON object, or has no text in `key`.
int64_t for_each_document(const DocumentBlock& block, const std::string& key,
                          const std::function<void(std::string_view)>& work);

}  // namespace mw
