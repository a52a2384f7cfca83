#include "formats/tokens/megatron.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "layout/shards.h"

namespace mw {
namespace {

constexpr char kMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
constexpr size_t kHeaderSize = 34;
constexpr const char* kDatasetHint =
    "check that .bin and .idx belong to one Megatron dataset and are complete, or tokenize the text again";

// The arrays are unaligned.
template <class T>
T load(std::span<const std::byte> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

template <class T>
T element(std::span<const std::byte> array, int64_t i) {
  return load<T>(array, static_cast<size_t>(i) * sizeof(T));
}

struct TypeCode {
  uint8_t code;
  TokenType type;
};
constexpr TypeCode kTypeCodes[] = {{1, TokenType::u8},  {2, TokenType::i8},  {3, TokenType::i16},
                                   {4, TokenType::i32}, {5, TokenType::i64}, {8, TokenType::u16}};

TokenType type_of_code(uint8_t code, std::string_view path) {
  for (const TypeCode& known : kTypeCodes) {
    if (known.code == code) return known.type;
  }
  fail(Exit::data,
       fmt::format("{}: dtype code at byte 17: expected an integer type (1 to 5, or 8), got {}{}", path, code,
                   code == 6 || code == 7 ? ", a floating-point type" : ""),
       kDatasetHint);
}

uint8_t code_of_type(TokenType type, const std::string& path) {
  for (const TypeCode& known : kTypeCodes) {
    if (known.type == type) return known.code;
  }
  fail(Exit::data, fmt::format("{}: Megatron files cannot hold {} tokens", path, name_of(type)),
       "write the tokens as i32 or u16");
}

constexpr int64_t kNoteEvery = int64_t{1} << 20;  // sequences or documents: some milliseconds

// Where a sequence ends in .bin, or the end of .bin, where the sequence is not within it: who checks it refuses it.
int64_t end_of_sequence(const MegatronIndex& index, int64_t sequence, int64_t bin_size) {
  const int64_t offset = index.offset(sequence), bytes = index.length(sequence) * size_of(index.type);
  return offset < 0 || bytes < 0 || offset > bin_size || bytes > bin_size - offset ? bin_size : offset + bytes;
}

struct SequenceTotals {
  int64_t tokens = 0;
  int64_t gaps = 0;  // sequences that do not begin where the one before ends
};

// Checks that the lengths and offsets of a part of the sequences are in order and within .bin.
SequenceTotals check_sequences(const MegatronIndex& index, Block part, int64_t bin_size, std::string_view path,
                               const OpeningRanks& ranks) {
  const int64_t width = size_of(index.type), part_end = part.begin + part.count;
  // Of the sequence before; at most bin_size, so that nothing below overflows.
  int64_t end = part.begin == 0 ? 0 : end_of_sequence(index, part.begin - 1, bin_size);
  SequenceTotals totals;
  for (int64_t i = part.begin; i < part_end; ++i) {
    if (i % kNoteEvery == 0) ranks.note_progress();
    const int64_t length = index.length(i);
    const int64_t offset = index.offset(i);
    if (length < 0) fail(Exit::data, fmt::format("{}: sequence {}: negative length {}", path, i, length), kDatasetHint);
    if (offset < end || offset > bin_size || length * width > bin_size - offset) {
      fail(Exit::data,
           fmt::format("{}: sequence {}: expected a range within bytes [{}, {}) of .bin, got {} bytes from byte {}",
                       path, i, end, bin_size, length * width, offset),
           kDatasetHint);
    }
    totals.gaps += offset != end ? 1 : 0;
    end = offset + length * width;
    totals.tokens += length;
  }
  if (part_end == index.sequence_count && end != bin_size) {
    fail(Exit::data, fmt::format("{}: expected a .bin of {} bytes, got {}", path, end, bin_size), kDatasetHint);
  }
  return totals;
}

void check_documents(const MegatronIndex& index, Block part, std::string_view path, const OpeningRanks& ranks) {
  int64_t previous = part.begin == 0 ? 0 : index.document_begin(part.begin - 1);
  for (int64_t i = part.begin; i < part.begin + part.count; ++i) {
    if (i % kNoteEvery == 0) ranks.note_progress();
    const int64_t bound = index.document_begin(i);
    const bool last = i == index.document_count;
    if (bound < previous || bound > index.sequence_count || (i == 0 && bound != 0) ||
        (last && bound != index.sequence_count)) {
      fail(Exit::data,
           fmt::format("{}: document entry {}: expected a sequence index in [{}, {}], got {}", path, i,
                       last ? index.sequence_count : previous, i == 0 ? 0 : index.sequence_count, bound),
           kDatasetHint);
    }
    previous = bound;
  }
}

std::vector<int64_t> starts_of_sequences(const MegatronIndex& index, const OpeningRanks& ranks) {
  std::vector<int64_t> starts;
  starts.reserve(static_cast<size_t>(index.sequence_count));
  int64_t start = 0;
  for (int64_t i = 0; i < index.sequence_count; ++i) {
    if (i % kNoteEvery == 0) ranks.note_progress();
    starts.push_back(start);
    start += index.length(i);
  }
  return starts;
}

// Checks both, and fills in token_count, and starts where there are gaps.
void check_arrays(MegatronIndex& index, int64_t bin_size, std::string_view path, const OpeningRanks& ranks) {
  const auto own = [&](int64_t entries) { return block_of(entries, ranks.size(), ranks.rank()); };
  SequenceTotals totals;
  ranks.agree([&] {
    totals = check_sequences(index, own(index.sequence_count), bin_size, path, ranks);
    check_documents(index, own(index.document_count + 1), path, ranks);
  });
  std::array<int64_t, 2> sums = {totals.tokens, totals.gaps};
  ranks.sum(sums);
  index.token_count = sums[0];
  if (sums[1] > 0) index.starts = starts_of_sequences(index, ranks);
}

}  // namespace

int64_t MegatronIndex::length(int64_t sequence) const { return element<int32_t>(lengths, sequence); }
int64_t MegatronIndex::offset(int64_t sequence) const { return element<int64_t>(offsets, sequence); }
int64_t MegatronIndex::document_begin(int64_t document) const { return element<int64_t>(documents, document); }

int64_t MegatronIndex::first_token(int64_t document) const {
  const int64_t sequence = document_begin(document);
  if (sequence == sequence_count) return token_count;
  return starts.empty() ? offset(sequence) / size_of(type) : starts[static_cast<size_t>(sequence)];
}

MegatronIndex parse_megatron_index(std::span<const std::byte> idx, int64_t bin_size, std::string_view path_for_messages,
                                   const OpeningRanks& ranks) {
  const std::string_view path = path_for_messages;
  if (idx.size() < kHeaderSize) {
    fail(Exit::data,
         fmt::format("{}: expected a header of at least {} bytes, got a file of {}", path, kHeaderSize, idx.size()),
         kDatasetHint);
  }
  if (std::memcmp(idx.data(), kMagic, sizeof kMagic) != 0) {
    const std::string_view got(reinterpret_cast<const char*>(idx.data()), sizeof kMagic);
    fail(Exit::data, fmt::format("{}: expected the magic \"MMIDIDX\", got \"{}\"", path, printable(got)), kDatasetHint);
  }
  if (const auto version = load<uint64_t>(idx, 9); version != 1) {
    fail(Exit::data, fmt::format("{}: version at byte 9: expected 1, got {}", path, version), kDatasetHint);
  }
  MegatronIndex index;
  index.type = type_of_code(load<uint8_t>(idx, 17), path);

  // Each count is bounded by the file before it is multiplied.
  const size_t room = idx.size() - kHeaderSize;
  const auto sequences = load<uint64_t>(idx, 18);
  const auto entries = load<uint64_t>(idx, 26);
  if (sequences > room / 12) {
    fail(Exit::data,
         fmt::format("{}: sequence count at byte 18: expected at most {} in a file of {} bytes, got {}", path,
                     room / 12, idx.size(), sequences),
         kDatasetHint);
  }
  const size_t room_for_documents = room - sequences * 12;
  if (entries == 0 || entries > room_for_documents / 8) {
    fail(Exit::data,
         fmt::format("{}: document entry count at byte 26: expected 1 to {} in a file of {} bytes, got {}", path,
                     room_for_documents / 8, idx.size(), entries),
         kDatasetHint);
  }
  const size_t trailing = room_for_documents - entries * 8;
  if (trailing != 0 && trailing != sequences) {
    fail(Exit::data,
         fmt::format("{}: expected {} bytes (or {} with modes) for {} sequences and {} document entries, got {}", path,
                     idx.size() - trailing, idx.size() - trailing + sequences, sequences, entries, idx.size()),
         kDatasetHint);
  }
  index.sequence_count = static_cast<int64_t>(sequences);
  index.document_count = static_cast<int64_t>(entries) - 1;
  index.lengths = idx.subspan(kHeaderSize, sequences * 4);
  index.offsets = idx.subspan(kHeaderSize + sequences * 4, sequences * 8);
  index.documents = idx.subspan(kHeaderSize + sequences * 12, entries * 8);
  check_arrays(index, bin_size, path, ranks);
  return index;
}

void read_megatron_tokens(const MegatronIndex& index, std::span<const std::byte> bin, int64_t first,
                          std::span<int32_t> out, std::string_view path_for_messages) {
  if (out.empty()) return;
  const int64_t width = size_of(index.type);
  const auto where = [&](int64_t token) { return fmt::format("{}, from token {}", path_for_messages, token); };
  if (index.starts.empty()) {
    decode_tokens(index.type, bin.data() + first * width, out, where(first));
    return;
  }
  // The last sequence that starts at or before `first`: with empty sequences about, the one that holds it.
  auto sequence = std::upper_bound(index.starts.begin(), index.starts.end(), first) - index.starts.begin() - 1;
  int64_t within = first - index.starts[static_cast<size_t>(sequence)];
  for (; !out.empty(); ++sequence, within = 0) {
    const auto count = static_cast<size_t>(std::min<int64_t>(index.length(sequence) - within, std::ssize(out)));
    decode_tokens(index.type, bin.data() + index.offset(sequence) + within * width, out.first(count),
                  where(index.starts[static_cast<size_t>(sequence)] + within));
    out = out.subspan(count);
  }
}

std::string megatron_prefix(const std::string& path) {
  return path.ends_with(".bin") || path.ends_with(".idx") ? path.substr(0, path.size() - 4) : path;
}

MegatronDataset::MegatronDataset(const std::string& prefix_or_path, const OpeningRanks& ranks)
    : prefix_(megatron_prefix(prefix_or_path)),
      idx_(prefix_ + ".idx"),
      bin_(prefix_ + ".bin"),
      index_(parse_megatron_index(idx_.bytes(), static_cast<int64_t>(bin_.bytes().size()), idx_.path(), ranks)) {
  const std::string mask = prefix_ + ".mask";
  if (!path_exists(mask)) return;
  mask_.emplace(mask);
  if (std::ssize(mask_->bytes()) != size())
    fail(Exit::data,
         fmt::format("{}: expected one byte for each of {} tokens, got {}", mask, size(), mask_->bytes().size()),
         "it belongs to other token files: write both again with `moewright tokenize --chat`, or remove it to train on "
         "all tokens");
}

void MegatronDataset::read(int64_t first, std::span<int32_t> out) const {
  check_range(first, out.size());
  read_megatron_tokens(index_, bin_.bytes(), first, out, bin_.path());
}

std::vector<int64_t> MegatronDataset::document_begins(int64_t first, int64_t count) const {
  check_range(first, static_cast<size_t>(count));
  int64_t low = 0, high = index_.document_count;  // the first document at or after `first` is one of these
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (index_.first_token(middle) < first) low = middle + 1;
    else high = middle;
  }
  std::vector<int64_t> begins;
  for (int64_t document = low; document < index_.document_count; ++document) {
    const int64_t begin = index_.first_token(document);
    if (begin >= first + count) break;
    if (begins.empty() || begins.back() != begin) begins.push_back(begin);  // the one before was empty
  }
  return begins;
}

bool MegatronDataset::read_loss_mask(int64_t first, std::span<uint8_t> out) const {
  check_range(first, out.size());
  if (!mask_) return false;
  const std::span<const std::byte> bytes = mask_->bytes().subspan(static_cast<size_t>(first), out.size());
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = std::to_integer<uint8_t>(bytes[i]);
    if (out[i] > 1)
      fail(Exit::data,
           fmt::format("{}: expected 0 or 1 for token {}, got {}", mask_->path(), first + static_cast<int64_t>(i),
                       out[i]),
           "the file is damaged: write it again with `moewright tokenize --chat`");
  }
  return true;
}

std::string MegatronDataset::describe() const {
  return fmt::format("megatron {}: {} {} tokens, {} documents{}", prefix_, format_count(static_cast<double>(size())),
                     name_of(index_.type), index_.document_count, mask_ ? ", with a loss mask" : "");
}

void append_megatron_index(OutputFile& idx, TokenType type, std::span<const int32_t> lengths,
                           std::span<const int64_t> documents) {
  const uint64_t version = 1;
  const uint8_t code = code_of_type(type, idx.path());
  const uint64_t counts[2] = {lengths.size(), documents.size()};
  std::vector<int64_t> offsets;
  offsets.reserve(lengths.size());
  int64_t offset = 0;
  for (const int32_t length : lengths) {
    offsets.push_back(offset);
    offset += length * size_of(type);
  }
  idx.append(std::as_bytes(std::span(kMagic)));
  idx.append(std::as_bytes(std::span(&version, 1)));
  idx.append(std::as_bytes(std::span(&code, 1)));
  idx.append(std::as_bytes(std::span(counts)));
  idx.append(std::as_bytes(lengths));
  idx.append(std::as_bytes(std::span(offsets)));
  idx.append(std::as_bytes(documents));
}

}  // namespace mw
