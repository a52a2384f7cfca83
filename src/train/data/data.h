// Data order: which tokens step n reads. A pure function of (seed, samples consumed), independent of the layout, which
// only decides which rank reads which samples.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/step.h"
#include "formats/tokens/token_file.h"
#include "layout/plan.h"
#include "train/data/blend.h"
#include "train/data/document_packs.h"

namespace mw {

// A pseudo-random permutation of 0..n-1 (Feistel network with cycle walking): element `index` in O(1), no table.
int64_t permute(int64_t index, int64_t n, uint64_t seed);

// A source and its share of the samples.
struct WeightedSource {
  double weight = 1;
  std::unique_ptr<TokenSource> source;
};

// A window of a SampleOrder: its number in a source.
struct Window {
  size_t source = 0;
  int64_t number = 0;
};

// Windows of seq_len + 1 tokens of one source, or of a blend of several: ids are the first seq_len tokens, labels the
// last seq_len, or -100 (ignored) where a source's loss mask leaves the token out. Consecutive windows of a source
// overlap by one token.
// With whole_documents a window is one of DocumentPacks instead: ids are the tokens of its documents, labels those that
// follow them in their document, -100 at its end. The rest repeats the window's first ids with labels -100: repeated
// text loads experts as text does.
class SampleOrder {
 public:
  // Errors: data, when a source has fewer than seq_len + 1 tokens, or, with whole_documents, those of DocumentPacks.
  SampleOrder(std::unique_ptr<TokenSource> source, int64_t seq_len, int64_t vocab, uint64_t seed,
              bool whole_documents = false);
  SampleOrder(std::vector<WeightedSource> sources, int64_t seq_len, int64_t vocab, uint64_t seed,
              bool whole_documents = false);

  int64_t samples() const;              // windows of all sources
  std::vector<int64_t> tokens() const;  // of each source
  bool has_loss_mask() const;           // any source, as of conversations
  size_t sources() const { return parts_.size(); }
  const TokenSource& source(size_t part = 0) const { return *parts_[part].source; }
  // Sample `number` of the infinite training order: each source is reshuffled in every epoch of its own. Errors: data,
  // when a token is outside the vocabulary. `starts`, unless empty: for each id the position of its document's first
  // token (formats/tokens/token_file.h); errors: config, when a source has no documents.
  void shuffled(int64_t number, std::span<int32_t> ids, std::span<int32_t> labels,
                std::span<int32_t> starts = {}) const;
  // The same of one window.
  void read(const Window& window, std::span<int32_t> ids, std::span<int32_t> labels,
            std::span<int32_t> starts = {}) const;
  // Validation window `index` of `count`: blended, and spread evenly over each source.
  Window spread(int64_t index, int64_t count) const;
  // Window `index` < samples() of all, source by source.
  Window in_order(int64_t index) const;
  // One log line per source: what it is, and how many epochs of it `samples` samples are (omitted for 0).
  std::string describe(double samples = 0) const;

 private:
  struct Part {
    std::unique_ptr<TokenSource> source;
    std::optional<DocumentPacks> packs;
    int64_t samples;
    uint64_t seed;
  };
  // Tokens from `first` on as ids, and those from first + 1 on as labels.
  void read_tokens(const TokenSource& source, int64_t first, std::span<int32_t> ids, std::span<int32_t> labels) const;
  void read_documents(const Part& part, int64_t number, std::span<int32_t> ids, std::span<int32_t> labels,
                      std::span<int32_t> starts) const;
  std::vector<Part> parts_;
  std::vector<BlendPart> shares_;  // of parts_
  int64_t seq_len_, vocab_;
};

// Opens the training or validation data of a run, together with the other `ranks`. For validation, null when the run
// has none. Errors: config, for keys of [data] that exclude each other; data, naming the key, for files that are
// missing, damaged or too short.
std::unique_ptr<SampleOrder> open_samples(const RunSpec& run, int64_t vocab, bool validation,
                                          const OpeningRanks& ranks = {});

// A warning where data.kind = "text" reads a file that is no plain text by its name, or by NUL bytes among its first
// 4 KiB; else "". To be called on one of `ranks`, for a run whose data was opened.
std::string doubt_about_text(const RunSpec& run, const OpeningRanks& ranks = {});

// A warning where data.val_fraction holds out a far larger or smaller share of a text's bytes than it asks for, which
// happens with few or large files; else "". To be called on one rank, for a run whose data was opened.
std::string doubt_about_split(const RunSpec& run);

// A warning where files that data.val_path names are also training data; else "". To be called on one rank, for a run
// whose data and validation data were opened.
std::string doubt_about_validation(const RunSpec& run);

// Checks that a text folder which the run reads does not take its checkpoints or metrics for text. Errors: config.
void refuse_outputs_in_text(const RunSpec& run);

// The first loss mask beside the training data, which `tokenize --chat` writes; "" where there is none, or no longer.
std::string find_loss_mask(const RunSpec& run);

// Reads samples spread over every source, so that data of another tokenizer is refused before training starts. Errors:
// data, when a token is outside the model's vocabulary.
void check_vocabulary(const SampleOrder& order, const RunSpec& run, int64_t vocab);

// What one rank reads for a step.
struct StepPart {
  LocalBatch batch;    // of each micro-batch
  int64_t cursor = 0;  // the first sample of the step, of all ranks
  int64_t micro_batches = 0;
  bool document_starts = false;  // reads them, too
  bool operator==(const StepPart&) const = default;
};
StepPart part_of_step(const Plan& plan, int64_t cursor, int64_t micro_batches);

// Reads this rank's part of a step's micro-batches. Safe from many threads. Errors, also of read_windows: those of
// SampleOrder::shuffled.
std::vector<MicroBatch> read_step(const SampleOrder& order, const StepPart& part);
// Reads this rank's windows of those of a micro-batch of all ranks; where there are too few, sequences without labels.
MicroBatch read_windows(const SampleOrder& order, const Plan& plan, std::span<const Window> windows);

}  // namespace mw
