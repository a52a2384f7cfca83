// Documents of text files and JSON-lines files, in blocks that workers can take apart.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/byte_input.h"

namespace mw {

// The files that `paths` name: files as they are, folders searched in depth in bytewise order of names. Errors:
// Exit::data when one is not there or a folder holds nothing.
std::vector<std::string> list_documents(const std::vector<std::string>& paths);

// Where the next document begins.
struct DocumentPlace {
  int64_t input = 0;   // which file
  int64_t offset = 0;  // in it, decompressed
  int64_t line = 0;    // lines before it
};

struct DocumentBlock {
  std::string bytes;  // whole lines of a JSON-lines file (*.jsonl, *.ndjson), or a whole file of another kind
  bool json_lines = false;
  std::string path;
  int64_t first_line = 1;  // of `bytes`
  DocumentPlace end;       // behind it
};

// For one thread.
class DocumentReader {
 public:
  // Errors (all functions): Exit::data naming the path, also for a line, or a file of plain text, above 1 GiB.
  DocumentReader(std::vector<std::string> files, const DocumentPlace& start);
  // None at the end of the last file. A block of lines has about 1 MiB.
  std::optional<DocumentBlock> next();
  int64_t consumed() const;  // bytes of the files themselves, compressed or not, up to here

 private:
  void open(int64_t input);
  bool fill();  // reads a piece; false at the end of the file

  std::vector<std::string> files_;
  DocumentPlace place_;
  std::unique_ptr<ByteInput> input_;  // of place_.input; null: not opened
  std::string buffer_;                // what is read and not given away
  int64_t before_ = 0;                // bytes of the files before this one
};

// Calls `work` with every document of the block: text of the field `key` of a line's object, or the file. Documents
// without text are passed over; text that is not UTF-8 gets U+FFFD for what is not. Returns how many bytes were
// replaced so. Errors: Exit::data naming file and line when a line is no JSON object, or has no text in `key`.
int64_t for_each_document(const DocumentBlock& block, const std::string& key,
                          const std::function<void(std::string_view)>& work);

}  // namespace mw
