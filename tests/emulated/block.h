// A block of GPU threads on the CPU, or a cluster of blocks. Waves take turns, and the threads of a wave: each runs for
// as long as it need not wait for others at a barrier, so that what a kernel forgets to wait for is not there yet, or
// is already overwritten.
#pragma once

#include <functional>

namespace mw::emulated {

constexpr int kMaxThreads = 1024, kWaveLanes = 64;

// Lanes that run in lockstep; 32 for kernels of warps.
inline int lanes_of_wave = kWaveLanes;

// Calls body once for each thread of `blocks` blocks from blockIdx on, with threadIdx and blockIdx set. Throws
// std::logic_error where threads wait for ones that have ended, or that wait elsewhere, and after refuse().
void run_cluster(int blocks, int threads, const std::function<void()>& body);
inline void run_block(int threads, const std::function<void()>& body) { run_cluster(1, threads, body); }

// The thread that runs, of all of the cluster, and its block; whether any thread of a block still runs.
unsigned this_thread();
unsigned this_block();
bool is_running(unsigned block);
// The number of the run of a cluster.
unsigned this_run();
// Ends the run: a thread did what a GPU does not allow.
void refuse(const char* what);

// Until all threads of the cluster, of the block, or of the wave, have come here.
void wait_for_cluster();
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
