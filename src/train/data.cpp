#include "train/data.h"

#include <algorithm>
#include <bit>

#include "core/rng.h"

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

SampleOrder::SampleOrder(std::unique_ptr<TokenSource> source, int64_t seq_len, int64_t vocab, uint64_t seed)
    : source_(std::move(source)),
      seq_len_(seq_len),
      vocab_(vocab),
      samples_((source_->size() - 1) / seq_len),
      seed_(seed) {
  if (samples_ < 1)
    fail(Exit::data, fmt::format("{} holds fewer than train.seq_len + 1 = {} tokens", source_->describe(), seq_len + 1),
         "use more data or a shorter train.seq_len");
}

void SampleOrder::read(int64_t window, std::span<int32_t> ids, std::span<int32_t> labels) const {
  const int64_t first = window * seq_len_;
  source_->read(first, ids);
  source_->read(first + 1, labels);
  check_tokens(ids, vocab_, source_->describe(), first);
  check_tokens(labels, vocab_, source_->describe(), first + 1);
}

void SampleOrder::shuffled(int64_t number, std::span<int32_t> ids, std::span<int32_t> labels) const {
  const int64_t epoch = number / samples_;
  read(permute(number % samples_, samples_, seed_ + static_cast<uint64_t>(epoch) * 0x9e3779b97f4a7c15ull), ids, labels);
}

void SampleOrder::spread(int64_t index, int64_t count, std::span<int32_t> ids, std::span<int32_t> labels) const {
  __extension__ using Wide = __int128;  // the product has up to 126 bits
  read(static_cast<int64_t>(static_cast<Wide>(index % count) * samples_ / count), ids, labels);
}

std::unique_ptr<SampleOrder> open_samples(const RunSpec& run, int64_t vocab, bool validation) {
  const DataSpec& data = run.data;
  TokenSourceOptions options{data.kind, data.path, data.suffixes, data.val_fraction, Split::train};
  if (data.path.empty())
    fail(Exit::config, "data.path is empty", "name a file, a directory or a prefix of token files");
  if (validation) {
    if (data.val_path.empty() && data.val_fraction == 0) return nullptr;
    options.split = Split::validation;
  }
  if (!data.val_path.empty()) {
    options.split = Split::all;
    options.validation_fraction = 0;
    if (validation) options.path = data.val_path;
  } else if (data.val_fraction == 0) {
    options.split = Split::all;
  }
  return std::make_unique<SampleOrder>(open_token_source(options), run.train.seq_len, vocab,
                                       static_cast<uint64_t>(run.train.seed));
}

namespace {

// Fills this rank's slice of a micro-batch; `sample` reads the i-th sample of the whole micro-batch.
template <class ReadSample>
Batch read_slice(const Plan& plan, TensorView ids, TensorView labels, const ReadSample& sample) {
  const int64_t sequences = plan.batch.sequences, length = plan.batch.seq_len;
  int32_t *first_id = ids.as<int32_t>(), *first_label = labels.as<int32_t>();
  for (int64_t b = 0; b < sequences; ++b)
    sample(plan.coords.dp * sequences + b, std::span(first_id + b * length, static_cast<size_t>(length)),
           std::span(first_label + b * length, static_cast<size_t>(length)));
  return {first_id, first_label, sequences, length};
}

}  // namespace

std::vector<Batch> read_step(const SampleOrder& order, const Plan& plan, int64_t cursor, const StepTokens& into) {
  const TrainSpec& train = plan.run.train;
  const int64_t per_micro_batch = train.global_batch / train.micro_batches;
  std::vector<Batch> batches;
  for (int64_t j = 0; j < train.micro_batches; ++j)
    batches.push_back(read_slice(plan, into.ids.at(j), into.labels.at(j),
                                 [&](int64_t i, std::span<int32_t> ids, std::span<int32_t> labels) {
                                   order.shuffled(cursor + j * per_micro_batch + i, ids, labels);
                                 }));
  return batches;
}

Batch read_validation(const SampleOrder& order, const Plan& plan, int64_t index, int64_t count,
                      const StepTokens& into) {
  const int64_t per_micro_batch = plan.run.train.global_batch / plan.run.train.micro_batches;
  return read_slice(plan, into.ids.at(0), into.labels.at(0),
                    [&](int64_t i, std::span<int32_t> ids, std::span<int32_t> labels) {
                      order.spread(index * per_micro_batch + i, count * per_micro_batch, ids, labels);
                    });
}

}  // namespace mw
