#include "formats/tokens/growing_dataset.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/file.h"
#include "formats/tokens/megatron.h"

namespace mw {
namespace {

// The first `size` bytes of a file, fed to `hash`. Errors unless their checksum is the expected one.
void check_prefix(const MappedFile& file, int64_t size, const std::string& expected, Xxh3Stream& hash) {
  const bool there = std::ssize(file.bytes()) >= size;
  if (there) hash.update(file.bytes().first(static_cast<size_t>(size)));
  if (!there || hash.hex() != expected)
    fail(Exit::data, fmt::format("{} has changed since the interrupted run wrote it", file.path()),
         "start over with --restart");
}

}  // namespace

GrowingDataset::GrowingDataset(const std::string& prefix, TokenType type, bool has_mask)
    : prefix_(prefix), type_(type), bin_(prefix + ".bin"), lengths_file_(prefix + ".lengths") {
  bin_.keep_unfinished();
  lengths_file_.keep_unfinished();
  if (has_mask) mask_.emplace(prefix + ".mask").keep_unfinished();
}

GrowingDataset::GrowingDataset(const std::string& prefix, TokenType type, const DatasetMark& mark)
    : prefix_(prefix), type_(type), lengths_written_(static_cast<size_t>(mark.documents)) {
  const int64_t lengths_size = mark.documents * static_cast<int64_t>(sizeof(int32_t));
  check_prefix(MappedFile(prefix + ".bin.tmp"), mark.bytes, mark.bin_xxh3, bin_hash_);
  const MappedFile lengths(prefix + ".lengths.tmp");
  check_prefix(lengths, lengths_size, mark.lengths_xxh3, lengths_hash_);
  lengths_.resize(lengths_written_);
  if (lengths_size > 0) std::memcpy(lengths_.data(), lengths.bytes().data(), static_cast<size_t>(lengths_size));
  bin_ = OutputFile::resume(prefix + ".bin", mark.bytes);
  lengths_file_ = OutputFile::resume(prefix + ".lengths", lengths_size);
  if (mark.mask_xxh3.empty()) return;
  const int64_t tokens = mark.bytes / size_of(type);
  check_prefix(MappedFile(prefix + ".mask.tmp"), tokens, mark.mask_xxh3, mask_hash_);
  mask_ = OutputFile::resume(prefix + ".mask", tokens);
}

void GrowingDataset::add_document(std::span<const int32_t> tokens, std::span<const uint8_t> mask) {
  MW_CHECK(mask.size() == (mask_ ? tokens.size() : 0), "a mask of {} for {} tokens", mask.size(), tokens.size());
  if (tokens.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max()))
    fail(Exit::data,
         fmt::format("{}: a document has {} tokens, at most 2^31 - 1 are supported", prefix_, tokens.size()),
         "split the document");
  buffer_.resize(tokens.size() * static_cast<size_t>(size_of(type_)));
  encode_tokens(type_, tokens, buffer_.data(), fmt::format("{}, document {}", prefix_, documents()));
  bin_.append(buffer_);
  bin_hash_.update(buffer_);
  lengths_.push_back(static_cast<int32_t>(tokens.size()));
  if (!mask_) return;
  mask_->append(std::as_bytes(mask));
  mask_hash_.update(std::as_bytes(mask));
}

DatasetMark GrowingDataset::save() {
  const auto fresh = std::as_bytes(std::span(lengths_).subspan(lengths_written_));
  lengths_file_.append(fresh);
  lengths_hash_.update(fresh);
  lengths_written_ = lengths_.size();
  bin_.sync();
  lengths_file_.sync();
  if (mask_) mask_->sync();
  return {documents(), bin_.appended(), bin_hash_.hex(), lengths_hash_.hex(), mask_ ? mask_hash_.hex() : ""};
}

void GrowingDataset::finish() {
  OutputFile idx(prefix_ + ".idx");
  std::vector<int64_t> documents(lengths_.size() + 1);
  std::iota(documents.begin(), documents.end(), int64_t{0});
  append_megatron_index(idx, type_, lengths_, documents);
  idx.finish();                // first: while the other is not there, the run can be taken up again
  if (mask_) mask_->finish();  // no data is ever seen without its mask
  bin_.finish();
  ::unlink((lengths_file_.path() + ".tmp").c_str());
}

void GrowingDataset::take_back_finish(const std::string& prefix) {
  if (!path_exists(prefix + ".bin.tmp") || path_exists(prefix + ".bin")) return;
  ::unlink((prefix + ".idx").c_str());
  const std::string mask = prefix + ".mask";
  if (!path_exists(mask) || std::rename(mask.c_str(), (mask + ".tmp").c_str()) == 0) return;
  fail(Exit::data, fmt::format("cannot rename {}: {} (errno {})", mask, std::strerror(errno), errno),
       "check the folder and its permissions");
}

}  // namespace mw
