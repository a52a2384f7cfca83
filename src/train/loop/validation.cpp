#include "train/loop/validation.h"

#include <fmt/format.h>

#include <algorithm>
#include <numbers>

#include "ops/cross_entropy.h"
#include "train/loop/byte_model.h"
#include "train/loop/signals.h"

namespace mw {

std::string describe(const ValidationResult& result) {
  if (result.all.labels == 0) return "no loss: none of the labels counts, by the loss mask (.mask) of the data";
  const auto text_of = [](const SourceLoss& source) { return source.loss ? fmt::format("{:.4f}", *source.loss) : "-"; };
  std::string text = fmt::format("loss {} over {} labels", text_of(result.all), result.all.labels);
  if (result.all.bits_per_byte > 0) text += fmt::format(", {:.3f} bits per byte", result.all.bits_per_byte);
  if (result.baseline_loss > 0)
    text += fmt::format(" (order-2 byte counts on the same labels: {:.3f})", result.baseline_loss / std::numbers::ln2);
  for (size_t k = 0; k < result.sources.size(); ++k)
    text += fmt::format("{} {}", k == 0 ? "; by source" : ",", text_of(result.sources[k]));
  return text;
}

int64_t validation_windows(const TrainSpec& train) { return train.val_batches * train.global_batch; }

std::vector<double> sequence_losses(Engine& engine, const Batch& batch) {
  const std::vector<float> losses = evaluate(engine, batch);
  if (losses.empty()) return {};
  std::vector<double> sums(static_cast<size_t>(batch.sequences));
  const int64_t first = engine.model->own_tokens(batch).begin;
  for (size_t t = 0; t < losses.size(); ++t)
    sums[static_cast<size_t>((first + static_cast<int64_t>(t)) / batch.seq_len)] += losses[t];
  return sums;
}

namespace {

// What is summed over labels.
enum Sum : size_t { kLoss, kLabels, kBytes, kSums };

SourceLoss mean_of(std::span<const double> sums) {
  if (sums[kLabels] == 0) return {};
  return {sums[kLoss] / sums[kLabels], static_cast<int64_t>(sums[kLabels]),
          sums[kBytes] > 0 ? sums[kLoss] / std::numbers::ln2 / sums[kBytes] : 0};
}

// Bytes of the text that each run of labels without a masked one adds to that of the id before it: a tokenizer may drop
// a space where its text begins. Special tokens are no text.
double text_bytes(const Tokenizer& tokenizer, std::span<const int32_t> ids, std::span<const int32_t> labels) {
  const auto size_of_text = [&](std::vector<int32_t> tokens) {
    std::erase_if(tokens, [&](int32_t token) { return tokenizer.is_special(token); });
    return static_cast<double>(tokenizer.decode(tokens).size());
  };
  double bytes = 0;
  for (auto begin = labels.begin(); begin != labels.end();) {
    const auto end = std::find(begin, labels.end(), kIgnoreLabel);
    std::vector<int32_t> all = {ids[static_cast<size_t>(begin - labels.begin())]};
    bytes -= size_of_text(all);
    all.insert(all.end(), begin, end);
    bytes += size_of_text(std::move(all));
    begin = std::find_if(end, labels.end(), [](int32_t label) { return label != kIgnoreLabel; });
  }
  return bytes;
}

}  // namespace

ValidationResult validate_model(Engine& engine, const SampleOrder& data, const ValidationOptions& options) {
  const Plan& plan = engine.plan;
  // Where windows of one source would come twice, each comes once. Those of a blend follow its weights.
  const bool once = options.windows == 0 || (data.sources() == 1 && options.windows >= data.samples());
  const int64_t count = once ? data.samples() : options.windows, together = plan.batch.all;
  std::vector<double> sums(kSums * data.sources());
  double baseline = 0;
  ValidationResult result;
  for (int64_t begin = 0; begin < count && !result.stopped; begin += together) {
    std::vector<Window> windows;
    for (int64_t i = begin; i < std::min(begin + together, count); ++i)
      windows.push_back(once ? data.in_order(i) : data.spread(i, count));
    const MicroBatch tokens = read_windows(data, plan, windows);
    const std::vector<double> losses = sequence_losses(engine, stage(engine, std::span(&tokens, 1)).front());
    const auto length = static_cast<size_t>(plan.batch.seq_len), first = static_cast<size_t>(plan.batch.first);
    for (size_t b = 0; b < losses.size() && first + b < windows.size(); ++b) {
      double* of_source = &sums[kSums * windows[first + b].source];
      of_source[kLoss] += losses[b];
      if (plan.coords.tp != 0) continue;  // ranks of TP have parts of the losses, but the same tokens
      const std::span<const int32_t> ids = std::span(tokens.ids).subspan(b * length, length),
                                     labels = std::span(tokens.labels).subspan(b * length, length);
      of_source[kLabels] +=
          static_cast<double>(std::ssize(labels) - std::count(labels.begin(), labels.end(), kIgnoreLabel));
      if (options.tokenizer != nullptr) of_source[kBytes] += text_bytes(*options.tokenizer, ids, labels);
      if (options.baseline != nullptr) baseline += options.baseline->window_loss(ids, labels);
    }
    result.stopped = stop_requested(engine.world);
  }
  engine.world.all_reduce_sum(std::span(sums));
  engine.world.all_reduce_sum(std::span(&baseline, 1));
  std::vector<double> all(kSums);
  for (size_t k = 0; k < data.sources(); ++k) {
    const std::span<const double> of_source = std::span(sums).subspan(kSums * k, kSums);
    for (size_t i = 0; i < kSums; ++i) all[i] += of_source[i];
    if (data.sources() > 1) result.sources.push_back(mean_of(of_source));
  }
  result.all = mean_of(all);
  if (result.all.labels > 0) result.baseline_loss = baseline / all[kLabels];
  return result;
}

}  // namespace mw
