#include "train/data/data.h"

#include <algorithm>
#include <array>
#include <bit>
#include <filesystem>

#include "base/file.h"
#include "base/text.h"
#include "core/rng.h"
#include "formats/tokens/megatron.h"
#include "formats/tokens/tokenizer.h"
#include "ops/cross_entropy.h"

namespace mw {

int64_t permute(int64_t index, int64_t n, uint64_t seed) {
  MW_CHECK(index >= 0 && index < n, "element {} of a permutation of {}", index, n);
  // Two halves of equal width cover 2^(2 half) >= n numbers; walking on from numbers beyond n stays a permutation.
  const int half = std::max(1, (static_cast<int>(std::bit_width(static_cast<uint64_t>(n - 1))) + 1) / 2);
  const uint64_t mask = (uint64_t{1} << half) - 1;
  const RngKey key = make_rng_key(seed, "data_order");
  auto x = static_cast<uint64_t>(index);
  do {
    uint64_t left = x >> half, right = x & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t mixed = bits_at(key, (right << 3) | round) & mask;
      left ^= mixed;
      std::swap(left, right);
    }
    x = (left << half) | right;
  } while (x >= static_cast<uint64_t>(n));
  return static_cast<int64_t>(x);
}

namespace {

std::vector<WeightedSource> only(std::unique_ptr<TokenSource> source) {
  std::vector<WeightedSource> sources;
  sources.push_back({1, std::move(source)});
  return sources;
}

}  // namespace

SampleOrder::SampleOrder(std::unique_ptr<TokenSource> source, int64_t seq_len, int64_t vocab, uint64_t seed,
                         bool whole_documents)
    : SampleOrder(only(std::move(source)), seq_len, vocab, seed, whole_documents) {}

SampleOrder::SampleOrder(std::vector<WeightedSource> sources, int64_t seq_len, int64_t vocab, uint64_t seed,
                         bool whole_documents)
    : seq_len_(seq_len), vocab_(vocab) {
  for (WeightedSource& weighted : sources) {
    std::optional<DocumentPacks> packs;
    if (whole_documents) packs.emplace(*weighted.source, seq_len);
    const int64_t samples = packs ? packs->samples() : (weighted.source->size() - 1) / seq_len;
    if (samples < 1)
      fail(Exit::data,
           fmt::format("{} holds fewer than train.seq_len + 1 = {} tokens", weighted.source->describe(), seq_len + 1),
           "use more data or a shorter train.seq_len");
    shares_.push_back({weighted.weight, {}});
    // A source that stands twice in a blend is not to come in the same order.
    const uint64_t part_seed = seed + static_cast<uint64_t>(parts_.size()) * 0xd1342543de82ef95ull;
    parts_.push_back({std::move(weighted.source), std::move(packs), samples, part_seed});
  }
}

int64_t SampleOrder::samples() const {
  int64_t sum = 0;
  for (const Part& part : parts_) sum += part.samples;
  return sum;
}

std::vector<int64_t> SampleOrder::tokens() const {
  std::vector<int64_t> tokens;
  for (const Part& part : parts_) tokens.push_back(part.source->size());
  return tokens;
}

bool SampleOrder::has_loss_mask() const {
  std::array<uint8_t, 1> first{};
  return std::any_of(parts_.begin(), parts_.end(),
                     [&](const Part& part) { return part.source->read_loss_mask(0, first); });
}

void SampleOrder::read_tokens(const TokenSource& source, int64_t first, std::span<int32_t> ids,
                              std::span<int32_t> labels) const {
  source.read(first, ids);
  source.read(first + 1, labels);
  check_tokens(ids, vocab_, source, first);
  check_tokens(labels, vocab_, source, first + 1);
  std::vector<uint8_t> counts(labels.size());
  if (source.read_loss_mask(first + 1, counts))
    for (size_t i = 0; i < labels.size(); ++i)
      if (counts[i] == 0) labels[i] = kIgnoreLabel;
}

void SampleOrder::read_documents(const Part& part, int64_t number, std::span<int32_t> ids, std::span<int32_t> labels,
                                 std::span<int32_t> starts) const {
  size_t at = 0;
  const auto begin_at = [&](size_t count) {
    if (!starts.empty()) std::fill_n(starts.begin() + static_cast<int64_t>(at), count, static_cast<int32_t>(at));
  };
  std::fill(labels.begin(), labels.end(), kIgnoreLabel);
  for (const DocumentPiece& piece : part.packs->pieces(number)) {
    const auto count = static_cast<size_t>(piece.count);
    begin_at(count);
    read_tokens(*part.source, piece.first, ids.subspan(at, count),
                labels.subspan(at, count - (piece.ends_document ? 1 : 0)));
    at += count;
  }
  begin_at(ids.size() - at);
  for (size_t i = 0; at + i < ids.size(); ++i) ids[at + i] = ids[i];
}

