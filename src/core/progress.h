// Progress of one rank: its main thread records step, phase and collective, and the watchdog's thread reads them.
// Recording costs a few plain stores.
#pragma once

#include <atomic>
#include <cstdint>

namespace mw {

// A snapshot of the progress.
struct ProgressNote {
  int64_t step = 0;         // the current one; 0: none yet
  int64_t moves = 0;        // updates so far: while it does not change, the rank makes no progress
  int64_t collectives = 0;  // started so far
  int64_t awaited = 0;      // number of the collective that the rank waits in; 0: none
  const char* phase = "";   // the innermost open scope of the trace
  const char* call = "";    // name of the awaited collective
};

class Progress {
 public:
  // To be called by the rank's main thread only. Texts must outlive this object (literals).
  void begin_step(int64_t step) {
    step_.store(step, std::memory_order_relaxed);
    move();
  }
  void enter(const char* phase) {
    phase_.store(phase, std::memory_order_relaxed);
    move();
  }
  // Returns the number of the new collective, counted from 1.
  int64_t begin_collective() {
    const int64_t number = collectives_.load(std::memory_order_relaxed) + 1;
    collectives_.store(number, std::memory_order_relaxed);
    move();
    return number;
  }

  // May be called by any thread. Fields are read one by one: a concurrent update may be visible in part.
  ProgressNote read() const {
    return {step_.load(std::memory_order_relaxed),        moves_.load(std::memory_order_relaxed),
            collectives_.load(std::memory_order_relaxed), awaited_.load(std::memory_order_relaxed),
            phase_.load(std::memory_order_relaxed),       call_.load(std::memory_order_relaxed)};
  }

 private:
  friend class CollectiveWait;
  void move() { moves_.store(moves_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  void wait_in(int64_t number, const char* call) {
    call_.store(call, std::memory_order_relaxed);
    awaited_.store(number, std::memory_order_relaxed);
    move();
  }

  std::atomic<int64_t> step_{0}, moves_{0}, collectives_{0}, awaited_{0};
  std::atomic<const char*> phase_{""}, call_{""};
};

// Marks the rank as waiting in a collective for the lifetime of this object.
class CollectiveWait {
 public:
  CollectiveWait(Progress& progress, const char* call, int64_t number) : progress_(progress) {
    progress_.wait_in(number, call);
  }
  // Starts a new collective.
  CollectiveWait(Progress& progress, const char* call) : CollectiveWait(progress, call, progress.begin_collective()) {}
  ~CollectiveWait() { progress_.wait_in(0, ""); }
  CollectiveWait(const CollectiveWait&) = delete;
  CollectiveWait& operator=(const CollectiveWait&) = delete;

 private:
  Progress& progress_;
};

}  // namespace mw
