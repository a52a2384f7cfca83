// A block of GPU threads on the CPU. Waves take turns, and the threads of a wave: each runs for as long as it need not
// wait for others at a barrier, so that what a kernel forgets to wait for is not there yet, or is already overwritten.
#pragma once

#include <functional>

namespace mw::emulated {

constexpr int kMaxThreads = 1024, kWaveLanes = 64;

// Lanes that run in lockstep; 32 for kernels of warps.
inline int lanes_of_wave = kWaveLanes;

// Calls body once for each thread of a block, with threadIdx set. Throws std::logic_error where threads wait for ones
// that have ended, or that wait elsewhere.
void run_block(int threads, const std::function<void()>& body);

// Until all threads of the block, or of the wave, have come here.
void wait_for_block();
void wait_for_wave();

// Lets other threads run, for a thread that waits until one of them has called tell_waiting().
void wait_for_others();
void tell_waiting();

}  // namespace mw::emulated

struct EmulatedIndex {
  unsigned x;
};
extern EmulatedIndex threadIdx, blockIdx, gridDim, blockDim;