void SampleOrder::read(const Window& window, std::span<int32_t> ids, std::span<int32_t> labels,
                       std::span<int32_t> starts) const {
  const Part& part = parts_[window.source];
  if (part.packs) return read_documents(part, window.number, ids, labels, starts);
  const int64_t first = window.number * seq_len_;
  read_tokens(*part.source, first, ids, labels);
  if (!starts.empty()) find_document_starts(*part.source, first, starts);
}

void SampleOrder::shuffled(int64_t number, std::span<int32_t> ids, std::span<int32_t> labels,
                           std::span<int32_t> starts) const {
  const BlendPlace place = blend_place(shares_, number);
  const Part& part = parts_[place.part];
  const int64_t epoch = place.number / part.samples;
  const uint64_t seed = part.seed + static_cast<uint64_t>(epoch) * 0x9e3779b97f4a7c15ull;
  read({place.part, permute(place.number % part.samples, part.samples, seed)}, ids, labels, starts);
}

Window SampleOrder::spread(int64_t index, int64_t count) const {
  const BlendPlace place = blend_place(shares_, index % count);
  __extension__ using Wide = __int128;  // the product has up to 126 bits
  const int64_t windows = blend_counts(shares_, count)[place.part];
  return {place.part, static_cast<int64_t>(static_cast<Wide>(place.number) * parts_[place.part].samples / windows)};
}

Window SampleOrder::in_order(int64_t index) const {
  size_t source = 0;
  for (; index >= parts_[source].samples; ++source) index -= parts_[source].samples;
  return {source, index};
}

std::string SampleOrder::describe(double samples) const {
  std::string text;
  for (size_t k = 0; k < parts_.size(); ++k) {
    if (k > 0) text += "\n      ";
    if (parts_.size() > 1) text += fmt::format("{:.1f} % ", 100 * shares_[k].weight);
    text += fmt::format("{}; {} samples of {} tokens", parts_[k].source->describe(), parts_[k].samples, seq_len_);
    if (const auto& packs = parts_[k].packs) {
      text += fmt::format(" in whole documents, {:.1f} % padding", 100 * packs->padding());
      if (packs->cut_documents() > 0) text += fmt::format(", {} longer documents cut", packs->cut_documents());
    }
    if (samples > 0)
      text += fmt::format(", {:.3g} epochs", samples * shares_[k].weight / static_cast<double>(parts_[k].samples));
  }
  return text;
}

namespace {

// Errors name the run-file key that the path came from.
std::unique_ptr<TokenSource> open_source(const TokenSourceOptions& options, const char* key,
                                         const OpeningRanks& ranks) {
  const bool is_there = path_exists(options.path);
  const std::string index = options.path + ".idx";
  if (options.kind == DataKind::text && !options.path.empty() && !is_there)
    fail(Exit::data, fmt::format("{} = \"{}\": there is no such file or folder", key, printable(options.path)),
         path_exists(index)
             ? fmt::format("{} is there: set data.kind=megatron to read it", index)
             : fmt::format(
                   "name your text, for example {}=FILE_OR_FOLDER on the command line; the path is relative to {}", key,
                   std::filesystem::current_path().native()));
  if (options.kind == DataKind::megatron && is_there && megatron_prefix(options.path) == options.path &&
      !path_exists(index))
    fail(Exit::data, fmt::format("{} = \"{}\" is no prefix of .bin and .idx", key, printable(options.path)),
         "set data.kind=text to train on its bytes, or `moewright tokenize` it first");
  try {
    return open_token_source(options, ranks);
  } catch (const Error& error) {
    fail(error.code(), fmt::format("{}: {}", key, error.what()), error.hint());
  }
}

}  // namespace

