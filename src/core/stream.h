// A Stream is where operators run: a device, its threads, the scratch memory operators may use, and the trace they
// report to. On the CPU work is done when the operator returns; on a GPU it is enqueued.
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

// Scratch memory of one stream: a stack that operators open a frame on. Fixed in size; part of the byte table as
// `work.ops`.
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

// Takes scratch (64-byte aligned, uninitialised) and gives all of it back when the frame ends.
class WorkspaceFrame {
 public:
  explicit WorkspaceFrame(Workspace& workspace) : workspace_(workspace), base_(workspace.used_) {}
  ~WorkspaceFrame() { workspace_.used_ = base_; }
  WorkspaceFrame(const WorkspaceFrame&) = delete;
  WorkspaceFrame& operator=(const WorkspaceFrame&) = delete;

  // Errors: internal, when the workspace is too small: the byte table must have foreseen it.
  template <class T>
  T* take(size_t count) {
    return static_cast<T*>(take_bytes(count * sizeof(T)));
  }
  void* take_bytes(size_t bytes);

 private:
  Workspace& workspace_;
  size_t base_;
};

// Per-stream state of a library (primitive caches, handles), made on first use by the operator that needs it.
struct StreamState {
  virtual ~StreamState() = default;
};

class Stream {
 public:
  // A stream of the CPU. threads: OpenMP threads that its operators use.
  explicit Stream(int threads);
  // A stream of a GPU (ops/device.h opens queues). threads: of what runs on the host on its behalf.
  Stream(Device device, int threads, std::unique_ptr<DeviceQueue> queue)
      : device_(device), threads_(threads), queue_(std::move(queue)) {}

  Device device() const { return device_; }
  int threads() const { return threads_; }
  // Whether operators give the same bits whenever they are called: they all do, but for those whose contract says
  // otherwise where a stream need not be, and which are faster then.
  bool is_deterministic() const { return deterministic_; }
  void set_deterministic(bool deterministic) { deterministic_ = deterministic; }
  Trace& trace() { return trace_; }
  Workspace& workspace() { return workspace_; }
  DeviceQueue& queue() { return *queue_; }
  // Returns when all that was enqueued is done: before the host reads or writes what operators use. Free on the CPU.
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

// The elements of a tensor of the stream's device, on the host. Waits for all that was enqueued before.
// Errors: internal, when T is not the tensor's dtype.
template <class T>
std::vector<T> read_values(Stream& stream, TensorView view) {
  std::vector<T> values(static_cast<size_t>(view.numel()));
  stream.queue().read(values.data(), view.as<T>(), values.size() * sizeof(T));
  stream.wait();
  return values;
}

// Copies values to the front of the tensor, in the stream's order; they may change once this returns.
// Errors: internal, when T is not the tensor's dtype or there are too many.
template <class T>
void write_values(Stream& stream, std::span<const T> values, TensorView view) {
  MW_CHECK(static_cast<int64_t>(values.size()) <= view.numel(), "{} values for {}", values.size(), view.describe());
  stream.queue().write(view.as<T>(), values.data(), values.size_bytes());
}

}  // namespace mw
