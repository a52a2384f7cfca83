#include "cli/process_settings.h"

#include <malloc.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace mw {
namespace {

// Tasks of this machine that run or wait for a core, this one among them; 0 where /proc does not tell. The median of a
// few moments.
int runnable_tasks() {
  std::vector<int> seen;
  for (int i = 0; i < 5; ++i) {
    std::ifstream file("/proc/loadavg");  // "0.20 0.18 0.12 RUNNABLE/ALL LAST_PID"
    double average = 0;
    int runnable = 0;
    file >> average >> average >> average >> runnable;
    seen.push_back(file ? runnable : 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::sort(seen.begin(), seen.end());
  return seen[seen.size() / 2];
}

// By default OpenMP spins for milliseconds at every barrier, which makes steps tens of times slower as soon as cores
// are shared: a short spin, and a shorter one where tasks already wait for cores.
bool shorten_openmp_spin() {
  for (const char* name : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"})
    if (std::getenv(name) != nullptr) return false;
  const bool crowded = runnable_tasks() > static_cast<int>(std::thread::hardware_concurrency());
  setenv("GOMP_SPINCOUNT", crowded ? "1000" : "10000", 1);
  return true;
}

// oneDNN allocates aligned buffers for every product. glibc before 2.38 cuts each from a larger block, and where the
// small rest goes to the thread's cache, the block is never whole again: the heap of every thread grew by 30 MiB.
bool disable_thread_cache() {
  const char* name = "GLIBC_TUNABLES";
  const char* present = std::getenv(name);
  const std::string old = present == nullptr ? "" : present;
  if (old.find("glibc.malloc.tcache_count") != std::string::npos) return false;
  setenv(name, (old + (old.empty() ? "" : ":") + "glibc.malloc.tcache_count=0").c_str(), 1);
  return true;
}

// Where the kernel started the dynamic loader with this program as its argument, /proc/self/exe is the loader.
bool is_run_by_loader() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).filename().native().starts_with("ld");
}

// The access that failed is tried again, and ends the process.
void on_bus_error(int) {
  constexpr char kText[] =
      "moewright: error: bus error: a file that is being read became shorter, its disk failed, or /dev/shm is full\n"
      "  hint: data, weights and checkpoints must stay as they are while a command reads them; MPI needs /dev/shm\n";
  std::signal(SIGBUS, SIG_DFL);
  (void)!write(STDERR_FILENO, kText, sizeof kText - 1);
}

}  // namespace

// A program with file capabilities gets no tunables, however often it starts: it is not started again, nor is one that
// has been.
void restart_with_settings(char** argv) {
  const char* const kRestarted = "MOEWRIGHT_RESTARTED";
  if (std::getenv(kRestarted) != nullptr || getauxval(AT_SECURE) != 0 || is_run_by_loader()) {
    unsetenv(kRestarted);
    return;
  }
  const bool spin = shorten_openmp_spin(), cache = disable_thread_cache();
  if (!spin && !cache) return;
  setenv(kRestarted, "1", 1);
  execv("/proc/self/exe", argv);
}

// The matrix library allocates buffers for each product. glibc's heap would keep them, and grow for as long as sizes
// alternate: it returns only what was too large for the heap, and raises that limit with each such buffer, unless it is
// set.
void keep_large_buffers_off_heap() {
  if (std::getenv("MALLOC_MMAP_THRESHOLD_") != nullptr) return;
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 2 << 20);
}

void explain_bus_errors() { std::signal(SIGBUS, on_bus_error); }

}  // namespace mw
