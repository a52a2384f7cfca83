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

enum class State { ready, waits_for_others, at_cluster_barrier, at_block_barrier, at_wave_barrier, done };

struct Thread {
  ucontext_t context{};
  std::unique_ptr<std::byte[]> stack{new std::byte[kStackBytes]};
  State state = State::done;
};

ucontext_t scheduler;
std::vector<Thread> threads_of_cluster;
const std::function<void()>* body_of_threads = nullptr;
size_t running = 0, block_of_running = 0;  // the thread that runs, and its block, both in the cluster
size_t of_block = 0;                       // threads
unsigned told = 0;                         // calls of tell_waiting
unsigned runs = 0;
const char* refused = nullptr;

Thread& current() { return threads_of_cluster[running]; }

void pause(State state) {
  current().state = state;
  swapcontext(&current().context, &scheduler);
}

void run_thread() {
  (*body_of_threads)();
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
    if (threads_of_cluster[i].state != barrier) return false;
  for (size_t i = begin; i < end; ++i) threads_of_cluster[i].state = State::ready;
  return true;
}

// Runs the threads of a wave until none of them can go on without another wave.
void run_wave(size_t begin, size_t end, unsigned first_block) {
  do {
    for (size_t i = begin; i < end; ++i) {
      if (threads_of_cluster[i].state != State::ready) continue;
      running = i;
      block_of_running = i / of_block;
      threadIdx.x = static_cast<unsigned>(i % of_block);
      blockIdx.x = first_block + static_cast<unsigned>(block_of_running);
      swapcontext(&scheduler, &threads_of_cluster[i].context);
    }
  } while (open_barrier(begin, end, State::at_wave_barrier));
}

bool all_done(size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i)
    if (threads_of_cluster[i].state != State::done) return false;
  return true;
}

// Runs the threads of a block until none of them can go on without another block.
void run_waves(size_t begin, size_t end, unsigned first_block) {
  const auto lanes = static_cast<size_t>(lanes_of_wave);
  unsigned before = 0;
  do {
    before = told;
    for (size_t i = begin; i < end; ++i)
      if (threads_of_cluster[i].state == State::waits_for_others) threads_of_cluster[i].state = State::ready;
    for (size_t i = begin; i < end; i += lanes) run_wave(i, std::min(end, i + lanes), first_block);
    if (refused != nullptr) throw std::logic_error(refused);
  } while (told != before || open_barrier(begin, end, State::at_block_barrier));
}

}  // namespace

void run_cluster(int blocks, int threads, const std::function<void()>& body) {
  of_block = static_cast<size_t>(threads);
  const size_t count = static_cast<size_t>(blocks) * of_block;
  const unsigned first_block = blockIdx.x;
  if (threads_of_cluster.size() < count) threads_of_cluster.resize(count);
  body_of_threads = &body;
  refused = nullptr;
  ++runs;
  for (size_t i = 0; i < count; ++i) start(threads_of_cluster[i]);
  unsigned before = 0;
  do {
    before = told;
    for (int i = 0; i < blocks; ++i) {  // in every other run the last block is ahead
      const size_t begin = static_cast<size_t>(runs % 2 == 0 ? i : blocks - 1 - i) * of_block;
      run_waves(begin, begin + of_block, first_block);
    }
    if (all_done(0, count)) return;
  } while (told != before || open_barrier(0, count, State::at_cluster_barrier));
  throw std::logic_error("threads of a block wait for others that never come");
}

unsigned this_thread() { return static_cast<unsigned>(running); }
unsigned this_block() { return static_cast<unsigned>(block_of_running); }
bool is_running(unsigned block) { return !all_done(block * of_block, (block + 1) * of_block); }
unsigned this_run() { return runs; }
void refuse(const char* what) { refused = what; }

void wait_for_cluster() { pause(State::at_cluster_barrier); }
void wait_for_block() { pause(State::at_block_barrier); }
void wait_for_wave() { pause(State::at_wave_barrier); }
void wait_for_others() { pause(State::waits_for_others); }
void tell_waiting() { ++told; }

}  // namespace mw::emulated
