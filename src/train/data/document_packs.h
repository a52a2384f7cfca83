// Samples of whole documents: which documents each sample holds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "formats/tokens/token_file.h"

namespace mw {

// A document, or a part of one that is longer than a sample.
struct DocumentPiece {
  int64_t first = 0;  // token of the source
  int32_t count = 0;
  bool ends_document = false;
};

// Packs the documents of a source into samples of `length` tokens by best fit, longest first: "best-fit decreasing" of
// bin packing, which leaves little room. Documents longer than a sample are cut into pieces of `length` tokens and a
// rest. A pure function of the source. Keeps 24 bytes for each document.
class DocumentPacks {
 public:
  // Errors: those of TokenSource::document_begins.
  DocumentPacks(const TokenSource& source, int64_t length);

  int64_t samples() const { return static_cast<int64_t>(begins_.size()) - 1; }
  std::span<const DocumentPiece> pieces(int64_t sample) const;
  int64_t cut_documents() const { return cut_documents_; }
  double padding() const { return padding_; }  // share of the samples' tokens that no piece fills

 private:
  std::vector<DocumentPiece> pieces_;  // sample by sample, the longest piece first
  std::vector<int64_t> begins_ = {0};  // of each sample in pieces_, and the end
  int64_t cut_documents_ = 0;
  double padding_ = 0;
};

}  // namespace mw
