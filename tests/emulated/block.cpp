#include "emulated/block.h"

#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <vector>

EmulatedIndex threadIdx{}, blockIdx{}, gridDim{}, blockDim{};

namespace mw::emulated {
namespace {

constexpr size_t kStackBytes = size_t{256} << 10;

enum class State { ready, waits_for_others, at_block_barrier, at_wave_barrier, done };

struct Thread {
  ucontext_t context{};
  std::unique_ptr<std::byte[]> stack{new std::byte[kStackBytes]};
  State state = State::done;
};

ucontext_t scheduler;
std::vector<Thread> threads_of_block;
const std::function<void()>* body_of_block = nullptr;
unsigned told = 0;  // calls of tell_waiting

Thread& current() { return threads_of_block[threadIdx.x]; }

void pause(State state) {
  current().state = state;
  swapcontext(&current().context, &scheduler);
}

void run_thread() {
  (*body_of_block)();
  pause(State::done);
}

void start(Thread& thread) {
  getcontext(&thread.context);
  thread.context.uc_stack.ss_sp = thread.stack.get();
  thread.context.uc_stack.ss_size = kStackBytes;
  thread.context.uc_link = nullptr;
  makecontext(&thread.context, run_thread, 0);
  thread.state = State::ready;
}

// Lets threads [begin, end) go on if all of them wait here.
bool open_barrier(size_t begin, size_t end, State barrier) {
  for (size_t i = begin; i < end; ++i)
    if (threads_of_block[i].state != barrier) return false;
  for (size_t i = begin; i < end; ++i) threads_of_block[i].state = State::ready;
  return true;
}

// Runs the threads of a wave until none of them can go on without another wave.
void run_wave(size_t begin, size_t end) {
  do {
    for (size_t i = begin; i < end; ++i) {
      if (threads_of_block[i].state != State::ready) continue;
      threadIdx.x = static_cast<unsigned>(i);
      swapcontext(&scheduler, &threads_of_block[i].context);
    }
  } while (open_barrier(begin, end, State::at_wave_barrier));
}

bool all_done(size_t threads) {
  for (size_t i = 0; i < threads; ++i)
    if (threads_of_block[i].state != State::done) return false;
  return true;
}

}  // namespace

void run_block(int threads, const std::function<void()>& body) {
  const auto count = static_cast<size_t>(threads);
  if (threads_of_block.size() < count) threads_of_block.resize(count);
  body_of_block = &body;
  for (size_t i = 0; i < count; ++i) start(threads_of_block[i]);
  const auto lanes = static_cast<size_t>(lanes_of_wave);
  unsigned before = 0;
  do {
    before = told;
    for (size_t i = 0; i < count; i += lanes) run_wave(i, std::min(count, i + lanes));
    if (all_done(count)) return;
    for (size_t i = 0; i < count; ++i)
      if (threads_of_block[i].state == State::waits_for_others) threads_of_block[i].state = State::ready;
  } while (told != before || open_barrier(0, count, State::at_block_barrier));
  throw std::logic_error("threads of a block wait for others that never come");
}

void wait_for_block() { pause(State::at_block_barrier); }
void wait_for_wave() { pause(State::at_wave_barrier); }
void wait_for_others() { pause(State::waits_for_others); }
void tell_waiting() { ++told; }

}  // namespace mw::emulated
