// Progress: where one rank is, noted by its main thread for whoever watches it from another one. A note costs a few
// plain stores.
#pragma once

#include <atomic>
#include <cstdint>

namespace mw {

// What was noted, as numbers and literals.
struct ProgressNote {
  int64_t step = 0;         // under way; 0: none yet
  int64_t moves = 0;        // notes taken so far: while it stands still, so does the rank
  int64_t collectives = 0;  // begun so far
  int64_t awaited = 0;      // the collective that the rank waits in; 0: in none
  const char* phase = "";   // the innermost open scope of the trace
  const char* call = "";    // what the awaited collective does
};

class Progress {
 public:
  // By the one thread that does the rank's work. Texts must outlive it (literals).
  void begin_step(int64_t step) {
    step_.store(step, std::memory_order_relaxed);
    move();
  }
  void enter(const char* phase) {
    phase_.store(phase, std::memory_order_relaxed);
    move();
  }
  // Returns the number of the collective, from 1.
  int64_t begin_collective() {
    const int64_t number = collectives_.load(std::memory_order_relaxed) + 1;
    collectives_.store(number, std::memory_order_relaxed);
    move();
    return number;
  }

  // By any thread. What changes meanwhile may be seen in part.
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

// The rank waits in a collective for its lifetime.
class CollectiveWait {
 public:
  CollectiveWait(Progress& progress, const char* call, int64_t number) : progress_(progress) {
    progress_.wait_in(number, call);
  }
  // In one that begins here.
  CollectiveWait(Progress& progress, const char* call) : CollectiveWait(progress, call, progress.begin_collective()) {}
  ~CollectiveWait() { progress_.wait_in(0, ""); }
  CollectiveWait(const CollectiveWait&) = delete;
  CollectiveWait& operator=(const CollectiveWait&) = delete;

 private:
  Progress& progress_;
};

}  // namespace mw
