#include "train/signals.h"

#include <csignal>

namespace mw {
namespace {

volatile std::sig_atomic_t stop_flag = 0;

void on_signal(int) { stop_flag = 1; }

}  // namespace

void watch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGUSR1, &action, nullptr);
}

bool stop_requested(Comm& world) {
  int64_t flag = stop_flag;
  world.all_reduce_max(std::span(&flag, 1));
  return flag != 0;
}

}  // namespace mw
