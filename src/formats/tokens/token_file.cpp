#include "formats/tokens/token_file.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "formats/tokens/megatron.h"
#include "formats/tokens/text_corpus.h"
#include "formats/tokens/token_shard.h"

namespace mw {

void TokenSource::check_range(int64_t first, size_t count) const {
  MW_CHECK(first >= 0 && first <= size() && count <= static_cast<size_t>(size() - first),
           "{}: {} tokens from {} were asked for", describe(), count, first);
}

bool TokenSource::read_loss_mask(int64_t, std::span<uint8_t>) const { return false; }

std::vector<int64_t> TokenSource::document_begins(int64_t, int64_t) const {
  fail(Exit::config, fmt::format("{} does not record where documents begin", describe()),
       "set data.document_mask and data.whole_documents to false");
}

void find_document_starts(const TokenSource& source, int64_t first, std::span<int32_t> starts) {
  int64_t at = 0, start = 0;
  const auto fill_up_to = [&](int64_t end) {
    for (; at < end; ++at) starts[static_cast<size_t>(at)] = static_cast<int32_t>(start);
  };
  for (const int64_t begin : source.document_begins(first, std::ssize(starts))) {
    fill_up_to(begin - first);
    start = begin - first;
  }
  fill_up_to(std::ssize(starts));
}

std::string TokenSource::place_of(int64_t i) const { return fmt::format("{}: token {}", describe(), i); }

namespace {

// The first id that is outside [0, vocab), by its index; the number of tokens where there is none.
size_t find_outside(std::span<const int32_t> tokens, int64_t vocab) {
  return static_cast<size_t>(
      std::find_if(tokens.begin(), tokens.end(), [vocab](int32_t id) { return id < 0 || id >= vocab; }) -
      tokens.begin());
}

[[noreturn]] void fail_outside(const std::string& place, int64_t vocab, int32_t id) {
  fail(Exit::data, fmt::format("{}: expected an id in [0, {}), got {}", place, vocab, id),
       "tokenize the text with the tokenizer of the model (in its hf: folder), or, with a [model] table, set "
       "model.vocab to the vocabulary of the tokenizer that made the data, 256 for bytes of text");
}

}  // namespace

void check_tokens(std::span<const int32_t> tokens, int64_t vocab, std::string_view where, int64_t first) {
  const size_t i = find_outside(tokens, vocab);
  if (i < tokens.size())
    fail_outside(fmt::format("{}: token {}", where, first + static_cast<int64_t>(i)), vocab, tokens[i]);
}

void check_tokens(std::span<const int32_t> tokens, int64_t vocab, const TokenSource& source, int64_t first) {
  const size_t i = find_outside(tokens, vocab);
  if (i < tokens.size()) fail_outside(source.place_of(first + static_cast<int64_t>(i)), vocab, tokens[i]);
}

TokenRange find_token_range(const TokenSource& source) {
  std::vector<int32_t> buffer(static_cast<size_t>(std::min<int64_t>(source.size(), 1 << 16)));
  TokenRange range;
  for (int64_t first = 0; first < source.size(); first += static_cast<int64_t>(buffer.size())) {
    buffer.resize(std::min(buffer.size(), static_cast<size_t>(source.size() - first)));
    source.read(first, buffer);
    const auto [low, high] = std::minmax_element(buffer.begin(), buffer.end());
    range.smallest = first == 0 ? *low : std::min(range.smallest, *low);
    range.largest = first == 0 ? *high : std::max(range.largest, *high);
  }
  return range;
}

TokenSlice::TokenSlice(std::unique_ptr<TokenSource> source, int64_t first, int64_t count)
    : source_(std::move(source)), first_(first), count_(count) {
  MW_CHECK(first >= 0 && count >= 0 && first <= source_->size() - count, "slice {}+{} of {}", first, count,
           source_->describe());
}

void TokenSlice::read(int64_t first, std::span<int32_t> out) const {
  check_range(first, out.size());
  source_->read(first_ + first, out);
}

std::vector<int64_t> TokenSlice::document_begins(int64_t first, int64_t count) const {
  check_range(first, static_cast<size_t>(count));
  std::vector<int64_t> begins = source_->document_begins(first_ + first, count);
  for (int64_t& begin : begins) begin -= first_;
  return begins;
}

bool TokenSlice::read_loss_mask(int64_t first, std::span<uint8_t> out) const {
  check_range(first, out.size());
  return source_->read_loss_mask(first_ + first, out);
}

std::string TokenSlice::place_of(int64_t i) const { return source_->place_of(first_ + i); }

std::string TokenSlice::describe() const {
  return fmt::format("{} (tokens {} to {})", source_->describe(), first_, first_ + count_);
}

namespace {

std::unique_ptr<TokenSource> open_shards(const TokenSourceOptions& options, const OpeningRanks& ranks) {
  auto shards = std::make_unique<JoinedShards>(list_token_shards(options.path, ranks), ranks);
  if (options.documents) shards->cut_documents(options.document_token);
  return shards;
}

}  // namespace

std::unique_ptr<TokenSource> open_token_source(const TokenSourceOptions& options, const OpeningRanks& ranks) {
  const double fraction = options.validation_fraction;
  if (!(fraction >= 0 && fraction < 1)) {
    fail(Exit::config, fmt::format("data.val_fraction: expected a fraction in [0, 1), got {}", fraction),
         "set data.val_fraction = 0.05, for example, to hold out 5 %");
  }
  if (options.split == Split::validation && fraction == 0) {
    fail(Exit::config, "the validation split is empty: data.val_fraction = 0",
         "set data.val_fraction = 0.05, for example, or data.val_path");
  }
  std::unique_ptr<TokenSource> source;
  switch (options.kind) {
    case DataKind::text:
      return std::make_unique<TextCorpus>(options.path, options.suffixes, fraction, options.split, ranks);
    case DataKind::megatron: source = std::make_unique<MegatronDataset>(options.path, ranks); break;
    case DataKind::shards: source = open_shards(options, ranks); break;
  }
  const int64_t size = source->size();
  const auto held_out = static_cast<int64_t>(std::floor(static_cast<double>(size) * fraction));
  const int64_t count = options.split == Split::all ? size : options.split == Split::train ? size - held_out : held_out;
  if (count == 0) {
    fail(Exit::data,
         fmt::format("{}: the {} is empty", options.path,
                     size == 0                            ? "data"
                     : options.split == Split::validation ? "validation split"
                                                          : "training split"),
         size == 0 ? "check data.path" : "use more data, or change data.val_fraction");
  }
  if (count == size) return source;
  return std::make_unique<TokenSlice>(std::move(source), options.split == Split::train ? 0 : size - held_out, count);
}

}  // namespace mw
