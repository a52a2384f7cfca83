#include "engine/embedding_sums.h"

#include <algorithm>
#include <bit>

#include "ops/elementwise.h"
#include "ops/embedding.h"

namespace mw {
namespace {

std::vector<std::vector<int32_t>> read_ids(Stream& stream, std::span<const Batch> batches) {
  std::vector<std::vector<int32_t>> ids;
  for (const Batch& batch : batches) {
    ids.emplace_back(static_cast<size_t>(batch.tokens()));
    stream.queue().read(ids.back().data(), batch.ids, ids.back().size() * sizeof(int32_t));
  }
  stream.wait();
  return ids;
}

// Those in the part of the vocabulary that has `rows` rows, ascending, each once.
std::vector<int32_t> distinct_ids(Stream& stream, std::span<const Batch> batches, VocabPart part, int64_t rows) {
  constexpr int64_t kBits = 64;
  std::vector<uint64_t> found(static_cast<size_t>(rows / kBits + 1));  // a bit for each row
  for (const std::vector<int32_t>& of_batch : read_ids(stream, batches))
    for (const int32_t id : of_batch)
      if (const int64_t at = id - part.begin; at >= 0 && at < rows)
        found[static_cast<size_t>(at / kBits)] |= uint64_t{1} << (at % kBits);
  std::vector<int32_t> ids;
  for (size_t word = 0; word < found.size(); ++word)
    for (uint64_t left = found[word]; left != 0; left &= left - 1)
      ids.push_back(static_cast<int32_t>(part.begin + static_cast<int64_t>(word) * kBits + std::countr_zero(left)));
  return ids;
}

int64_t bytes_of_ids(int64_t count) { return count * size_of(DType::i32) + kTensorAlignment; }

}  // namespace

EmbeddingSums::EmbeddingSums(Engine& engine, std::span<const Batch> batches)
    : engine_(engine),
      part_{vocab_part(engine.plan.model, engine.plan.mesh.tp, engine.plan.coords.tp).begin, engine.plan.model.vocab},
      replicas_(engine.comms.dp->size()) {
  if (replicas_ == 1 || engine.plan.model.tie_embeddings || !engine.params.has("embed")) return;
  grad_ = engine.params.find("embed").grad;
  own_ = distinct_ids(engine.stream, batches, part_, grad_.dim(0));
}

std::vector<int64_t> EmbeddingSums::counts() const {
  std::vector<int64_t> of_replicas(2 * static_cast<size_t>(replicas_));
  const auto own = 2 * static_cast<size_t>(engine_.comms.dp->rank());
  const int64_t bytes_of_row = size_of(DType::i32) + engine_.plan.model.width * size_of(DType::f32);
  of_replicas[own] = std::ssize(own_);
  of_replicas[own + 1] = std::max<int64_t>(0, engine_.model->scratch().bytes() - bytes_of_ids(0)) / bytes_of_row;
  return of_replicas;
}

void EmbeddingSums::agree(std::span<const int64_t> counts) {
  if (grad_.data == nullptr) return;
  int64_t room = counts[1];
  for (size_t i = 0; i < counts.size(); i += 2) {
    most_ = std::max(most_, counts[i]);
    room = std::min(room, counts[i + 1]);
  }
  // Of the whole, a reduce-scatter moves as many bytes as an all-gather, an all-reduce twice as many.
  const int64_t all = replicas_ * most_, whole = grad_.dim(0) * (engine_.params.block(Replicas::dp).is_cut() ? 1 : 2);
  by_rows_ = all <= room && 2 * all <= whole;
}

TensorView EmbeddingSums::ids() const { return {engine_.model->scratch().data, DType::i32, {replicas_ * most_}}; }

TensorView EmbeddingSums::rows() const {
  const int64_t all = replicas_ * most_, begin = bytes_of_ids(all) / kTensorAlignment * kTensorAlignment;
  return {static_cast<std::byte*>(engine_.model->scratch().data) + begin, DType::f32, {all, grad_.dim(1)}};
}

void EmbeddingSums::start() {
  if (!by_rows_ || most_ == 0) return;
  const TraceScope scope(engine_.stream.trace(), Work::reduce, "start_embedding_sums");
  const int64_t count = std::ssize(own_), first = engine_.comms.dp->rank() * most_;
  std::vector<int32_t> padded = own_;  // by ids that differ: a GPU adds the rows of one id one after the other
  for (int64_t i = count; i < most_; ++i) padded.push_back(static_cast<int32_t>(part_.begin + i % grad_.dim(0)));
  const TensorView own_ids = ids().slice(first, most_), own_rows = rows().slice(first, most_);
  write_values<int32_t>(engine_.stream, padded, own_ids);
  embed(engine_.stream, grad_, part_, own_ids.slice(0, count), own_rows.slice(0, count));
  fill_zero(engine_.stream, own_rows.slice(count, most_ - count));
  const auto gather = [&](const TensorView& parts) {
    const std::vector<int64_t> equal(static_cast<size_t>(replicas_), parts.bytes() / replicas_);
    return engine_.comms.dp->all_gather(engine_.stream, bytes_of(parts), equal);
  };
  gathered_ids_ = gather(ids());
  gathered_rows_ = gather(rows());
}

void EmbeddingSums::finish() {
  if (!by_rows_ || most_ == 0) return;
  const TraceScope scope(engine_.stream.trace(), Work::reduce, "finish_embedding_sums");
  gathered_ids_->wait();
  gathered_rows_->wait();
  clear_rows(engine_.stream, part_, ids(), grad_);
  embed_backward(engine_.stream, rows(), part_, ids(), grad_);
}

}  // namespace mw
