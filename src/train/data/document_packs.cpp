#include "train/data/document_packs.h"

#include <algorithm>
#include <set>

namespace mw {

namespace {

// The pieces of all documents in their order; counts those that are cut.
std::vector<DocumentPiece> cut_pieces(const TokenSource& source, int64_t length, int64_t& cut) {
  std::vector<int64_t> begins = source.document_begins(0, source.size());
  if (begins.empty() || begins.front() != 0) begins.insert(begins.begin(), 0);  // the end of one that begins before
  std::vector<DocumentPiece> pieces;
  for (size_t i = 0; i < begins.size(); ++i) {
    const int64_t end = i + 1 < begins.size() ? begins[i + 1] : source.size();
    if (end - begins[i] > length) ++cut;
    for (int64_t first = begins[i]; first < end; first += length)
      pieces.push_back({first, static_cast<int32_t>(std::min(length, end - first)), end - first <= length});
  }
  return pieces;
}

// Samples by how many tokens they have room for.
class OpenSamples {
 public:
  explicit OpenSamples(int64_t length) : of_room_(static_cast<size_t>(length + 1)) {}

  // Takes `count` tokens of the sample with the least room that suffices, or of a new one; returns its number.
  int64_t take(int64_t count) {
    const auto found = rooms_.lower_bound(count);
    int64_t room = std::ssize(of_room_) - 1, sample = samples_;
    if (found == rooms_.end()) {
      ++samples_;
    } else {
      room = *found;
      auto& fitting = of_room_[static_cast<size_t>(room)];
      sample = fitting.back();
      fitting.pop_back();
      if (fitting.empty()) rooms_.erase(found);
    }
    auto& rest = of_room_[static_cast<size_t>(room - count)];
    if (rest.empty()) rooms_.insert(room - count);
    rest.push_back(sample);
    return sample;
  }
  int64_t samples() const { return samples_; }

 private:
  std::vector<std::vector<int64_t>> of_room_;
  std::set<int64_t> rooms_;  // that some sample has
  int64_t samples_ = 0;
};

}  // namespace

DocumentPacks::DocumentPacks(const TokenSource& source, int64_t length) {
  pieces_ = cut_pieces(source, length, cut_documents_);
  std::stable_sort(pieces_.begin(), pieces_.end(),
                   [](const DocumentPiece& a, const DocumentPiece& b) { return a.count > b.count; });
  OpenSamples open(length);
  std::vector<int64_t> sample_of;
  sample_of.reserve(pieces_.size());
  for (const DocumentPiece& piece : pieces_) sample_of.push_back(open.take(piece.count));
  // Pieces by sample, in the order in which they were taken.
  begins_.assign(static_cast<size_t>(open.samples() + 1), 0);
  for (const int64_t sample : sample_of) ++begins_[static_cast<size_t>(sample + 1)];
  for (size_t i = 1; i < begins_.size(); ++i) begins_[i] += begins_[i - 1];
  std::vector<int64_t> next(begins_.begin(), begins_.end() - 1);
  std::vector<DocumentPiece> by_sample(pieces_.size());
  for (size_t i = 0; i < pieces_.size(); ++i)
    by_sample[static_cast<size_t>(next[static_cast<size_t>(sample_of[i])]++)] = pieces_[i];
  pieces_ = std::move(by_sample);
  padding_ = 1 - static_cast<double>(source.size()) / static_cast<double>(samples() * length);
}

std::span<const DocumentPiece> DocumentPacks::pieces(int64_t sample) const {
  const auto first = static_cast<size_t>(begins_[static_cast<size_t>(sample)]);
  const auto end = static_cast<size_t>(begins_[static_cast<size_t>(sample) + 1]);
  return std::span(pieces_).subspan(first, end - first);
}

}  // namespace mw
