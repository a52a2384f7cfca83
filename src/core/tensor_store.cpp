#include "core/tensor_store.h"

#include <algorithm>

#include "base/text.h"

namespace mw {

int64_t TensorSlot::bytes() const {
  int64_t n = size_of(dtype);
  for (const int64_t d : shape) n *= d;
  return (n + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

TensorView GrowingTensor::take(int64_t rows) {
  MW_CHECK(rows >= 0 && rows <= max_rows_, "{} rows asked of a tensor of at most {}", rows, max_rows_);
  if (shared_ == nullptr) return shape_.slice(0, rows);
  if (rows > shared_->committed_rows) {
    shared_->committed_rows = commit_more(rows);
    ++shared_->grows;
  }
  shared_->peak_rows = std::max(shared_->peak_rows, rows);
  return committed().slice(0, rows);
}

TensorView GrowingTensor::committed() const {
  if (shared_ == nullptr) return shape_;
  TensorView view = shape_;
  view.data = shared_->memory->data();
  view.shape[0] = shared_->committed_rows;
  return view;
}

// A little more than asked, where there is room: a load that creeps up does not commit at every step.
int64_t GrowingTensor::commit_more(int64_t rows) {
  const int64_t wanted = std::min(max_rows_, rows + rows / 32);
  try {
    shared_->memory->commit(static_cast<size_t>(wanted * row_bytes_));
    return wanted;
  } catch (const Error& error) {
    if (error.code() != Exit::memory || wanted == rows) throw;
  }
  shared_->memory->commit(static_cast<size_t>(rows * row_bytes_));
  return rows;
}

TensorStore::TensorStore(const std::vector<TensorSlot>& slots, const Reserve& reserve) {
  int64_t total = 0;
  for (const TensorSlot& slot : slots)
    if (slot.max_rows == 0) total += slot.bytes();
  block_ = reserve(static_cast<size_t>(total));
  block_->commit(static_cast<size_t>(total));
  for (const TensorSlot& slot : slots) {
    Entry entry;
    entry.grows = slot.max_rows > 0;
    if (!entry.grows) {
      entry.view = TensorView(block_->data() + fixed_bytes_, slot.dtype, slot.shape);
      fixed_bytes_ += slot.bytes();
    } else {
      GrowingTensor& g = entry.growing;
      g.shape_ = TensorView(nullptr, slot.dtype, slot.shape);
      g.max_rows_ = slot.max_rows;
      g.row_bytes_ = size_of(slot.dtype);
      for (size_t i = 1; i < slot.shape.size(); ++i) g.row_bytes_ *= slot.shape[i];
      g.shared_ = std::make_shared<GrowingTensor::Shared>();
      g.shared_->memory = reserve(static_cast<size_t>(slot.max_rows * g.row_bytes_));
      g.shared_->committed_rows = slot.shape.front();
      g.shared_->memory->commit(static_cast<size_t>(slot.shape.front() * g.row_bytes_));
    }
    const bool inserted = entries_.emplace(slot.name, std::move(entry)).second;
    MW_CHECK(inserted, "tensor {} stands twice in the table", slot.name);
  }
  block_->zero(static_cast<size_t>(fixed_bytes_));
}

TensorStore::Entry& TensorStore::find(const std::string& name) {
  const auto it = entries_.find(name);
  MW_CHECK(it != entries_.end(), "tensor {} is not in the table of bytes", name);
  it->second.used = true;
  return it->second;
}

TensorView TensorStore::fixed(const std::string& name) {
  Entry& entry = find(name);
  MW_CHECK(!entry.grows, "tensor {} grows", name);
  return entry.view;
}

GrowingTensor TensorStore::rows(const std::string& name) {
  Entry& entry = find(name);
  if (entry.grows) return entry.growing;
  GrowingTensor rows;
  rows.shape_ = entry.view;
  rows.max_rows_ = entry.view.dim(0);
  return rows;
}

int64_t TensorStore::peak_growing_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, entry] : entries_)
    if (entry.grows) bytes += entry.growing.shared_->peak_rows * entry.growing.row_bytes_;
  return bytes;
}

int64_t TensorStore::arena_grows() const {
  int64_t count = 0;
  for (const auto& [name, entry] : entries_)
    if (entry.grows) count += entry.growing.shared_->grows;
  return count;
}

std::vector<std::string> TensorStore::unused() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_)
    if (!entry.used) names.push_back(name);
  return names;
}

}  // namespace mw