std::unique_ptr<SampleOrder> open_samples(const RunSpec& run, int64_t vocab, bool validation,
                                          const OpeningRanks& ranks) {
  const DataSpec& data = run.data;
  const bool only_validation = validation && !data.val_path.empty();
  if (data.path.empty() == data.blend.empty() && !only_validation)
    fail(Exit::config, data.path.empty() ? "data.path is empty" : "data.path and data.blend exclude each other",
         data.path.empty()
             ? "name a file, a directory or a prefix of token files in data.path, or several with weights in data.blend"
             : "empty one of them, with data.path= or data.blend=[]");
  std::vector<BlendPart> parts = parse_blend(data.blend);
  if (parts.empty()) parts.push_back({1, data.path});
  TokenSourceOptions options{data.kind,          "",           data.suffixes,
                             data.val_fraction,  Split::train, data.document_mask || data.whole_documents,
                             data.document_token};
  if (validation) {
    if (data.val_path.empty() && data.val_fraction == 0) return nullptr;
    options.split = Split::validation;
  }
  if (!data.val_path.empty()) {
    options.split = Split::all;
    options.validation_fraction = 0;
    if (validation) parts = {{1, data.val_path}};
  } else if (data.val_fraction == 0) {
    options.split = Split::all;
  }
  const char* key = data.blend.empty() ? "data.path" : "data.blend";
  if (validation && !data.val_path.empty()) key = "data.val_path";
  std::vector<WeightedSource> sources;
  for (const BlendPart& part : parts) {
    options.path = part.path;
    sources.push_back({part.weight, open_source(options, key, ranks)});
  }
  try {
    return std::make_unique<SampleOrder>(std::move(sources), run.train.seq_len, vocab,
                                         static_cast<uint64_t>(run.train.seed), data.whole_documents);
  } catch (const Error& error) {
    if (!validation) throw;
    fail(error.code(), fmt::format("validation: {}", error.what()),
         only_validation
             ? "name more text in data.val_path, or shorten train.seq_len"
             : fmt::format("data.val_fraction = {} of the data is held out: raise it, name text in data.val_path, "
                           "shorten train.seq_len, or set train.val_batches = 0",
                           data.val_fraction));
  }
}

void check_vocabulary(const SampleOrder& order, const RunSpec& run, int64_t vocab) {
  if (run.data.kind == DataKind::text && !run.hf_dir.empty() && has_tokenizer_file(run.hf_dir))
    fail(Exit::config,
         fmt::format("data.kind = \"text\" reads bytes, but the model's tokens are those of {}",
                     find_tokenizer_file(run.hf_dir)),
         fmt::format("`moewright tokenize FILES -t {} -o PREFIX` makes tokens of text; then set data.kind=megatron and "
                     "data.path or data.val_path to PREFIX",
                     run.hf_dir));
  constexpr int64_t kPlaces = 64, kTokens = 4096;  // 256k tokens: milliseconds on a disk
  std::vector<int32_t> tokens;
  for (size_t part = 0; part < order.sources(); ++part) {
    const TokenSource& source = order.source(part);
    if (run.data.kind == DataKind::text && vocab >= 256) continue;
    const int64_t places = std::clamp<int64_t>(source.size() / kTokens, 1, kPlaces);
    for (int64_t i = 0; i < places; ++i) {
      const int64_t first = source.size() / places * i;
      tokens.resize(static_cast<size_t>(std::min(kTokens, source.size() - first)));
      source.read(first, tokens);
      check_tokens(tokens, vocab, source, first);
    }
  }
}

namespace {

// This rank's slice of a micro-batch; `sample` reads the i-th sample of the whole micro-batch.
template <class ReadSample>
MicroBatch read_slice(const LocalBatch& batch, bool document_starts, const ReadSample& sample) {
  const int64_t length = batch.seq_len;
  const auto tokens = static_cast<size_t>(batch.tokens());
  MicroBatch slice{std::vector<int32_t>(tokens), std::vector<int32_t>(tokens), batch.sequences, length};
  if (document_starts) slice.document_starts.resize(tokens);
  for (int64_t b = 0; b < batch.sequences; ++b) {
    const auto part = [&](std::vector<int32_t>& of) {
      return of.empty() ? std::span<int32_t>()
                        : std::span(of).subspan(static_cast<size_t>(b * length), static_cast<size_t>(length));
    };
    sample(batch.first + b, part(slice.ids), part(slice.labels), part(slice.document_starts));
  }
  return slice;
}

}  // namespace

StepPart part_of_step(const Plan& plan, int64_t cursor, int64_t micro_batches) {
  return {plan.batch, cursor, micro_batches, plan.run.data.document_mask};
}

std::vector<MicroBatch> read_step(const SampleOrder& order, const StepPart& part) {
  std::vector<MicroBatch> batches;
  for (int64_t j = 0; j < part.micro_batches; ++j)
    batches.push_back(read_slice(part.batch, part.document_starts, [&](int64_t i, auto... parts) {
      order.shuffled(part.cursor + j * part.batch.all + i, parts...);
    }));
  return batches;
}

MicroBatch read_windows(const SampleOrder& order, const Plan& plan, std::span<const Window> windows) {
  return read_slice(plan.batch, plan.run.data.document_mask,
                    [&](int64_t i, std::span<int32_t> ids, std::span<int32_t> labels, std::span<int32_t> starts) {
                      if (i < std::ssize(windows)) order.read(windows[static_cast<size_t>(i)], ids, labels, starts);
                      else std::fill(labels.begin(), labels.end(), kIgnoreLabel);
                    });
}

}  // namespace mw
