#include "train/loop/validation.h"

#include <fmt/format.h>

#include <array>
#include <numbers>

#include "train/loop/byte_model.h"
#include "train/loop/signals.h"

namespace mw {

std::unique_ptr<SampleOrder> open_validation(const RunSpec& run, int64_t vocab) {
  if (run.train.val_batches == 0) return nullptr;
  std::unique_ptr<SampleOrder> data = open_samples(run, vocab, true);
  if (run.train.val_every > 0 && data == nullptr)
    fail(Exit::config, fmt::format("train.val_every = {}, but there is no data to validate on", run.train.val_every),
         "name some in data.val_path, hold some out by data.val_fraction, or set train.val_every = 0");
  if (run.train.byte_baseline && data != nullptr && (run.data.kind != DataKind::text || !run.data.blend.empty()))
    fail(Exit::config, "train.byte_baseline counts the bytes of data.path, with data.kind = \"text\"",
         "set train.byte_baseline = false");
  return data;
}

std::string describe(const ValidationResult& result, bool of_bytes) {
  std::string text = fmt::format("loss {:.4f} over {} labels", result.loss, result.labels);
  if (of_bytes) text += fmt::format(", {:.3f} bits per byte", result.loss / std::numbers::ln2);
  if (result.baseline_loss > 0)
    text += fmt::format(" (order-2 byte counts on the same labels: {:.3f})", result.baseline_loss / std::numbers::ln2);
  return text;
}

ValidationResult validate_model(Engine& engine, const SampleOrder& data, const ByteCountModel* baseline) {
  const TrainSpec& train = engine.plan.run.train;
  const int64_t count = train.val_batches * train.micro_batches;
  std::array<double, 3> sums{};  // loss, baseline loss, labels
  ValidationResult result;
  for (int64_t i = 0; i < count && !result.stopped; ++i) {
    const MicroBatch tokens = read_validation(data, engine.plan, i, count);
    const Batch batch = stage(engine, std::span(&tokens, 1)).front();
    sums[0] += evaluate(engine, batch);
    if (engine.plan.coords.tp == 0) sums[2] += static_cast<double>(batch.valid_labels);
    const auto length = static_cast<size_t>(batch.seq_len);
    for (size_t at = 0; baseline != nullptr && engine.plan.coords.tp == 0 && at < tokens.ids.size(); at += length)
      sums[1] += baseline->window_loss(std::span(tokens.ids).subspan(at, length),
                                       std::span(tokens.labels).subspan(at, length));
    result.stopped = stop_requested(engine.world);
  }
  engine.comms.stage->all_reduce_sum(std::span(sums));
  engine.comms.pp->all_reduce_sum(std::span(sums.data(), 1));  // only the last stage knows the loss
  result.labels = static_cast<int64_t>(sums[2]);
  if (result.labels > 0) {
    result.loss = sums[0] / sums[2];
    result.baseline_loss = sums[1] / sums[2];
  }
  return result;
}

}  // namespace mw
