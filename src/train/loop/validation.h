// Evaluation of a model: its mean loss over windows of data, of all and by source.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "formats/tokens/tokenizer.h"
#include "train/data/data.h"

namespace mw {

class ByteCountModel;

struct SourceLoss {
  std::optional<double> loss;  // nats per label; none without labels
  int64_t labels = 0;
  double bits_per_byte = 0;  // of the labels' text; 0 where this is unknown
};

struct ValidationResult {
  SourceLoss all;
  std::vector<SourceLoss> sources;  // of a blend, in its order; empty for one source
  double baseline_loss = 0;         // of the byte-count model on the same labels; 0 without a baseline
  bool stopped = false;             // a stop request came: the results cover only a part
};

// "loss 5.0000 over 2000 labels, 7.213 bits per byte"; of a blend followed by "; by source 4.9000, 5.2000". A loss that
// is none is "-".
std::string describe(const ValidationResult& result);

struct ValidationOptions {
  int64_t windows = 0;                       // spread over the data, at most all of one source; 0: all, once
  const ByteCountModel* baseline = nullptr;  // this rank's, or null on all ranks
  const Tokenizer* tokenizer = nullptr;      // of the data, to count the bytes of its text; null on all ranks: unknown
};
// What validation in a run does: train.val_batches global batches.
int64_t validation_windows(const TrainSpec& train);

// Windows are split over ranks as samples in training. Polls stop requests between micro-batches. Collective over the
// world.
ValidationResult validate_model(Engine& engine, const SampleOrder& data, const ValidationOptions& options);

// By sequence of a staged micro-batch: the sum of cross-entropy over tokens of this rank's shard; nothing on ranks
// without the head. Collective over the pipeline and EP.
std::vector<double> sequence_losses(Engine& engine, const Batch& batch);

}  // namespace mw
