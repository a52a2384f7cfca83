// A Stream is what an operator runs on: a device with its queue, CPU threads, scratch memory and a trace. On the CPU an
// operator's work is done when it returns; on a GPU it is enqueued.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <typeindex>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/tensor.h"
#include "core/trace.h"

namespace mw {

// Scratch memory of one stream: a stack from which operators allocate in frames. Its size is fixed by the row
// `work.ops` of the byte table; that of the exchanges' stream by `work.relay_ops`.
class Workspace {
 public:
  void attach(void* memory, size_t bytes);
  size_t capacity() const { return capacity_; }
  size_t peak() const { return peak_; }

 private:
  friend class WorkspaceFrame;
  std::byte* memory_ = nullptr;
  size_t capacity_ = 0, used_ = 0, peak_ = 0;
};

// Allocates scratch (64-byte aligned, uninitialised) and releases all of it when the frame is destroyed.
class WorkspaceFrame {
 public:
  explicit WorkspaceFrame(Workspace& workspace) : workspace_(workspace), base_(workspace.used_) {}
  ~WorkspaceFrame() { workspace_.used_ = base_; }
  WorkspaceFrame(const WorkspaceFrame&) = delete;
  WorkspaceFrame& operator=(const WorkspaceFrame&) = delete;

  // Errors: internal, when the workspace is too small: the byte table did not reserve enough.
  template <class T>
  T* take(size_t count) {
    return static_cast<T*>(take_bytes(count * sizeof(T)));
  }
  void* take_bytes(size_t bytes);

 private:
  Workspace& workspace_;
  size_t base_;
};

// Per-stream state of a library (primitive caches, handles), created on first use by the operator that needs it.
struct StreamState {
  virtual ~StreamState() = default;
};

class Stream {
 public:
  // A stream on the CPU. threads: OpenMP threads of its operators.
  explicit Stream(int threads);
  // A stream on a GPU; `queue` is from open_queue (ops/device.h). threads: for the work that the stream does on the
  // host.
  Stream(Device device, int threads, std::unique_ptr<DeviceQueue> queue)
      : device_(device), threads_(threads), queue_(std::move(queue)) {}

  Device device() const { return device_; }
  int threads() const { return threads_; }
  // Whether operators must be deterministic: the same operands give the same bits. Only operators whose contract says
  // so become faster, and nondeterministic, when this is false.
  bool is_deterministic() const { return deterministic_; }
  void set_deterministic(bool deterministic) { deterministic_ = deterministic; }
  Trace& trace() { return trace_; }
  Workspace& workspace() { return workspace_; }
  DeviceQueue& queue() { return *queue_; }
  // Returns when all enqueued work is done. Call it before the host reads or writes memory that operators use. Free on
  // the CPU.
  void wait() { queue_->wait(); }

  template <class State>
  State& state() {
    const std::type_index key(typeid(State));
    for (auto& [type, state] : states_)
      if (type == key) return static_cast<State&>(*state);
    states_.emplace_back(key, std::make_unique<State>());
    return static_cast<State&>(*states_.back().second);
  }

 private:
  Device device_;
  int threads_;
  bool deterministic_ = true;
  std::unique_ptr<DeviceQueue> queue_;
  Trace trace_;
  Workspace workspace_;
  std::vector<std::pair<std::type_index, std::unique_ptr<StreamState>>> states_;
};

// Copies the elements of a tensor on the stream's device to the host. Waits for all work enqueued before. Errors:
// internal, when T is not the tensor's dtype.
template <class T>
std::vector<T> read_values(Stream& stream, TensorView view) {
  std::vector<T> values(static_cast<size_t>(view.numel()));
  stream.queue().read(values.data(), view.as<T>(), values.size() * sizeof(T));
  stream.wait();
  return values;
}

// Copies values to the front of the tensor, in stream order; the source may change once this returns. Errors: internal,
// when T is not the tensor's dtype or there are too many values.
template <class T>
void write_values(Stream& stream, std::span<const T> values, TensorView view) {
  MW_CHECK(static_cast<int64_t>(values.size()) <= view.numel(), "{} values for {}", values.size(), view.describe());
  stream.queue().write(view.as<T>(), values.data(), values.size_bytes());
}

}  // namespace mw
