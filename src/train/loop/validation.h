// Validation: mean loss over windows spread evenly over the held-out data.
#pragma once

#include <memory>
#include <string>

#include "train/data/data.h"

namespace mw {

class ByteCountModel;

// The data that a run validates on; null if it does not, or has none. Errors: data; config, without data for
// train.val_every, or with train.byte_baseline but without text.
std::unique_ptr<SampleOrder> open_validation(const RunSpec& run, int64_t vocab);

struct ValidationResult {
  double loss = 0;           // nats per label
  double baseline_loss = 0;  // of the byte-count model on the same labels; 0 without a baseline
  int64_t labels = 0;
  bool stopped = false;  // a stop request came: the results cover only a part
};

// "loss 5.0000 over 2000 labels", of bytes in bits per byte, too.
std::string describe(const ValidationResult& result, bool of_bytes);

// Evaluates train.val_batches global batches, split over ranks as in training. baseline: this rank's byte-count model,
// or null on all ranks. Polls stop requests between micro-batches. Collective over the world.
ValidationResult validate_model(Engine& engine, const SampleOrder& data, const ByteCountModel* baseline);

}  // namespace mw
